"""A handle that reads alone sees the queue's order, whatever it gives back and when.

What no call has taken goes back (idle calls, a recall) while later messages are still on their way
to the handle. Every order in which requests, replies, calls, publishes, broken links and a failover
can meet is played here, in small, with the real session and the real master.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import pytest
from attrs import astuple, define, evolve, field
from msgspec.structs import replace
from world import CONFIG, FOREVER_MS, QUEUE_ID, put_of

from harness.explore_copy import copy, key, still
from mirrorq.protocol.effects import Persisted
from mirrorq.protocol.identities import MemberId, SessionId
from mirrorq.protocol.sessions import Delivery, Recall, SessionReply, SessionRequest
from mirrorq.protocol.views import Member, View
from mirrorq.replication.events import LinkLost as ReplicaLinkLost
from mirrorq.replication.events import ReplicaEvent, Requested, Tick, ViewInstalled
from mirrorq.replication.master.consumers import Consumers
from mirrorq.replication.master.open_deliveries import ConsumerKey
from mirrorq.replication.master.term import Lease
from mirrorq.replication.replica import Replica
from mirrorq.session import calls
from mirrorq.session.calls import (
    Delivered,
    DropBuffered,
    GiveBack,
    LinkLost,
    MasterChanged,
    ReplyArrived,
    SessionEvent,
)
from mirrorq.session.machine import Session
from mirrorq.testing.disk import QueueFiles
from mirrorq.wire.ops import FrameCodec

READER, WRITER = SessionId("a", 1, 1), SessionId("b", 1, 2)
CODEC = FrameCodec()
OF_MASTER = ("carry_up", "publish", "break_link", "fail_over", "recall")
"""What changes more than the handle."""


@define
class Scope:
    """What may happen, and how often."""

    messages: int
    """Published before anything else."""
    wants: tuple[int, ...]
    """What calls ask for, in this order."""
    returns: int
    """Times that the handle gives back what no call has taken."""
    publishes: int = 0
    breaks: int = 0
    failovers: int = 0
    recalls: int = 0
    """Times that the master asks for what no call has taken, as if somebody else waited for it."""
    cancels: int = 0
    """Times that another consumer of the handle, which reads first, is cancelled."""
    goes_with_master: bool = False
    """Another consumer of the handle reads first, with cancel_on_failover."""


@define(eq=False)
class Reader:
    """The handle: its session and its buffer."""

    session: Session
    number: int = 0
    """Of the consumer that reads."""
    goes_with_master: bool = False
    buffer: list[Delivery] = field(factory=list)
    """One message each."""
    demand: int = 0
    taken: list[Delivery] = field(factory=list)

    def twin(self) -> Reader:
        return Reader(
            twin_of(self.session),
            self.number,
            self.goes_with_master,
            self.buffer[:],
            self.demand,
            self.taken[:],
        )

    def step(self, *events: SessionEvent) -> list[SessionRequest]:
        session = self.session
        for output in session.step(0, events):
            match output:
                case Delivered():
                    assert output.deliver.consumer == self.number, "handed to who has ended"
                    for piece in output.deliver.deliveries:
                        for one in range(piece.first, piece.last + 1):
                            self.buffer.append(replace(piece, first=one, last=one))
                case DropBuffered():
                    session.drop(self.empty(0))
                    if output.failover and self.goes_with_master and self.number:
                        session.unsubscribe(self.number)
                        self.number = 0
                case GiveBack():
                    self.give_back()
        session.complete_attach()
        session.want(self.number, len(self.buffer), self.demand)
        return list(session.flush(0))

    def give_back(self) -> None:
        self.session.withdraw(self.number, self.empty(self.demand))

    def empty(self, keep: int) -> tuple[Delivery, ...]:
        unseen = tuple(self.buffer[keep:])
        del self.buffer[keep:]
        return unseen

    def cancel(self) -> None:
        """Another consumer of this handle goes on where this one ends."""
        self.session.give_back(self.empty(0))
        self.session.unsubscribe(self.number)
        self.number = 0


def twin_of(session: Session) -> Session:
    """A session that shares nothing with this one that either changes."""
    twin = object.__new__(Session)
    twin.__dict__ = fields = vars(session).copy()
    for name, value in fields.items():
        if isinstance(value, list | deque | dict):
            fields[name] = value.copy()
    twin._consumers = {n: evolve(one) for n, one in session._consumers.items()}
    twin._held = {name: (piece, left.copy()) for name, (piece, left) in session._held.items()}
    twin._batches = deque(evolve(batch, open=batch.open.copy()) for batch in session._batches)
    return twin


class State:
    """The handle, the master with a disk that answers at once, and what is between them."""

    def __init__(self, scope: Scope) -> None:
        self.left = evolve(scope)
        self.files = QueueFiles()
        self.epoch = 0
        self.up: list[SessionRequest] = []
        self.down: list[SessionReply] = []
        has_other = bool(scope.cancels or scope.goes_with_master)
        session = Session(READER, QUEUE_ID, CONFIG)
        self.reader = Reader(session, int(has_other), scope.goes_with_master)
        self.writer = Session(WRITER, QUEUE_ID, CONFIG)
        for number in range(self.reader.number + 1):
            self.reader.session.subscribe(number, CONFIG.prefetch, False, False)
        self.replica_key: object = None
        self.fail_over()
        self.publish(scope.messages)
        while self.up or self.down:
            self.carry_up() if self.up else self.carry_down()
        # Its horizon is far ahead: an exploration of deliveries is not one of ops.
        self.reader.demand = 1
        self.say()
        while self.up:
            self.carry_up()

    def twin(self, action: str) -> State:
        """An equal state, in which this may be done."""
        twin = object.__new__(State)
        twin.__dict__ = vars(self).copy()
        twin.left, twin.reader = evolve(self.left), self.reader.twin()
        twin.up, twin.down = self.up[:], self.down[:]
        if action in OF_MASTER:
            twin.files, twin.replica = copy(self.files), copy(self.replica)
            twin.writer = twin_of(self.writer)
            twin.replica_key = None
        return twin

    def key(self) -> object:
        session = self.reader.session
        if self.replica_key is None:
            self.replica_key = key(self.replica)
        return (
            astuple(self.left),
            (self.epoch, self.reader.demand, self.reader.number, tuple(self.reader.buffer)),
            (tuple(self.up), tuple(self.down), tuple(self.reader.taken[-1:])),
            tuple((n, astuple(one)) for n, one in session._consumers.items()),
            (session._attachment, session._pings, session._pongs, session._left_until),
            tuple((piece, tuple(left)) for piece, left in session._held.values()),
            self.replica_key,
        )

    # --- What can happen ------------------------------------------------------------------

    def actions(self) -> Iterator[str]:
        left, reader = self.left, self.reader
        if self.up:
            yield "carry_up"
        if self.down:
            yield "carry_down"
        if len(self.down) > 1:
            yield "carry_all_down"
        if reader.buffer and reader.demand:
            yield "take"
        if left.wants and not reader.demand:
            yield "want"
        if reader.demand:
            yield "time_out"
        if left.returns and len(reader.buffer) > reader.demand:
            yield "give_back"
        if left.publishes:
            yield "publish"
        if left.breaks and (self.up or self.down):
            yield "break_link"
        if left.failovers:
            yield "fail_over"
        if left.recalls:
            yield "recall"
        if left.cancels and reader.taken:
            yield "cancel"

    def carry_up(self) -> None:
        self.master(Requested(self.up.pop(0)))

    def carry_down(self) -> None:
        self.say(ReplyArrived(self.down.pop(0)))

    def carry_all_down(self) -> None:
        """The handle's thread was late: all that has come is one step's."""
        events, self.down = [ReplyArrived(reply) for reply in self.down], []
        self.say(*events)

    def recall(self) -> None:
        self.left.recalls -= 1
        assert self.replica.master is not None
        self.replica.master.attachments.reply(READER, Recall(0))
        self.master(Tick())

    def take(self) -> None:
        reader = self.reader
        piece = reader.buffer.pop(0)
        before = reader.taken[-1] if reader.taken else None
        reader.taken.append(piece)
        reader.demand -= 1
        if before is not None and before.epoch == piece.epoch:
            assert piece.first == before.first + 1, [one.first for one in reader.taken]
        assert piece.epoch > 1 or piece.count == 1
        self.say()

    def want(self) -> None:
        self.reader.demand, *rest = self.left.wants
        self.left.wants = tuple(rest)
        self.say()

    def time_out(self) -> None:
        self.reader.demand = 0
        self.say()

    def give_back(self) -> None:
        self.left.returns -= 1
        self.reader.give_back()
        self.say()

    def publish(self, count: int = 1) -> None:
        self.left.publishes -= 1
        self.writer.put(put_of(None, [b""] * count))
        self.say_of_writer()

    def break_link(self) -> None:
        self.left.breaks -= 1
        self.up.clear()
        self.down.clear()
        self.master(ReplicaLinkLost(READER.node))
        number = self.reader.number
        self.say(LinkLost())
        assert self.reader.number == number, "ended by a broken link"

    def fail_over(self) -> None:
        self.left.failovers -= 1
        self.epoch += 1
        self.up.clear()
        self.down.clear()
        me = MemberId("m", 1, self.epoch)
        image, lease = self.files.image(QUEUE_ID), Lease(until_ms=FOREVER_MS)
        self.replica = Replica(me, QUEUE_ID, CONFIG, CODEC, image, lease)
        view = View(self.epoch, (Member(me, True),), "clean", self.epoch)
        self.master(ViewInstalled(view))
        self.say_of_writer(MasterChanged(self.epoch, True))
        self.say(MasterChanged(self.epoch, True))
        if self.epoch > 1 and self.left.goes_with_master:
            assert not self.reader.number, "outlives its master"

    def cancel(self) -> None:
        self.left.cancels -= 1
        self.reader.cancel()
        self.say()

    # --- How ------------------------------------------------------------------------------

    def say(self, *events: SessionEvent) -> None:
        self.up += self.reader.step(*events)

    def say_of_writer(self, *events: SessionEvent) -> None:
        """The writer's messages are never on the way."""
        self.writer.step(0, events)
        self.writer.complete_attach()
        for request in self.writer.flush(0):
            self.master(Requested(request))

    def master(self, *events: ReplicaEvent) -> None:
        effects = self.replica.step(0, 1, *events)
        while True:
            of_writer = []
            for reply in effects.replies:
                if reply.session == READER:
                    self.down.append(reply)
                else:
                    of_writer.append(ReplyArrived(reply))
            if effects.write is not None:
                self.files.apply(effects.write)
                self.say_of_writer(*of_writer)
                effects = self.replica.step(0, 1, Persisted(effects.write_number))
                continue
            still(self.replica)
            if of_writer:
                self.say_of_writer(*of_writer)
            return

    def finish(self) -> None:
        """Calls go on until they have taken everything."""
        last = self.replica.state.next_sequence - 1
        for _ in range(100):
            if self.reader.taken and self.reader.taken[-1].first == last:
                return
            if self.up:
                self.carry_up()
            elif self.down:
                self.carry_down()
            elif self.reader.buffer and self.reader.demand:
                self.take()
            else:
                self.reader.demand = last
                self.say()
        raise AssertionError(f"of {last} messages calls got {self.reader.taken}")


def explore(scope: Scope, states_max: int = 100_000) -> int:
    """Play every order; returns how many states there are."""
    first = State(scope)
    first.left = evolve(scope)
    seen = {first.key()}
    waiting = [first]
    while waiting:
        state = waiting.pop()
        is_end = True
        for action in state.actions():
            is_end = False
            twin = state.twin(action)
            getattr(twin, action)()
            name = twin.key()
            if name not in seen:
                assert len(seen) < states_max, "the scope is too large"
                seen.add(name)
                waiting.append(twin)
        if is_end:
            last = state.twin("carry_up")
            last.finish()
    return len(seen)


SCOPES = {
    "returns": Scope(4, (2, 2), returns=2),
    "publishes": Scope(1, (3, 1), returns=1, publishes=2),
    "breaks": Scope(2, (2, 1), returns=1, breaks=1),
    "failover": Scope(3, (2,), returns=1, failovers=1),
    "cancel": Scope(3, (2, 1), returns=0, cancels=1),
    "goes with its master": Scope(2, (2,), returns=0, breaks=1, failovers=1, goes_with_master=True),
    "recall": Scope(2, (3, 1), returns=0, publishes=2, recalls=1),
}
MISTAKES = {
    "nothing but what is here goes back": ("returns", "publishes", "failover", "recall"),
    "the master keeps the credit": ("publishes",),
    "nobody waits for what a cancelled consumer returns": ("cancel",),
    "a change of master is a broken link": ("goes with its master",),
    "a broken link is a change of master": ("goes with its master",),
    "who is unsubscribed is handed more": ("cancel",),
}
"""What was left out on purpose, and the scopes that notice."""
NOTICED = (
    r"\[1, 3\]|\[2, 1\]|\[2, 3, 1\]"
    "|ended by a broken link|outlives its master|handed to who has ended"
)


@pytest.mark.parametrize("name", SCOPES)
def test_what_goes_back_comes_again_in_order(name: str) -> None:
    """Whatever was on its way meanwhile."""
    explore(SCOPES[name])


def leave_out(mistake: str, patch: pytest.MonkeyPatch) -> None:
    """Make one of the mistakes."""
    if mistake.startswith("nothing"):
        patch.setattr(Session, "withdraw", lambda self, _, deliveries: self.give_back(deliveries))
    elif mistake.startswith("the master"):
        credit = Consumers.credit

        def keep(self: Consumers, key: ConsumerKey, total: int, size: int = 0) -> None:
            credit(self, key, total or self.by_key[key].total, size)

        patch.setattr(Consumers, "credit", keep)
    elif mistake.startswith("a "):
        told = mistake.endswith("change of master")
        patch.setattr(calls, "DropBuffered", lambda _: DropBuffered(told))
    elif mistake.startswith("who"):
        unsubscribe = Session.unsubscribe

        def linger(self: Session, number: int) -> None:
            consumer = self._consumers[number]
            unsubscribe(self, number)
            self._consumers[number] = consumer

        patch.setattr(Session, "unsubscribe", linger)
    else:
        unsubscribe = Session.unsubscribe

        def forget(self: Session, number: int) -> None:
            unsubscribe(self, number)
            self._left_until = 0

        patch.setattr(Session, "unsubscribe", forget)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_noticed(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any one of its parts the order is lost, or a consumer ends otherwise than it has to,
    in each scope that needs it."""
    leave_out(mistake, monkeypatch)
    for scope in MISTAKES[mistake]:
        with pytest.raises(AssertionError, match=NOTICED):
            explore(SCOPES[scope])
