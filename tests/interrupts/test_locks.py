"""Where a thread of a user may meet a lock, read from the source: nowhere but where it is listed.

An exception from a signal handler leaves `lock.acquire()` before `try:` taken, and what of
`threading` is written in Python too; a thread's `start` waits with such a lock. See `waiting`.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2] / "src" / "mirrorq"

APART = ("testing", "demo", "cli", "dashboard")
"""Packages whose threads no handle waits for."""
ALLOWED = {
    "waiting.py": "is where it is done right",
    "api/logs.py": "on other threads than the main one, which signals interrupt",
    "api/sharing.py": "on threads of its own, which nothing interrupts",
    "client/connect_errors.py": "between threads of one call, which ends with it",
    "node/spawned_process.py": "the process of a node, which runs nothing of a user",
    "store/environment.py": "the node thread's, and a thread's that closes the store",
    "store/copies.py": "between a backup and its watcher",
    "transport/probe.py": "a thread that tries one address",
    "aio/threads.py": "never waited for: whoever is first takes it",
}
PYTHON_OF_THREADING = ("Condition", "Event", "Lock", "Semaphore", "BoundedSemaphore", "Barrier")


def files() -> list[Path]:
    return sorted(
        path
        for path in ROOT.rglob("*.py")
        if path.relative_to(ROOT).parts[0] not in APART
        and str(path.relative_to(ROOT)) not in ALLOWED
    )


def dangers(source: str) -> list[str]:
    """Calls that a thread of a user must not make, as `line: source`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ExceptHandler):
            if isinstance(node.type, ast.Name) and node.type.id == "Exception":
                found.append(f"{node.lineno}: except Exception")
            continue
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        owner, _, last = name.rpartition(".")
        is_lock = last == "acquire" and owner
        is_python = owner == "threading" and last in PYTHON_OF_THREADING
        is_start = last == "start" and "thread" in owner.lower()
        if is_lock or is_python or is_start:
            found.append(f"{node.lineno}: {name}(…)")
    return found


def test_no_thread_of_a_user_can_leave_a_lock_taken() -> None:
    """`with` on an RLock of C is what is left; and who calls what users gave catches all of it."""
    found = {str(path): dangers(path.read_text(encoding="utf-8")) for path in files()}
    assert len(found) > 100
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_the_search_finds_them() -> None:
    """The test above can fail: each form that it knows is found, and harmless ones are not."""
    assert dangers("self._lock.acquire()\nthreading.Event()\nthreading.Condition(lock)") == [
        "1: self._lock.acquire(…)",
        "2: threading.Event(…)",
        "3: threading.Condition(…)",
    ]
    assert dangers("self._thread.start()\ntry:\n    f()\nexcept Exception:\n    pass") == [
        "1: self._thread.start(…)",
        "4: except Exception",
    ]
    harmless = "threading.RLock()\nacquire(use)\nself._timer.start()\nwith lock:\n    f()"
    assert dangers(harmless) == []


def test_what_is_allowed_exists() -> None:
    """The list names no file that is gone."""
    assert [name for name in ALLOWED if not (ROOT / name).exists()] == []
