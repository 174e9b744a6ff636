"""docs/troubleshooting.md quotes what mirrorq really says, and leaves no exception out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrorq import errors

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
BY_MESSAGE, _, BY_CLASS = PAGE.partition("\n## By class\n")
QUOTED = re.findall(r"^(?:### |\| )`([^`]+)`", BY_MESSAGE, re.MULTILINE)
GAP = "…"
FIELD = re.compile(r"%[-.\d]*[sdrg]")
"""Of a line for the log."""
FIXED_CHARS_MIN = 10


def texts_of(tree: ast.AST) -> Iterator[str]:
    """Every string of a module; what is filled in is a gap."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield FIELD.sub(GAP, node.value)
        elif isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else GAP for part in node.values
            )


@pytest.fixture(scope="module")
def said() -> list[str]:
    """Every text that the code has, without what only explains it."""
    found: list[str] = []
    for path in sorted((ROOT / "src" / "mirrorq").rglob("*.py")):
        found += texts_of(ast.parse(path.read_text(encoding="utf-8")))
    return [text for text in found if "\n" not in text]


def test_every_quoted_message_stands_in_the_source(said: list[str]) -> None:
    """Its fixed parts, in their order, in one text."""
    assert len(QUOTED) > 40
    missing = []
    for quoted in QUOTED:
        parts = [part for part in quoted.split(GAP) if part.strip()]
        assert max(map(len, parts)) >= FIXED_CHARS_MIN, quoted
        pattern = re.compile(".*".join(map(re.escape, parts)))
        if not any(pattern.search(text) for text in said):
            missing.append(quoted)
    assert missing == []


def test_every_exception_has_its_cure() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+) \| (.+) \|$", BY_CLASS, re.MULTILINE)
    assert {name for name, _, _ in rows} | {"MirrorQError"} == set(errors.__all__)
