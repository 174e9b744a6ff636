"""What an installation holds, and what importing it costs."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import mirrorq
from mirrorq import errors

PACKAGE = Path(mirrorq.__file__).parent
ROOT = Path(__file__).parents[1]


def in_a_fresh_process(code: str) -> object:
    """Run code in a new interpreter; return what it printed as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
        timeout=60,
    )
    return json.loads(done.stdout)


@pytest.mark.real
@pytest.mark.parametrize(
    ("use", "heavy"),
    [
        ("", {"attr", "msgspec", "lmdb", "zmq", "asyncio", "rich", "click", "_cffi_backend"}),
        ("mirrorq.connect, mirrorq.Client, mirrorq.MirroredQueue, mirrorq.Message", {"lmdb"}),
    ],
)
def test_importing_mirrorq_loads_nothing_that_was_not_asked_for(use: str, heavy: set[str]) -> None:
    """An import stays cheap. A process that is no node needs neither LMDB nor a disk."""
    loaded = in_a_fresh_process(
        f"""
        import sys, json
        before = set(sys.modules)
        import mirrorq
        {use}
        found = {{name.partition(".")[0] for name in set(sys.modules) - before}}
        print(json.dumps(sorted({heavy} & found)))
        """
    )
    assert loaded == []


def test_every_public_name_is_there() -> None:
    """Each name of `__all__` can be got, and `dir` shows it."""
    assert [name for name in mirrorq.__all__ if getattr(mirrorq, name) is None] == []
    assert set(mirrorq.__all__) <= set(dir(mirrorq))


def test_every_exception_is_public() -> None:
    """Whatever mirrorq raises can be caught by a name of the package."""
    assert set(errors.__all__) <= set(mirrorq.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    """A misspelt name is told as by any other module."""
    with pytest.raises(AttributeError, match="no_such_name"):
        mirrorq.no_such_name  # noqa: B018


def test_the_package_has_its_types_and_its_extension() -> None:
    """py.typed and the stub of the C part are installed, and the extension is the abi3 one."""
    from mirrorq._native import _wire

    assert (PACKAGE / "py.typed").is_file()
    assert (PACKAGE / "_native" / "_wire.pyi").is_file()
    assert Path(str(_wire.__file__)).name == "_wire.abi3.so"


def test_the_version_has_its_lines_in_the_changelog() -> None:
    """Who installs a version finds what it brings."""
    version = importlib.metadata.version("mirrorq")
    assert mirrorq.__version__ == version
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## {re.escape(version)}\b", changelog, re.MULTILINE)


def test_every_module_says_what_it_is() -> None:
    """The site's page of modules shows the first paragraph: one that fits a row of a table."""
    for path in PACKAGE.rglob("*.py"):
        head = (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").partition("\n\n")[0]
        assert 10 < len(head) < 400, path
        assert head[-1] in ".:?", path


def test_the_page_for_an_index_links_to_no_neighbour() -> None:
    """What a package index shows has no pictures and links that lead nowhere there."""
    code = (ROOT / "setup.py").read_text("utf-8").replace("setup(", "dict(")
    names = {"__file__": str(ROOT / "setup.py")}
    exec(compile(code, "setup.py", "exec"), names)
    text = names["page"]()  # type: ignore[operator]
    assert "# mirrorq" in text
    assert "Five minutes · write a worker" in text
    targets = re.findall(r"\]\(([^)]*)\)", text)
    assert [target for target in targets if not target.startswith(("http://", "https://"))] == []


def test_the_source_distribution_has_every_file() -> None:
    """It builds, tests and documents itself: what is there is there whole, or is named."""
    taken = {"pyproject.toml", "setup.py", "README.md", "MANIFEST.in"}
    for line in (ROOT / "MANIFEST.in").read_text("utf-8").splitlines():
        word, *names = line.split()
        taken.update(names if word in ("include", "graft") else [])
    made = (".", "build", "dist", "results", "pipeline-out", "src", "PKG-INFO", "setup.cfg")
    wanted = {path.name for path in ROOT.iterdir() if not path.name.startswith(made)}
    wanted -= {path.name for path in ROOT.glob("*.egg-info")}
    wanted |= {".ci", ".github", "src/mirrorq"}
    assert sorted(name for name in wanted if name not in taken) == []
