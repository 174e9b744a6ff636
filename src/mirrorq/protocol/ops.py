"""Ops: the replicated steps of a queue, their header, and the entry that carries one."""

from __future__ import annotations

from enum import IntEnum

from msgspec import Struct

from mirrorq.containers.ranges import Range
from mirrorq.protocol.staged import AbortOp, AskOp, CommitOp, SealOp, Stage


class OpKind(IntEnum):
    """What an op does. The numbers are on disk and never change meaning."""

    PUBLISH = 1
    ACK = 2
    RETURN = 3
    HORIZON = 4
    PROMOTED = 5
    REFUSAL = 6
    EXPIRY = 7
    PURGE = 8
    DROP_HEAD = 9
    DUE = 10
    PRODUCER = 11
    SETTLED = 12
    OUTBOX = 13
    OUTBOX_DONE = 14
    STAGE = 15
    SEAL = 16
    COMMIT = 17
    ABORT = 18
    RANGE_LEASE = 19
    HORIZONS = 20
    DISCARD = 21
    RETURN_LATER = 22
    ASK = 23
    IDLE = 24
    UNIQUE_WINDOW = 25
    PAUSE = 26


FLAG_PROPERTIES = 1
"""The frame has a second column: each message's properties."""
FLAG_TRANSIENT = 2
"""The messages of this frame are not persistent."""
FLAG_TERMS = 4
"""The frame ends with a delay and a ttl of its messages."""
FLAG_STEP = 8
"""The first body of this frame is no message but a `Step`."""
FLAG_STAGED = 16
"""Beside FLAG_STEP: that body is a `Stage`. In a request it may also be what is asked of staged
messages (`staged.Staging`), and there is nothing else then."""
FLAG_WHOLE = 32
"""In a spool's local queue: the frame is a put_many, or a part of one that fills a frame, which its
target stores whole or not at all."""
FLAG_UNIQUE = 64
"""Properties of this frame's messages have a unique key, at least some of them."""
UNIQUE_COUNT_MAX = 64
"""Most messages of a frame with FLAG_UNIQUE: one page is read and changed for each."""
FLAG_UNIQUE_LATER = 128
"""In a spool's local queue: FLAG_UNIQUE for its target, which is the one to look at the keys."""
PRIORITY_SHIFT = 8
PRIORITY_MAX = 31
FLAG_PRIORITY = PRIORITY_MAX << PRIORITY_SHIFT
"""Publish: these bits of the flags are the priority of the frame's messages."""


class Header(Struct, frozen=True, gc=False):
    """The fixed part of every frame (docs/disk-format.md has the layout)."""

    kind: int
    flags: int
    queue_id: int
    epoch: int
    """Epoch in which the op was made, not the current one."""
    lsn: int
    first_sequence: int
    """Publish: sequence of the first message. 0 in other kinds."""
    count: int
    """Publish: messages. Refusal: producer numbers refused. Else 1."""
    producer: int
    first_number: int
    """Publish and refusal: the producer's number of the first message."""
    settled: int
    """Publish and refusal: the producer needs no outcome at or below this number."""
    timestamp_us: int
    """Microseconds since 1970-01-01 UTC, by the queue's time (`queue_time`)."""
    length: int
    """Bytes of the whole frame, header and padding included."""
    delay_ms: int = 0
    """Publish: the messages are ready so long after `timestamp_us`, at the earliest."""
    ttl_ms: int = 0
    """Publish: the messages end so long after `timestamp_us`; 0 = never by this."""

    @property
    def priority(self) -> int:
        """Of all messages of a publish frame, 0 to PRIORITY_MAX."""
        return (self.flags & FLAG_PRIORITY) >> PRIORITY_SHIFT

    @property
    def last_sequence(self) -> int:
        return self.first_sequence + self.count - 1

    @property
    def last_number(self) -> int:
        return self.first_number + self.count - 1


class AckOp(Struct, frozen=True, gc=False):
    """Messages that were acked: they end."""

    ranges: tuple[Range, ...]


class ReturnOp(Struct, frozen=True, gc=False):
    """Messages that go back to their places; each one's delivery count grows by one."""

    ranges: tuple[Range, ...]


class ReturnLaterOp(Struct, frozen=True, gc=False):
    """As ReturnOp; but the messages are ready only when a DueOp says so, at `due_us`."""

    ranges: tuple[Range, ...]
    due_us: int
    """Microseconds since 1970-01-01 UTC, by the queue's time."""


class DueOp(Struct, frozen=True, gc=False):
    """Delayed messages are due: they become ready."""

    entering: tuple[Range, ...]
    """These were published with a delay: they enter their levels, in this order."""
    place: int
    """Of the first of them; the others follow. Numbers that are no sequences of messages."""
    returning: tuple[Range, ...]
    """These were returned with a delay: they are ready again, where they stood."""

    @property
    def next_place(self) -> int:
        """The number after the last that it uses."""
        return self.place + sum(last - first + 1 for first, last in self.entering)


class HorizonOp(Struct, frozen=True, gc=False):
    """How far messages may be handed out: it is in the log before they are, so that every next
    master knows what may have been seen."""

    sequence: int
    """Messages below this sequence may be handed out."""


class HorizonsOp(Struct, frozen=True, gc=False):
    """Horizons of several priorities: each (priority, place) as in HorizonOp."""

    horizons: tuple[tuple[int, int], ...]


class IdleOp(Struct, frozen=True, gc=False):
    """Whether the queue is in use, for `expires`: every next master goes on from there."""

    since_us: int
    """Nobody uses it since then, by the queue's time; 0: somebody does."""


class UniqueWindowOp(Struct, frozen=True, gc=False):
    """How long the queue remembers a unique key whose put does not say it."""

    window_ms: int


class PauseOp(Struct, frozen=True, gc=False):
    """Whether the queue hands out nothing until a later op says so."""

    is_paused: bool


class PromotedOp(Struct, frozen=True, gc=False):
    """The first op of a new master. `how`: clean, unclean or cold.

    An unclean one begins another past of the queue: its master was not in sync."""

    how: str
    generation: int = 0
    """Unclean: the view's. Sequences and producer ids of this past begin there."""
    master_epoch: int = 0
    """Unclean: deliveries of terms before this one can no longer be acked."""
    lost: tuple[Range, ...] = ()
    """Unclean: messages that live in the new master's state and whose bodies it lacks."""
    lost_count: int = 0
    """Unclean: how many messages are lost, as far as the new master can tell."""


NOT_TAKEN = "an ack was not taken"
"""How the reason begins for which a step was refused because of one of its acks."""


class RefusalOp(Struct, frozen=True, gc=False):
    """Publishes of a producer that were refused, and why: they use their numbers, so that they are
    refused again when they are sent again."""

    reason: str


class PurgeOp(Struct, frozen=True, gc=False):
    """Messages that a purge ends."""

    ranges: tuple[Range, ...]


class DropHeadOp(Struct, frozen=True, gc=False):
    """Messages that ended to make room for newer ones."""

    ranges: tuple[Range, ...]


class ExpiryOp(Struct, frozen=True, gc=False):
    """Messages whose time to live was over while they were ready."""

    ranges: tuple[Range, ...]


class DiscardOp(Struct, frozen=True, gc=False):
    """Messages that end without an ack because a consumer said so, or could not take them."""

    ranges: tuple[Range, ...]
    reason: str
    """rejected or delivery_limit."""


class OutboxOp(Struct, frozen=True, gc=False):
    """Messages that end here and are to be published in another queue, exactly once."""

    ranges: tuple[Range, ...]
    target: int
    """Id of the other queue."""
    reason: str
    """expired, maxlen, rejected or delivery_limit; moved: somebody asked for it (`redrive`)."""


class OutboxDoneOp(Struct, frozen=True, gc=False):
    """What an outbox has for a queue, up to this number, has been dealt with."""

    target: int
    number: int
    outcome: str
    """confirmed: it is stable there; cycle, refused: it went nowhere; deleted: the target has been
    deleted."""


class ProducerOp(Struct, frozen=True, gc=False):
    """A producer id is given (`expired` empty; the id is the op's lsn) or ids end."""

    session: str
    expired: tuple[int, ...] = ()


class UnknownOp(Struct, frozen=True, gc=False):
    """An op of a version to come: the queue stops here and names the version it needs."""

    kind: int
    why: str = ""
    """Of a kind that is known: what is wrong with its payload."""


Payload = (
    AckOp
    | ReturnOp
    | ReturnLaterOp
    | DueOp
    | HorizonOp
    | HorizonsOp
    | IdleOp
    | UniqueWindowOp
    | PauseOp
    | PromotedOp
    | RefusalOp
    | PurgeOp
    | DropHeadOp
    | ExpiryOp
    | DiscardOp
    | OutboxOp
    | OutboxDoneOp
    | ProducerOp
    | SealOp
    | CommitOp
    | AbortOp
    | AskOp
    | UnknownOp
    | None
)


class Step(Struct, frozen=True, gc=False):
    """What the messages of a publish frame come with: all of it in one op, or nothing."""

    ranges: tuple[Range, ...]
    """Messages of this queue that are acked."""
    target: int = 0
    """The queue that the frame's messages are for; 0: this one."""


class UniqueKey(Struct, frozen=True, gc=False):
    """The unique key of a message that is published. A digest stands for the user's text."""

    producer: int
    """61 bits of the digest, as a producer id (`identities.key_producer`)."""
    check: str
    """Other 64 bits, in hexadecimal."""
    window_ms: int
    """How long the queue remembers the key; 0: as long as its policy says."""


class Entry(Struct, frozen=True, gc=False, eq=False):
    """One op in a log. Publish entries have payload None: bodies stay in the frame."""

    header: Header
    payload: Payload
    frame: bytes
    """The sealed frame, exactly as on the wire and on disk."""
    offsets: bytes = b""
    """Publish: where each body ends, counted from the first, as int32 after a 0: the frame's
    own column, for who counts bytes."""
    step: Step | Stage | None = None
    """Publish with FLAG_STEP: what its first body says."""
    keys: tuple[UniqueKey | None, ...] = ()
    """Publish with FLAG_UNIQUE: one for each of its messages, None where a message has no key."""

    @property
    def lsn(self) -> int:
        return self.header.lsn

    @property
    def epoch(self) -> int:
        return self.header.epoch
