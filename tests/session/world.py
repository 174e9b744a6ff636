"""One session and one real master in virtual time, with a network that loses and a disk.

The master is `replica.Replica` alone in its view. A failover starts another one from what was
on disk, in a new term: what the first had not written is lost, as with a killed process.

Numbers in test bodies are the order of puts, so that a body names the put that made it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from attrs import define, field
from msgspec.structs import replace

from mirrorq.config import Config
from mirrorq.protocol.effects import Persisted, QueueWrite, ReplicaEffects
from mirrorq.protocol.identities import MemberId, SessionId
from mirrorq.protocol.sessions import Deliver, Delivery, SessionReply, SessionRequest
from mirrorq.protocol.views import Member, View
from mirrorq.replication.events import LinkLost as ReplicaLinkLost
from mirrorq.replication.events import ReplicaEvent, Requested, ViewInstalled
from mirrorq.replication.master.term import Lease
from mirrorq.replication.replica import Replica
from mirrorq.session.calls import (
    Closed,
    Delivered,
    DropBuffered,
    Failed,
    GiveBack,
    LinkLost,
    MasterChanged,
    Output,
    Put,
    PutCredit,
    QueryDone,
    ReplyArrived,
    SessionEvent,
    SettleCall,
    SettleDone,
    Stored,
)
from mirrorq.session.machine import Session
from mirrorq.testing.disk import QueueFiles
from mirrorq.wire import frames
from mirrorq.wire.ops import FrameCodec

QUEUE_ID = 7
CONFIG = Config()
FOREVER_MS = 1 << 60


@define(eq=False)
class Sent:
    """One put and what became of it."""

    body: bytes
    outcome: str = ""
    """"", stored, refused or unknown."""
    sequence: int = 0
    outcomes: int = 0
    """How often it was told."""


@define(eq=False)
class Taken:
    """One message that a call of the user has returned."""

    sequence: int
    piece: Delivery
    body: bytes
    settled: str = ""
    """"", open, ok or refused."""
    kind: str = ""
    """ack or nack."""


def put_of(token: object, bodies: list[bytes], whole: bool = False) -> Put:
    """A batch as the handle makes it."""

    def pack(producer: int, first: int, settled: int) -> bytes:
        return frames.pack_publish(bodies, producer=producer, first_number=first, settled=settled)

    return Put(token, len(bodies), sum(map(len, bodies)), pack, whole)


class User:
    """One handle: its session, what it has buffered, and what its user did and saw."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.id = SessionId("a", 1, number)
        self.session = Session(self.id, QUEUE_ID, CONFIG)
        self.session.subscribe(0, CONFIG.prefetch, False, False)
        self.buffer: deque[Taken] = deque()
        self.sent: list[Sent] = []
        self.taken: list[Taken] = []
        self.answers: list[QueryDone] = []
        self.failovers = 0
        self.drops = 0
        self.demand = 0
        self.to_master: deque[SessionRequest] = deque()
        self.to_user: deque[SessionReply] = deque()

    # --- What users do --------------------------------------------------------------------

    def put(self, count: int = 1, whole: bool = False) -> list[Sent]:
        """Publish messages whose bodies name this user and their place."""
        made = [Sent(b"%d-%d" % (self.id.number, len(self.sent) + i)) for i in range(count)]
        self.sent += made
        self.session.put(put_of(made, [sent.body for sent in made], whole))
        return made

    def take(self, count: int = 1) -> list[Taken]:
        """Have calls return what is buffered."""
        found = [self.buffer.popleft() for _ in range(min(count, len(self.buffer)))]
        self.taken += found
        return found

    def settle(self, kind: str, messages: list[Taken]) -> None:
        """Ack or nack messages, each delivery piece by itself."""
        for message in messages:
            message.settled, message.kind = "open", kind
        pieces = tuple(
            replace(message.piece, first=message.sequence, last=message.sequence)
            for message in messages
        )
        self.session.settle(SettleCall(messages, kind, pieces))

    def give_back(self) -> None:
        """Return what no call has taken and none waits for."""
        self.session.withdraw(0, self._unbuffer(keep=self.demand))

    # --- Steps ----------------------------------------------------------------------------

    def step(self, *events: SessionEvent) -> None:
        """What the handle does in each step."""
        for output in self.session.step(self.world.now_ms, events):
            self._take_output(output)
        self.session.complete_attach()
        self.session.want(0, len(self.buffer), self.demand)
        self.to_master.extend(self.session.flush(self.world.now_ms))

    def _take_output(self, output: Output) -> None:
        match output:
            case Stored():
                for index in range(output.count):
                    self._end(output, index, "stored", output.first_sequence + index)
            case Failed():
                for index in range(output.count):
                    self._end(output, index, "unknown" if output.unknown else "refused", 0)
            case SettleDone():
                self._settled(output)
            case QueryDone():
                self.answers.append(output)
            case Delivered():
                self.buffer.extend(self._messages(output.deliver))
            case DropBuffered():
                self.drops += 1
                self.failovers += output.failover
                self.session.drop(self._unbuffer())
            case GiveBack():
                self.give_back()
            case PutCredit():
                assert not output.is_bounded, "this world's queue has no limit"
            case _:
                raise AssertionError(output)

    def _end(self, output: Stored | Failed, index: int, outcome: str, sequence: int) -> None:
        assert isinstance(output.token, list)
        sent = output.token[output.index + index]
        sent.outcome, sent.sequence = outcome, sequence
        sent.outcomes += 1

    def _settled(self, done: SettleDone) -> None:
        assert isinstance(done.token, list)
        for message in done.token:
            refused = any(p.first <= message.sequence <= p.last for p in done.refused)
            message.settled = "refused" if refused else "ok"

    def _messages(self, deliver: Deliver) -> list[Taken]:
        found = []
        for piece in deliver.deliveries:
            for sequence in range(piece.first, piece.last + 1):
                found.append(Taken(sequence, piece, self.world.body(sequence)))
        return found

    def _unbuffer(self, keep: int = 0) -> tuple[Delivery, ...]:
        gone = [self.buffer.pop() for _ in range(len(self.buffer) - keep)]
        return tuple(replace(m.piece, first=m.sequence, last=m.sequence) for m in gone)


@define(eq=False)
class World:
    """The master, its disk, the network and the clock."""

    now_ms: int = 0
    epoch: int = 0
    lease: Lease = field(factory=lambda: Lease(until_ms=FOREVER_MS))
    files: QueueFiles = field(factory=QueueFiles)
    users: list[User] = field(factory=list)
    unwritten: deque[tuple[int, QueueWrite]] = field(factory=deque)
    replica: Replica | None = None

    def open(self) -> User:
        """One more handle, told who serves."""
        user = User(self, len(self.users) + 1)
        self.users.append(user)
        if self.replica is not None:
            user.step(MasterChanged(self.epoch, True))
        return user

    # --- The master -----------------------------------------------------------------------

    def serve(self, how: str = "clean", tell: bool = True) -> None:
        """Start a term on what is on disk, and tell the handles."""
        self.epoch += 1
        me = MemberId("m", 1, self.epoch)
        self.unwritten.clear()
        image = self.files.image(QUEUE_ID)
        self.replica = Replica(me, QUEUE_ID, CONFIG, FrameCodec(), image, self.lease)
        view = View(self.epoch, (Member(me, True),), how, self.epoch)
        for user in self.users:
            user.to_master.clear()
            user.to_user.clear()
        self.master_step(ViewInstalled(view))
        if tell:
            self.tell()

    def tell(self) -> None:
        """Handles learn of the present term."""
        for user in self.users:
            user.step(MasterChanged(self.epoch, True))

    def kill(self) -> None:
        """The master's process is gone with all that it had not written."""
        self.replica = None
        for user in self.users:
            user.to_master.clear()
            user.to_user.clear()
            user.step(MasterChanged(self.epoch, False))

    def master_step(self, *events: ReplicaEvent) -> None:
        """One step of the master; its writes wait for `write`."""
        if self.replica is not None:
            self._carry_out(self.replica.step(self.now_ms, 1, *events))

    def _carry_out(self, effects: ReplicaEffects) -> None:
        if effects.write is not None:
            self.unwritten.append((effects.write_number, effects.write))
        for reply in effects.replies:
            user = self.users[reply.session.number - 1]
            user.to_user.append(reply)

    def write(self) -> bool:
        """The oldest write reaches the disk."""
        if not self.unwritten:
            return False
        number, write = self.unwritten.popleft()
        self.files.apply(write)
        self.master_step(Persisted(number))
        return True

    def body(self, sequence: int) -> bytes:
        """The body of a message, from the disk."""
        for entry in self.files.frames.values():
            if entry.header.first_sequence <= sequence <= entry.header.last_sequence:
                return frames.split(entry.frame)[sequence - entry.header.first_sequence]
        raise AssertionError(f"message {sequence} is not on disk")

    # --- The network ----------------------------------------------------------------------

    def carry_requests(self, user: User, count: int = 1_000_000) -> bool:
        """Some requests of one handle arrive."""
        found = [user.to_master.popleft() for _ in range(min(count, len(user.to_master)))]
        self.master_step(*[Requested(request) for request in found])
        return bool(found)

    def carry_replies(self, user: User, count: int = 1_000_000) -> bool:
        """Some replies to one handle arrive."""
        found = [user.to_user.popleft() for _ in range(min(count, len(user.to_user)))]
        if found:
            user.step(*[ReplyArrived(reply) for reply in found])
        return bool(found)

    def break_link(self, user: User) -> None:
        """What is on the way is gone, and both ends know it."""
        user.to_master.clear()
        user.to_user.clear()
        self.master_step(ReplicaLinkLost(user.id.node))
        user.step(LinkLost())

    def settle_all(self, until: Callable[[], bool] | None = None, limit: int = 400) -> None:
        """Carry and write everything until nothing moves (or `until` holds)."""
        for _ in range(limit):
            moved = self.write()
            for user in self.users:
                user.step()
                moved = self.carry_requests(user) or moved
                moved = self.carry_replies(user) or moved
            self.master_step()
            if until is not None and until():
                return
            moved = moved or bool(self.unwritten) or any(user.to_master for user in self.users)
            if not moved and until is None:
                return
            if not moved:
                self.now_ms += 100
        raise AssertionError("it does not come to rest")


def started() -> tuple[World, User]:
    """A world with a master that serves and one handle that is attached."""
    world = World()
    world.serve()
    world.settle_all()
    user = world.open()
    world.settle_all()
    return world, user


__all__ = ["CONFIG", "QUEUE_ID", "Closed", "Sent", "Taken", "User", "World", "put_of", "started"]
