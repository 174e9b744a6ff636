"""A simulated disk: synced data survives a crash, other data is lost.

The disk handles writes like `store.Store`, in memory and without pages.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import define, evolve, field
from msgspec.structs import replace

from mirrorq.containers.ranges import Range, RangeSet
from mirrorq.errors import ProtocolError, StoreCorrupt
from mirrorq.protocol import effects
from mirrorq.protocol.identities import first_incarnation, incarnation_after
from mirrorq.protocol.ops import Entry
from mirrorq.wire import frames

NEAR = 64
"""A frame with a message is looked for so many sequences back before all are looked at."""


@define
class QueueFiles:
    """One queue's synced content."""

    ops: dict[int, Entry] = field(factory=dict)
    """lsn -> op other than a publish."""
    frames: dict[int, Entry] = field(factory=dict)
    """First sequence -> publish op."""
    state: bytes | None = None
    state_lsn: int = 0
    pages: dict[tuple[int, int, int], effects.Page] = field(factory=dict)
    """By kind, first and lsn."""
    lacking: tuple[Range, ...] = ()
    stable: int = 0
    time_ahead_us: int = 0
    damaged: dict[int, None] = field(factory=dict)
    """Keys of `frames` of which a byte has changed since the write."""
    is_state_damaged: bool = False
    """The same of the checkpoint."""

    def apply(self, write: effects.QueueWrite) -> None:
        if write.reset:
            self.__init__()  # type: ignore[misc]
        if write.truncate_to is not None:
            self._truncate(write.truncate_to)
        for entry in (*write.append, *write.fetched):
            if entry.payload is None:
                self.frames[entry.header.first_sequence] = entry
                self.damaged.pop(entry.header.first_sequence, None)
            else:
                self.ops[entry.lsn] = entry
        for page in write.pages:
            if page.data is None:
                self.pages.pop((page.kind, page.first, page.lsn), None)
            else:
                self.pages[page.kind, page.first, page.lsn] = page
        if write.state is not None:
            self.state, self.state_lsn = write.state, write.state_lsn
            self.is_state_damaged = False
            self.ops = {lsn: op for lsn, op in self.ops.items() if lsn > write.state_lsn}
        for first, last in write.release:
            gone = [
                key
                for key, entry in self.frames.items()
                if first <= key and entry.header.last_sequence <= last
            ]
            for key in gone:
                del self.frames[key]
                self.damaged.pop(key, None)
        if write.lacking is not None:
            self.lacking = write.lacking
        if write.stable is not None:
            self.stable = write.stable
        if write.time_ahead_us is not None:
            self.time_ahead_us = write.time_ahead_us

    def _truncate(self, lsn: int) -> None:
        self.ops = {key: op for key, op in self.ops.items() if key <= lsn}
        self.frames = {key: op for key, op in self.frames.items() if op.lsn <= lsn}
        self.damaged = {key: None for key in self.damaged if key in self.frames}

    def image(self, queue_id: int, *, whole: bool = True) -> effects.QueueImage:
        spans = [(key, self.frames[key].header.last_sequence) for key in self.damaged]
        is_log_damaged = any(self.frames[key].lsn > self.state_lsn for key in self.damaged)
        if self.is_state_damaged or is_log_damaged:
            return effects.QueueImage(
                queue_id, broken="a checkpoint or the log behind it is damaged"
            )
        entries = [*self.ops.values(), *self.frames.values()]
        entries = [entry for entry in entries if entry.lsn > self.state_lsn]
        entries.sort(key=lambda entry: entry.lsn)
        found = self.pages.values() if whole else map(_named, self.pages.values())
        pages, stale = effects.sorted_out(found, self.state_lsn)
        return effects.QueueImage(
            queue_id,
            self.state,
            self.state_lsn,
            tuple(entries),
            tuple(RangeSet((*self.lacking, *spans))),
            self.stable,
            self.time_ahead_us,
            tuple(sorted(spans)),
            pages=pages,
            stale=stale,
        )


def _named(page: effects.Page) -> effects.Page:
    """Return the part of a page that is read at a start."""
    is_read_later = page.kind in effects.LATER and page.data
    return replace(page, data=None) if is_read_later else page


@define
class SimulatedDisk:
    """One store. `store` is its identity: a wiped disk is another store."""

    store: int
    incarnation: int = 0
    """0: the store was never opened."""
    chance: int = 0
    """Random part of the next incarnation. An earlier copy of a disk needs its own."""
    known: int | None = None
    """Last incarnation known to a cluster."""
    queues: dict[int, QueueFiles] = field(factory=dict)
    raft_state: effects.RaftState = field(factory=effects.RaftState)
    snapshot: effects.RaftSnapshot | None = None
    snapshot_pages: dict[tuple[int, int], bytes] = field(factory=dict)
    """By index and number."""
    entries: list[effects.RaftEntry] = field(factory=list)
    steady: bytes | None = None
    """Stored value of a node's steady time."""
    meta: dict[str, bytes] = field(factory=dict)
    """Other stored values of a node, by name."""

    def start(self) -> int:
        """Open the store for a process; return its incarnation."""
        if self.incarnation:
            self.incarnation = incarnation_after(self.incarnation, self.chance, self.known)
        else:
            self.incarnation = first_incarnation(self.store)
        return self.incarnation

    def commit(self, writes: Iterable[effects.QueueWrite], raft: effects.RaftWrite | None) -> None:
        """Commit one transaction; the data is synced at the return."""
        for write in writes:
            files = self.queues.setdefault(write.queue_id, QueueFiles())
            files.apply(write)
            if write.reset and files == QueueFiles():
                del self.queues[write.queue_id]  # A queue that is no more leaves no record.
        if raft is not None:
            self._commit_raft(raft)

    def _commit_raft(self, write: effects.RaftWrite) -> None:
        if write.state is not None:
            self.raft_state = write.state
        pages = self.snapshot_pages
        pages.update(((page.index, page.number), page.data) for page in write.pages)
        snapshot = write.snapshot
        if snapshot is not None:
            matches = any(
                (e.index, e.term) == (snapshot.index, snapshot.term) for e in self.entries
            )
            self.snapshot = snapshot
            for place in [place for place in pages if place[0] < snapshot.index]:
                del pages[place]
            kept = [e for e in self.entries if e.index > snapshot.index]
            self.entries = kept if matches else []
        if write.truncate_from is not None:
            self.entries = [e for e in self.entries if e.index < write.truncate_from]
        self.entries.extend(write.append)

    def raft_image(self) -> effects.RaftImage:
        snapshot, pages = self.snapshot, self.snapshot_pages
        if snapshot is not None:
            # The written pages count, not the pages in the machine's memory.
            written = [pages[snapshot.index, number] for number in range(len(snapshot.pages))]
            snapshot = replace(snapshot, pages=tuple(written))
        return effects.RaftImage(self.raft_state, snapshot, tuple(self.entries))

    def images(self, *, whole: bool = True) -> list[effects.QueueImage]:
        queues = sorted(self.queues.items())
        return [files.image(queue_id, whole=whole) for queue_id, files in queues]

    def page(self, queue_id: int, kind: int, first: int, lsn: int) -> bytes:
        """Return a page that was written and is still on the disk."""
        data = self.queues[queue_id].pages[kind, first, lsn].data
        assert data, "a page that is no more is not asked for"
        return data

    def read(self, queue_id: int, first: int, last: int) -> list[Entry]:
        """Return publish ops with messages of first to last, in order."""
        files = self.queues.get(queue_id)
        if files is None:
            return []
        frames = files.frames
        start = next((s for s in range(first, max(first - NEAR, 0), -1) if s in frames), None)
        if start is None or last - start > len(frames):
            found = [
                (key, entry)
                for key, entry in frames.items()
                if key <= last and entry.header.last_sequence >= first
            ]
            return [entry for _, entry in sorted(found, key=lambda pair: pair[0])]
        found_near = [frames[sequence] for sequence in range(start, last + 1) if sequence in frames]
        return [entry for entry in found_near if entry.header.last_sequence >= first]

    def served(self, queue_id: int, first: int, last: int) -> list[Entry]:
        """Return publish ops like `read`, up to the first damaged op.

        Raises:
            StoreCorrupt: the very first op is damaged.
        """
        found = self.read(queue_id, first, last)
        files = self.queues.get(queue_id)
        if files is None or not files.damaged:
            return found
        for index, entry in enumerate(found):
            if entry.header.first_sequence not in files.damaged:
                continue  # nobody has changed it
            try:
                frames.check(entry.frame)
            except ProtocolError as wrong:
                if index:
                    return found[:index]
                error = StoreCorrupt(str(wrong))
                error.span = (entry.header.first_sequence, entry.header.last_sequence)
                raise error from None
        return found

    @property
    def is_damaged(self) -> bool:
        """True if any data differs from the written data."""
        return any(one.damaged or one.is_state_damaged for one in self.queues.values())

    def backup(self) -> SimulatedDisk:
        """A copy as of now, to be restored later."""
        queues = {
            queue_id: evolve(
                files,
                ops=dict(files.ops),
                frames=dict(files.frames),
                pages=dict(files.pages),
                damaged={},
            )
            for queue_id, files in self.queues.items()
        }
        copy = evolve(self, queues=queues, entries=list(self.entries))
        copy.incarnation = self.incarnation
        return copy
