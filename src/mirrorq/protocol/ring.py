"""Ring messages, between members of one queue: all name the current epoch."""

from __future__ import annotations

from msgspec import Struct

from mirrorq.containers.ranges import Range
from mirrorq.protocol.ops import Entry

RING = 0
"""`Data.mode`: along the row, and so are the marks."""
DIRECT = 1
"""Along the row; every mirror in sync reports its durable lsn to the master itself."""
STAR = 2
"""From the master to every mirror in sync; marks as with `DIRECT`."""


class Data(Struct, frozen=True, gc=False):
    """R1: new ops go right. `stable` rides along."""

    queue_id: int
    epoch: int
    stable: int
    entries: tuple[Entry, ...]
    time_us: int = 0
    """The queue's time at the sender (`queue_time`); 0: unknown."""
    mode: int = RING
    """Route of the ops, and the marks for the route. Receivers treat unknown modes as `RING`."""


class Mark(Struct, frozen=True, gc=False):
    """R2, master to the right when idle: the stable lsn, and the sender's received lsn. A receiver
    below `received` has lost ops and asks for a resend.
    """

    queue_id: int
    epoch: int
    stable: int
    received: int
    time_us: int = 0
    """The queue's time at the sender, as in `Data`."""


class Watermark(Struct, frozen=True, gc=False):
    """R2: the running minimum of `durable`, passed right; the last in sync to the master."""

    queue_id: int
    epoch: int
    lsn: int
    star: bool = False
    """Every mirror up to the sender takes ops from the master itself."""


class JoinerDurable(Struct, frozen=True, gc=False):
    """A member's own durable lsn, sent to the master. A joining member sends while its copy is
    complete (R8). A member in sync sends while ops wait, so the master sees slow members (R9), and
    in star mode instead of a watermark (R2)."""

    queue_id: int
    epoch: int
    lsn: int


class History(Struct, frozen=True, gc=False):
    """R6: (epoch, last lsn) of the master's log at the start of the epoch."""

    queue_id: int
    epoch: int
    history: tuple[tuple[int, int], ...]
    time_us: int = 0
    """The queue's time at the sender, as in `Data`."""


class HistoryRequest(Struct, frozen=True, gc=False):
    """An unrepaired member to its left, when the history has not come."""

    queue_id: int
    epoch: int


class Repaired(Struct, frozen=True, gc=False):
    """R6: a repaired member to its left: send all ops after `received`."""

    queue_id: int
    epoch: int
    received: int


class ResendFrom(Struct, frozen=True, gc=False):
    """R1: a gap was seen; send again from `lsn` on."""

    queue_id: int
    epoch: int
    lsn: int


class TooOld(Struct, frozen=True, gc=False):
    """To a joiner with a request for an op no longer kept: take a new state."""

    queue_id: int
    epoch: int


class KnownPage(Struct, frozen=True, gc=False):
    """R7: a page of the applied state (`replication.state.pages`) held by a joiner."""

    kind: int
    first: int
    high: int
    """The page's digest, in two halves of 63 bits."""
    low: int


class TransferRequest(Struct, frozen=True, gc=False):
    """R7: a joiner asks a member in sync for its applied state, under its own number."""

    queue_id: int
    epoch: int
    number: int
    part: int
    """Number of the part: 1 begins with the present state, further parts are of the same state."""
    known: tuple[KnownPage, ...] = ()
    """Pages held by the joiner, in order. Equal pages are not sent."""
    until_kind: int = 1 << 31
    until_first: int = 0
    """`known` covers all pages before this place; the rest wait for the next request."""


class TransferState(Struct, frozen=True, gc=False):
    """R7: a part of the applied state at `lsn`. Replaces, never merges."""

    queue_id: int
    epoch: int
    number: int
    lsn: int
    state: bytes
    part: int
    """1 for the first."""
    is_last: bool
    check: int
    """CRC-32 of all parts so far: a missing, repeated or foreign part shows."""


class FetchFrames(Struct, frozen=True, gc=False):
    """R7: send frames of live messages after `after_sequence`, up to `upto_sequence`."""

    queue_id: int
    epoch: int
    number: int
    after_sequence: int
    upto_sequence: int
    bytes_max: int
    is_continued: bool = False
    """Another request covers earlier messages: leave out a frame which begins there."""


class FrameChunk(Struct, frozen=True, gc=False):
    """R7: frames of live messages with after_sequence < sequence <= upto_sequence.

    Messages of the span without a frame are not live at the sender, or not whole.
    """

    queue_id: int
    epoch: int
    number: int
    after_sequence: int
    upto_sequence: int
    entries: tuple[Entry, ...]
    lost: tuple[Range, ...] = ()
    """Sequences live at the sender, without a whole frame there or at any asked member."""


class PackedChunk(Struct, frozen=True, gc=False):
    """A FrameChunk on the wire: its frames end to end, as on the donor's disk. The joiner's driver
    checks and splits the frames."""

    queue_id: int
    epoch: int
    number: int
    after_sequence: int
    upto_sequence: int
    run: bytes
    lost: tuple[Range, ...] = ()


_Common = (
    Data
    | Mark
    | Watermark
    | JoinerDurable
    | History
    | HistoryRequest
    | Repaired
    | ResendFrom
    | TooOld
    | TransferRequest
    | TransferState
    | FetchFrames
)
RingMessage = _Common | FrameChunk
RingWireMessage = _Common | PackedChunk
"""Ring messages in their wire form."""
