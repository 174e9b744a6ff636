"""A budget of code for each room: the library does not grow unseen.

Code is each line with a token that is no comment, docstring or import. A room that needs more than
its budget deletes something, or its commit says why the number here is raised.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

import mirrorq

LIBRARY = Path(mirrorq.__file__).parent
NO_CODE = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}
BUDGETS = {
    "(root)": 779,
    "_native": 81,
    "aio": 1_104,
    "arrow": 226,
    "api": 5_509,
    "bulk": 766,
    "cli": 2_327,
    "client": 1_338,
    "cluster": 4_356,
    "containers": 1_139,
    "contrib": 1_793,
    "dashboard": 430,
    "demo": 834,
    "engine": 2_334,
    "monitoring": 442,
    "node": 5_138,
    "protocol": 2_084,
    "replication": 9_087,
    "security": 367,
    "session": 677,
    "spool": 1_586,
    "store": 2_662,
    "testing": 1_553,
    "transport": 1_880,
    "wire": 1_013,
}


def code_lines(path: Path) -> int:
    """Count the lines of code of one module."""
    source = path.read_text("utf-8")
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant(value=str())):
                left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - left_out)


def room_of(path: Path) -> str:
    """The folder below the library that a module is in."""
    parts = path.relative_to(LIBRARY).parts
    return parts[0] if len(parts) > 1 else "(root)"


def test_no_room_has_more_code_than_its_budget() -> None:
    found: Counter[str] = Counter()
    for path in sorted(LIBRARY.rglob("*.py")):
        found[room_of(path)] += code_lines(path)
    assert found.keys() == BUDGETS.keys()
    above = {room: (count, BUDGETS[room]) for room, count in found.items() if count > BUDGETS[room]}
    assert above == {}, "room: (lines of code, budget)"
