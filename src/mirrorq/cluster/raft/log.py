"""The replicated log of one node: snapshot, entries, voters, and the part on disk.

Invariants:

1. Entries are contiguous and begin right after the snapshot's index (0 without one).
2. `voters` comes from the last change in the log, committed or not; without a change from the
   snapshot. A truncation restores the earlier voters.
3. `durable_index` never names an entry appended after the synced write.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from msgspec.structs import replace

from mirrorq.cluster.raft.messages import KIND_VOTERS, decode_voters
from mirrorq.protocol import effects
from mirrorq.protocol.identities import StoreId


class RaftLog:
    """The log in memory. Changes collect until `take_changes`."""

    def __init__(self, image: effects.RaftImage) -> None:
        self.snapshot = image.snapshot
        self._entries = list(image.entries)
        self._changes: list[tuple[int, tuple[StoreId, ...]]] = []
        """(index, voters): the snapshot's entry first, then an entry for each change in the log."""
        self._note_voters()
        self.durable_index = self.last_index
        self._writing: deque[tuple[int, int]] = deque()
        """(write number, last index of the write which is still in the log)."""
        self._pages: list[effects.SnapshotPage] = []
        self._new_snapshot: effects.RaftSnapshot | None = None
        self._cut_from: int | None = None
        self._appended: list[effects.RaftEntry] = []

    # --- Reading ----------------------------------------------------------------------

    @property
    def snapshot_index(self) -> int:
        return self.snapshot.index if self.snapshot is not None else 0

    @property
    def snapshot_term(self) -> int:
        return self.snapshot.term if self.snapshot is not None else 0

    @property
    def last_index(self) -> int:
        return self.snapshot_index + len(self._entries)

    @property
    def last_term(self) -> int:
        return self._entries[-1].term if self._entries else self.snapshot_term

    @property
    def voters(self) -> tuple[StoreId, ...]:
        return self._changes[-1][1]

    @property
    def change_index(self) -> int:
        """Index of the last change of voters."""
        return self._changes[-1][0]

    def voters_at(self, index: int) -> tuple[StoreId, ...]:
        """Return the voters of the last change at or below `index`."""
        found = self._changes[0][1]
        for change_index, voters in self._changes:
            if change_index <= index:
                found = voters
        return found

    def term_at(self, index: int) -> int | None:
        """Return the term of an entry or of the snapshot's last; None when not held."""
        place = index - self.snapshot_index - 1
        if place == -1:
            return self.snapshot_term
        if 0 <= place < len(self._entries):
            return self._entries[place].term
        return None

    def entry(self, index: int) -> effects.RaftEntry:
        """Return an entry of the log; the log must hold the index."""
        return self._entries[index - self.snapshot_index - 1]

    def entries_from(
        self, first: int, last: int, bytes_max: int | None = None
    ) -> tuple[effects.RaftEntry, ...]:
        """Return entries `first` to `last`, cut at `bytes_max` after at least one entry."""
        base = self.snapshot_index + 1
        entries = self._entries[first - base : last - base + 1]
        if bytes_max is None:
            return tuple(entries)
        size = 0
        for place, entry in enumerate(entries):
            size += len(entry.data)
            if size > bytes_max and place > 0:
                return tuple(entries[:place])
        return tuple(entries)

    def is_covered_by(self, last_index: int, last_term: int) -> bool:
        """Return true if a log with this end may lead (Raft, section 5.4.1)."""
        return (last_term, last_index) >= (self.last_term, self.last_index)

    def agreement(self, index: int, term: int) -> tuple[int, int]:
        """Return the highest (index, term) held here, at or below both limits.

        A log with `term` at `index` cannot agree with the local log above the result. So a single
        refusal skips a whole term (Raft, section 5.3; etcd's findConflict).
        """
        index = min(index, self.last_index)
        while index > self.snapshot_index:
            held = self.term_at(index)
            if held is not None and held <= term:
                return index, held
            index -= 1
        return self.snapshot_index, self.snapshot_term

    # --- Changing ---------------------------------------------------------------------

    def append(self, entries: Sequence[effects.RaftEntry]) -> None:
        """Add entries after the last entry."""
        assert not entries or entries[0].index == self.last_index + 1
        self._entries.extend(entries)
        self._appended.extend(entries)
        for entry in entries:
            self._note_change(entry)

    def truncate(self, first: int) -> None:
        """Cut the entry `first` and all later entries."""
        assert first > self.snapshot_index
        if first > self.last_index:
            return
        del self._entries[first - self.snapshot_index - 1 :]
        while len(self._changes) > 1 and self._changes[-1][0] >= first:
            self._changes.pop()
        self._cut_from = first if self._cut_from is None else min(first, self._cut_from)
        self._appended = [entry for entry in self._appended if entry.index < first]
        self._clamp_durable(first - 1)

    def write_page(self, page: effects.SnapshotPage) -> None:
        """Put a page on disk, for a snapshot to come."""
        self._pages.append(page)

    def compact(self, snapshot: effects.RaftSnapshot) -> None:
        """Replace the entries up to the snapshot's index, which the log holds, by the snapshot."""
        assert self.term_at(snapshot.index) == snapshot.term
        del self._entries[: snapshot.index - self.snapshot_index]
        self._take_snapshot(snapshot)

    def reset(self, snapshot: effects.RaftSnapshot) -> None:
        """Replace the whole log by a snapshot which does not agree with the log."""
        self._entries.clear()
        # Set explicitly, so merging writes needs no knowledge of the log.
        self._cut_from = snapshot.index + 1
        self._clamp_durable(self.snapshot_index)
        self._take_snapshot(snapshot)

    def _take_snapshot(self, snapshot: effects.RaftSnapshot) -> None:
        self.snapshot = snapshot
        self._new_snapshot = snapshot
        self._appended = [entry for entry in self._appended if entry.index > snapshot.index]
        self._note_voters()

    def _note_voters(self) -> None:
        voters = self.snapshot.voters if self.snapshot is not None else ()
        self._changes = [(self.snapshot_index, voters)]
        for entry in self._entries:
            self._note_change(entry)

    def _note_change(self, entry: effects.RaftEntry) -> None:
        if entry.kind == KIND_VOTERS:
            voters = decode_voters(entry.data)
            assert voters is not None, "checked before the entry entered the log"
            self._changes.append((entry.index, voters))

    # --- Disk -------------------------------------------------------------------------

    @property
    def has_changes(self) -> bool:
        """Return true if `take_changes` has anything to give."""
        is_cut = self._new_snapshot is not None or self._cut_from is not None
        return bool(self._appended or self._pages or is_cut)

    def take_changes(self, state: effects.RaftState | None = None) -> effects.RaftWrite:
        """Return the changes since the last call, with `state`, and forget the changes."""
        snapshot, appended = self._new_snapshot, tuple(self._appended)
        write = effects.RaftWrite(state, tuple(self._pages), snapshot, self._cut_from, appended)
        self._new_snapshot, self._cut_from, self._appended, self._pages = None, None, [], []
        return write

    def writing(self, number: int) -> None:
        """All entries of the log are in the write of this number or in an earlier write."""
        self._writing.append((number, self.last_index))

    def written(self, number: int) -> None:
        """The write of this number and all earlier writes are on disk."""
        while self._writing and self._writing[0][0] <= number:
            self.durable_index = max(self.durable_index, self._writing.popleft()[1])

    def _clamp_durable(self, index: int) -> None:
        # The replacements of the cut entries reach the disk only with a later write.
        self.durable_index = min(self.durable_index, index)
        self._writing = deque((number, min(last, index)) for number, last in self._writing)


def merge_writes(
    earlier: effects.RaftWrite | None, later: effects.RaftWrite | None
) -> effects.RaftWrite | None:
    """Return a single write with the same result on disk as both writes in order."""
    if earlier is None or later is None:
        return later if earlier is None else earlier
    if later.snapshot is None and later.truncate_from is None:
        # The usual case, kept cheap: a thousand proposals of one step are a thousand merges.
        state = later.state if later.state is not None else earlier.state
        append, pages = earlier.append + later.append, earlier.pages + later.pages
        return replace(earlier, state=state, pages=pages, append=append)
    snapshot = later.snapshot if later.snapshot is not None else earlier.snapshot
    kept = [
        entry
        for entry in earlier.append
        if (later.truncate_from is None or entry.index < later.truncate_from)
    ]
    floor = snapshot.index if snapshot is not None else 0
    cuts = [cut for cut in (earlier.truncate_from, later.truncate_from) if cut is not None]
    return effects.RaftWrite(
        state=later.state if later.state is not None else earlier.state,
        pages=earlier.pages + later.pages,
        snapshot=snapshot,
        truncate_from=min(cuts) if cuts else None,
        append=tuple(entry for entry in (*kept, *later.append) if entry.index > floor),
    )
