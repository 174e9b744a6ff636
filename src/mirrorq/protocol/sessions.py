"""Requests of a handle to its queue's master, and the replies."""

from __future__ import annotations

from msgspec import Struct

from mirrorq.protocol.identities import SessionId


class Delivery(Struct, frozen=True, gc=False):
    """A contiguous range of messages, all of one count, handed to one consumer.

    Each message's delivery is named by (epoch, sequence, delivery count, delivery number). The
    master gives `number`, unique in its epoch.
    """

    epoch: int
    number: int
    first: int
    last: int
    count: int
    """The delivery count of every message in the range: 1 at the first delivery."""


class Attach(Struct, frozen=True, gc=False):
    """First request of an attachment. `held`: deliveries taken by users of the handle and not
    settled. Other deliveries of the session were seen by no user and go back uncounted. `producer`:
    0 = none yet."""

    held: tuple[Delivery, ...]
    producer: int
    owner: str = ""
    """The client's key, filled in by its entry node."""
    line: int = 0
    """Number of a client's handle, equal at every entry node; each entry node has a separate
    session. Random, 63 bits. 0: the handle is on a node, and never moves."""
    turn: int = 0
    """Grows with each entry node of the client."""
    connection: str = ""
    """The client's name, see `connection_of`. Filled in by its entry node."""


class OpenProducer(Struct, frozen=True, gc=False):
    """Ask for a producer id; answered by ProducerOpened when the op is stable."""


class Publish(Struct, frozen=True, gc=False):
    """A batch in a frame with producer, first_number, settled; not yet stamped.

    `whole`: a put_many: never cut inside, all or none.
    """

    frame: bytes
    whole: bool
    deliveries: tuple[Delivery, ...] = ()
    """With FLAG_STEP: the deliveries to ack. The frame is stored when all acks are taken."""


class Subscribe(Struct, frozen=True, gc=False):
    """Start or change a consumer. `number` is the session's own; 0 is get()'s."""

    number: int
    prefetch: int
    exclusive: bool = False
    auto_ack: bool = False
    bare: bool = False
    """The consumer gets sequences without bodies, and reads the bodies elsewhere. Exclusive too: a
    *claim*: no other consumer gets messages, and the consumer acks by sequence (AckRange)."""
    label: str = ""
    """Name of the consumer, for users refused because of the consumer."""


class Unsubscribe(Struct, frozen=True, gc=False):
    """A consumer of the attachment ends."""

    number: int


class Credit(Struct, frozen=True, gc=False):
    """Limit of messages for the consumer: `total` in all, counted from the attachment's beginning.
    `total` only grows within an attachment; 0: deliver nothing until the next Credit."""

    number: int
    total: int
    size: int = 0
    """Bytes of bodies for the consumer from now until the next Credit, and the rest of the message
    which passes the limit. 0: no limit, or the present limit. Filled in by entry nodes."""


class Settle(Struct, frozen=True, gc=False):
    """Acks and returns. `kind`: ack, nack (counted), reject (ends without an ack), move (ends here
    and goes to `target`) or giveback (seen by no user).

    Answered by Settled with the same `request` when the outcome is stable (giveback: never).
    """

    request: int
    kind: str
    deliveries: tuple[Delivery, ...]
    delay_ms: int = 0
    """nack: time before the messages come again, at the earliest."""
    target: int = 0
    """move: the id of another queue."""


class Extend(Struct, frozen=True, gc=False):
    """Messages of the deliveries held by the session may be held for `duration_ms` from now on; 0:
    without end. Answered by Settled.
    """

    request: int
    deliveries: tuple[Delivery, ...]
    duration_ms: int


class Browse(Struct, frozen=True, gc=False):
    """Read messages without taking: up to `count_max`, from sequence `start` on. Answered by
    Browsed."""

    request: int
    start: int
    count_max: int


class Purge(Struct, frozen=True, gc=False):
    """End the messages of a range held by no consumer, ready or delayed, or move them to another
    queue. Answered by Purged."""

    request: int
    first: int = 1
    last: int = 2**63 - 1
    """Sequences."""
    target: int = 0
    """Id of the queue to move the messages to; 0: the messages end."""


class Pause(Struct, frozen=True, gc=False):
    """Hand out nothing, or hand out again. Answered by Purged of 0 messages."""

    request: int
    is_paused: bool


class AckRange(Struct, frozen=True, gc=False):
    """Ack all live messages from `first` to `last`; answered by Purged. For the consumer `number`
    of the session, with a claim."""

    request: int
    number: int
    first: int
    last: int


class Recalled(Struct, frozen=True, gc=False):
    """Messages not returned by a call at the recall are given back."""

    number: int


class Inquire(Struct, frozen=True, gc=False):
    """Ask how many messages and consumers there are. Answered by Counts."""

    request: int


ALL_SEEN = 2**63 - 1
"""Beyond the number of any delivery."""


class Detach(Struct, frozen=True, gc=False):
    """The handle is closed. All its messages go back (messages taken by users: counted)."""

    is_lost: bool = False
    """The client was not closed: its entry node took the client for gone, and sends for the client.
    The client may come back."""
    seen: int = ALL_SEEN
    """Number of the last delivery that reached the handle: later ones go back uncounted."""


class Ping(Struct, frozen=True, gc=False):
    """A sign of life, or a mark: the Pong comes after all earlier requests were taken, and behind
    all earlier replies."""


Request = (
    Attach
    | OpenProducer
    | Publish
    | Subscribe
    | Unsubscribe
    | Credit
    | Settle
    | Extend
    | Browse
    | Purge
    | Pause
    | AckRange
    | Recalled
    | Inquire
    | Detach
    | Ping
)


class Attached(Struct, frozen=True, gc=False):
    """Answer to Attach: requests of the attachment are served."""


class Detached(Struct, frozen=True, gc=False):
    """The master does not know the attachment (or saw a gap): attach again."""


class ProducerOpened(Struct, frozen=True, gc=False):
    """Answer to OpenProducer: the id for publishing."""

    producer: int


class ProducerUnknown(Struct, frozen=True, gc=False):
    """The producer id has expired: its open publishes have an unknown outcome."""

    producer: int


class Confirmed(Struct, frozen=True, gc=False):
    """Stable. Each: (first number, count, first sequence)."""

    producer: int
    runs: tuple[tuple[int, int, int], ...]
    repeats: tuple[tuple[int, int, int], ...] = ()
    """Numbers not stored: messages with the same unique keys already had these sequences."""


class Refused(Struct, frozen=True, gc=False):
    """Certainly not stored, or lost since; told from a stable op."""

    producer: int
    first_number: int
    count: int
    reason: str
    is_lost: bool = False
    """The message was stored first: a consumer may have received it."""


class ResendNumber(Struct, frozen=True, gc=False):
    """A gap in a producer's numbers: send again from `number` on."""

    producer: int
    number: int


class Deliver(Struct, frozen=True, gc=False):
    """Messages for one consumer. `frames`: pieces with the bodies, in order of sequence within each
    delivery; filled in by the driver of the master's node."""

    consumer: int
    deliveries: tuple[Delivery, ...]
    frames: tuple[bytes, ...] = ()
    bare: bool = False
    """There are no frames, and none are to be filled in."""


class Settled(Struct, frozen=True, gc=False):
    """`refused`: refused deliveries, with the reason in `why`."""

    request: int
    refused: tuple[Delivery, ...]
    why: str = ""


class Browsed(Struct, frozen=True, gc=False):
    """`ranges`: (first, last, delivery count) of the found messages; `frames` hold the bodies."""

    request: int
    ranges: tuple[tuple[int, int, int], ...]
    frames: tuple[bytes, ...] = ()


class Purged(Struct, frozen=True, gc=False):
    """Answer to Purge, AckRange and Pause: the number of messages ended."""

    request: int
    count: int
    why: str = ""
    """Reason for a refusal, when no message ended."""


class Counts(Struct, frozen=True, gc=False):
    """Answer to Inquire: the queue's counts at its master."""

    request: int
    ready: int
    unacknowledged: int
    consumers: int
    next_sequence: int
    ready_bytes: int
    """Bytes of the bodies of ready messages."""
    delayed: int = 0
    """Live, and ready only at a later time: after a delay, or when their return is stable."""
    applied: int = 0
    """The master's applied lsn: a copy with the same applied lsn shows the same counts."""
    waiting: bool = False
    """True if a consumer waits for a message, or another handle's get()."""
    is_paused: bool = False
    """True if the queue hands out nothing."""


class Flow(Struct, frozen=True, gc=False):
    """Room of the queue before a put waits (overflow: block), beyond the master's messages. The
    master has the producer's messages up to number `highest`.

    Sent before Attached, and on changes relevant to the handle. Flow decides nothing: messages
    beyond the room wait at the master.
    """

    is_bounded: bool
    producer: int = 0
    highest: int = 0
    count: int = 0
    size: int = 0
    """Bytes of bodies."""
    count_max: int = 0
    size_max: int = 0
    """The limits: a message above never fits, and is refused."""
    why: str = ""


class Recall(Struct, frozen=True, gc=False):
    """Another consumer waits for messages: give back messages not returned by a call."""

    consumer: int
    number: int = 0
    """Number of a purge which waits: reply `Recalled` when done. 0: no purge waits."""


class ConsumerRefused(Struct, frozen=True, gc=False):
    """The queue refuses the consumer, or ends it later; `why` is the reason in words."""

    number: int
    why: str


class Pong(Struct, frozen=True, gc=False):
    """Answer to Ping: the master still serves the attachment."""


Reply = (
    Attached
    | Detached
    | ProducerOpened
    | ProducerUnknown
    | Confirmed
    | Refused
    | ResendNumber
    | Deliver
    | Settled
    | Browsed
    | Purged
    | Counts
    | Flow
    | Recall
    | ConsumerRefused
    | Pong
)


class SessionRequest(Struct, frozen=True, gc=False):
    """Envelope, session to master. `number` counts 1, 2, 3, … within the attachment; a gap
    means loss: the master answers Detached and the session attaches again."""

    queue_id: int
    epoch: int
    session: SessionId
    attachment: int
    number: int
    request: Request


class SessionReply(Struct, frozen=True, gc=False):
    """Envelope, master to session. Numbered like requests, and a gap has the same cure."""

    queue_id: int
    epoch: int
    session: SessionId
    attachment: int
    number: int
    reply: Reply
