"""The pages for users speak the field's language: no word of the inside, and no glossary of words
that nothing uses any more."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FOR_DEVELOPERS = {"architecture.md", "decisions.md", "disk-format.md", "protocol.md"}
PAGES = sorted(
    [ROOT / "README.md", *(p for p in DOCS.glob("*.md") if p.name not in FOR_DEVELOPERS)]
)
INSIDE = {
    "reign": "term of a master",
    "horizon": "delivery high-water mark",
    "lane": "priority",
    "taker": "lease holder",
    "errand": "message between queues",
    "parcel": "message on its way to another queue",
    "courier": "what sends dead letters on",
    "doorkeeper": "admission control",
    "petition": "request",
    "census": "load counts",
    "outlook": "node states",
    "vacancy": "auto-delete",
    "giveback": "release",
    "hand-out": "delivery",
    "hand-outs": "deliveries",
    "handout": "delivery",
}
"""Words of the code, or that were, and what users call it."""


def test_pages_for_users_have_no_word_of_the_inside() -> None:
    texts = {page.name: page.read_text("utf-8").lower() for page in PAGES}
    found = [
        f"{page}: {word}: {plain}"
        for page, text in texts.items()
        for word, plain in INSIDE.items()
        if re.search(rf"\b{word}\b", text)
    ]
    assert found == []


HARD = {
    r"\bbut (for|by)\b": "except",
    r"\bmended\b": "corrected",
    r"\bwhoever\b": "name the subject",
    r"\bhas since\b": "say what is so now",
    r"\bthe own\b": "its own, this node's",
    r"\bthose who\b": "name the subject",
    r"\bDESIGN \d": "say the rule",
}
"""What readers stumbled over on the pages, and what to write."""


def test_pages_for_users_are_read_once() -> None:
    found = [
        f"{page.name}:{number}: {plain}: {line.strip()[:80]}"
        for page in PAGES
        for number, line in enumerate(page.read_text("utf-8").splitlines(), 1)
        for hard, plain in HARD.items()
        if re.search(hard, line)
    ]
    assert found == []


WORDS_MAX = 35_000
"""Of all pages for users, code included; tables that commands write are left out."""
WRITTEN = re.compile(r"<!-- (.+?): begin -->.*?<!-- \1: end -->", re.DOTALL)


def test_the_pages_for_users_stay_short() -> None:
    """Whoever adds a page makes others shorter."""
    counts = {
        page.name: sum(
            bool(re.search(r"\w", word))
            for word in WRITTEN.sub("", page.read_text("utf-8")).split()
        )
        for page in PAGES
    }
    assert sum(counts.values()) <= WORDS_MAX, sorted(counts.items(), key=lambda item: -item[1])


def test_each_word_of_the_glossary_is_used_somewhere() -> None:
    """On another page, in a name or in a text of the code; else it explains what is gone."""
    concepts = (DOCS / "concepts.md").read_text("utf-8")
    words = re.findall(r"\*\*([^*]+)\*\*", concepts.partition("## Glossary")[2])
    assert len(words) > 10
    texts = [p.read_text("utf-8").lower() for p in PAGES if p.name != "concepts.md"]
    texts += [p.read_text("utf-8").lower() for p in (ROOT / "src").rglob("*.py")]
    unused = [word for word in words if not any(word.lower() in text for text in texts)]
    assert not unused


def test_the_index_of_decisions_lists_every_record() -> None:
    """By number, title, page and status; numbers are unique over all pages."""
    rooms = DOCS / "decisions"
    index = (DOCS / "decisions.md").read_text("utf-8")
    listed = re.findall(
        r"^\| (\d+) \| (.*) \| \[.*\]\(decisions/(.*)\) \| (.*) \|$", index, re.MULTILINE
    )
    record = re.compile(r"^### (\d+)\. (.*)\n\nStatus: (.*)$", re.MULTILINE)
    found = [
        (number, title, page.name, status)
        for page in rooms.glob("*.md")
        for number, title, status in record.findall(page.read_text("utf-8"))
    ]
    assert sorted(found) == sorted(listed)
    numbers = [number for number, *_ in found]
    assert len(set(numbers)) == len(numbers) > 100


CLUMSY = {
    r"\banew\b": "again",
    r"\bis no more\b": "no longer exists",
    r"\b(is|are) no (?!longer\b|majority\b)[a-z]+:": "is not a …",
    r": it is (a|one of|at most|from|0 or)\b": "it must be …",
}
"""Not wrong, and read twice."""
LEVELS = {"debug", "info", "warning", "error", "critical", "exception"}
FOR_READERS = LEVELS | {"echo", "option", "argument"}
"""Calls whose texts somebody reads."""


def texts_for_readers(tree: ast.AST) -> Iterator[str]:
    """What is raised, logged, or said by a command; what is filled in is left out."""
    for node in ast.walk(tree):
        call: ast.AST | None = node.exc if isinstance(node, ast.Raise) else None
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            call = node if name in FOR_READERS else None
        for part in ast.walk(call) if isinstance(call, ast.Call) else ():
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.value


def test_errors_logs_and_help_speak_as_the_pages_do() -> None:
    """No word of the inside, and none of the turns that a reader stumbles over."""
    found, count = [], 0
    patterns = CLUMSY | {rf"\b{word}\b": plain for word, plain in INSIDE.items()}
    for room in ("src/mirrorq", "spark_integration"):
        for path in sorted((ROOT / room).rglob("*.py")):
            for text in texts_for_readers(ast.parse(path.read_text("utf-8"))):
                count += 1
                found += [
                    f"{path.name}: {text!r}: {plain}"
                    for wrong, plain in patterns.items()
                    if re.search(wrong, text)
                ]
    assert count > 1000
    assert found == []


POINTING = re.compile(
    r"\b(it|its|they|them|one|ones|that|those|these|this|such|who|whom|whose|others|"
    r"somebody|nobody|anybody|what|whoever|whatever)\b",
    re.IGNORECASE,
)
"""Words that only point elsewhere."""
POINTING_MAX = 0.07
"""Their share of a room's docstrings; asyncio has 3.4 %, trio 5.2 %."""


def _docstrings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            value = getattr(statement, "value", None)
            if isinstance(statement, ast.Expr) and isinstance(value, ast.Constant):
                yield str(value.value)


def test_docstrings_name_their_subjects() -> None:
    """In no room more than so many words only point elsewhere."""
    rooms: dict[str, list[str]] = {}
    base = ROOT / "src" / "mirrorq"
    for path in sorted(base.rglob("*.py")):
        parts = path.relative_to(base).parts
        rooms.setdefault(parts[0] if len(parts) > 1 else "(root)", []).extend(_docstrings(path))
    shares = {
        room: sum(len(POINTING.findall(text)) for text in texts)
        / max(sum(len(re.findall(r"[A-Za-z']+", text)) for text in texts), 1)
        for room, texts in rooms.items()
    }
    above = {room: round(share, 3) for room, share in shares.items() if share > POINTING_MAX}
    assert above == {}, "room: share of words that only point elsewhere; name the subject"


VAGUE_VERBS = {"begin", "end", "note", "run", "step", "take"}
"""A reader who searches for such a name finds a hundred methods."""
VAGUE_VERBS_MAX = 21
NO_CORE = {"contrib", "dashboard", "demo", "testing"}


def test_methods_say_what_happens_to_what() -> None:
    """Few methods have a name as general as `take`: machines' `step`, threads' `run`."""
    base = ROOT / "src" / "mirrorq"
    found = [
        f"{path.stem}.{kind.name}.{part.name}"
        for path in sorted(base.rglob("*.py"))
        if path.relative_to(base).parts[0] not in NO_CORE
        for kind in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(kind, ast.ClassDef)
        for part in kind.body
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and part.name in VAGUE_VERBS
    ]
    assert len(found) <= VAGUE_VERBS_MAX, found
