"""Events, calls and outputs of a session. Pure data."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from mirrorq.protocol.sessions import (
    AckRange,
    Browse,
    Deliver,
    Delivery,
    Inquire,
    Pause,
    Purge,
    Request,
    SessionReply,
)

# --- Events -------------------------------------------------------------------------------


class MasterChanged(Struct, frozen=True, gc=False):
    """Somebody serves the queue in this term, or nobody does now."""

    epoch: int
    available: bool


class ReplyArrived(Struct, frozen=True, gc=False):
    """Something the master has sent this handle."""

    reply: SessionReply


class LinkLost(Struct, frozen=True, gc=False):
    """What was on the way may be gone."""


class Closed(Struct, frozen=True, gc=False):
    """The node, the client or the queue is no more."""

    reason: str
    deleted: bool = False
    """It is the queue."""
    refused: bool = False
    """It is the client's key that does not allow it."""
    cancels: bool = False
    """Somebody else has ended it: consumers are told so."""


class RightLost(Struct, frozen=True, gc=False):
    """The client's key does not allow this to the queue any more."""

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
    """Bytes of the bodies alone: what a queue's limit counts."""
    deliveries: tuple[Delivery, ...] = ()
    """Deliveries that it acks in the same op."""


EXTEND = "extend"


class SettleCall(Struct, frozen=True, gc=False):
    """Settle deliveries: `kind` is ack, nack, reject or move. Or, with EXTEND, have them held for
    `delay_ms` from now on, 0: without end."""

    token: object
    kind: str
    deliveries: tuple[Delivery, ...]
    delay_ms: int = 0
    """nack: the messages come again after this, at the earliest."""
    target: int = 0
    """move: the queue to which the messages go."""


class Query(Struct, frozen=True, gc=False):
    """Browse, Purge or Inquire; the request number is put in here."""

    token: object
    request: Callable[[int], Request]


# --- Output -------------------------------------------------------------------------------


class Stored(Struct, frozen=True, gc=False):
    """Messages `index` to index + count - 1 of the put have these sequences."""

    token: object
    index: int
    count: int
    first_sequence: int
    is_repeated: bool = False
    """They were not stored: messages with their unique keys had these sequences already."""


class Failed(Struct, frozen=True, gc=False):
    """Messages of the put that were refused, or whose outcome is unknown."""

    token: object
    index: int
    count: int
    reason: str
    unknown: bool
    is_lost: bool = False
    """Then: the queue had stored them, and an unclean promotion has lost them."""


class SettleDone(Struct, frozen=True, gc=False):
    """A settlement has its outcome: all was taken but what is `refused`."""

    token: object
    refused: tuple[Delivery, ...]
    why: str
    is_unknown: bool = False
    """What is said to be refused may have been settled: its answer is not waited for any more."""


class QueryDone(Struct, frozen=True, gc=False):
    """A question has its answer."""

    token: object
    reply: object
    """Browsed, Purged or Counts."""


class Delivered(Struct, frozen=True, gc=False):
    """Messages have come for a consumer."""

    deliver: Deliver


class DropBuffered(Struct, frozen=True, gc=False):
    """A new attachment: what no call has returned is void. `failover`: the master changed."""

    failover: bool


class GiveBack(Struct, frozen=True, gc=False):
    """Another consumer waits, or a purge: return what no call has taken."""

    consumer: int
    number: int = 0
    """Not 0: then say `recalled` with it."""


class PutCredit(Struct, frozen=True, gc=False):
    """How much the handle may put in all before a put has to wait, counted since it was made.

    `is_known` is False until a master has answered for the first time.
    """

    is_known: bool = False
    is_bounded: bool = False
    count: int = 0
    size: int = 0
    """Bytes of bodies."""
    count_max: int = 0
    size_max: int = 0
    """What is above these at once never fits: it goes, to be refused."""
    why: str = ""


class ConsumerFailed(Struct, frozen=True, gc=False):
    """The master does not take a consumer, or takes it no more."""

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


def browse_request(start: int, count_max: int) -> Callable[[int], Request]:
    """Look at `count_max` messages from sequence `start` on."""
    return lambda number: Browse(number, start, count_max)


def purge_request(number: int) -> Request:
    """End all ready messages."""
    return Purge(number)


def range_request(first: int, last: int, target: int = 0) -> Callable[[int], Request]:
    """End the ready messages of a range, or move them to another queue."""
    return lambda number: Purge(number, first, last, target)


def pause_request(is_paused: bool) -> Callable[[int], Request]:
    """Hand out nothing, or hand out again."""
    return lambda number: Pause(number, is_paused)


def ack_range_request(number: int, first: int, last: int) -> Callable[[int], Request]:
    """End what lives from first to last, for a consumer that holds a claim."""
    return lambda request: AckRange(request, number, first, last)


def inquire_request(number: int) -> Request:
    """How many messages there are."""
    return Inquire(number)
