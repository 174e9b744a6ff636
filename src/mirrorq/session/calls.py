"""Events, calls and outputs of a session. Pure data."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from mirrorq.protocol import sessions

# --- Events -------------------------------------------------------------------------------


class MasterChanged(Struct, frozen=True, gc=False):
    """A master serves the queue in this term, or no master serves the queue now."""

    epoch: int
    available: bool


class ReplyArrived(Struct, frozen=True, gc=False):
    """The master has sent this handle a reply."""

    reply: sessions.SessionReply


class LinkLost(Struct, frozen=True, gc=False):
    """Messages on the way may be lost."""


class Closed(Struct, frozen=True, gc=False):
    """The node, the client or the queue is no more."""

    reason: str
    deleted: bool = False
    """The queue is deleted."""
    refused: bool = False
    """The client's key does not allow the handle."""
    cancels: bool = False
    """Another party has closed the handle: consumers get a cancel."""


class RightLost(Struct, frozen=True, gc=False):
    """The client's key no longer allows `right` on the queue."""

    right: str
    reason: str


SessionEvent = MasterChanged | ReplyArrived | LinkLost | Closed | RightLost


class Put(Struct, frozen=True, gc=False):
    """A batch of messages to publish. `token` comes back with the outcome."""

    token: object
    count: int
    size: int
    pack: Callable[[int, int, int], bytes]
    """(producer, first number, settled) -> frame."""
    whole: bool
    body_bytes: int = 0
    """Bytes of the bodies alone: a queue's limit counts these bytes."""
    deliveries: tuple[sessions.Delivery, ...] = ()
    """Deliveries that the put acks in the same op."""


EXTEND = "extend"


class SettleCall(Struct, frozen=True, gc=False):
    """Settle deliveries: `kind` is ack, nack, reject or move. Or, with EXTEND, have them held for
    `delay_ms` from now on, 0: without end."""

    token: object
    kind: str
    deliveries: tuple[sessions.Delivery, ...]
    delay_ms: int = 0
    """nack: the messages become ready again after this delay, at the earliest."""
    target: int = 0
    """move: the queue to which the messages go."""


class Query(Struct, frozen=True, gc=False):
    """Browse, Purge or Inquire; the request number is put in here."""

    token: object
    request: Callable[[int], sessions.Request]


# --- Output -------------------------------------------------------------------------------


class Stored(Struct, frozen=True, gc=False):
    """Messages `index` to index + count - 1 of the put have these sequences."""

    token: object
    index: int
    count: int
    first_sequence: int
    is_repeated: bool = False
    """True: not stored; messages with the same unique keys had these sequences already."""


class Failed(Struct, frozen=True, gc=False):
    """Messages of the put that were refused, or have an unknown outcome."""

    token: object
    index: int
    count: int
    reason: str
    unknown: bool
    is_lost: bool = False
    """Only if unknown: the queue had stored the messages; an unclean promotion lost them."""


class SettleDone(Struct, frozen=True, gc=False):
    """A settlement has its outcome: everything but `refused` is settled."""

    token: object
    refused: tuple[sessions.Delivery, ...]
    why: str
    is_unknown: bool = False
    """`refused` deliveries may have been settled: the session no longer waits for the answer."""


class QueryDone(Struct, frozen=True, gc=False):
    """A query has its answer."""

    token: object
    reply: object
    """Browsed, Purged or Counts."""


class Delivered(Struct, frozen=True, gc=False):
    """Messages have come for a consumer."""

    deliver: sessions.Deliver


class DropBuffered(Struct, frozen=True, gc=False):
    """A new attachment began: buffered messages are void. `failover`: the master changed."""

    failover: bool


class GiveBack(Struct, frozen=True, gc=False):
    """Another consumer waits, or a purge: return the messages that no call has taken."""

    consumer: int
    number: int = 0
    """Not 0: call `recalled` with this number then."""


class PutCredit(Struct, frozen=True, gc=False):
    """How much the handle may put before a put has to wait, counted since the handle was made.

    `is_known` is False until the first answer of a master.
    """

    is_known: bool = False
    is_bounded: bool = False
    count: int = 0
    size: int = 0
    """Bytes of bodies."""
    count_max: int = 0
    size_max: int = 0
    """A larger put never fits: the session sends the put, and the master refuses."""
    why: str = ""


class ConsumerFailed(Struct, frozen=True, gc=False):
    """The master refuses a consumer, or has ended a consumer."""

    number: int
    why: str


Output = (
    Stored
    | Failed
    | SettleDone
    | QueryDone
    | Delivered
    | DropBuffered
    | GiveBack
    | ConsumerFailed
    | PutCredit
)


# --- Questions ----------------------------------------------------------------------------


def browse_request(start: int, count_max: int) -> Callable[[int], sessions.Request]:
    """Look at `count_max` messages from sequence `start` on."""
    return lambda number: sessions.Browse(number, start, count_max)


def purge_request(number: int) -> sessions.Request:
    """End all ready messages."""
    return sessions.Purge(number)


def range_request(first: int, last: int, target: int = 0) -> Callable[[int], sessions.Request]:
    """End the ready messages of a range, or move them to another queue."""
    return lambda number: sessions.Purge(number, first, last, target)


def pause_request(is_paused: bool) -> Callable[[int], sessions.Request]:
    """Hand out nothing, or hand out again."""
    return lambda number: sessions.Pause(number, is_paused)


def ack_range_request(number: int, first: int, last: int) -> Callable[[int], sessions.Request]:
    """End the live messages from first to last, for a consumer with a claim."""
    return lambda request: sessions.AckRange(request, number, first, last)


def inquire_request(number: int) -> sessions.Request:
    """Ask for the number of messages."""
    return sessions.Inquire(number)
