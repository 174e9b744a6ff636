"""Leases and claims of one queue, for a swarm: who holds messages without settling them at once.

    holders = Holders(cluster, random, "held", queue_id, counts, pace=1)

A `Leaser` takes messages as `MirroredQueue.lease` does, with the real `LeaseHolder`, holds them for
a while and acks or returns all of them. A `Claimer` has the whole queue as `MirroredQueue.claim`
does, browses it and acks what it has seen by sequence. Plain consumers come and go beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from attrs import frozen

from harness.load import Load
from harness.onlooker import Passed
from harness.workload import Consumer, Dispatch, Getter, Journal, Place, SimulatedHandle
from mirrorq.api.lease_holder import LeaseHolder
from mirrorq.protocol.identities import SessionId
from mirrorq.protocol.sessions import Browsed, Delivery, Purged
from mirrorq.session.calls import (
    ConsumerFailed,
    Delivered,
    DropBuffered,
    Output,
    Query,
    QueryDone,
    SettleCall,
    SettleDone,
    ack_range_request,
    browse_request,
    inquire_request,
)
from mirrorq.wire import frames

__all__ = ["Acted", "Claimer", "Holders", "Leaser", "misheld"]

NUMBER = 1
"""Of the only consumer of each handle."""
LOOK_MS = 100
"""Who waits for a claim asks again after this."""
BROWSE_COUNT = 40
DEAD_FACTOR = 4
"""For so many failure_ms what a dead handle held may stay with it: its silence is noticed after
one, its broken link is given up after two."""


@frozen
class Acted:
    """A claim's ack that was taken in the attachment in which the claim was got."""

    session: SessionId
    epoch: int
    since_ms: int
    """When its holder knew that it had the queue."""
    asked_ms: int


class Leaser(SimulatedHandle):
    """Leases so many messages once."""

    def __init__(self, place: Place, journal: Journal, count: int) -> None:
        self.taker = LeaseHolder(NUMBER, count)
        self._journal = journal
        self._taken: dict[tuple[int, int, int], Dispatch] = {}
        """(epoch, delivery number, sequence) -> what came."""
        self._is_settling = False
        super().__init__(place)
        self.session.subscribe(NUMBER, 1, False, False, True, self.name)
        self.poke()

    @property
    def count(self) -> int:
        """How many messages it has now."""
        return sum(left.count for _, left in self.taker.pieces.values())

    def complete(self) -> None:
        """All that it will have it has; later they are only taken again."""
        self.taker.is_complete = True
        self.taker.wanted = self.taker.sequences.count

    def settle(self, kind: str) -> None:
        """Ack or return all; the handle ends with the outcome."""
        if not self.is_alive or self._is_settling:
            return
        self._is_settling = True
        if self.taker.refused or not self._send(kind, None):
            self._leave()
        self.poke()

    def _send(self, kind: str, refused: tuple[Delivery, ...] | None) -> bool:
        """Settle all, or what was refused and has newer names; False: there is nothing."""
        pieces = self.taker.settle(refused)
        if not pieces:
            return False
        named = self._named(pieces)
        if refused is not None:
            # What is taken again now is a delivery if it is used, else nobody has had it.
            self._journal.deliveries += named
        for dispatch in named if kind == "ack" else ():
            dispatch.acked = "open"
        self.session.settle(SettleCall(kind, kind, pieces))
        return True

    def _leave(self) -> None:
        self.taker.end_lease(self.session)
        self.close()

    def _named(self, pieces: Iterable[Delivery]) -> list[Dispatch]:
        names = ((p.epoch, p.number, s) for p in pieces for s in range(p.first, p.last + 1))
        return [self._taken[name] for name in names if name in self._taken]

    def take(self, outputs: list[Output]) -> None:
        for output in outputs:
            match output:
                case Delivered():
                    self._on_deliver(output)
                case ConsumerFailed():
                    self.taker.refuse(output.why)
                case SettleDone():
                    self._on_settled(output)

    def _on_deliver(self, output: Delivered) -> None:
        deliver = output.deliver
        bodies = iter([body for frame in deliver.frames for body in frames.split(frame)])
        known = dict.fromkeys(self.taker.pieces)
        self.taker.add_deliveries(self.session, deliver.deliveries)
        now_ms = self.cluster.handed_ms
        for piece in deliver.deliveries:
            name = (piece.epoch, piece.number)
            _, left = self.taker.pieces.get(name, (piece, ()))
            for sequence in range(piece.first, piece.last + 1):
                body = next(bodies)
                if name in known or sequence not in left:
                    continue
                handed_ms = now_ms[self.queue_id, *name]
                one = Dispatch(sequence, body, piece.count, handed_ms, name, self.name)
                self._taken[(*name, sequence)] = one
                if not self._is_settling:
                    self._journal.deliveries.append(one)

    def _on_settled(self, done: SettleDone) -> None:
        refused = dict.fromkeys(map(id, self._named(done.refused)))
        for dispatch in self._taken.values():
            if dispatch.acked != "open":
                continue
            if not self.is_open:
                dispatch.acked = "lost"
            elif id(dispatch) in refused:
                dispatch.acked = "refused"
            else:
                dispatch.acked, dispatch.answered = "ok", self.session.epoch
                resolved_ms = self._journal.resolved_ms
                resolved_ms.setdefault(dispatch.sequence, self.cluster.now_ms)
        if self.is_open:
            self.cluster.after(0, self._go_on, str(done.token), done.refused)

    def _go_on(self, kind: str, refused: tuple[Delivery, ...]) -> None:
        """With the outcome of a settle."""
        if not self.is_alive:
            self.close()
            return
        if not self._send(kind, refused):
            self._leave()
        self.poke()

    def ask(self) -> None:
        if not self.taker.refused:
            held = self.taker.held_in(self.session.epoch)
            self.session.want(NUMBER, held, self.taker.wanted)


class Claimer(SimulatedHandle):
    """Has the queue for itself for a while, or waits for that."""

    def __init__(self, place: Place, journal: Journal, acted: list[Acted]) -> None:
        self.since_ms: int | None = None
        """Since when it knows that it has the queue; None: it does not."""
        self._acted = acted
        self._journal = journal
        self._is_asking = False
        self._asked_ms = 0
        super().__init__(place)
        self._claim()

    def _claim(self) -> None:
        """Take the only seat. A refusal comes before the answer to what is asked after it."""
        if self.is_alive and not self._is_asking:
            self._is_asking = True
            self.session.subscribe(NUMBER, 1, True, False, True, self.name)
            self.session.query(Query("claim", inquire_request))
            self.poke()

    def take(self, outputs: list[Output]) -> None:
        for output in outputs:
            match output:
                case ConsumerFailed():
                    self._is_asking = False
                    if self.is_open:
                        self.cluster.after(LOOK_MS, self._claim)
                case DropBuffered() if self.since_ms is not None or self._is_asking:
                    # It may be had by others until it is had again: another one begins anew.
                    self.since_ms = None
                    self._is_asking = False
                    if self.is_open:
                        self.cluster.after(0, self.close)
                case QueryDone() if self.is_open and output.reply is not None:
                    self._on_answer(output)

    def _on_answer(self, done: QueryDone) -> None:
        token: Any = done.token
        if token == "claim":
            if self._is_asking and self.since_ms is None:
                self.since_ms = self.cluster.now_ms
                self._browse()
        elif self.since_ms is None:
            return
        elif isinstance(done.reply, Browsed):
            ranges = done.reply.ranges
            if ranges:
                hold_ms = self.random.choice((0, 5, 100, 400))
                self.cluster.after(hold_ms, self._ack, ranges[0][0], ranges[-1][1])
            else:
                self.cluster.after(LOOK_MS, self._browse)
        elif isinstance(done.reply, Purged):
            self._on_acked(done.reply, *token)

    def _browse(self) -> None:
        if self.is_alive and self.since_ms is not None:
            self.session.query(Query("browse", browse_request(1, BROWSE_COUNT)))
            self.poke()

    def _ack(self, first: int, last: int) -> None:
        """Be done with all that lives from first to last."""
        if self.is_alive and self.since_ms is not None:
            self._asked_ms = self.cluster.now_ms
            self._journal.claimed.add(first, last)
            self.session.query(Query((first, last), ack_range_request(NUMBER, first, last)))
            self.poke()

    def _on_acked(self, reply: Purged, first: int, last: int) -> None:
        if reply.why or self.since_ms is None:
            self.since_ms = None
            self.cluster.after(0, self.close)
            return
        session, epoch = self._session_id, self.session.epoch
        self._acted.append(Acted(session, epoch, self.since_ms, self._asked_ms))
        if reply.count:
            self._ack(first, last)
            return
        # Nothing was left of it, and nobody else held anything: all of it has ended.
        for sequence in range(first, last + 1):
            self._journal.resolved_ms.setdefault(sequence, self.cluster.now_ms)
        self._browse()


class _Patient(Consumer):
    """Goes when somebody else has the queue."""

    def take(self, outputs: list[Output]) -> None:
        super().take(outputs)
        if self.is_open and any(isinstance(output, ConsumerFailed) for output in outputs):
            self.cluster.after(0, self.close)


class _PatientGetter(_Patient, Getter):
    """The same for calls of get()."""


class Holders(Load):
    """A queue with leases and claims; not purged, not deleted."""

    def __init__(self, *arguments: Any, **names: Any) -> None:
        super().__init__(*arguments, **names)
        self._producer_count = 1
        self._pace *= 3
        self._purge_share = self._delete_share = 0.0
        self.acted: list[Acted] = []
        self._leasers: list[Leaser] = []
        self._claimer: Claimer | None = None
        self._claim_until_ms = -1
        """Until then nobody else comes."""
        self._dead: dict[tuple[int, int, SessionId], int] = {}
        """(term, life of its node, dead handle with a place at the master) -> since when."""
        self.cluster.onlooker.passed[self.life.queue_id] = []

    def start(self) -> None:
        super().start()
        self._tick_holders()

    def drain(self) -> None:
        super().drain()
        for handle in (*self._leasers, *([self._claimer] if self._claimer is not None else [])):
            if handle.is_open and not handle.is_alive:
                handle.die()
            handle.vanish()
        self._leasers, self._claimer = [], None

    def _new_consumer(self, node: str, share: float) -> Consumer:
        kind = _PatientGetter if self.random.random() < 0.3 and not self._is_quiet else _Patient
        consumer = kind(self._place_on(node, "c"), self.life.journal, share)
        if not self._is_quiet:
            if self._is_claimed:
                self.cluster.after(0, consumer.close)
            self.cluster.after(self.random.randint(50, 1000), consumer.close)
        return consumer

    @property
    def _is_claimed(self) -> bool:
        return self.cluster.now_ms < self._claim_until_ms

    def _tick_holders(self) -> None:
        self._leasers = [one for one in self._leasers if one.is_open]
        self._look()
        if self._is_quiet:
            self.cluster.after(LOOK_MS, self._tick_holders)
            return
        for handle in self._leasers:
            if handle.is_alive and self.random.random() < 0.02:
                self._counts["lease dies"] += 1
                handle.vanish()
        claimer = self._claimer
        if claimer is not None and (not claimer.is_alive or self.random.random() < 0.02):
            self._counts["claim ends"] += 1
            claimer.vanish()
            self._claimer = None
        node = self._node()
        if node is not None:
            self._add(node)
        self.cluster.after(self.random.randint(20, 2 * LOOK_MS), self._tick_holders)

    def _add(self, node: str) -> None:
        journal, chance = self.life.journal, self.random.random()
        if self._claimer is None and chance < 0.15:
            self._counts["claim"] += 1
            self._claim_until_ms = self.cluster.now_ms + self.random.randint(500, 2000)
            self._claimer = Claimer(self._place_on(node, "k"), journal, self.acted)
        elif not self._is_claimed and len(self._leasers) < 2 and chance > 0.6:
            self._counts["lease"] += 1
            leaser = Leaser(self._place_on(node, "l"), journal, self.random.randint(1, 12))
            self._place(leaser)
            self._leasers.append(leaser)
            taking_ms = self.random.randint(50, 400)
            kind = self.random.choice(("ack", "ack", "nack"))
            self.cluster.after(taking_ms, leaser.complete)
            hold_ms = self.random.choice((1, 100, 500, 2500))
            self.cluster.after(taking_ms + hold_ms, leaser.settle, kind)

    # --- What ends within a bound -----------------------------------------------------------

    def _look(self) -> None:
        """What a handle that is no more holds goes back, where its master runs well and can
        hear of it."""
        cluster = self.cluster
        name = cluster.master(self.life.queue_id)
        node = cluster.nodes[name] if name is not None else None
        if name is None or node is None or node.is_impaired(cluster.now_ms):
            self._dead.clear()
            return
        master = cluster.engine(name).replicas[self.life.queue_id].master
        if master is None:
            return
        keys = [
            *master.dispatch.consumers.by_key,
            *(one.key for one in master.dispatch.open.by_number.values()),
        ]
        dead = {
            (master.master_epoch, node.life, key[0]): None
            for key in keys
            if self._is_dead(key[0], name)
        }
        self._dead = {key: one for key, one in self._dead.items() if key in dead}
        bound_ms = DEAD_FACTOR * cluster.config.failure_ms
        for key in dead:
            if cluster.now_ms - self._dead.setdefault(key, cluster.now_ms) > bound_ms:
                self._dead[key] = cluster.now_ms
                self.wrong.append(
                    f"held by the dead: {key[2]} is gone for {bound_ms} ms and has its place at "
                    f"{name} in term {key[0]}"
                )

    def _is_dead(self, session: SessionId, master: str) -> bool:
        """Whether a handle is no more, and its master can have heard or noticed that."""
        cluster = self.cluster
        node = cluster.nodes.get(session.node)
        if node is not None and session in node.ports:
            return False
        if node is None or session.node == master:
            return True
        network, now_ms = cluster.network, cluster.now_ms
        links = (network.link(session.node, master), network.link(master, session.node))
        return not any(link.is_impaired(now_ms) for link in links) and not (
            node.engine is not None and node.is_impaired(now_ms)
        )

    def judge(self) -> None:
        """At the end: put what is wrong into `wrong`."""
        passed = self.cluster.onlooker.passed[self.life.queue_id]
        self.wrong += misheld(self.life.journal, self.acted, passed)


def misheld(journal: Journal, acted: Iterable[Acted], passed: Iterable[Passed]) -> list[str]:
    """No message is with two at once: an ack that was taken is of the newest delivery of its
    message, and while a claim lasts nobody else is handed anything.

    Args:
        passed: every delivery of the queue that a master has sent.
    """
    passed = list(passed)
    return [
        *_acked_after_another(journal, passed),
        *(text for claim in acted for text in _handed_beside(claim, passed)),
    ]


def _acked_after_another(journal: Journal, passed: list[Passed]) -> Iterator[str]:
    """In one term a message that is handed out was held by nobody. In a later one somebody may
    have it who was not heard of; his ack ends it for those of earlier terms, too. Nor does a
    later master know who has ended what lives no more, such as who had the queue for himself: it
    takes an ack of an earlier term."""
    newest: dict[tuple[int, int], int] = {}
    for piece in passed:
        for sequence in range(piece.first, piece.last + 1):
            place = (piece.epoch, sequence)
            newest[place] = max(newest.get(place, 0), piece.number)
    last: dict[int, Dispatch] = {}
    for one in sorted(journal.deliveries, key=lambda one: one.delivery):
        last[one.sequence] = one
    for one in journal.deliveries:
        epoch, number = one.delivery
        later = last[one.sequence]
        is_handed_on = newest.get((epoch, one.sequence), 0) > number
        is_handed_on &= one.answered in (0, epoch)
        is_theirs = later.delivery[0] > epoch and not later.acked
        is_theirs &= one.sequence not in journal.claimed
        if one.acked == "ok" and (is_handed_on or is_theirs):
            yield (
                f"held twice: {one.consumer} has acked sequence {one.sequence} of delivery "
                f"{one.delivery}, which was handed out anew, to {later.consumer} at last"
            )


def _handed_beside(claim: Acted, passed: list[Passed]) -> Iterator[str]:
    for piece in passed:
        is_other = piece.epoch == claim.epoch and piece.session != claim.session
        if is_other and claim.since_ms < piece.time_ms < claim.asked_ms:
            yield (
                f"claimed twice: {piece.session} was handed {piece.first} to {piece.last} at "
                f"{piece.time_ms} ms, {claim.session} has had the queue from "
                f"{claim.since_ms} to {claim.asked_ms} ms"
            )
