"""What a simulation plays is asked for in two places, and nobody goes past them."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2] / "src" / "mirrorq"
ROOMS = ("aio", "api", "engine", "node", "replication", "session", "cluster")
REAL = {
    "node/local.py": "starts and watches a process",
    "node/local_process.py": "is one",
    "node/spawned.py": "starts and watches a process",
    "node/spawned_process.py": "is one",
    "node/sigterm.py": "of the real process",
}
"""Modules that no simulation runs."""
PAST = {
    "time.sleep",
    "time.monotonic",
    "time.time",
    "time.monotonic_ns",
    "time.time_ns",
    "SimpleQueue",
    "_thread.start_new_thread",
    "start_new_thread",
    "threading.Event",
    "threading.Condition",
}


def calls_past(source: str) -> list[str]:
    """Calls that wait, or tell the time, as the machine does."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return [f"{call.lineno}: {name}" for call in calls if (name := ast.unparse(call.func)) in PAST]


FILES = [
    path
    for room in ROOMS
    for path in sorted((ROOT / room).rglob("*.py"))
    if str(path.relative_to(ROOT)) not in REAL
]


def test_time_and_threads_are_asked_for_where_they_can_be_played() -> None:
    """By `mirrorq.clock` and `mirrorq.waiting`."""
    found = {str(path): calls_past(path.read_text(encoding="utf-8")) for path in FILES}
    assert len(found) > 100
    assert {path: calls for path, calls in found.items() if calls} == {}


def test_the_search_finds_them() -> None:
    """The test above can fail."""
    assert calls_past("clock.sleep(1)\ntime.sleep(1)\nSimpleQueue()") == [
        "2: time.sleep",
        "3: SimpleQueue",
    ]
