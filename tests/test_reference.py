"""The reference leaves nothing public out: the site shows only what has a docstring."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import griffe
import pytest

import mirrorq
import mirrorq.aio
import mirrorq.errors
from test_public_api import loaded, promised, shown

pytestmark = [pytest.mark.real, pytest.mark.slow]

ROOT = Path(__file__).parents[1]
NAME = re.compile(r"^::: mirrorq\.(\S+)\n((?:    .*\n)*)", re.MULTILINE)
WHOLE = "inherited_members: true"
REFERS = re.compile(r"\b[Aa]s (in|of|for|with|`)|[Ss]ee `|`mirrorq\.\w+")
"""What a docstring leaves to another one that it names."""
THING = (
    "The",
    "A",
    "An",
    "Every",
    "What",
    "Whether",
    "How",
    "Messages",
    "Items",
    "Names",
    "(queue",
)
"""A summary that begins so says itself what is returned."""
THREADS = re.compile(r"[Tt]hreads?\b|\bloop\b")
USED = {
    *("MirroredQueue", "Node", "Client", "Message", "Confirmation", "Settlement", "Consumer"),
    *("Exchange", "bulk.Claim", "bulk.RangeLease", "SpawnedNode", "api.transactions.Transaction"),
    *("SpooledQueue", "SpoolClient", "SpoolConfirmation", "Forwarder"),
}
"""Classes on whose objects several threads may come together."""
EXAMPLE = re.compile(r"Example:\n((?:    .*\n|\n)+)")


def test_every_public_member_has_a_docstring() -> None:
    """Attributes, too: one without is missing on the page, without a warning. So is what a class
    has from another one, where the page does not ask for it."""
    package = griffe.load("mirrorq", search_paths=[ROOT / "src"], resolve_aliases=True)
    pages = sorted((ROOT / "docs").glob("reference*.md"))
    named = NAME.findall("".join(page.read_text("utf-8") for page in pages))
    public = {name for name in mirrorq.__all__ if name not in mirrorq.errors.__all__}
    assert public <= {name for name, _ in named}
    seen: set[str] = set()
    missing: list[str] = []
    for name, block in [*named, *((f"aio.{one}", WHOLE) for one in mirrorq.aio.__all__)]:
        filters = re.search(r"filters: (.*)", block)
        hidden = [one[1:] for one in json.loads(filters[1])] if filters else ["^_"]
        shown = package[name]
        is_whole = WHOLE in block
        for member, what in promised(shown).items():
            if any(re.search(one, member) for one in hidden) or (shown.is_module and what.is_alias):
                continue
            seen.add(f"{name}.{member}")
            if not (what.has_docstring and (is_whole or member in shown.members)):
                missing.append(f"{name}.{member}")
    assert not missing, ", ".join(missing)
    assert {
        "Message.body",
        "QueueStatus.messages_ready",
        "Confirmation.exception",
        "MirroredQueue.name",
    } <= seen


def _calls() -> dict[str, Any]:
    """Each public function and method by the name that users know, each once."""
    modules, found = loaded(), {}

    def visit(name: str, what: Any, hidden: list[str]) -> None:
        what = what.final_target if what.is_alias else what
        if what.is_function and not name.rpartition(".")[2].startswith("__"):
            found.setdefault(what.path, (name, what))
        elif what.is_class:
            for member, each in what.all_members.items():
                if not any(re.search(one, member) for one in hidden):
                    visit(f"{name}.{member}", each, hidden)

    for name, hidden in sorted(shown().items()):
        visit(name, modules[name], hidden)
    return dict(found.values())


def _missing(call: Any) -> Iterator[str]:
    """What the docstring of a call does not say."""
    text = call.docstring.value if call.docstring else ""
    line = " ".join(text.split())
    if not text:
        yield "a docstring"
    if REFERS.search(line):
        return
    names = [one.name for one in call.parameters if one.name not in ("self", "cls")]
    yield from (f"argument {name}" for name in names if not re.search(rf"\b{name}\b", text))
    waits = "timeout" in names
    if waits and not re.search(r"seconds?\b|`timeout` s", line):
        yield "the unit of timeout"
    raises = any(isinstance(one, ast.Raise) and one.exc for one in _statements(call))
    if (waits or raises) and "Raises:" not in text and "Raises nothing" not in line:
        yield "what it raises"
    if str(call.returns) not in ("None", "Self") and not line.startswith(THING):
        if not re.search(r"[Rr]eturn", line):
            yield f"what it returns ({call.returns})"


def _statements(call: Any) -> Iterator[ast.AST]:
    """Of the call itself, without the functions in it."""
    todo: list[ast.AST] = list(ast.parse(dedent("\n".join(call.lines))).body[0].body)  # type: ignore[attr-defined]
    while todo:
        one = todo.pop()
        yield one
        if not isinstance(one, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            todo += ast.iter_child_nodes(one)


def test_every_public_call_says_what_it_takes_gives_and_raises() -> None:
    """Each argument by its name, seconds as seconds, results and errors; or names the call where
    that stands."""
    calls = _calls()
    assert len(calls) > 200
    wrong = {name: list(_missing(call)) for name, call in calls.items()}
    assert not {name: why for name, why in wrong.items() if why}


def test_what_is_used_from_threads_says_which() -> None:
    modules = loaded()
    for name in sorted(USED):
        text = _class(modules, name).docstring.value
        assert THREADS.search(text), name


def _class(modules: Any, name: str) -> Any:
    what = modules[f"mirrorq.{name}"]
    return what.final_target if what.is_alias else what


def _examples() -> dict[str, str]:
    """The code of each docstring that has an example."""
    found: dict[str, str] = {}
    modules = loaded()
    for name, what in [
        *_calls().items(),
        *((one, _class(modules, one)) for one in USED),
    ]:
        example = EXAMPLE.search((what.docstring.value if what.docstring else "") + "\n")
        if example:
            found[name] = re.sub(r"```(python)?", "", dedent(example[1]))
    return found


def test_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they stand; `node`, `queue` and the endpoints are there."""
    examples = _examples()
    assert {"MirroredQueue", "mirrorq.MirroredQueue.consume", "mirrorq.connect"} <= set(examples)
    for number, (name, example) in enumerate(examples.items()):
        place = tmp_path / str(number)
        place.mkdir()
        monkeypatch.chdir(place)
        with mirrorq.Node("a", path="node", listen="tcp://127.0.0.1:*") as node:
            code = re.sub(r"tcp://127\.0\.0\.1:\d+", node.listening, example)
            with node.queue("example") as queue:
                known = {"mirrorq": mirrorq, "node": node, "queue": queue}
                exec(compile(code, name, "exec"), known)
