"""What the pure machines ask their driver to write, and what it loads for them at start.

Pure data, shared by the machines, the store and the simulator's disk. One `QueueWrite` of
each queue and one `RaftWrite` make up a round's single transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from attrs import frozen
from msgspec import Struct, field

from mirrorq.containers.ranges import Range
from mirrorq.protocol.commands import CatalogCommand, ChangeView
from mirrorq.protocol.identities import MemberId, StoreId
from mirrorq.protocol.ops import Entry
from mirrorq.protocol.ring import FetchFrames, RingMessage
from mirrorq.protocol.sessions import SessionReply, SessionRequest


# What listeners and the log are told of a node or a client.
class Notice(Struct, frozen=True, gc=False):
    """Something that listeners and the log are told."""

    kind: str
    """What it is about, such as "paused", "leader" or "loss"."""
    text: str
    """The same in a sentence."""
    queue_id: int = 0
    """The queue's id; 0: it is about the node or the client."""


@frozen
class OutboxEntry:
    """An entry of the outbox: neighbouring messages that ended together, for the same reason."""

    number: int
    """Of the first of them."""
    first: int
    last: int
    reason: str
    stamp_us: int
    """When they ended, microseconds since 1970-01-01 UTC at the master."""

    @property
    def last_number(self) -> int:
        return self.number + self.last - self.first


@frozen
class OutboxLoad:
    """Pack the first messages of these entries into one publish frame for the target."""

    queue_id: int
    target: int
    producer: int
    entries: tuple[OutboxEntry, ...]
    bytes_max: int
    queue: str = ""
    """Names of the source and of the target: the engine knows them."""
    target_name: str = ""

    @property
    def number(self) -> int:
        """Of the first message."""
        return self.entries[0].number


@frozen
class OutboxLoaded:
    """So many of the first messages went in a circle, and these next ones are in the frame."""

    queue_id: int
    target: int
    number: int
    cycled: int
    count: int
    frame: bytes
    """b"" when count is 0. Neither cycled nor count: it could not be read."""


class Page(Struct, frozen=True, gc=False):
    """A part of an applied state, as it was at an lsn: see `replication.state.pages`."""

    kind: int
    first: int
    """Where the stretch begins that it shows."""
    lsn: int
    data: bytes | None
    """b"": there is no such page any more. None, in a write: it is taken off the disk; in an image:
    it is there, and is read when it is wanted."""


MESSAGES = 0
"""Kind of a page: what lives of a stretch of sequences."""
PRODUCERS = 1
"""Of a stretch of producer ids: see `replication.state.producer`."""
COLUMNS = 2
"""Of sizes and times: see `replication.state.columns`."""
LATER = (PRODUCERS, COLUMNS)
"""Kinds that are not read at a start."""
PageReader = Callable[[int, int, int, int], bytes]
"""(queue id, kind, first, lsn) -> the page on this node's disk, b"" where it is not there as it was
written. What is asked for has been written, and is never written over: the answer is always the
same."""


class QueueWrite(Struct, frozen=True, gc=False, eq=False):
    """All that one queue wants on disk in one transaction, done in the order of the fields."""

    queue_id: int
    reset: bool = False
    """Everything of this queue is deleted first (a full transfer, a deleted queue)."""
    truncate_to: int | None = None
    """R6: every op with a greater lsn is cut from the log."""
    append: tuple[Entry, ...] = ()
    """New ops at the end of the log, in order of lsn; gaps only after `state` moved it."""
    fetched: tuple[Entry, ...] = ()
    """Publish frames from a transfer: not the log's end, put at their sequences."""
    pages: tuple[Page, ...] = ()
    """Of a checkpoint that is being made, or was made. Of those that begin at one place that of the
    greatest lsn counts which is not above the checkpoint's."""
    state: bytes | None = None
    """A checkpoint: the applied state at `state_lsn`, or what of it is in no page. Ops at or below
    it are not replayed; those that are no publish may be deleted."""
    state_lsn: int = 0
    release: tuple[Range, ...] = ()
    """Sequences that no longer matter: a run whose messages all lie in one of these ranges is
    deleted."""
    lacking: tuple[Range, ...] | None = None
    """Sequences among which live messages may not be on this disk (R7); None = as it was."""
    stable: int | None = None
    """Known stable lsn, a hint for the next start; None = as it was."""
    time_ahead_us: int | None = None
    """By how much the queue's time is ahead of this node's steady time; None = as it was."""


class QueueImage(Struct, frozen=True, gc=False, eq=False):
    """What the store holds of one queue at start."""

    queue_id: int
    state: bytes | None = None
    state_lsn: int = 0
    entries: tuple[Entry, ...] = ()
    """All ops with lsn > state_lsn, in order."""
    lacking: tuple[Range, ...] = ()
    """As in `QueueWrite`, with what was found to be damaged."""
    stable: int = 0
    time_ahead_us: int = 0
    damaged: tuple[Range, ...] = ()
    """Sequences of messages whose frames are not as they were written, as far as was seen."""
    broken: str = ""
    """Why nothing can be made of it, "" as a rule: its copy is to be taken from others."""
    pages: tuple[Page, ...] = ()
    """Of the checkpoint, each kind in order."""
    salvaged: str = ""
    """Of an only copy: how its log is damaged, where stand-ins are among the entries."""
    stale: tuple[Page, ...] = ()
    """Pages on the disk that do not count, older ones first: they are to be taken off it."""


def sorted_out(pages: Iterable[Page], lsn: int) -> tuple[tuple[Page, ...], tuple[Page, ...]]:
    """Of pages on a disk those that count at a checkpoint's lsn, and the others, as `QueueImage`
    has them."""
    newest: dict[tuple[int, int], Page] = {}
    stale = []
    for page in sorted(pages, key=lambda page: page.lsn):
        if page.lsn > lsn:
            stale.append(page)
            continue
        before = newest.get((page.kind, page.first))
        if before is not None:
            stale.append(before)
        newest[page.kind, page.first] = page
    stale += [page for page in newest.values() if page.data == b""]
    stale.sort(key=lambda page: (page.lsn, page.kind, page.first))
    counting = sorted((page.kind, page.first) for page in newest.values() if page.data != b"")
    return tuple([newest[where] for where in counting]), tuple(stale)


class RaftEntry(Struct, frozen=True, gc=False):
    """One entry of the catalog's log."""

    index: int
    term: int
    kind: int
    """0 nothing (a new leader's own), 1 catalog command, 2 change of voters."""
    data: bytes


class RaftSnapshot(Struct, frozen=True, gc=False):
    """The catalog up to an index of the log, in place of the entries up to there."""

    index: int
    term: int
    voters: tuple[StoreId, ...]
    pages: tuple[bytes, ...]
    """() is the catalog of a newly founded cluster."""


class SnapshotPage(Struct, frozen=True, gc=False):
    """One page of a snapshot that is being made or received."""

    index: int
    """Of the snapshot."""
    number: int
    """From 0."""
    data: bytes


class RaftState(Struct, frozen=True, gc=False):
    """Raft's hard state, and the promise to one founding (b"" = none)."""

    term: int = 0
    vote: StoreId | None = None
    founding: bytes = b""


class RaftWrite(Struct, frozen=True, gc=False):
    """Done in the order of the fields, in one transaction with the queues' writes."""

    state: RaftState | None = None
    pages: tuple[SnapshotPage, ...] = ()
    """They count from the write on that has the snapshot of their index. A later page of the same
    index and number replaces an earlier one."""
    snapshot: RaftSnapshot | None = None
    """Replaces the one before; entries at or below its index and pages below it are deleted. When
    the log does not hold (index, term) of the snapshot, the whole log is deleted. Its pages are in
    `pages`, here or in earlier writes."""
    truncate_from: int | None = None
    """Delete every entry with this index or a greater one."""
    append: tuple[RaftEntry, ...] = ()


class RaftImage(Struct, frozen=True, gc=False):
    """All that a store holds of the catalog, for the start."""

    state: RaftState = field(default_factory=RaftState)
    snapshot: RaftSnapshot | None = None
    entries: tuple[RaftEntry, ...] = ()


class RailArm(Struct, frozen=True, gc=False):
    """The rail may take ops of this queue: those that its master sends in this epoch after this
    lsn, to which all is on this disk. It answers with `RailStopped` when it does not, or not any
    more."""

    epoch: int
    after: int
    master: MemberId
    at_receipt: bool = False
    """`durability: replicated`: it tells the master of what it has received, and logs nothing. Not
    all up to `after` need be on this disk."""


class RailDisarm(Struct, frozen=True, gc=False):
    """The rail is to take nothing of this queue any more, and to say `RailStopped` behind what it
    has taken."""


class ReplicaEffects(Struct):
    """What one step of a replica wants done, in the order of the fields.

    Frames go right *before* the own disk write (R1: all disks write at the same time);
    everything that has to wait for the disk comes out of the step of `Persisted`.
    """

    send: list[tuple[MemberId, RingMessage]] = field(default_factory=list)
    write: QueueWrite | None = None
    write_number: int = 0
    """Given back in `Persisted` when `write` is on disk."""
    reads: list[tuple[MemberId, FetchFrames]] = field(default_factory=list)
    """Frames that a joining member asked for: read and send a FrameChunk."""
    replies: list[SessionReply] = field(default_factory=list)
    """Deliver and Browsed come without frames; the driver fills them in."""
    requests: list[SessionRequest] = field(default_factory=list)
    """Of couriers, to the masters of other queues."""
    loads: list[OutboxLoad] = field(default_factory=list)
    """Batches for other queues that the driver is to pack."""
    propose: ChangeView | None = None
    """R8: the master proposes to count a member in."""
    commands: list[CatalogCommand] = field(default_factory=list)
    """What else the master asks the catalog for."""
    notices: list[tuple[str, str]] = field(default_factory=list)
    """(kind, text) for listeners and the log."""
    rail: RailArm | RailDisarm | None = None
    wake_at_ms: int | None = None


class Persisted(Struct, frozen=True, gc=False):
    """The write of this number and all before it are on disk."""

    number: int
