"""Exhaustive exploration of a branch: a node alone with its copy, the queue's master, the merge.

    python -m harness.explore_branch            the quick form
    python -m harness.explore_branch --long

The master is a real `Replica` on a disk of its own, the other side the real `Branch` and `Line`
over a copy as the master once had it. A copy may be of any moment before. Requests and answers
between the two stand in order and may be lost with their link; each side's process may end at any
moment; what is synced stays. One consumer is at the master, one in the branch.

What has to hold: what was acked in the branch comes there no more, and nowhere once that is merged;
nothing else is lost; of all deliveries of a message at most one says that it is the first; counts
are not too low once a merge is confirmed, and are never higher than what has happened.
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Iterable
from random import Random
from typing import Any, NamedTuple

from attrs import evolve, frozen

from harness.branch import Branch, Merge, served
from harness.explore_codec import ModelCodec
from harness.explore_process import (
    CONSUMER_SESSION,
    Crashes,
    Done,
    Installs,
    OpensProducer,
    Process,
    Processes,
    ProcessEvent,
    Publishes,
    Scope,
    Settles,
    Starts,
    Writes,
    _copied,
    _renumber,
    _Work,
)
from mirrorq.containers.ranges import Range, RangeSet
from mirrorq.protocol.copy_page import Piece
from mirrorq.protocol.identities import MemberId, SessionId, spool_producer
from mirrorq.protocol.ops import FLAG_STEP, Entry, Header
from mirrorq.protocol.sessions import (
    Attach,
    Confirmed,
    Credit,
    Deliver,
    Delivery,
    Publish,
    Refused,
    Settled,
)
from mirrorq.protocol.views import make_view
from mirrorq.replication.state.queue_state import QueueState
from mirrorq.spool.line import Line

__all__ = ["LONG", "QUICK", "STRICT", "Bounds", "Found", "World", "explore", "main", "walk"]

SPOOL = spool_producer(7)
SPOOL_SESSION = SessionId("alone", 1, 1)
OTHER = spool_producer(8)
OTHER_SESSION = SessionId("other", 1, 1)
"""Another node that was alone: it has handed out one message, which was acked there."""
SPOOLED = 3
"""Name of the message that is put on the branch's side; those at the master are 1 and 2."""
REST_STEPS = 200
RARE = ("crash", "cut", "heal", "copy", "restart")
"""In a walk each of these is a sixth as likely as another kind of step."""


class Found(Exception):
    """A violation, and how to get there."""

    def __init__(self, what: str, trace: tuple[Action, ...] = ()) -> None:
        self.what = what
        self.trace = trace
        super().__init__(f"{what}\nafter {len(trace)} steps: {trace}")


Action = tuple[Any, ...]


@frozen
class Bounds:
    """How much may happen in one run."""

    publishes: int = 1
    hands: int = 2
    """In the branch."""
    acks: int = 1
    """Of either side."""
    returns: int = 1
    crashes: int = 0
    restarts: int = 0
    breaks: int = 0
    copies: int = 2
    cuts: int = 1
    credit: int = 8
    """Of the consumer at the master, in all: with less, messages wait there."""
    credits: int = 0
    """Times that it gets one more."""
    spooled: int = 0
    """Puts on the branch's side."""
    others: int = 0
    """Messages that another branch of the same copy has handed out, and that were acked there."""
    is_strict: bool = False
    """Whether the master's delivery of what was handed out alone before has to say so, though no
    merge has come: nobody can keep that (docs/decisions.md)."""


COUNTED = Bounds(publishes=1, hands=1, acks=0, returns=1, crashes=0, breaks=1, copies=1)
HELD = Bounds(publishes=1, hands=1, acks=2, returns=1, copies=1, credit=1, credits=1)
STALE = Bounds(publishes=1, hands=2, acks=1, returns=0, copies=1, cuts=2)
CRASHED = Bounds(publishes=1, hands=1, acks=1, returns=0, crashes=1, copies=1)
PUT = Bounds(publishes=0, spooled=1, hands=1, acks=2, returns=0, copies=1, restarts=1)
OTHERS = Bounds(publishes=1, hands=1, acks=1, returns=1, copies=1, others=2)
QUICK = {
    "counted": COUNTED,
    "held": HELD,
    "stale": STALE,
    "crashed": CRASHED,
    "put": PUT,
    "others": OTHERS,
}
STRICT = Bounds(
    publishes=1, hands=1, acks=0, returns=0, copies=1, credit=0, credits=1, is_strict=True
)
LONG = {
    "any": Bounds(publishes=1, hands=1, crashes=1, breaks=1, credits=1),
    "twice": Bounds(publishes=1, hands=2, acks=2, crashes=1, restarts=1, breaks=1, cuts=2),
    "two": Bounds(publishes=2, crashes=1, breaks=1),
    "two, cut twice": Bounds(publishes=2, acks=2, returns=0, restarts=1, breaks=1, cuts=2),
    "others, crash": Bounds(publishes=2, returns=1, crashes=1, others=1, credit=1, credits=1),
    "put, too": Bounds(publishes=1, spooled=1, acks=2, returns=1, breaks=1, crashes=1),
}


class BranchCodec(ModelCodec):
    """With steps: their frames are named by what they say."""

    def __init__(self) -> None:
        super().__init__()
        self._merges: dict[tuple[Header, Merge], Entry] = {}

    def step_frame(self, number: int, settled: int, step: Merge, producer: int) -> bytes:
        acked = ",".join(f"{a}-{b}" for a, b in step.ranges)
        handed = ",".join(f"{a}-{b}" for a, b in step.handed)
        return self.frame(producer, number, 1, settled) + f":{acked}:{handed}".encode()

    def header(self, frame: bytes) -> Header:
        plain, said = _parted(frame)
        header = super().header(plain)
        if said is None:
            return header
        return self._header(
            header.kind,
            0,
            0,
            0,
            0,
            1,
            header.producer,
            header.first_number,
            header.settled,
            FLAG_STEP,
        )

    def step(self, frame: bytes) -> Merge | None:
        return _parted(frame)[1]

    def cut(self, frame: bytes, start: int, stop: int) -> bytes:
        return frame if _parted(frame)[1] is not None else super().cut(frame, start, stop)

    def publish(self, frame: bytes, **where: Any) -> Entry:
        entry = super().publish(frame, **where)
        step = self.step(frame)
        if step is None:
            return entry
        known = self._merges.get((entry.header, step))
        if known is None:
            known = Entry(entry.header, None, entry.frame, b"", step)
            self._merges[entry.header, step] = known
        return known


def _parted(frame: bytes) -> tuple[bytes, Merge | None]:
    parts = frame.decode().split(":")
    if len(parts) == 6:
        return frame, None
    acked, handed = (
        tuple(tuple(map(int, one.split("-"))) for one in said.split(",") if one)
        for said in parts[6:]
    )
    return ":".join(parts[:6]).encode(), Merge(acked, 0, handed)  # type: ignore[arg-type]


@frozen
class Merges:
    """A record of the branch comes to the master."""

    number: int
    settled: int
    step: Merge | None
    """None: it is a put."""
    producer: int = SPOOL
    name: int = 0
    """Of the other branch's message."""


@frozen
class Credits:
    """The consumer at the master may be handed so many in all."""

    total: int


class _Master(_Work):
    def run(self, event: Any) -> None:
        if isinstance(event, Credits):
            self._request(CONSUMER_SESSION, Credit(0, event.total))
            return
        if isinstance(event, Merges):
            session = SPOOL_SESSION if event.producer == SPOOL else OTHER_SESSION
            if session not in self._process.master.attachments:
                self._raw(session, 1, 1, Attach((), event.producer))
            self._request(session, Publish(self._frame(event), True))
            self._seat_consumer()
            return
        super().run(event)

    def _frame(self, event: Merges) -> bytes:
        codec: BranchCodec = self._all.codec  # type: ignore[assignment]
        if event.step is None:
            return codec.frame(SPOOL, event.number, 1, event.settled)
        return codec.step_frame(event.number, event.settled, event.step, event.producer)


class _Masters(Processes):
    def __init__(self, credit: int) -> None:
        super().__init__(Scope(consumes=True, credit=credit))
        self.codec = BranchCodec()

    def _step(self, known: Process, event: ProcessEvent) -> Done:
        process = _copied(known)
        work = _Master(self, process)
        try:
            work.run(event)
        except (AssertionError, KeyError) as error:
            work.error = f"{type(error).__name__} in a machine: {error}"
        process.files.ops = dict(sorted(process.files.ops.items()))
        process.files.frames = dict(sorted(process.files.frames.items()))
        _renumber(process)
        return evolve(work.done(0), process=self.add(process))


class Record(NamedTuple):
    """Of the branch's file."""

    ordinal: int
    handed: tuple[Range, ...]
    acked: tuple[Range, ...]
    names: tuple[int, ...]
    """Numbers of the messages, for the witness."""
    sequence: int = 0
    """Of the master's confirm, as far as this process has heard it."""
    is_put: bool = False
    often: int = 0
    """A put: how often it was handed out here."""
    is_done: bool = False
    """A put that was acked here when it may have been sent: it ends by its sequence, once that is
    known."""


class State(NamedTuple):
    """Everything there is at one moment."""

    master: int
    copy: int
    """The master as it was when the copy was."""
    left: Bounds
    epoch: int = 1
    number: int = 0
    """Of the last message that was put."""
    holds: tuple[Delivery, ...] = ()
    """The consumer at the master."""
    settles: tuple[tuple[int, str, Delivery], ...] = ()
    """Those without an answer."""
    is_cut: bool = False
    records: tuple[Record, ...] = ()
    base: int = 1
    sent_to: int = 0
    next_ordinal: int = 1
    merged_to: int = 0
    flights: int = 0
    """Records on their way: the first ones."""
    held: tuple[Range, ...] = ()
    puts_held: frozenset[int] = frozenset()
    """Ordinals of puts that a consumer of the branch holds."""
    requests: tuple[Merges, ...] = ()
    replies: tuple[tuple[int, int], ...] = ()
    """(number, sequence)."""
    other: Merges | None = None
    """What the other branch has to say, until it is confirmed."""
    # What an onlooker has seen, by messages' numbers.
    acked: frozenset[int] = frozenset()
    """In the branch: accepted."""
    acked_there: frozenset[int] = frozenset()
    """In the other one."""
    merged: frozenset[int] = frozenset()
    """Of them those whose merge is confirmed, to this side."""
    settled: frozenset[int] = frozenset()
    """Acked at the master."""
    first: frozenset[int] = frozenset()
    """One delivery has said that it was the first."""
    handed: tuple[int, ...] = (0, 0, 0, 0)
    """In the branch, how often."""
    told: tuple[int, ...] = (0, 0, 0, 0)
    """Of that, confirmed."""
    heard: int = 0
    """The last record of which that was so."""
    back: tuple[int, ...] = (0, 0, 0, 0)
    """Returns at the master."""


def ready_in(process: Process) -> list[Piece]:
    """What a copy shows as ready: what it has applied ."""
    assert process.replica is not None
    state = process.replica.state
    return [(a, state.count_run(a, b)[1], state.count_run(a, b)[0]) for a, b in state.live]


def names_in(process: Process) -> dict[int, int]:
    """Sequence -> number of the message, by the log that this process has."""
    assert process.replica is not None
    found = {}
    entries = [*process.files.frames.values(), *process.replica.ring.log]
    for entry in entries:
        header = entry.header
        if entry.payload is None and entry.step is None:
            is_own = header.producer == SPOOL
            found[header.first_sequence] = SPOOLED if is_own else header.first_number
    return found


def merge_step(record: Record) -> Merge | None:
    """What a record says to the master."""
    if record.is_put:
        return None
    return Merge(record.acked, 0, record.handed)


def ack_put(state: State, record: Record) -> State:
    """A put is acked here: it goes if it was certainly never sent, in the commit of the ack."""
    if record.ordinal > state.sent_to:
        return state._replace(records=tuple(one for one in state.records if one is not record))
    return _with(state, record._replace(is_done=True))


def said_of(records: Iterable[Record]) -> list[Record]:
    """What is to be said of puts that the queue has now: how often they were handed out here, and
    that they were acked."""
    found = []
    for one in records:
        named = ((one.sequence, one.sequence),)
        found += [Record(0, named, (), one.names)] * one.often
        if one.is_done:
            found.append(Record(0, (), named, one.names))
    return found


def _with(state: State, record: Record) -> State:
    """Another record stands in the place of one."""
    records = (record if one.ordinal == record.ordinal else one for one in state.records)
    return state._replace(records=tuple(records))


def cut_of(line: Line) -> int:
    """How many records may leave the file."""
    return len(line.ended())


class World:
    """The rules by which one `State` follows another."""

    def __init__(self, bounds: Bounds) -> None:
        self.masters = _Masters(bounds.credit)
        self.bounds = bounds

    def first(self) -> State:
        masters = self.masters
        number = masters.add(Process("a"))
        view = make_view(1, [MemberId("a", 1, 1)], master_epoch=1)
        number = masters.step(number, Installs(view, True)).process
        number = self._write_all(number)
        done = masters.step(number, OpensProducer())
        number = self._write_all(done.process)
        (masters.producer,) = self._queue(number).producers
        return State(master=number, copy=number, left=self.bounds)

    def _write_all(self, number: int) -> int:
        while self.masters[number].pending:
            number = self.masters.step(number, Writes()).process
        return number

    # --- What may happen ----------------------------------------------------------------

    def actions(self, state: State) -> list[Action]:
        left = state.left
        found: list[Action] = []
        if state.number < self.bounds.publishes:
            found.append(("publish",))
        if self.masters[state.master].pending:
            found.append(("write",))
        for index in range(len(state.holds)):
            if left.acks:
                found.append(("ack", index))
            if left.returns:
                found.append(("return", index))
        if left.crashes:
            found.append(("crash",))
        if left.credits:
            found.append(("credit",))
        if not state.is_cut and left.copies and state.copy != state.master:
            found.append(("copy",))
        if left.cuts and not state.is_cut:
            found.append(("cut",))
        found += self._of_branch(state)
        return found

    def _of_branch(self, state: State) -> list[Action]:
        left = state.left
        found: list[Action] = []
        if state.is_cut:
            found.append(("heal",))
            if left.hands and self._free(state):
                found.append(("hand",))
        for index in range(len(state.held)):
            if left.acks:
                found.append(("ack alone", index))
            found.append(("return alone", index))
        if left.restarts and (state.held or state.records):
            found.append(("restart",))
        if not state.is_cut:
            if state.flights < len(state.records):
                found.append(("send",))
            if state.requests:
                found.append(("merge",))
            if state.replies:
                found.append(("hear",))
            if left.breaks and state.flights:
                found.append(("break",))
        if cut_of(self.line(state)):
            found.append(("end",))
        if left.others and state.other is None:
            found += [("other", n) for a, b, _ in self._shown(state) for n in range(a, b + 1)]
        return found + self._of_puts(state)

    def _shown(self, state: State) -> list[Piece]:
        return ready_in(self.masters[state.copy])

    def _of_puts(self, state: State) -> list[Action]:
        left = state.left
        found: list[Action] = []
        if left.spooled:
            found.append(("spool",))
        for record in state.records:
            is_held = record.ordinal in state.puts_held
            if is_held and left.acks:
                found.append(("ack put", record.ordinal))
            may_go = record.is_put and record.ordinal > state.sent_to and not is_held
            if may_go and state.is_cut and left.hands:
                found.append(("hand put", record.ordinal))
        return found

    # --- Both sides -----------------------------------------------------------------------

    def branch(self, state: State) -> Branch:
        branch = Branch(state.merged_to)
        for record in state.records:
            branch.note(record.handed, record.acked)
        branch.hold(state.held)
        return branch

    def line(self, state: State) -> Line:
        line = Line(state.base, state.sent_to)
        for record in state.records[: state.flights]:
            flight = line.send(record.ordinal, 1)
            if record.sequence:
                line.on_stored(flight, 0, 1, record.sequence)
        return line

    def _free(self, state: State) -> list[Piece]:
        branch = self.branch(state)
        if not branch.may_read(self._queue(state.copy).next_sequence):
            return []
        return branch.pick(ready_in(self.masters[state.copy]), 1)

    # --- Actions --------------------------------------------------------------------------

    def do(self, state: State, action: Action) -> State:
        """What an action makes of a state. Raises Found."""
        kind = action[0].replace(" ", "_")
        return getattr(self, f"_do_{kind}")(state, *action[1:])  # type: ignore[no-any-return]

    def _do_publish(self, state: State) -> State:
        number = state.number + 1
        return self._step(state._replace(number=number), Publishes(number, 0))

    def _do_write(self, state: State) -> State:
        return self._step(state, Writes())

    def _settle(self, state: State, index: int, kind: str) -> State:
        piece = state.holds[index]
        request = len(state.settles) + 1
        holds = state.holds[:index] + state.holds[index + 1 :]
        state = state._replace(holds=holds, settles=(*state.settles, (request, kind, piece)))
        return self._step(state, Settles(request, kind, piece))

    def _do_ack(self, state: State, index: int) -> State:
        left = evolve(state.left, acks=state.left.acks - 1)
        return self._settle(state._replace(left=left), index, "ack")

    def _do_return(self, state: State, index: int) -> State:
        left = evolve(state.left, returns=state.left.returns - 1)
        back = state.back
        for name in self._names(state, state.holds[index]):
            back = _raised(back, name)
        return self._settle(state._replace(left=left, back=back), index, "nack")

    def _do_credit(self, state: State) -> State:
        left = evolve(state.left, credits=state.left.credits - 1, credit=state.left.credit + 1)
        return self._step(state._replace(left=left), Credits(left.credit))

    def _do_crash(self, state: State) -> State:
        """The master's process ends, and is promoted anew. What it lost is put again."""
        left = evolve(state.left, crashes=state.left.crashes - 1, credit=self.bounds.credit)
        masters, epoch = self.masters, state.epoch + 1
        number = masters.step(state.master, Crashes()).process
        number = masters.step(number, Starts(state.epoch)).process
        view = make_view(epoch, [masters[number].member], master_epoch=epoch)
        lost = tuple(_raised_all(state.back))
        state = state._replace(
            left=left,
            epoch=epoch,
            holds=(),
            settles=(),
            requests=(),
            replies=(),
            flights=0,
            records=tuple(one._replace(sequence=0) for one in state.records),
            back=lost,
            master=number,
        )
        state = self._step(state, Installs(view, True))
        while self.masters[state.master].pending:
            state = self._step(state, Writes())
        queue = self._queue(state.master)
        state = state._replace(number=queue.producers[self.masters.producer].highest)
        return state if state.other is None else self._step(state, state.other)

    def _do_copy(self, state: State) -> State:
        left = evolve(state.left, copies=state.left.copies - 1)
        return state._replace(left=left, copy=state.master)

    def _do_cut(self, state: State) -> State:
        left = evolve(state.left, cuts=state.left.cuts - 1)
        state = self._do_break(state, counts=False) if state.flights else state
        return state._replace(left=left, is_cut=True)

    def _do_heal(self, state: State) -> State:
        return state._replace(is_cut=False)

    def _do_hand(self, state: State) -> State:
        (first, last, count) = self._free(state)[0]
        name = names_in(self.masters[state.copy]).get(first, 0)
        if name in state.acked:
            raise Found(f"message {name}, acked here, is handed out here again")
        if count < 2:
            raise Found(f"message {name} is handed out alone as if for the first time")
        if RangeSet(state.held).within(first, last):
            raise Found(f"message {name} is held twice here")
        left = evolve(state.left, hands=state.left.hands - 1)
        state = self._record(state, ((first, last),), (), (name,))
        held = tuple(RangeSet((*state.held, (first, last))))
        return state._replace(left=left, held=held, handed=_raised(state.handed, name))

    def _do_ack_alone(self, state: State, index: int) -> State:
        left = evolve(state.left, acks=state.left.acks - 1)
        piece = state.held[index]
        names = names_in(self.masters[state.copy]) | names_in(self.masters[state.master])
        named = tuple(names.get(n, 0) for n in range(piece[0], piece[1] + 1))
        branch = self.branch(state)
        branch.let_go(branch.held(*piece))
        state = self._record(state, (), (piece,), named)
        held = state.held[:index] + state.held[index + 1 :]
        return state._replace(left=left, held=held, acked=state.acked | set(named))

    def _do_spool(self, state: State) -> State:
        left = evolve(state.left, spooled=state.left.spooled - 1)
        record = Record(state.next_ordinal, (), (), (SPOOLED,), is_put=True)
        return state._replace(
            left=left, records=(*state.records, record), next_ordinal=record.ordinal + 1
        )

    def _do_hand_put(self, state: State, ordinal: int) -> State:
        left = evolve(state.left, hands=state.left.hands - 1)
        record = next(one for one in state.records if one.ordinal == ordinal)
        if SPOOLED in state.acked:
            raise Found("a spooled message, acked here, is handed out here again")
        return _with(state, record._replace(often=record.often + 1))._replace(
            left=left,
            puts_held=state.puts_held | {ordinal},
            handed=_raised(state.handed, SPOOLED),
        )

    def _do_ack_put(self, state: State, ordinal: int) -> State:
        left = evolve(state.left, acks=state.left.acks - 1)
        record = next(one for one in state.records if one.ordinal == ordinal)
        return ack_put(state, record)._replace(
            left=left, puts_held=state.puts_held - {ordinal}, acked=state.acked | {SPOOLED}
        )

    def _do_other(self, state: State, sequence: int) -> State:
        left = evolve(state.left, others=state.left.others - 1)
        name = names_in(self.masters[state.copy]).get(sequence, 0)
        named = ((sequence, sequence),)
        number = self.bounds.others - left.others
        merge = Merges(number, number - 1, Merge(named, 0, named), OTHER, name)
        state = state._replace(
            left=left,
            other=merge,
            acked_there=state.acked_there | {name},
            handed=_raised(state.handed, name),
        )
        return self._step(state, merge)

    def _do_return_alone(self, state: State, index: int) -> State:
        return state._replace(held=state.held[:index] + state.held[index + 1 :])

    def _record(
        self,
        state: State,
        handed: tuple[Range, ...],
        acked: tuple[Range, ...],
        names: tuple[int, ...],
    ) -> State:
        record = Record(state.next_ordinal, handed, acked, names)
        return state._replace(records=(*state.records, record), next_ordinal=state.next_ordinal + 1)

    def _do_restart(self, state: State) -> State:
        left = evolve(state.left, restarts=state.left.restarts - 1)
        return self._lose(state)._replace(left=left, held=(), puts_held=frozenset())

    def _do_break(self, state: State, counts: bool = True) -> State:
        left = evolve(state.left, breaks=state.left.breaks - counts)
        return self._lose(state)._replace(left=left)

    def _lose(self, state: State) -> State:
        """Nothing is known of what was on its way."""
        records = tuple(one._replace(sequence=0) for one in state.records)
        return state._replace(flights=0, requests=(), replies=(), records=records)

    def _do_send(self, state: State) -> State:
        record = state.records[state.flights]
        state = state._replace(sent_to=max(state.sent_to, record.ordinal))
        line = self.line(state)
        flight = line.send(record.ordinal, 1)
        request = Merges(flight.number, line.settled(flight.number), merge_step(record))
        return state._replace(flights=state.flights + 1, requests=(*state.requests, request))

    def _do_merge(self, state: State) -> State:
        request, *rest = state.requests
        return self._step(state._replace(requests=tuple(rest)), request)

    def _do_hear(self, state: State) -> State:
        (number, sequence), *rest = state.replies
        at = number - state.base
        if not 0 <= at < state.flights:
            return state._replace(replies=tuple(rest))  # It was told before.
        records = list(state.records)
        record = records[at] = records[at]._replace(sequence=sequence)
        told, merged = state.told, state.merged
        for name in record.names if record.ordinal > state.heard else ():
            if record.handed:
                told = _raised(told, name)
            elif not record.is_put:
                merged |= {name}
        return state._replace(
            replies=tuple(rest),
            records=tuple(records),
            told=told,
            merged=merged,
            heard=max(state.heard, record.ordinal),
        )

    def _do_end(self, state: State) -> State:
        """Records leave the file."""
        count = cut_of(self.line(state))
        branch = self.branch(state)
        ended, kept = state.records[:count], state.records[count:]
        for record in ended:
            branch.on_merged(record.handed, record.acked, record.sequence)
        more = [
            one._replace(ordinal=ordinal)
            for ordinal, one in enumerate(said_of(ended), state.next_ordinal)
        ]
        held = [(one.sequence, one.sequence) for one in ended if one.ordinal in state.puts_held]
        return state._replace(
            records=(*kept, *more),
            next_ordinal=state.next_ordinal + len(more),
            base=state.base + count,
            merged_to=branch.merged_to,
            flights=max(state.flights - count, 0),
            held=tuple(RangeSet((*state.held, *held))),
            puts_held=state.puts_held - {one.ordinal for one in ended},
        )

    # --- The master -----------------------------------------------------------------------

    def _step(self, state: State, event: Any) -> State:
        done = self.masters.step(state.master, event)
        if done.error:
            raise Found(done.error)
        state = state._replace(master=done.process)
        for reply in done.replies:
            state = self._hear(state, reply.session, reply.reply)
        return state

    def _hear(self, state: State, session: SessionId, reply: Any) -> State:
        match reply:
            case Confirmed() if session == SPOOL_SESSION:
                found = [
                    (first + i, sequence) for first, n, sequence in reply.runs for i in range(n)
                ]
                fresh = tuple(one for one in found if one[0] >= state.base)
                return state._replace(replies=(*state.replies, *fresh))
            case Confirmed() if session == OTHER_SESSION and state.other is not None:
                name = state.other.name
                state = state._replace(
                    other=None, merged=state.merged | {name}, told=_raised(state.told, name)
                )
            case Refused() if session in (SPOOL_SESSION, OTHER_SESSION):
                raise Found(f"a merge was refused: {reply.reason}")
            case Deliver():
                for piece in reply.deliveries:
                    state = self._delivered(state, piece)
            case Settled():
                state = self._settled(state, reply)
        return state

    def _delivered(self, state: State, piece: Delivery) -> State:
        for name in self._names(state, piece):
            if name in state.merged:
                raise Found(f"message {name}, acked in the branch and merged, comes again")
            if name in state.settled:
                raise Found(f"message {name}, acked at the master, comes again")
            if self.bounds.is_strict and piece.count == 1 and state.handed[name]:
                raise Found(f"message {name} was handed out alone, and says that it never was")
            if piece.count == 1 and name in state.first:
                raise Found(f"message {name} is the first delivery twice")
            if piece.count < 1 + state.told[name] + state.back[name] - (state.epoch - 1):
                raise Found(f"message {name} says {piece.count}: too low")
            if piece.count > 1 + state.handed[name] + state.back[name]:
                raise Found(f"message {name} says {piece.count}: more than has happened")
            if piece.count == 1:
                state = state._replace(first=state.first | {name})
        return state._replace(holds=(*state.holds, piece))

    def _settled(self, state: State, reply: Settled) -> State:
        for request, kind, piece in state.settles:
            if request == reply.request and kind == "ack":
                refused = {n for part in reply.refused for n in self._names(state, part)}
                if refused & (state.acked | state.acked_there):
                    raise Found("an ack of what the branch has acked, too, is refused")
                settled = set(self._names(state, piece)) - refused
                state = state._replace(settled=state.settled | settled)
        return state

    def _names(self, state: State, piece: Delivery) -> list[int]:
        return [self._name(state, n) for n in range(piece.first, piece.last + 1)]

    def _queue(self, process: int) -> QueueState:
        replica = self.masters[process].replica
        assert replica is not None
        return replica.state

    def _name(self, state: State, sequence: int) -> int:
        return names_in(self.masters[state.master])[sequence]

    # --- The end --------------------------------------------------------------------------

    def rest(self, state: State) -> None:
        """The cut heals and all comes to rest: what lives is what nobody has acked.

        Raises:
            Found: it is not.
        """
        state = state._replace(is_cut=False)
        for _ in range(REST_STEPS):
            calm = [
                one
                for one in self.actions(state)
                if one[0] in ("write", "send", "merge", "hear", "end")
            ]
            if not calm:
                break
            state = self.do(state, calm[0])
        if state.records:
            raise Found(f"the branch does not drain: {state.records}")
        queue = self._queue(state.master)
        names = names_in(self.masters[state.master])
        living = {names[s] for a, b in queue.live for s in range(a, b + 1) if s in names}
        acking = {
            name
            for _, kind, piece in state.settles
            if kind == "ack"
            for name in self._names(state, piece)
        }
        wanted = set(range(1, state.number + 1))
        wanted |= {SPOOLED} if state.left.spooled < self.bounds.spooled else set()
        wanted -= state.acked | state.acked_there | state.settled
        if living - wanted:
            raise Found(f"acked and alive: {living - wanted}")
        if wanted - living - acking:
            raise Found(f"lost: {wanted - living}")


def _raised(counts: tuple[int, ...], name: int) -> tuple[int, ...]:
    return tuple(count + (place == name) for place, count in enumerate(counts))


def _raised_all(counts: tuple[int, ...]) -> list[int]:
    return [count + 1 for count in counts]


def explore(bounds: Bounds, states_max: int = 200_000) -> tuple[int, bool]:
    """Visit every state, breadth first: (how many, whether all). Raises Found."""
    with served():
        return _explore(World(bounds), states_max)


def _explore(world: World, states_max: int) -> tuple[int, bool]:
    first = world.first()
    seen = {hash(first)}
    todo: deque[tuple[State, tuple[Action, ...]]] = deque([(first, ())])
    while todo:
        state, trace = todo.popleft()
        for action in world.actions(state):
            try:
                follower = world.do(state, action)
                mark = hash(follower)
                if mark in seen:
                    continue
                world.rest(follower)
            except Found as found:
                raise Found(found.what, (*trace, action)) from None
            seen.add(mark)
            todo.append((follower, (*trace, action)))
        if len(seen) >= states_max:
            return len(seen), False
    return len(seen), True


def walk(bounds: Bounds, random: Random, steps_max: int = 80) -> None:
    """One run at random, then all comes to rest. Raises Found."""
    with served():
        _walk(World(bounds), random, steps_max)


def _walk(world: World, random: Random, steps_max: int) -> None:
    state = world.first()
    trace: list[Action] = []
    try:
        while len(trace) < steps_max:
            actions = world.actions(state)
            if not actions:
                break
            kinds = sorted({one[0] for one in actions})
            weights = [1 if kind in RARE else 6 for kind in kinds]
            (kind,) = random.choices(kinds, weights)
            trace.append(random.choice([one for one in actions if one[0] == kind]))
            state = world.do(state, trace[-1])
        world.rest(state)
    except Found as found:
        raise Found(found.what, tuple(trace)) from None


def main(arguments: list[str] | None = None) -> int:
    """The command line. Exit status 1 when something is not as it has to be."""
    parser = argparse.ArgumentParser(description="Explore a branch and its merge.")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--states", type=int, default=100_000, help="at most, a scope")
    parser.add_argument("--walks", type=int, default=200)
    options = parser.parse_args(arguments)
    try:
        for name, bounds in (QUICK | LONG if options.long else QUICK).items():
            count, is_all = explore(bounds, options.states)
            for seed in range(options.walks):
                walk(bounds, Random(seed))
            how = "exhausted" if is_all else "as many as were asked for"
            print(f"{name:14} {count:>8} states, {how}; {options.walks} walks", flush=True)
    except Found as found:
        print(found)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
