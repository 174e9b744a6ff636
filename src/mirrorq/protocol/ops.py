"""Ops: the replicated steps of a queue, their header, and the log's entry with an op."""

from __future__ import annotations

from enum import IntEnum

from msgspec import Struct

from mirrorq.containers.ranges import Range
from mirrorq.protocol.staged import AbortOp, AskOp, CommitOp, SealOp, Stage


class OpKind(IntEnum):
    """Kind of an op. The numbers are on disk and never change meaning."""

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
"""The frame's messages are not persistent."""
FLAG_TERMS = 4
"""The frame ends with a delay and a ttl of its messages."""
FLAG_STEP = 8
"""The first body of the frame is no message but a `Step`."""
FLAG_STAGED = 16
"""Beside FLAG_STEP: the first body is a `Stage`. In a request the body may also be a command about
staged messages (`staged.Staging`), without further bodies."""
FLAG_WHOLE = 32
"""In a spool's local queue: the frame is a put_many, or a frame-filling part of a put_many. The
target stores the whole frame or nothing."""
FLAG_UNIQUE = 64
"""Some or all messages of the frame have a unique key in their properties."""
UNIQUE_COUNT_MAX = 64
"""Limit of messages in a frame with FLAG_UNIQUE: one page is read and changed for each."""
FLAG_UNIQUE_LATER = 128
"""In a spool's local queue: FLAG_UNIQUE for the target, which checks the keys."""
PRIORITY_SHIFT = 8
PRIORITY_MAX = 31
FLAG_PRIORITY = PRIORITY_MAX << PRIORITY_SHIFT
"""Publish: bits of the flags with the priority of the frame's messages."""


class Header(Struct, frozen=True, gc=False):
    """The fixed part of every frame (docs/disk-format.md has the layout)."""

    kind: int
    flags: int
    queue_id: int
    epoch: int
    """Epoch of the op's creation, not the current epoch."""
    lsn: int
    first_sequence: int
    """Publish: sequence of the first message. 0 in other kinds."""
    count: int
    """Publish: messages. Refusal: producer numbers refused. Else 1."""
    producer: int
    first_number: int
    """Publish and refusal: the producer's number of the first message."""
    settled: int
    """Publish and refusal: the producer needs no outcome at or below the number."""
    timestamp_us: int
    """Microseconds since 1970-01-01 UTC, by the queue's time (`queue_time`)."""
    length: int
    """Bytes of the whole frame, header and padding included."""
    delay_ms: int = 0
    """Publish: the messages are ready so long after `timestamp_us`, at the earliest."""
    ttl_ms: int = 0
    """Publish: the messages end so long after `timestamp_us`; 0 = no end by ttl."""

    @property
    def priority(self) -> int:
        """Priority of all messages of a publish frame, 0 to PRIORITY_MAX."""
        return (self.flags & FLAG_PRIORITY) >> PRIORITY_SHIFT

    @property
    def last_sequence(self) -> int:
        return self.first_sequence + self.count - 1

    @property
    def last_number(self) -> int:
        return self.first_number + self.count - 1


class AckOp(Struct, frozen=True, gc=False):
    """Acked messages, which end."""

    ranges: tuple[Range, ...]


class ReturnOp(Struct, frozen=True, gc=False):
    """Messages which go back to their places; each delivery count grows by one."""

    ranges: tuple[Range, ...]


class ReturnLaterOp(Struct, frozen=True, gc=False):
    """As ReturnOp, but a DueOp makes the messages ready, at `due_us`."""

    ranges: tuple[Range, ...]
    due_us: int
    """Microseconds since 1970-01-01 UTC, by the queue's time."""


class DueOp(Struct, frozen=True, gc=False):
    """Delayed messages are due and become ready."""

    entering: tuple[Range, ...]
    """Messages published with a delay: they enter their levels, in this order."""
    place: int
    """Place of the first entering message; the rest follow. Place numbers are never sequences."""
    returning: tuple[Range, ...]
    """Messages returned with a delay: ready again, at their old places."""

    @property
    def next_place(self) -> int:
        """The number after the last used place."""
        return self.place + sum(last - first + 1 for first, last in self.entering)


class HorizonOp(Struct, frozen=True, gc=False):
    """Limit of deliveries, logged before the deliveries, so every later master knows which
    messages may have been seen."""

    sequence: int
    """Messages below the sequence may be delivered."""


class HorizonsOp(Struct, frozen=True, gc=False):
    """Horizons of several priorities: each (priority, place) as in HorizonOp."""

    horizons: tuple[tuple[int, int], ...]


class IdleOp(Struct, frozen=True, gc=False):
    """Use of the queue, for `expires`: every later master goes on from this state."""

    since_us: int
    """Start of the time without use, by the queue's time; 0: in use."""


class UniqueWindowOp(Struct, frozen=True, gc=False):
    """Default time for which the queue remembers a unique key, for puts without a window."""

    window_ms: int


class PauseOp(Struct, frozen=True, gc=False):
    """Pause or end of a pause of all deliveries, until a later op."""

    is_paused: bool


class PromotedOp(Struct, frozen=True, gc=False):
    """The first op of a new master. `how`: clean, unclean or cold. An unclean promotion begins
    another history of the queue: the master was not in sync."""

    how: str
    generation: int = 0
    """Unclean: the view's. Sequences and producer ids of the new history begin there."""
    master_epoch: int = 0
    """Unclean: deliveries of earlier terms can no longer be acked."""
    lost: tuple[Range, ...] = ()
    """Unclean: live messages of the new master's state with missing bodies."""
    lost_count: int = 0
    """Unclean: how many messages are lost, as far as the new master can tell."""


NOT_TAKEN = "an ack was not taken"
"""Start of the reason when a step was refused because of one of its acks."""


class RefusalOp(Struct, frozen=True, gc=False):
    """Refused publishes of a producer, with the reason. They use up their numbers, so a repeated
    publish is refused again."""

    reason: str


class PurgeOp(Struct, frozen=True, gc=False):
    """Messages ended by a purge."""

    ranges: tuple[Range, ...]


class DropHeadOp(Struct, frozen=True, gc=False):
    """Messages dropped to make room for newer messages."""

    ranges: tuple[Range, ...]


class ExpiryOp(Struct, frozen=True, gc=False):
    """Messages with an expired time to live while ready."""

    ranges: tuple[Range, ...]


class DiscardOp(Struct, frozen=True, gc=False):
    """Messages ended without an ack, by a consumer's reject or by the delivery limit."""

    ranges: tuple[Range, ...]
    reason: str
    """rejected or delivery_limit."""


class OutboxOp(Struct, frozen=True, gc=False):
    """Messages which end here and are to be published in another queue, exactly once."""

    ranges: tuple[Range, ...]
    target: int
    """Id of the other queue."""
    reason: str
    """expired, maxlen, rejected or delivery_limit; moved: by a request (`redrive`)."""


class OutboxDoneOp(Struct, frozen=True, gc=False):
    """Outbox entries for a queue, up to the number, have an outcome."""

    target: int
    number: int
    outcome: str
    """confirmed: stable at the target; cycle, refused: published nowhere; deleted: the target has
    been deleted."""


class ProducerOp(Struct, frozen=True, gc=False):
    """A producer id is given (`expired` empty; the id is the op's lsn) or ids end."""

    session: str
    expired: tuple[int, ...] = ()


class UnknownOp(Struct, frozen=True, gc=False):
    """An op of a later version: the queue stops here and names the needed version."""

    kind: int
    why: str = ""
    """Error in the payload of a known kind, else ""."""


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
    """Acks with a publish frame: the messages and all acks are one op, or nothing."""

    ranges: tuple[Range, ...]
    """Acked messages of the queue."""
    target: int = 0
    """Target queue of the frame's messages; 0: the same queue."""


class UniqueKey(Struct, frozen=True, gc=False):
    """The unique key of a published message. A digest stands for the user's text."""

    producer: int
    """61 bits of the digest, as a producer id (`identities.key_producer`)."""
    check: str
    """Other 64 bits, in hexadecimal."""
    window_ms: int
    """Time for which the queue remembers the key; 0: by policy."""


class Entry(Struct, frozen=True, gc=False, eq=False):
    """One op in a log. Publish entries have payload None: bodies stay in the frame."""

    header: Header
    payload: Payload
    frame: bytes
    """The sealed frame, exactly as on the wire and on disk."""
    offsets: bytes = b""
    """Publish: ends of the bodies, counted from the first, as int32 after a 0: the frame's own
    column, for byte counts."""
    step: Step | Stage | None = None
    """Publish with FLAG_STEP: content of its first body."""
    keys: tuple[UniqueKey | None, ...] = ()
    """Publish with FLAG_UNIQUE: a key for each message, None for a message without a key."""

    @property
    def lsn(self) -> int:
        return self.header.lsn

    @property
    def epoch(self) -> int:
        return self.header.epoch
