"""Ring messages, between members of one queue: all name the current epoch."""

from __future__ import annotations

from msgspec import Struct

from mirrorq.containers.ranges import Range
from mirrorq.protocol.ops import Entry

RING = 0
"""`Data.mode`: along the row, and so are the marks."""
DIRECT = 1
"""Along the row; every mirror in sync tells the master itself what it has on disk."""
STAR = 2
"""From the master to every mirror in sync; marks as with `DIRECT`."""


class Data(Struct, frozen=True, gc=False):
    """R1: new ops go right. `stable` rides along."""

    queue_id: int
    epoch: int
    stable: int
    entries: tuple[Entry, ...]
    time_us: int = 0
    """What time it is in the queue at the sender (`queue_time`); 0: it does not say."""
    mode: int = RING
    """How it travels, and the marks for it. Who does not know it takes it for `RING`."""


class Mark(Struct, frozen=True, gc=False):
    """R2, master to the right when idle: what is stable, and the sender's received lsn.

    A receiver that has less than `received` has lost something and asks for it.
    """

    queue_id: int
    epoch: int
    stable: int
    received: int
    time_us: int = 0
    """As in `Data`."""


class Watermark(Struct, frozen=True, gc=False):
    """R2: the running minimum of `durable`, passed right; the last in sync to the master."""

    queue_id: int
    epoch: int
    lsn: int
    star: bool = False
    """Every mirror up to the sender takes ops from the master itself."""


class JoinerDurable(Struct, frozen=True, gc=False):
    """A member's own durable, told to the master: a joining one's while its copy is complete
    (R8); one in sync tells it while ops wait, so that the master sees who is slow (R9), and with
    the star instead of a watermark (R2)."""

    queue_id: int
    epoch: int
    lsn: int


class History(Struct, frozen=True, gc=False):
    """R6: (epoch, last lsn) of the master's log as it was when this epoch began."""

    queue_id: int
    epoch: int
    history: tuple[tuple[int, int], ...]
    time_us: int = 0
    """As in `Data`."""


class HistoryRequest(Struct, frozen=True, gc=False):
    """An unrepaired member to its left, when the history has not come."""

    queue_id: int
    epoch: int


class Repaired(Struct, frozen=True, gc=False):
    """R6: a repaired member to its left: send what follows `received`."""

    queue_id: int
    epoch: int
    received: int


class ResendFrom(Struct, frozen=True, gc=False):
    """R1: a gap was seen; send again from `lsn` on."""

    queue_id: int
    epoch: int
    lsn: int


class TooOld(Struct, frozen=True, gc=False):
    """To a joiner that asked for an op no longer kept: take a new state."""

    queue_id: int
    epoch: int


class KnownPage(Struct, frozen=True, gc=False):
    """R7: a page of the applied state (`replication.state.pages`) that a joiner has."""

    kind: int
    first: int
    high: int
    """The page's digest, in two halves of 63 bits."""
    low: int


class TransferRequest(Struct, frozen=True, gc=False):
    """R7: a joiner asks one in-sync member for its applied state, under its own number."""

    queue_id: int
    epoch: int
    number: int
    part: int
    """Which part of it: 1 is the first of the state as it is now, others are of that same state."""
    known: tuple[KnownPage, ...] = ()
    """What the joiner has, in order. What is the same is not sent."""
    until_kind: int = 1 << 31
    until_first: int = 0
    """Of all pages before this one it has said what it has; others wait for the next request."""


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
    """CRC-32 of all parts up to this one: one left out, taken twice or of another state shows."""


class FetchFrames(Struct, frozen=True, gc=False):
    """R7: send frames of live messages after `after_sequence`, up to `upto_sequence`."""

    queue_id: int
    epoch: int
    number: int
    after_sequence: int
    upto_sequence: int
    bytes_max: int
    is_continued: bool = False
    """Another request is for what lies before: leave a frame out that begins there."""


class FrameChunk(Struct, frozen=True, gc=False):
    """R7: frames of live messages with after_sequence < sequence <= upto_sequence.

    Whatever is not among them in that span is not live at the sender, or not whole.
    """

    queue_id: int
    epoch: int
    number: int
    after_sequence: int
    upto_sequence: int
    entries: tuple[Entry, ...]
    lost: tuple[Range, ...] = ()
    """Of these, live at the sender, it has no whole frame, and nobody that it could ask."""


class PackedChunk(Struct, frozen=True, gc=False):
    """A FrameChunk as it travels: its frames end to end, as they lie on the donor's disk. The
    joiner's driver checks and splits them."""

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
"""Of these what is on the wire."""
