"""Writes of the pure machines to their driver, and the state loaded at start.

Pure data, shared by the machines, the store and the simulator's disk. One `QueueWrite` of each
queue and one `RaftWrite` make up a round's single transaction.
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


# Events of a node or a client for listeners and the log.
class Notice(Struct, frozen=True, gc=False):
    """An event for listeners and the log."""

    kind: str
    """Subject of the event, such as "paused", "leader" or "loss"."""
    text: str
    """The event in a sentence."""
    queue_id: int = 0
    """The queue's id; 0: an event of the node or the client."""


@frozen
class OutboxEntry:
    """An entry of the outbox: neighbouring messages which ended together, for the same reason."""

    number: int
    """Number of the first message."""
    first: int
    last: int
    reason: str
    stamp_us: int
    """Time of the end, microseconds since 1970-01-01 UTC at the master."""

    @property
    def last_number(self) -> int:
        return self.number + self.last - self.first


@frozen
class OutboxLoad:
    """Pack the first messages of the entries into one publish frame for the target."""

    queue_id: int
    target: int
    producer: int
    entries: tuple[OutboxEntry, ...]
    bytes_max: int
    queue: str = ""
    """Names of the source and of the target, from the engine."""
    target_name: str = ""

    @property
    def number(self) -> int:
        """Number of the first message."""
        return self.entries[0].number


@frozen
class OutboxLoaded:
    """`cycled` first messages went in a circle, and the next `count` messages are in the frame."""

    queue_id: int
    target: int
    number: int
    cycled: int
    count: int
    frame: bytes
    """b"" when count is 0. Neither cycled nor count: the messages are unreadable."""


class Page(Struct, frozen=True, gc=False):
    """A part of an applied state, as of an lsn: see `replication.state.pages`."""

    kind: int
    first: int
    """Start of the page's stretch."""
    lsn: int
    data: bytes | None
    """b"": the page has ended. None, in a write: the page is deleted from the disk; in an image:
    the page is on disk, and is read on demand."""


MESSAGES = 0
"""Kind of a page: live messages in a stretch of sequences."""
PRODUCERS = 1
"""Kind of a page for a stretch of producer ids: see `replication.state.producer`."""
COLUMNS = 2
"""Kind of a page for sizes and times: see `replication.state.columns`."""
LATER = (PRODUCERS, COLUMNS)
"""Kinds not read at a start."""
PageReader = Callable[[int, int, int, int], bytes]
"""(queue id, kind, first, lsn) -> the page on the node's disk, b"" if missing or damaged. A
requested page has been written, and is never overwritten: the answer never changes."""


class QueueWrite(Struct, frozen=True, gc=False, eq=False):
    """Changes of one queue for one disk transaction, done in the order of the fields."""

    queue_id: int
    reset: bool = False
    """Delete the whole queue first (a full transfer, a deleted queue)."""
    truncate_to: int | None = None
    """R6: every op with a greater lsn is cut from the log."""
    append: tuple[Entry, ...] = ()
    """New ops at the end of the log, in order of lsn; gaps only after `state` moved the end."""
    fetched: tuple[Entry, ...] = ()
    """Publish frames from a transfer: not the log's end, put at their sequences."""
    pages: tuple[Page, ...] = ()
    """Pages of a checkpoint, made or in the making. Of pages with one place the greatest lsn
    counts, up to the checkpoint's lsn."""
    state: bytes | None = None
    """A checkpoint: the applied state at `state_lsn`, without the parts in pages. Ops up to
    `state_lsn` are not replayed; ops other than publishes may be deleted."""
    state_lsn: int = 0
    release: tuple[Range, ...] = ()
    """Ended sequences: a run with all messages in one of the ranges is deleted."""
    lacking: tuple[Range, ...] | None = None
    """Sequences with live messages possibly missing on the disk (R7); None = unchanged."""
    stable: int | None = None
    """Known stable lsn, a hint for the next start; None = unchanged."""
    time_ahead_us: int | None = None
    """Lead of the queue's time over the node's steady time; None = unchanged."""


class QueueImage(Struct, frozen=True, gc=False, eq=False):
    """The store's state of one queue at start."""

    queue_id: int
    state: bytes | None = None
    state_lsn: int = 0
    entries: tuple[Entry, ...] = ()
    """All ops with lsn > state_lsn, in order."""
    lacking: tuple[Range, ...] = ()
    """As in `QueueWrite`, with damage found at the start."""
    stable: int = 0
    time_ahead_us: int = 0
    damaged: tuple[Range, ...] = ()
    """Sequences of messages with damaged frames, as far as seen."""
    broken: str = ""
    """Reason for an unreadable copy, to be taken from other members; "" as a rule."""
    pages: tuple[Page, ...] = ()
    """Pages of the checkpoint, each kind in order."""
    salvaged: str = ""
    """Damage in the log of an only copy, with stand-ins among the entries; else ""."""
    stale: tuple[Page, ...] = ()
    """Pages on the disk without effect, older first: to be deleted."""


def sorted_out(pages: Iterable[Page], lsn: int) -> tuple[tuple[Page, ...], tuple[Page, ...]]:
    """Split pages on disk into the pages valid at a checkpoint's lsn, and stale pages, for
    `QueueImage`."""
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
    """An entry of the catalog's log."""

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
    """A page of a snapshot in the making or under reception."""

    index: int
    """Index of the snapshot."""
    number: int
    """Number of the page, from 0."""
    data: bytes


class RaftState(Struct, frozen=True, gc=False):
    """Raft's hard state, and the promise to a founding (b"" = none)."""

    term: int = 0
    vote: StoreId | None = None
    founding: bytes = b""


class RaftWrite(Struct, frozen=True, gc=False):
    """Done in the order of the fields, in one transaction with the queues' writes."""

    state: RaftState | None = None
    pages: tuple[SnapshotPage, ...] = ()
    """Pages count from the write with the snapshot of their index on. A later page of the same
    index and number replaces an earlier page."""
    snapshot: RaftSnapshot | None = None
    """Replaces the previous snapshot; entries up to its index and older pages are deleted. If the
    log does not hold (index, term) of the snapshot, the whole log is deleted. The pages are in
    `pages`, here or in earlier writes."""
    truncate_from: int | None = None
    """Delete every entry from this index on."""
    append: tuple[RaftEntry, ...] = ()


class RaftImage(Struct, frozen=True, gc=False):
    """A store's whole state of the catalog, for the start."""

    state: RaftState = field(default_factory=RaftState)
    snapshot: RaftSnapshot | None = None
    entries: tuple[RaftEntry, ...] = ()


class RailArm(Struct, frozen=True, gc=False):
    """The rail may take ops of the queue, from the master in the epoch, after the lsn. All earlier
    ops are on the local disk. The rail answers `RailStopped` when it cannot take ops, or stops."""

    epoch: int
    after: int
    master: MemberId
    at_receipt: bool = False
    """`durability: replicated`: the rail reports receipt to the master, and logs nothing. Ops up to
    `after` need not be on the local disk."""


class RailDisarm(Struct, frozen=True, gc=False):
    """The rail must take no further ops of the queue. After the ops already taken it says
    `RailStopped`."""


class ReplicaEffects(Struct):
    """Effects of one step of a replica, to be done in the order of the fields.

    Frames go right *before* the own disk write (R1: all disks write at the same time). Effects
    which must wait for the disk come out of the step of `Persisted`.
    """

    send: list[tuple[MemberId, RingMessage]] = field(default_factory=list)
    write: QueueWrite | None = None
    write_number: int = 0
    """Given back in `Persisted` when `write` is on disk."""
    reads: list[tuple[MemberId, FetchFrames]] = field(default_factory=list)
    """Frames for a joining member: read the frames and send a FrameChunk."""
    replies: list[SessionReply] = field(default_factory=list)
    """Deliver and Browsed come without frames; the driver fills them in."""
    requests: list[SessionRequest] = field(default_factory=list)
    """Requests of couriers, to the masters of other queues."""
    loads: list[OutboxLoad] = field(default_factory=list)
    """Batches for other queues, for the driver to pack."""
    propose: ChangeView | None = None
    """R8: the master proposes to count a member in."""
    commands: list[CatalogCommand] = field(default_factory=list)
    """Further catalog requests of the master."""
    notices: list[tuple[str, str]] = field(default_factory=list)
    """(kind, text) for listeners and the log."""
    rail: RailArm | RailDisarm | None = None
    wake_at_ms: int | None = None


class Persisted(Struct, frozen=True, gc=False):
    """The write with the number and all earlier writes are on disk."""

    number: int
