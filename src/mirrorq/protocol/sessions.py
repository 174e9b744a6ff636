"""Requests of a handle to its queue's master, and the replies."""

from __future__ import annotations

from msgspec import Struct

from mirrorq.protocol.identities import SessionId


class Delivery(Struct, frozen=True, gc=False):
    """A contiguous range of messages, all of one count, handed to one consumer.

    Each message's delivery is named by (epoch, sequence, delivery count, delivery number);
    `number` is given by the master and unique in its epoch.
    """

    epoch: int
    number: int
    first: int
    last: int
    count: int
    """The delivery count of every message in it: 1 at the first delivery."""


class Attach(Struct, frozen=True, gc=False):
    """First request of an attachment. `held`: what users of this handle have taken and
    not settled. What the master had handed to this session and is not in `held` was seen by
    nobody and goes back uncounted. `producer`: 0 = none yet."""

    held: tuple[Delivery, ...]
    producer: int
    owner: str = ""
    """The key of the client. Its entry node puts it in."""
    line: int = 0
    """A number that a client's handle keeps wherever its client enters; at each entry node it has
    a session of its own. Random, 63 bits. 0: the handle is on a node, and never moves."""
    turn: int = 0
    """Grows with each entry node of the client."""
    connection: str = ""
    """The client's name, see `connection_of`. Its entry node puts it in."""


class OpenProducer(Struct, frozen=True, gc=False):
    """Ask for a producer id; answered by ProducerOpened when the op is stable."""


class Publish(Struct, frozen=True, gc=False):
    """A batch in a frame that names producer, first_number, settled; not yet stamped.

    `whole`: a put_many: never cut inside, all or none.
    """

    frame: bytes
    whole: bool
    deliveries: tuple[Delivery, ...] = ()
    """With FLAG_STEP: the deliveries that it acks. It is stored when all of them are taken."""


class Subscribe(Struct, frozen=True, gc=False):
    """Start a consumer, or change it. `number` is the session's own; 0 is get()'s."""

    number: int
    prefetch: int
    exclusive: bool = False
    auto_ack: bool = False
    bare: bool = False
    """It is told which messages it holds, and reads their bodies elsewhere. Exclusive too: a
    *claim*: nobody else is handed anything, and it acks by sequence (AckRange)."""
    label: str = ""
    """Who it is, for those who cannot have the queue because of it."""


class Unsubscribe(Struct, frozen=True, gc=False):
    """A consumer of this attachment ends."""

    number: int


class Credit(Struct, frozen=True, gc=False):
    """The consumer may be sent messages until `total` have been handed to it in all,
    counted from the attachment's beginning. It only grows within an attachment; 0: nothing more
    is to be handed to it until the next Credit."""

    number: int
    total: int
    size: int = 0
    """Bytes of bodies that may be handed to it from now until the next Credit, and the rest of the
    message that passes them. 0: no bound, or the one that there is. Entry nodes put it in."""


class Settle(Struct, frozen=True, gc=False):
    """Acks and returns. `kind`: ack, nack (counted), reject (ends without an ack), move (ends
    here and goes to `target`) or giveback (seen by nobody).

    Answered by Settled with the same `request` when the outcome is stable (giveback: never).
    """

    request: int
    kind: str
    deliveries: tuple[Delivery, ...]
    delay_ms: int = 0
    """nack: the messages come again after this, at the earliest."""
    target: int = 0
    """move: the id of another queue."""


class Extend(Struct, frozen=True, gc=False):
    """What of these the session holds may be held for so long from now on; 0: without end.

    Answered by Settled. Only to a master whose `Attached` says that it knows this.
    """

    request: int
    deliveries: tuple[Delivery, ...]
    duration_ms: int


class Browse(Struct, frozen=True, gc=False):
    """Ask for messages that stay where they are: up to `count_max`, from sequence `start` on.
    Answered by Browsed."""

    request: int
    start: int
    count_max: int


class Purge(Struct, frozen=True, gc=False):
    """End the messages of a range that nobody holds, ready or delayed, or move them to another
    queue. Answered by Purged."""

    request: int
    first: int = 1
    last: int = 2**63 - 1
    """Sequences."""
    target: int = 0
    """Id of the queue to which they go; 0: they end."""


class Pause(Struct, frozen=True, gc=False):
    """Hand out nothing, or hand out again. Answered by Purged of 0 messages."""

    request: int
    is_paused: bool


class AckRange(Struct, frozen=True, gc=False):
    """All that lives from `first` to `last` is done with; answered by Purged. For the consumer
    `number` of this session, which holds a claim."""

    request: int
    number: int
    first: int
    last: int


class Recalled(Struct, frozen=True, gc=False):
    """What no call had returned at this recall is given back."""

    number: int


class Inquire(Struct, frozen=True, gc=False):
    """Ask how many messages and consumers there are. Answered by Counts."""

    request: int


class Detach(Struct, frozen=True, gc=False):
    """The handle is closed. Everything it holds goes back (what users took: counted)."""

    is_lost: bool = False
    """It was not closed: its client was taken for gone by its entry node, which says this in its
    name. It may come back."""


class Ping(Struct, frozen=True, gc=False):
    """A sign of life, or a mark: the Pong comes when all requests before it have been taken, and
    behind all that was sent before."""


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
    """Answer to Attach: requests of this attachment are served."""


class Detached(Struct, frozen=True, gc=False):
    """The master does not know this attachment (or saw a gap): attach again."""


class ProducerOpened(Struct, frozen=True, gc=False):
    """Answer to the opening of a producer: the id under which it publishes."""

    producer: int


class ProducerUnknown(Struct, frozen=True, gc=False):
    """The id has expired: what is open under it is of unknown outcome."""

    producer: int


class Confirmed(Struct, frozen=True, gc=False):
    """Stable. Each: (first number, count, first sequence)."""

    producer: int
    runs: tuple[tuple[int, int, int], ...]
    repeats: tuple[tuple[int, int, int], ...] = ()
    """Numbers whose messages were not stored: messages with their unique keys had these sequences
    already."""


class Refused(Struct, frozen=True, gc=False):
    """Certainly not stored, or lost since; told from a stable op."""

    producer: int
    first_number: int
    count: int
    reason: str
    is_lost: bool = False
    """It was stored: somebody may have had it."""


class ResendNumber(Struct, frozen=True, gc=False):
    """A gap in a producer's numbers: send again from `number` on."""

    producer: int
    number: int


class Deliver(Struct, frozen=True, gc=False):
    """Messages for one consumer. `frames`: pieces that hold the bodies, in order of
    sequence within each delivery; filled in by the driver of the master's node."""

    consumer: int
    deliveries: tuple[Delivery, ...]
    frames: tuple[bytes, ...] = ()
    bare: bool = False
    """There are no frames, and none are to be filled in."""


class Settled(Struct, frozen=True, gc=False):
    """`refused`: what was not taken, with the reason in `why`."""

    request: int
    refused: tuple[Delivery, ...]
    why: str = ""


class Browsed(Struct, frozen=True, gc=False):
    """`counts`: (first, last, delivery count) of what was found; `frames` hold the bodies."""

    request: int
    ranges: tuple[tuple[int, int, int], ...]
    frames: tuple[bytes, ...] = ()


class Purged(Struct, frozen=True, gc=False):
    """Of Purge and AckRange: how many messages ended."""

    request: int
    count: int
    why: str = ""
    """Why none did."""


class Counts(Struct, frozen=True, gc=False):
    """Answer to Inquire: the queue as its master counts it."""

    request: int
    ready: int
    unacknowledged: int
    consumers: int
    next_sequence: int
    ready_bytes: int
    """Of the bodies of those that are ready."""
    delayed: int = 0
    """Live, and ready only at a later time: after a delay, or when their return is stable."""
    applied: int = 0
    """The lsn up to which the master has applied its ops: a copy that has come so far shows
    all this."""
    waiting: bool = False
    """Whether a consumer waits for a message, or another handle's get()."""


class Flow(Struct, frozen=True, gc=False):
    """What the queue takes before a put waits (overflow: block): so much more than what the
    master has, which is this producer's messages up to number `highest`.

    Sent before Attached, and when it changes so that the handle should know. It decides
    nothing: what comes all the same waits at the master.
    """

    is_bounded: bool
    producer: int = 0
    highest: int = 0
    count: int = 0
    size: int = 0
    """Bytes of bodies."""
    count_max: int = 0
    size_max: int = 0
    """The limits: what is above them never fits, and is refused."""
    why: str = ""


class Recall(Struct, frozen=True, gc=False):
    """Another consumer waits for messages: give back what no call has returned."""

    consumer: int
    number: int = 0
    """Of a purge that waits for it: say `Recalled` when that is done. 0: none does."""


class ConsumerRefused(Struct, frozen=True, gc=False):
    """The queue does not take the consumer, or does not keep it; `why` says it in words."""

    number: int
    why: str


class Pong(Struct, frozen=True, gc=False):
    """Answer to Ping: the master serves this attachment still."""


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
