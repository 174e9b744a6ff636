"""The vocabulary of mirrorq: identities, operations, ring, catalog and session messages.

Pure data. Every class is frozen and slotted, so a message can be handed from the
network to any number of machines without a copy. `wire` turns them into bytes; nothing
here knows how.

Words are those of docs/architecture.md: an *op* is one replicated step of a queue, an
*entry* is an op at its place in the log together with the bytes (the *frame*) that carry
it, a *view* is the ring of one queue at one epoch, a *session* is one handle's
conversation with the master of its queue.

Ranges are always pairs (first, last), both inclusive.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Literal

from attrs import frozen

Range = tuple[int, int]
"""(first, last), both inclusive."""

# --- Identities ---------------------------------------------------------------------


@frozen(order=True)
class StoreId:
    """One store on one node: what votes in the catalog. A wiped store is another one."""

    node: str
    store: int
    """Random 63-bit identity, made when the store is created."""


@frozen(order=True)
class MemberId:
    """One life of one store: what stands in a view."""

    node: str
    store: int
    incarnation: int
    """Grows by one at each start of the node, from `first_incarnation` on."""


def first_incarnation(store: int) -> int:
    """The number of a store's first life: another one for each store.

    A connection names the node and the incarnation. Did each store begin with 1, what the
    first life of an empty store says would be taken for the word of a lost one under its name.
    """
    return (store & 0x3FFF_FFFF) + 1


@frozen(order=True)
class SessionId:
    """One handle. It lives on `node` and never moves to another."""

    node: str
    incarnation: int
    number: int


# --- Ops ----------------------------------------------------------------------------


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
    LANE = 10
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


FLAG_PROPERTIES = 1
"""The frame has a second column: each message's properties."""
FLAG_TRANSIENT = 2
"""The messages of this frame are not persistent."""
FLAG_TERMS = 4
"""The frame ends with a delay and a ttl of its messages."""
FLAG_STEP = 8
"""The first body of this frame is no message but a `Step`."""
PRIORITY_SHIFT = 8
PRIORITY_MAX = 31
FLAG_PRIORITY = PRIORITY_MAX << PRIORITY_SHIFT
"""Publish: these bits of the flags are the priority of the frame's messages."""


@frozen
class Header:
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
    """Microseconds since 1970-01-01 UTC, at the master."""
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


@frozen
class AckOp:
    ranges: tuple[Range, ...]


@frozen
class ReturnOp:
    """Messages that go back to their places; each one's delivery count grows by one."""

    ranges: tuple[Range, ...]


@frozen
class ReturnLaterOp:
    """As ReturnOp; but the messages are ready only when a LaneOp says so, at `due_us`."""

    ranges: tuple[Range, ...]
    due_us: int
    """Microseconds since 1970-01-01 UTC, by the master's clock."""


@frozen
class LaneOp:
    """Delayed messages are due."""

    entering: tuple[Range, ...]
    """These were published with a delay: they enter their lanes, in this order."""
    place: int
    """Of the first of them; the others follow. Numbers that are no sequences of messages."""
    returning: tuple[Range, ...]
    """These were returned with a delay: they are ready again, where they stood."""

    @property
    def next_place(self) -> int:
        """The number after the last that it uses."""
        return self.place + sum(last - first + 1 for first, last in self.entering)


@frozen
class HorizonOp:
    sequence: int
    """Messages below this sequence may be handed out."""


@frozen
class HorizonsOp:
    """Horizons of several priorities: each (priority, place) as in HorizonOp."""

    horizons: tuple[tuple[int, int], ...]


@frozen
class PromotedOp:
    """The first op of a new master. `how`: clean, unclean or cold.

    An unclean one begins another past of the queue: its master was not in sync."""

    how: str
    generation: int = 0
    """Unclean: the view's. Sequences and producer ids of this past begin there."""
    reign: int = 0
    """Unclean: deliveries of reigns before this one can no longer be acked."""
    lost: tuple[Range, ...] = ()
    """Unclean: messages that live in the new master's state and whose bodies it lacks."""
    lost_count: int = 0
    """Unclean: how many messages are lost, as far as the new master can tell."""


@frozen
class RefusalOp:
    reason: str


@frozen
class PurgeOp:
    ranges: tuple[Range, ...]


@frozen
class DropHeadOp:
    """Messages that ended to make room for newer ones."""

    ranges: tuple[Range, ...]


@frozen
class ExpiryOp:
    """Messages whose time to live was over while they were ready."""

    ranges: tuple[Range, ...]


@frozen
class DiscardOp:
    """Messages that end without an ack because a consumer said so, or could not take them."""

    ranges: tuple[Range, ...]
    reason: str
    """rejected or delivery_limit."""


@frozen
class OutboxOp:
    """Messages that end here and are to be published in another queue, exactly once."""

    ranges: tuple[Range, ...]
    target: int
    """Id of the other queue."""
    reason: str
    """expired, maxlen, rejected or delivery_limit; moved: somebody asked for it (`redrive`)."""


@frozen
class OutboxDoneOp:
    """What an outbox has for a queue, up to this number, has been dealt with."""

    target: int
    number: int
    outcome: str
    """confirmed: it is stable there; cycle, refused: it went nowhere; deleted: the target has been
    deleted."""


@frozen
class ProducerOp:
    """A producer id is given (`expired` empty; the id is the op's lsn) or ids end."""

    session: str
    expired: tuple[int, ...] = ()


@frozen
class UnknownOp:
    """An op of a version to come: the queue stops here and names the version it needs."""

    kind: int


Payload = (
    AckOp
    | ReturnOp
    | ReturnLaterOp
    | LaneOp
    | HorizonOp
    | HorizonsOp
    | PromotedOp
    | RefusalOp
    | PurgeOp
    | DropHeadOp
    | ExpiryOp
    | DiscardOp
    | OutboxOp
    | OutboxDoneOp
    | ProducerOp
    | UnknownOp
    | None
)


@frozen
class Step:
    """What the messages of a publish frame come with: all of it in one op, or nothing."""

    ranges: tuple[Range, ...]
    """Messages of this queue that are acked."""
    target: int = 0
    """The queue that the frame's messages are for; 0: this one."""


@frozen(eq=False)
class Entry:
    """One op in a log. Publish entries have payload None: bodies stay in the frame."""

    header: Header
    payload: Payload
    frame: bytes
    """The sealed frame, exactly as on the wire and on disk."""
    offsets: bytes = b""
    """Publish: where each body ends, counted from the first, as int32 after a 0: the frame's
    own column, for who counts bytes."""
    step: Step | None = None
    """Publish with FLAG_STEP: what its first body says."""

    @property
    def lsn(self) -> int:
        return self.header.lsn

    @property
    def epoch(self) -> int:
        return self.header.epoch


# --- Views --------------------------------------------------------------------------


@frozen
class Member:
    id: MemberId
    in_sync: bool


@frozen
class View:
    """The ring of one queue at one epoch: oldest first; members[0] is the master.

    Members in sync stand before joining ones. `how` is said of the change of master that
    made this view: clean, unclean, cold, or "" when the master stayed.
    """

    epoch: int
    members: tuple[Member, ...]
    how: str = ""
    reign: int = 0
    """The epoch in which the present master became master: what sessions and deliveries
    name as their epoch, so that a change of mirrors disturbs no consumer. The catalog sets
    it: this epoch when members[0] changed (or is new), else that of the view before."""
    generation: int = 0
    """How many unclean promotions the queue has had. A master whose log does not have the
    last one begins with it, whatever `how` says: the one that should have may have died."""
    durability: Literal["fsync", "settling", "replicated"] = "fsync"
    """What the members' marks say, and by what members in sync are judged. fsync: on disk, by
    store. replicated: in memory, by incarnation. settling, on the way from replicated to fsync:
    on disk, still by incarnation."""


# --- Ring messages (between members of one queue, all name the current epoch) ----------


@frozen
class Data:
    """R1: new ops go right. `stable` rides along."""

    queue_id: int
    epoch: int
    stable: int
    entries: tuple[Entry, ...]


@frozen
class Mark:
    """R2, master to the right when idle: what is stable, and the sender's received lsn.

    A receiver that has less than `received` has lost something and asks for it.
    """

    queue_id: int
    epoch: int
    stable: int
    received: int


@frozen
class Watermark:
    """R2: the running minimum of `durable`, passed right; the last in sync to the master."""

    queue_id: int
    epoch: int
    lsn: int


@frozen
class JoinerDurable:
    """A member's own durable, told to the master: a joining one's while its copy is complete
    (R8); one in sync tells it while ops wait, so that the master sees who is slow (R9)."""

    queue_id: int
    epoch: int
    lsn: int


@frozen
class History:
    """R6: (epoch, last lsn) of the master's log as it was when this epoch began."""

    queue_id: int
    epoch: int
    history: tuple[tuple[int, int], ...]


@frozen
class HistoryRequest:
    """An unrepaired member to its left, when the history has not come."""

    queue_id: int
    epoch: int


@frozen
class Repaired:
    """R6: a repaired member to its left: send what follows `received`."""

    queue_id: int
    epoch: int
    received: int


@frozen
class ResendFrom:
    """R1: a gap was seen; send again from `lsn` on."""

    queue_id: int
    epoch: int
    lsn: int


@frozen
class TooOld:
    """To a joiner that asked for an op no longer kept: take a new state."""

    queue_id: int
    epoch: int


@frozen
class TransferRequest:
    """R7: a joiner asks one in-sync member for its applied state, under its own number."""

    queue_id: int
    epoch: int
    number: int


@frozen
class TransferState:
    """R7: the applied state at `lsn`. Replaces, never merges."""

    queue_id: int
    epoch: int
    number: int
    lsn: int
    state: bytes


@frozen
class FetchFrames:
    """R7: send frames of live messages after `after_sequence`, up to `upto_sequence`."""

    queue_id: int
    epoch: int
    number: int
    after_sequence: int
    upto_sequence: int
    bytes_max: int
    is_continued: bool = False
    """Another request is for what lies before: leave a frame out that begins there."""


@frozen
class FrameChunk:
    """R7: frames of live messages with after_sequence < sequence <= upto_sequence.

    Whatever is not among them in that span is not live at the sender.
    """

    queue_id: int
    epoch: int
    number: int
    after_sequence: int
    upto_sequence: int
    entries: tuple[Entry, ...]


@frozen
class PackedChunk:
    """A FrameChunk as it travels: its frames end to end, as they lie on the donor's disk. The
    joiner's driver checks and splits them."""

    queue_id: int
    epoch: int
    number: int
    after_sequence: int
    upto_sequence: int
    run: bytes


RingMessage = (
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
    | FrameChunk
)
RingWireMessage = (
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
    | PackedChunk
)
"""Of these what is on the wire."""

# --- Sessions: requests to a queue's master and its replies ------------------------------


@frozen
class HandOut:
    """One contiguous piece of a delivery: all of one count, handed to one consumer.

    A delivery is named by (epoch, sequence, delivery count, hand-out number); `number` is
    given by the master and unique in its epoch.
    """

    epoch: int
    number: int
    first: int
    last: int
    count: int
    """The delivery count of every message in it: 1 at the first delivery."""


@frozen
class Attach:
    """First request of an attachment. `held`: what users of this handle have taken and
    not settled. What the master had handed to this session and is not in `held` was seen by
    nobody and goes back uncounted. `producer`: 0 = none yet."""

    held: tuple[HandOut, ...]
    producer: int


@frozen
class OpenProducer:
    """Ask for a producer id; answered by ProducerOpened when the op is stable."""


@frozen
class Publish:
    """A batch in a frame that names producer, first_number, settled; not yet stamped.

    `whole`: a put_many: never cut inside, all or none.
    """

    frame: bytes
    whole: bool
    handouts: tuple[HandOut, ...] = ()
    """With FLAG_STEP: the deliveries that it acks. It is stored when all of them are taken."""


@frozen
class Subscribe:
    """Start a consumer, or change it. `number` is the session's own; 0 is get()'s."""

    number: int
    prefetch: int
    exclusive: bool = False
    auto_ack: bool = False


@frozen
class Unsubscribe:
    number: int


@frozen
class Credit:
    """The consumer may be sent messages until `total` have been handed to it in all,
    counted from the attachment's beginning. It only grows within an attachment."""

    number: int
    total: int


@frozen
class Settle:
    """Acks and returns. `kind`: ack, nack (counted), reject (ends without an ack), move (ends
    here and goes to `target`) or giveback (seen by nobody).

    Answered by Settled with the same `request` when the outcome is stable (giveback: never).
    """

    request: int
    kind: str
    handouts: tuple[HandOut, ...]
    delay_ms: int = 0
    """nack: the messages come again after this, at the earliest."""
    target: int = 0
    """move: the id of another queue."""


@frozen
class Browse:
    request: int
    start: int
    count_max: int


@frozen
class Purge:
    request: int


@frozen
class Recalled:
    """What no call had returned at this recall is given back."""

    number: int


@frozen
class Inquire:
    """Ask for Counts."""

    request: int


@frozen
class Detach:
    """The handle is closed. Everything it holds goes back (what users took: counted)."""


@frozen
class Ping:
    """Nothing but a sign of life; answered by Pong."""


Request = (
    Attach
    | OpenProducer
    | Publish
    | Subscribe
    | Unsubscribe
    | Credit
    | Settle
    | Browse
    | Purge
    | Recalled
    | Inquire
    | Detach
    | Ping
)


@frozen
class Attached:
    """Answer to Attach: requests of this attachment are served."""


@frozen
class Detached:
    """The master does not know this attachment (or saw a gap): attach again."""


@frozen
class ProducerOpened:
    producer: int


@frozen
class ProducerUnknown:
    """The id has expired: what is open under it is of unknown outcome."""

    producer: int


@frozen
class Confirmed:
    """Stable. Each: (first number, count, first sequence)."""

    producer: int
    runs: tuple[tuple[int, int, int], ...]


@frozen
class Refused:
    """Certainly not stored, told from a stable op."""

    producer: int
    first_number: int
    count: int
    reason: str


@frozen
class ResendNumber:
    """A gap in a producer's numbers: send again from `number` on."""

    producer: int
    number: int


@frozen
class Deliver:
    """Messages for one consumer. `frames`: pieces that hold the bodies, in order of
    sequence within each hand-out; filled in by the driver of the master's node."""

    consumer: int
    handouts: tuple[HandOut, ...]
    frames: tuple[bytes, ...] = ()


@frozen
class Settled:
    """`refused`: what was not taken, with the reason in `why`."""

    request: int
    refused: tuple[HandOut, ...]
    why: str = ""


@frozen
class Browsed:
    """`counts`: (first, last, delivery count) of what was found; `frames` hold the bodies."""

    request: int
    ranges: tuple[tuple[int, int, int], ...]
    frames: tuple[bytes, ...] = ()


@frozen
class Purged:
    request: int
    count: int


@frozen
class Counts:
    request: int
    ready: int
    unacknowledged: int
    consumers: int
    next_sequence: int
    store_bytes: int
    delayed: int = 0
    """Live, and ready only at a later time."""


@frozen
class Flow:
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


@frozen
class Recall:
    """Another consumer waits for messages: give back what no call has returned."""

    consumer: int
    number: int = 0
    """Of a purge that waits for it: say `Recalled` when that is done. 0: none does."""


@frozen
class ConsumerRefused:
    """The queue does not take the consumer, or does not keep it; `why` says it in words."""

    number: int
    why: str


@frozen
class Pong:
    pass


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


@frozen
class SessionRequest:
    """Envelope, session to master. `number` counts 1, 2, 3, … within the attachment; a gap
    means loss: the master answers Detached and the session attaches again."""

    queue_id: int
    epoch: int
    session: SessionId
    attachment: int
    number: int
    request: Request


@frozen
class SessionReply:
    """Envelope, master to session. Numbered like requests, and a gap has the same cure."""

    queue_id: int
    epoch: int
    session: SessionId
    attachment: int
    number: int
    reply: Reply


# --- Catalog commands (replicated by Raft) -----------------------------------------------


@frozen
class RegisterNode:
    """A node came up. An older incarnation of the same (node, store) is known dead."""

    node: str
    store: int
    incarnation: int
    endpoint: str
    witness: bool


@frozen
class NodeStopped:
    """A node is being closed by its user: its end is a shutdown, not a failure."""

    node: str
    store: int
    incarnation: int


@frozen
class DeclareQueue:
    name: str
    durable: bool
    exclusive: bool
    auto_delete: bool
    declarer: str
    """Name of the declaring node."""
    owner: SessionId | None
    """The handle that an exclusive queue belongs to."""
    members: tuple[MemberId, ...]
    """The first view, all in sync; the master first. Chosen by the leader's placement."""


@frozen
class DeleteQueue:
    queue_id: int
    reign: int = 0
    """Deletes only in this reign: a master judged that its last consumer has gone. 0: always."""
    is_drained: bool = False
    """Its master says that its outbox is empty, and will stay so. Else a queue that may have one
    is only marked: its master empties the outbox first."""


@frozen
class NoteConsumers:
    """An auto-delete queue has had a consumer: from now on it goes with its last one."""

    queue_id: int


@frozen
class NoteOutbox:
    """A queue is about to send messages to other queues: before it is deleted it does."""

    queue_id: int


@frozen
class ChangeView:
    """Compare-and-set: fails when the queue's epoch is not `replaces`."""

    queue_id: int
    replaces: int
    members: tuple[Member, ...]
    how: str = ""
    settled: bool = False
    """The master of a settling view says: all that was confirmed in memory is on the disks of
    these members in sync."""


@frozen
class RemoveNode:
    """Forget a node: its store is none of the cluster's any more, for ever."""

    node: str
    store: int = 0
    """0 in a request: the leader puts in the one that is registered."""
    force: bool = False
    """Though it has the last copy in sync of a queue: that queue is deleted."""


@frozen
class NameCluster:
    """The first leader gives the cluster its id. Later ones of these change nothing."""

    cluster: int


@frozen
class SetPolicy:
    """Makes the policy of this name, or replaces it."""

    name: str
    text: str
    """The rest of the policy: `policy.to_text`."""


@frozen
class ClearPolicy:
    name: str


@frozen
class Synchronise:
    """Have the joining members of a queue fetch what they lack, or have them stop."""

    queue: str
    """Its name."""
    on: bool


@frozen
class DeclareExchange:
    name: str
    kind: str
    alternate: str = ""


@frozen
class DeleteExchange:
    name: str
    if_unused: bool = False
    """Only when nothing is bound to it."""


@frozen
class Bind:
    exchange: str
    queue: str
    key: str
    arguments: str
    """`routing.arguments_text`."""


@frozen
class Unbind:
    exchange: str
    queue: str
    key: str
    arguments: str


@frozen
class TransferMaster:
    """Changes nothing: the leader proposes it when the queue's master is that node, so that who
    asked learns of it when the node that was asked knows the view."""

    queue: str
    node: str


@frozen
class Rebalance:
    """As TransferMaster, for all queues: `moved` is filled in by the leader at the end."""

    moved: int = 0


@frozen
class DropCopy:
    """A node asks whether it may drop its copy of a queue: applied, it does. Changes nothing
    else; fails when the queue's view is of another epoch, or names the member's store."""

    queue_id: int
    epoch: int
    member: MemberId


CatalogCommand = (
    RegisterNode
    | NodeStopped
    | DeclareQueue
    | DeleteQueue
    | NoteConsumers
    | NoteOutbox
    | ChangeView
    | DropCopy
    | RemoveNode
    | NameCluster
    | SetPolicy
    | ClearPolicy
    | Synchronise
    | DeclareExchange
    | DeleteExchange
    | Bind
    | Unbind
    | TransferMaster
    | Rebalance
)

Administrative = (
    SetPolicy
    | ClearPolicy
    | TransferMaster
    | Rebalance
    | RemoveNode
    | Synchronise
    | DeclareExchange
    | DeleteExchange
    | Bind
    | Unbind
)
"""Commands that a client may have its entry node ask for."""

# --- Control messages between nodes -------------------------------------------------------


@frozen
class Hello:
    """First message on each connection, both ways, and each sign of life after it.

    `unheard`: peers that this node has not heard for failure_ms (R11)."""

    node: str
    store: int
    incarnation: int
    founded: bool
    unheard: tuple[str, ...] = ()
    endpoint: str = ""
    """Where the sender is reached, "" when it listens nowhere."""
    cluster: int = 0
    """Id of its cluster, 0 while it knows none: stores of other clusters are kept out."""


@frozen
class Directory:
    """Who asks to join learns whom else to ask: (name, endpoint) of the cluster's nodes."""

    nodes: tuple[tuple[str, str], ...]


@frozen
class Unwelcome:
    """The sender keeps the receiver's store out of its cluster, and why."""

    text: str


@frozen
class LeaseRequest:
    """A node asks the catalog leader for its lease. Relayed by nobody here."""

    number: int
    member: MemberId


@frozen
class LeaseAnswer:
    number: int
    term: int
    commit_index: int
    """The asker hands out only when its catalog has applied this index."""


@frozen
class LeaseRelease:
    """The node hands nothing out any more: its masters may be replaced at once."""

    member: MemberId
    number: int = 0
    """Newest request it gives up. A release that comes after a grant to a later one is void."""


@frozen
class CatalogRequest:
    """Ask the leader to propose `command` (members of DeclareQueue are filled in there)."""

    number: int
    member: MemberId
    command: CatalogCommand
    oldest: int = 0
    """Number of the oldest request that the member still waits for; 0: it does not say."""


@frozen
class CatalogAnswer:
    """`error`: "" or the name of an exception class of mirrorq.errors; `text` its message.
    `value`: DeclareQueue: the queue id. `retry`: not the leader, or no majority now."""

    number: int
    value: int
    error: str = ""
    text: str = ""
    retry: bool = False


@frozen
class Yield:
    """The leader asks a living master to hand out nothing more of a queue in this epoch."""

    queue_id: int
    epoch: int


@frozen
class Yielded:
    """The master's promise: until it has installed a newer view it hands out nothing of the
    queue. Repeated until then."""

    queue_id: int
    epoch: int
    member: MemberId


@frozen
class QueueReport:
    """A master tells all nodes what its queue counts, for `status()` there."""

    queue_id: int
    reign: int
    ready: int
    unacknowledged: int
    consumers: int
    blocked_by: str = ""
    lost: int = 0
    """Messages that unclean promotions have lost, as far as known."""
    delayed: int = 0


@frozen
class SyncReport:
    """A joining member tells all nodes how far it is, for `status()` there."""

    queue_id: int
    messages: int
    """Live in its applied state."""
    messages_left: int
    """Of these not on its disk."""
    bytes_left: int
    """Of their frames, judged by those that have come; 0 before the first one."""
    ms_left: int
    """At the pace of the last seconds; 0 = not known."""


ControlMessage = (
    QueueReport
    | SyncReport
    | Hello
    | Directory
    | Unwelcome
    | LeaseRequest
    | LeaseAnswer
    | LeaseRelease
    | CatalogRequest
    | CatalogAnswer
    | Yield
    | Yielded
)

# --- Between a client and its entry node ---------------------------------------------------
#
# A client is a process that is no node. It numbers its sessions itself; its entry node opens
# a session of its own for each, puts that one's id into requests, and the client's into replies.


@frozen
class ClientHello:
    """First message of a connection, and again when the node says that it knows nothing of
    this client: what the node held of it ends. Its messages count from here on."""

    number: int
    """Grows with each hello of this client; the welcome repeats it."""
    name: str


@frozen
class ClientWelcome:
    number: int
    node: str
    session_expiry_ms: int
    """The client is gone for the node when it is silent for so long."""


@frozen
class ClientUnknown:
    """The node does not know this client (any more): say hello again."""


@frozen
class ClientRefused:
    """The node does not serve this client: go to another."""

    why: str


@frozen
class ClientOpen:
    """Open session `session` (the client's own number) on the queue with this id."""

    session: int
    queue: int


@frozen
class ClientClose:
    """The session ends: what it holds goes back."""

    session: int


@frozen
class ClientMaster:
    """Who serves the queue of this session: see session.MasterChanged."""

    session: int
    epoch: int
    available: bool


@frozen
class ClientLinkLost:
    """Between the node and the master something may be gone."""

    session: int


@frozen
class ClientClosed:
    """The session is no more; the queue is deleted."""

    session: int
    reason: str


@frozen
class ClientDeclare:
    name: str
    durable: bool
    exclusive: bool
    auto_delete: bool
    passive: bool
    session: int = 0
    """Exclusive: the client's own number of the session that is to own the queue."""


@frozen
class ClientDelete:
    queue: int
    if_empty: bool
    if_unused: bool


@frozen
class ClientLook:
    """`what`: status (of `queue`), queues, nodes or policies; the answer's `data` is JSON."""

    what: str
    queue: int = 0


@frozen
class ClientWatch:
    """Answered when the exchange's version is not this one and the node's catalog has come to
    this index at least: `exchange_watch.Seen` as JSON."""

    exchange: str
    version: int
    index: int


@frozen
class ClientAdminister:
    command: Administrative


@frozen
class ClientCall:
    """Answered by ClientAnswer with the same number; sent again to the next entry node."""

    number: int
    call: ClientDeclare | ClientDelete | ClientLook | ClientAdminister | ClientWatch


@frozen
class ClientForget:
    """Nobody waits for the answer to this call any more."""

    number: int


@frozen
class ClientAnswer:
    """`error`: "" or the name of an exception class of mirrorq.errors; `text` its message."""

    number: int
    value: int
    error: str
    text: str
    data: bytes


@frozen
class ClientPing:
    pass


@frozen
class ClientPong:
    paused: bool
    """The node has no contact with a majority."""
    lost: bool
    """Messages to this client were dropped since the last pong."""


@frozen
class ClientBye:
    """The client is closed."""


ClientMessage = (
    ClientHello
    | ClientOpen
    | ClientClose
    | ClientCall
    | ClientForget
    | ClientPing
    | ClientBye
    | ClientWelcome
    | ClientUnknown
    | ClientRefused
    | ClientMaster
    | ClientLinkLost
    | ClientClosed
    | ClientAnswer
    | ClientPong
)
