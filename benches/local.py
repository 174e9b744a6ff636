"""One confirmed put on a local queue (`MirroredQueue(path=…)`), and what a disk and a thread take.

    python benches/local.py [--puts 200] [--rounds 5] [--path DIR] [--where PHASE]

In turn, and in one run: a bare synced write of a page to a preallocated file; the same by another
thread, which is told by a lock and tells by one (what any queue takes whose writes are not its
user's); SQLite with `synchronous=FULL`, with its write-ahead log and without; persist-queue, where
it is installed; and `put(b).result()`. A message has 100 bytes.

Then where the time of a put goes: microseconds (p50) from one mark to the next, and bytecodes of
Python between them, which no other work on the machine changes: those of a node whose rounds are
called by hand, on a played clock. `--where` names the functions that the bytecodes of one phase
are in.
"""

from __future__ import annotations

import argparse
import math
import os
import secrets
import sqlite3
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from mirrorq import MirroredQueue, clock
from mirrorq.api.handle import Handle
from mirrorq.engine.engine import Engine
from mirrorq.node import node as node_module
from mirrorq.node.node import Node
from mirrorq.store.write_ahead import FILE_BYTES, PAGE_BYTES, LogFile
from mirrorq.waiting import Doorbell
from step import Counts

BODY = b"x" * 100
WAIT_S = 60.0
WARM = 100
COUNTED = 20
"""Puts whose bytecodes are counted; all take the same steps."""
PAUSE_MS = 60
"""From one to the next, on the played clock: longer than anything that a put leaves to be done."""

MARKS: tuple[tuple[type, str, tuple[str, ...], tuple[str, ...]], ...] = (
    (Doorbell, "wait", (), ("the node's thread is woken",)),
    (
        Engine,
        "step",
        ("it is a request", "the node looks again"),
        ("it is an op of the queue", "the op is stable, and applied"),
    ),
    (LogFile, "write", ("it is a record of the log",), ("the record is synced",)),
    (Handle, "_end", (), ("the outcome is noted",)),
)
"""What a put goes through, in order: a method, and what is so at its begin, and at its end, the
first time and the second."""
PUT = "put() has returned"
RESULT = "result() has returned"

Put = Callable[[], object]


# --- What is compared -------------------------------------------------------------------------


class Bare:
    """A page to the next place of a preallocated file, durable when the write returns."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DSYNC)
        os.pwrite(self._file, bytes(FILE_BYTES), 0)
        self._offset = 0

    def put(self) -> None:
        os.pwritev(self._file, [BODY, bytes(PAGE_BYTES - len(BODY))], self._offset)
        self._offset = (self._offset + PAGE_BYTES) % FILE_BYTES

    def close(self) -> None:
        os.close(self._file)


class Threaded:
    """The same by another thread."""

    def __init__(self, path: Path) -> None:
        self._bare = Bare(path)
        self._told, self._done = threading.Lock(), threading.Lock()
        self._told.acquire()
        self._done.acquire()
        self._is_over = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while self._told.acquire(True, WAIT_S) and not self._is_over:
            self._bare.put()
            self._done.release()

    def put(self) -> None:
        self._told.release()
        self._done.acquire(True, WAIT_S)

    def close(self) -> None:
        self._is_over = True
        self._told.release()
        self._thread.join()
        self._bare.close()


@contextmanager
def sqlite(path: Path, journal: str) -> Iterator[Put]:
    """An insert that is a transaction."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"pragma journal_mode={journal}")
        connection.execute("pragma synchronous=FULL")
        connection.execute("create table queue(id integer primary key, body blob)")
        yield lambda: connection.execute("insert into queue(body) values(?)", (BODY,))


@contextmanager
def persist_queue(path: Path) -> Iterator[Put]:
    from persistqueue import SQLiteAckQueue  # type: ignore[import-not-found]

    with closing(SQLiteAckQueue(str(path), auto_commit=True, multithreading=True)) as queue:
        yield lambda: queue.put(BODY)


def peers(stack: ExitStack, place: Path) -> dict[str, Put]:
    """All that is compared, in the order of the table."""
    found: dict[str, Put] = {
        "bare write": stack.enter_context(closing(Bare(place / "bare"))).put,
        "bare, by a thread": stack.enter_context(closing(Threaded(place / "thread"))).put,
        "SQLite FULL, WAL": stack.enter_context(sqlite(place / "wal", "wal")),
        "SQLite FULL": stack.enter_context(sqlite(place / "sqlite", "delete")),
    }
    try:
        found["persist-queue"] = stack.enter_context(persist_queue(place / "persist"))
    except ImportError:
        print("persist-queue is not installed: pip install persist-queue")
    queue = stack.enter_context(MirroredQueue("bench", path=place / "local"))
    found["local queue"] = lambda: queue.put(BODY).result(WAIT_S)
    return found


def times_us(put: Put, count: int) -> list[float]:
    found = []
    for _ in range(count):
        begun = time.perf_counter()
        put()
        found.append((time.perf_counter() - begun) * 1e6)
    return found


def compared(place: Path, puts: int, rounds: int) -> dict[str, list[float]]:
    """How long each put of each took."""
    with ExitStack() as stack:
        all_of = peers(stack, place)
        for put in all_of.values():
            times_us(put, WARM)
        found: dict[str, list[float]] = {name: [] for name in all_of}
        for _ in range(rounds):
            for name, put in all_of.items():
                found[name] += times_us(put, puts)
    return found


# --- Where the time goes ----------------------------------------------------------------------


class Marks:
    """Has `on_mark` called wherever a put is one phase further."""

    def __init__(self, on_mark: Callable[[str], None]) -> None:
        self._on_mark = on_mark
        self._seen: Counter[tuple[str, ...]] = Counter()
        for owner, name, at_begin, at_end in MARKS:
            setattr(owner, name, self._marked(getattr(owner, name), at_begin, at_end))

    def begin(self) -> None:
        """The next put comes."""
        self._seen.clear()

    def _marked(
        self, method: Callable[..., Any], at_begin: tuple[str, ...], at_end: tuple[str, ...]
    ) -> Callable[..., Any]:
        def marked(*arguments: Any) -> Any:
            self._mark(at_begin)
            try:
                return method(*arguments)
            finally:
                self._mark(at_end)

        return marked

    def _mark(self, names: tuple[str, ...]) -> None:
        count = self._seen[names]
        if count < len(names):
            self._seen[names] += 1
            self._on_mark(names[count])


class PhaseCounts(Counts):
    """Bytecodes of each phase, by function."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: dict[str, list[dict[str, int]]] = {}
        self._since: dict[str, int] = {}

    def note(self, frame: FrameType) -> None:
        code = frame.f_code
        if code.co_filename != __file__:
            name = f"{Path(code.co_filename).stem}.{code.co_qualname}"
            self._since[name] = self._since.get(name, 0) + 1

    def end(self, phase: str) -> None:
        """What was counted since the last phase is this one's. Counts while it runs: no Python of
        others may."""
        self._parts.setdefault(phase, []).append(self._since)
        self._since = {}

    def phases(self) -> dict[str, Counter[str]]:
        """Of all puts together."""
        return {
            phase: sum(map(Counter, parts), start=Counter()) for phase, parts in self._parts.items()
        }


class Played:
    """A node without a thread of its own, on a clock of its own, with a handle on a queue."""

    def __init__(self, place: Path) -> None:
        self._now_ms = 1_000_000
        clock.now_ms = lambda: self._now_ms
        clock.wall_us = lambda: 1_700_000_000_000_000 + 1000 * self._now_ms
        vars(node_module).update(begin_thread=lambda _: None)
        secrets.randbits = lambda _: 1
        self._node = Node("node", path=place)
        self.round = self._node._driver._round
        self.run(5000)
        self.queue = self._opened()
        self.run(1000)

    def _opened(self) -> MirroredQueue:
        found: list[MirroredQueue] = []
        caller = threading.Thread(target=lambda: found.append(self._node.queue("bench")))
        caller.start()
        while caller.is_alive():
            self.run(1)
            caller.join(0.001)
        return found[0]

    @property
    def is_due(self) -> bool:
        """Whether the node has something to do now."""
        return not self._node._driver._timeout_ms()

    def run(self, duration_ms: int) -> None:
        """Let so much time pass, and everything happen that is due in it."""
        end_ms = self._now_ms + duration_ms
        while self._now_ms < end_ms:
            while self.is_due:
                self.round()
            self._now_ms = min(end_ms, self._now_ms + self._node._driver._timeout_ms())

    def close(self) -> None:
        self._node._store.close()


def counted(place: Path) -> dict[str, Counter[str]]:
    """Bytecodes of `COUNTED` puts, by phase and function."""
    played, counts = Played(place), PhaseCounts()
    for _ in range(WARM):
        played.queue.put(BODY)
        played.run(PAUSE_MS)
    marks = Marks(counts.end)
    for _ in range(COUNTED):
        played.run(PAUSE_MS)
        marks.begin()
        counts.run(lambda: played.queue.put(BODY))
        counts.end(PUT)
        while played.is_due:
            counts.run(played.round)
        counts.end(RESULT)
    played.close()
    return counts.phases()


def timed(place: Path, puts: int) -> dict[str, float]:
    """Of each phase of a put its median, in microseconds; of those that took the usual way."""
    noted: list[tuple[float, str]] = []
    marks = Marks(lambda phase: noted.append((time.perf_counter(), phase)))
    runs: list[list[tuple[float, str]]] = []
    with MirroredQueue("bench", path=place) as queue:
        for _ in range(WARM + puts):
            marks.begin()
            noted.clear()
            noted.append((time.perf_counter(), ""))
            confirmation = queue.put(BODY)
            noted.append((time.perf_counter(), PUT))
            confirmation.result(WAIT_S)
            noted.append((time.perf_counter(), RESULT))
            runs.append(sorted(noted))
    orders = Counter(tuple(phase for _, phase in run) for run in runs[WARM:])
    usual = orders.most_common(1)[0][0]
    alike = [run for run in runs[WARM:] if tuple(phase for _, phase in run) == usual]
    return {
        phase: statistics.median((run[at][0] - run[at - 1][0]) * 1e6 for run in alike)
        for at, phase in enumerate(usual)
        if at
    }


# --- The tables -------------------------------------------------------------------------------


def print_compared(found: dict[str, list[float]]) -> None:
    print(f"{'one durable message, us':24}{'p50':>8}{'p99':>8}{'p50 / bare':>12}")
    bare = statistics.median(next(iter(found.values())))
    for name, times in found.items():
        cuts = statistics.quantiles(times, n=100, method="inclusive")
        print(f"{name:24}{cuts[49]:8.0f}{cuts[98]:8.0f}{cuts[49] / bare:12.2f}")


def print_phases(times: dict[str, float], counts: dict[str, Counter[str]]) -> None:
    print(f"\n{'one put, until':32}{'us':>8}{'bytecodes':>12}")
    for phase, each in counts.items():
        took = times.get(phase, math.nan)
        print(f"{phase:32}{took:8.0f}{each.total() / COUNTED:12.0f}")
    total = sum(each.total() for each in counts.values()) / COUNTED
    print(f"{'in all':32}{sum(times.values()):8.0f}{total:12.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--puts", type=int, default=200, help="in each round, of each")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--path", type=Path, help="directory on the disk that counts")
    parser.add_argument("--where", help="name the functions of this phase")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mirrorq-local-", dir=options.path) as folder:
        place = Path(folder)
        print_compared(compared(place, options.puts, options.rounds))
        times = timed(place / "timed", options.puts * options.rounds)
        # Last: it plays the clock.
        counts = counted(place / "counted")
    print_phases(times, counts)
    for function, bytecodes in counts.get(options.where, Counter()).most_common():
        print(f"{bytecodes / COUNTED:10.1f}  {function}")


if __name__ == "__main__":
    main()
