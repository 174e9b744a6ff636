"""PySyncObj's ReplQueue on three processes; it has no acknowledgements: what is got is gone.

python -m compare.pysyncobj_peer SELF OTHER OTHER [JOURNAL]     # one of the other two
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from compare.peer import OUTCOME_S, START_S, Absent, Peer, Session, module_needed, server
from mirrorq.demo.ports import free_ports


class Replicated:
    """Commands under way are counted; a refused one (the leader's queue is full) is a failure."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self._changed = threading.Condition()
        self._open = 0
        self._failure = ""

    def publish(self, body: bytes, count: int, in_flight: int) -> None:
        for _ in range(count):
            self._begin(in_flight)
            self._queue.put(body, callback=self._ended)
        self._wait_all()

    def take(self, count: int) -> None:
        for _ in range(count):
            self._begin(10_000)
            self._queue.get(callback=self._ended)
        self._wait_all()

    def _begin(self, in_flight: int) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._open < in_flight, OUTCOME_S):
                raise TimeoutError(f"{self._open} commands open after {OUTCOME_S:.0f} s")
            self._open += 1

    def _ended(self, result: Any, error: Any) -> None:
        with self._changed:
            self._open -= 1
            if error:
                self._failure = f"a command ended with reason {error}"
            self._changed.notify()

    def _wait_all(self) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: not self._open, OUTCOME_S):
                raise TimeoutError(f"{self._open} commands open after {OUTCOME_S:.0f} s")
            if self._failure:
                raise RuntimeError(self._failure)


def member(own: str, others: list[str], journal: str | None, flushed: bool) -> tuple[Any, Any]:
    """One node. PySyncObj flushes its journal when it ends; `flushed` does it after each write."""
    import pysyncobj.journal
    from pysyncobj import SyncObj, SyncObjConf
    from pysyncobj.batteries import ReplQueue

    if flushed:
        add = pysyncobj.journal.FileJournal.add

        def add_and_flush(self: Any, *entry: Any) -> None:
            add(self, *entry)
            self.flush()

        pysyncobj.journal.FileJournal.add = add_and_flush
    queue = ReplQueue()
    # Its log is compacted by a fork that pickles the queue; not during a run.
    settings = {"commandsQueueSize": 1 << 20, "logCompactionMinEntries": 1 << 40}
    settings |= {"logCompactionMinTime": 1 << 30, "appendEntriesBatchSizeBytes": 1 << 20}
    conf = SyncObjConf(journalFile=journal, **settings)
    return SyncObj(own, others, consumers=[queue], conf=conf), queue


@contextmanager
def _start(directory: Path, journal: bool, flushed: bool) -> Iterator[Session]:
    module_needed("pysyncobj", "pysyncobj")
    addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
    with ExitStack() as stack:
        for number in (1, 2):
            own = addresses[number]
            command = [sys.executable, "-m", "compare.pysyncobj_peer", own]
            command += [each for each in addresses if each != own]
            if journal:
                command.append(str(directory / f"{number}.journal"))
                command.append("flushed" if flushed else "not")
            here = {"PYTHONPATH": str(Path(__file__).parents[1])}
            stack.enter_context(server(command, directory / f"{number}.log", here))
        file = str(directory / "0.journal") if journal else None
        node, queue = member(addresses[0], addresses[1:], file, flushed)
        stack.callback(node.destroy)
        deadline = time.monotonic() + START_S
        while not (node.isReady() and node._getLeader() is not None):
            if time.monotonic() > deadline:
                raise Absent(f"no leader after {START_S:.0f} s")
            time.sleep(0.1)
        yield Replicated(queue)


PEERS = [
    Peer(
        "PySyncObj",
        "replicated",
        "in the memory of two of three processes",
        lambda path: _start(path, False, False),
    ),
    Peer(
        "PySyncObj, journal",
        "replicated",
        "page cache of two of three processes",
        lambda path: _start(path, True, False),
    ),
    Peer(
        "PySyncObj, journal flushed",
        "replicated",
        "fsynced on two of three (the flush is added here)",
        lambda path: _start(path, True, True),
    ),
]


def main() -> None:
    own, *others = sys.argv[1:4]
    journal = sys.argv[4] if len(sys.argv) > 4 else None
    member(own, others, journal, sys.argv[5:] == ["flushed"])
    threading.Event().wait()


if __name__ == "__main__":
    main()
