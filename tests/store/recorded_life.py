"""`python -m store.recorded_life PATH SEED COMMITS [BUG]`: a life of one store, told by marks.

All that a node ever asks of its store, in random order and sizes: appends, cuts, checkpoints
with releases, those in pages, states that come page by page, transfers, deleted queues, Raft's
writes, small values, closes and starts, and the rail's records beside all of it. With one of
`log_bugs` it is the life of a store that does not keep its word.
"""

from __future__ import annotations

import hashlib
import random
import sys
from pathlib import Path
from typing import Any

from msgspec.structs import astuple

from mirrorq.protocol.effects import (
    Page,
    QueueWrite,
    RaftEntry,
    RaftSnapshot,
    RaftState,
    RaftWrite,
    SnapshotPage,
)
from mirrorq.protocol.identities import StoreId
from mirrorq.protocol.ops import Entry
from mirrorq.store import environment, queue_log, runs, write_ahead
from mirrorq.store.node_store import Store

from . import log_bugs
from .recording import mark
from .writing import NEIGHBOUR, QUEUE, Writer, open_store

Place = tuple[int, int]
PLACES: list[Place] = [(kind, first) for kind in (0, 1, 2) for first in (0, 7, 1 << 40)]
"""Of pages: kind, first."""
NAMES = ("one", "two")
"""Of the small values."""


def small_bounds() -> None:
    """Few ops reach every case: runs that are cut, leftovers, a growing map, a log that fills."""
    runs.RUN_BYTES_MAX = 20_000
    queue_log.DELETED_RUNS_MAX = 2
    environment.MAP_BYTES_START = 256 << 10
    write_ahead.FILE_BYTES = 24 << 10
    write_ahead.GROUP_BYTES_MAX = 16 << 10


def facts(store: Store) -> dict[str, Any]:
    """Everything that a node would be told, as one digest; hints are left out."""
    digest = hashlib.sha256()

    def add(*values: object) -> None:
        digest.update(repr(values).encode())

    last_lsn = {}
    for queue_id in store.queue_ids():
        image = store.load(queue_id)
        last_lsn[queue_id] = image.entries[-1].lsn if image.entries else image.state_lsn
        add(queue_id, image.state, image.state_lsn, image.lacking)
        add([*map(astuple, image.pages)], [*map(astuple, image.stale)])
        add([entry.frame for entry in image.entries])
        add([bytes(frame) for frame in store.read(queue_id, 1, 1 << 40, 1 << 40)])
    raft = store.raft_image()
    add(raft)
    add([store.get_meta(name) for name in NAMES])
    return {
        "digest": digest.hexdigest(),
        "incarnation": store.incarnation,
        "store_id": store.store_id,
        "last_lsn": last_lsn,
        "raft": len(raft.entries),
    }


class Log:
    """One queue as the replica above the store knows it."""

    def __init__(self, queue_id: int, chance: random.Random) -> None:
        self.queue_id = queue_id
        self._chance = chance
        self._epoch = 1
        self.forget()

    def forget(self) -> None:
        self._log: list[Entry] = []
        self._old: list[Entry] = []
        self._state_lsn = 0
        self._released = 0
        self._pages: dict[Place, int] = {}
        """Pages that count -> their lsn."""

    def _made(
        self, sizes: tuple[int, ...] = (5, 100, 900, 4000, 15_000), count_max: int = 6
    ) -> tuple[Entry, ...]:
        writer = Writer(self.queue_id, self._epoch)
        held = self._old + self._log
        writer.lsn = self._log[-1].lsn if self._log else self._state_lsn
        writer.sequence = max(
            (e.header.last_sequence for e in held if e.payload is None), default=0
        )
        entries = []
        for _ in range(self._chance.randint(1, count_max)):
            if self._chance.random() < 0.3:
                entries.append(writer.ack(1, 1))
                continue
            size = self._chance.choice(sizes)
            count = self._chance.randint(1, 5)
            entries.append(writer.publish([self._chance.randbytes(size) for _ in range(count)]))
        return tuple(entries)

    def append(self, **shape: Any) -> QueueWrite:
        entries = self._made(**shape)
        self._log += entries
        return QueueWrite(self.queue_id, append=entries, stable=self._state_lsn)

    def cut(self) -> QueueWrite:
        """A new epoch cuts the log's end and other ops come in its place."""
        self._epoch += 1
        kept = self._chance.randint(0, len(self._log))
        self._log = self._log[:kept]
        at = self._state_lsn + kept
        entries = self._made()
        self._log += entries
        return QueueWrite(self.queue_id, truncate_to=at, append=entries)

    def _apply(self) -> None:
        """Some of the log is in a state now."""
        count = self._chance.randint(0, len(self._log))
        applied, self._log = self._log[:count], self._log[count:]
        self._state_lsn += count
        self._old += [entry for entry in applied if entry.payload is None]

    def checkpoint(self) -> QueueWrite:
        self._apply()
        end = max((entry.header.last_sequence for entry in self._old), default=0)
        first, self._released = self._released + 1, max(self._released, end - 3)
        return QueueWrite(
            self.queue_id,
            state=self._chance.randbytes(self._chance.choice((10, 3000, 30_000))),
            state_lsn=self._state_lsn,
            release=((first, self._released),) if first <= self._released else (),
            stable=self._state_lsn,
        )

    def paged(self) -> list[QueueWrite]:
        """A checkpoint in pages, over several commits: those that are new, then its head with those
        that are no more, then those that it has replaced."""
        before = self._state_lsn
        self._apply()
        return self._in_pages() if self._state_lsn > before else []

    def join(self) -> list[QueueWrite]:
        """A state comes from another member, of a later lsn than all of the log, and goes to the
        disk under that lsn before it counts. Or it never is whole, and all of it goes."""
        at = (self._log[-1].lsn if self._log else self._state_lsn) + self._chance.randint(1, 5)
        if self._chance.random() < 0.3:
            staged = self._some_pages(at)
            gone = tuple(Page(page.kind, page.first, at, None) for page in staged)
            return [*self._parts(staged), QueueWrite(self.queue_id, pages=gone)]
        self._old += [entry for entry in self._log if entry.payload is None]
        self._log, self._state_lsn = [], at
        return self._in_pages()

    def _some_pages(self, lsn: int) -> list[Page]:
        chance = self._chance
        places = chance.sample(PLACES, chance.randint(1, len(PLACES)))
        sizes = [chance.choice((20, 900, 6000)) for _ in places]
        return [
            Page(*place, lsn, chance.randbytes(size))
            for place, size in zip(places, sizes, strict=True)
        ]

    def _parts(self, made: list[Page]) -> list[QueueWrite]:
        at = self._chance.randint(1, 3)
        return [
            QueueWrite(self.queue_id, pages=tuple(made[first : first + at]))
            for first in range(0, len(made), at)
        ]

    def _in_pages(self) -> list[QueueWrite]:
        made, known = self._some_pages(self._state_lsn), self._pages
        places = [(page.kind, page.first) for page in made]
        gone = [place for place in known if place not in places and self._chance.random() < 0.3]
        ended = tuple(Page(*place, known.pop(place), None) for place in gone)
        stale = tuple(Page(*place, known[place], None) for place in places if place in known)
        known.update(dict.fromkeys(places, self._state_lsn))
        head = QueueWrite(
            self.queue_id, pages=ended, state=b"head of pages", state_lsn=self._state_lsn
        )
        return [*self._parts(made), head, QueueWrite(self.queue_id, pages=stale)]

    def transfer(self) -> list[QueueWrite]:
        """The copy begins anew from a state; its frames come after, and fill its holes."""
        old = [entry for entry in self._old + self._log if entry.payload is None]
        old = [entry for entry in old if entry.header.first_sequence > self._released]
        if self._log:
            self._state_lsn = self._log[-1].lsn
        self._old, self._log, self._pages = old, [], {}
        writes = [QueueWrite(self.queue_id, reset=True, state=b"state", state_lsn=self._state_lsn)]
        self._chance.shuffle(old)
        for at in range(0, len(old), 3):
            fetched = tuple(old[at : at + 3])
            writes.append(QueueWrite(self.queue_id, fetched=fetched, lacking=((1, at + 1),)))
        return writes

    def delete(self) -> QueueWrite:
        self.forget()
        return QueueWrite(self.queue_id, reset=True)


class Catalog:
    """Raft's side of the store."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._first = self._next = self._term = 1

    def write(self) -> RaftWrite | None:
        what = self._chance.random()
        if what < 0.5:
            return None
        if what < 0.6:
            self._term += 1
            return RaftWrite(RaftState(self._term, StoreId("a", 5)))
        if what < 0.7 and self._next > self._first:
            self._first = self._chance.randint(self._first, self._next - 1)
            voters = (StoreId("a", 5), StoreId("b", 6))
            pages = tuple(self._chance.randbytes(700) for _ in range(self._chance.randint(0, 3)))
            snapshot = RaftSnapshot(self._first, self._term, voters, pages)
            written = [SnapshotPage(self._first, number, page) for number, page in enumerate(pages)]
            self._first += 1
            self._next = max(self._next, self._first)
            return RaftWrite(pages=tuple(written), snapshot=snapshot)
        if what < 0.8 and self._next > self._first:
            self._next = self._chance.randint(self._first, self._next - 1)
            return RaftWrite(truncate_from=self._next, append=self._entries())
        return RaftWrite(append=self._entries())

    def _entries(self) -> tuple[RaftEntry, ...]:
        first, self._next = self._next, self._next + self._chance.randint(1, 3)
        return tuple(
            RaftEntry(index, self._term, 1, self._chance.randbytes(200))
            for index in range(first, self._next)
        )


class Life:
    """Commits one after the other, each followed by a mark."""

    def __init__(self, path: Path, seed: int) -> None:
        self._chance = random.Random(seed)
        self._path = path
        self._logs = [Log(queue_id, self._chance) for queue_id in (QUEUE, NEIGHBOUR)]
        self._catalog = Catalog(self._chance)
        self._open()

    def _open(self) -> None:
        self._store = open_store(self._path)
        self._tell()

    def _tell(self) -> None:
        mark(facts(self._store))

    def _commit(self, *writes: QueueWrite) -> None:
        self._store.commit(writes, self._catalog.write())
        self._tell()

    def _commit_small(self, log: Log) -> None:
        """Commits that the write-ahead log takes, until it is full now and then."""
        for _ in range(self._chance.choice((0, 1, 3, 8))):
            self._store.commit([log.append(sizes=(5, 100, 900), count_max=2)])
            self._tell()

    def step(self) -> None:
        log, other = self._chance.sample(self._logs, 2)
        what = self._chance.random()
        if what < 0.40:
            self._commit(*(each.append() for each in self._logs if self._chance.random() < 0.7))
            self._commit_small(log)
        elif what < 0.50:
            self._commit(log.cut())
        elif what < 0.62:
            self._commit(log.checkpoint())
        elif what < 0.83:
            kinds = (log.paged, log.paged, log.join, log.transfer)
            for write in self._chance.choice(kinds)():
                self._commit(write)
                if self._chance.random() < 0.2:
                    self._commit_small(other)
        elif what < 0.86:
            self._commit(log.delete())
        elif what < 0.91:
            self._store.collect()
            self._tell()
        elif what < 0.95:
            value = self._chance.randbytes(self._chance.choice((3, 5000)))
            self._store.put_meta(self._chance.choice(NAMES), value)
            self._tell()
        else:
            self._store.close()
            self._open()

    def end(self) -> None:
        self._store.close()


def main() -> None:
    path, seed, commits = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    small_bounds()
    for bug in sys.argv[4:]:
        log_bugs.WRITING[bug]()
    life = Life(path, seed)
    for _ in range(commits):
        life.step()
    life.end()


if __name__ == "__main__":
    main()
