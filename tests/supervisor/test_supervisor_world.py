"""Supervisors, leases and catalogs of a whole cluster under random faults.

Raft is reduced to what the supervisor may rely on: one log, of which a majority's leader
commits more and more; elections at any time, after which the leader before goes on for a
while believing that it leads; and a new leader that keeps any part of what was proposed.
Messages are late, lost with a cut link, and kept while their receiver is paused.
"""

from __future__ import annotations

import random

import pytest
from attrs import define, field

from mirrorq.cluster.catalog.catalog import Catalog
from mirrorq.cluster.controller.controller import Controller
from mirrorq.cluster.controller.events import (
    CatalogChanged,
    ControllerTick,
    Event,
    Heard,
    LinkBroken,
    ProbeRefused,
)
from mirrorq.cluster.controller.leases import Leading, LeaseHolder
from mirrorq.config import Config
from mirrorq.protocol.commands import CatalogCommand, ChangeView, DeclareQueue, RegisterNode
from mirrorq.protocol.control import (
    CatalogAnswer,
    CatalogRequest,
    LeaseAnswer,
    LeaseRelease,
    LeaseRequest,
    Yield,
    Yielded,
)
from mirrorq.protocol.identities import MemberId
from mirrorq.protocol.views import Member, in_sync_ids, is_master, joining_ids

CONFIG = Config(failure_ms=300, heartbeat_ms=100, lease_ms=280)
"""A lease almost as long as failure_ms: else the silence alone would outlast every lease."""
STEP_MS = 10
FAULTY_MS = 12_000
HEALED_MS = 20_000
"""More than the longest calm: 3 x failure_ms, doubled four times."""


@define(eq=False)
class Process:
    """One incarnation of one node."""

    member: MemberId
    supervisor: Controller
    holder: LeaseHolder
    catalog: Catalog
    applied: int = 0
    paused: bool = False
    mute: bool = False
    """Its signs of life are lost, all else arrives: taken for silent, it still gets leases."""
    slow: bool = False
    """It applies nothing for the time being."""
    inbox: list[tuple[int, str, object]] = field(factory=list)
    """(due, from, message), in order of arrival."""
    term: int = 0
    own_entry: int = 0
    """Index of the first entry of the term that it leads."""
    contact_ms: int = 0
    doomed_ms: int = 0
    """When a deposed leader learns of it."""


class World:
    def __init__(self, seed: int, names: str) -> None:
        self.rng = random.Random(seed)
        self.names = names
        self.now_ms = 0
        self.term = 0
        self.log: list[CatalogCommand | None] = []
        self.committed = 0
        self.truth = Catalog()
        self.incarnations = dict.fromkeys(names, 0)
        self.live: dict[str, Process] = {}
        self.stalled_ms = 0
        """Until then nothing is committed, though rounds are answered."""
        self.cut: set[tuple[str, str]] = set()
        """One-way cuts: (from, to)."""
        self.counting: list[ChangeView] = []
        """Proposals of masters that the leader admitted."""
        for name in names:
            self.start(name)

    # --- Faults -----------------------------------------------------------------------

    def start(self, name: str) -> None:
        self.incarnations[name] += 1
        member = MemberId(name, ord(name), self.incarnations[name])
        catalog = Catalog()
        supervisor = Controller(member, catalog, CONFIG, self.now_ms)
        self.live[name] = Process(member, supervisor, LeaseHolder(member, CONFIG.lease_ms), catalog)

    def kill(self, name: str) -> None:
        del self.live[name]
        for other in self.live.values():
            if not self.is_cut(name, other.member.node):
                self.post(name, other.member.node, LinkBroken(name))

    def is_cut(self, one: str, other: str) -> bool:
        return (one, other) in self.cut or (other, one) in self.cut

    def fault(self) -> None:
        rng = self.rng
        name, other = rng.sample(self.names, 2)
        process = self.live.get(name)
        faults = ["kill", "bounce", "pause", "cut", "end", "close", "mute", "mute", "slow", "stall"]
        cures = ["start", "wake", "wake", "mend"]
        match rng.choice(faults + 2 * cures):
            case "kill" if process is not None and len(self.live) > 1:
                self.kill(name)
            case "bounce" if process is not None and len(self.live) > 1:
                # Back before a probe of its last start has been answered: that answer comes late.
                self.kill(name)
                self.start(name)
            case "start" if process is None:
                self.start(name)
            case "pause" if process is not None:
                process.paused = True
            case "mute" if process is not None:
                process.mute = True
            case "slow" if process is not None:
                process.slow = True
            case "stall":
                self.stalled_ms = self.now_ms + rng.randrange(0, 2000)
            case "wake" if process is not None:
                process.paused = process.mute = process.slow = False
            case "cut":
                self.cut.add((name, other))
                if rng.random() < 0.5:
                    self.cut.add((other, name))
            case "mend":
                self.cut.clear()
            case "end" if process is not None:
                self.post(other, name, LinkBroken(other))
            case "close" if process is not None and rng.random() < 0.3:
                release = process.holder.release(self.now_ms)
                self.send_leader(process, release)
                process.holder.resume()

    def heal(self) -> None:
        self.cut.clear()
        for name in self.names:
            if name not in self.live:
                self.start(name)
            process = self.live[name]
            process.paused = process.mute = process.slow = False

    # --- Network ----------------------------------------------------------------------

    def post(self, sender: str, to: str, message: object) -> None:
        process = self.live.get(to)
        if process is not None and (sender, to) not in self.cut:
            due_ms = self.now_ms + self.rng.choice([0, 0, 10, 20, 60])
            last_ms = max((due for due, name, _ in process.inbox if name == sender), default=0)
            process.inbox.append((max(due_ms, last_ms), sender, message))

    def leader_of(self, process: Process) -> Process | None:
        """Whom this process takes for the leader: any that leads, or believes so."""
        leaders = [one for one in self.live.values() if one.term]
        return self.rng.choice(leaders) if leaders else None

    def send_leader(self, process: Process, message: object) -> None:
        leader = self.leader_of(process)
        if leader is not None:
            self.post(process.member.node, leader.member.node, message)

    def reaches_majority(self, process: Process) -> bool:
        name = process.member.node
        heard = [
            other
            for other, one in self.live.items()
            if other != name and not one.paused and not self.is_cut(name, other)
        ]
        return not process.paused and 2 * (len(heard) + 1) > len(self.names)

    # --- Raft, reduced ------------------------------------------------------------------

    def leader(self) -> Process | None:
        leading = [one for one in self.live.values() if one.term and one.term == self.term]
        return leading[0] if leading else None

    def elect(self) -> None:
        able = [one for one in self.live.values() if self.reaches_majority(one)]
        if not able:
            return
        winner = self.rng.choice(able)
        old = self.leader()
        if old is not None:
            old.doomed_ms = self.now_ms + self.rng.randrange(0, 1000)
        kept = self.rng.randint(self.committed, len(self.log))
        self.log = [*self.log[:kept], None]
        self.term += 1
        winner.term, winner.own_entry, winner.doomed_ms = self.term, len(self.log), 0
        winner.contact_ms = self.now_ms

    def commit(self) -> None:
        leader = self.leader()
        if leader is None or not self.reaches_majority(leader):
            return
        leader.contact_ms = self.now_ms
        if self.now_ms < self.stalled_ms:
            return
        while self.committed < len(self.log) and self.rng.random() < 0.6:
            command = self.log[self.committed]
            self.committed += 1
            if command is not None:
                self.check_change(command)
                self.truth.apply(self.committed, command)

    def check_change(self, command: CatalogCommand) -> None:
        """A view that takes effect and that no master asked for only keeps who was in sync."""
        if not isinstance(command, ChangeView) or command in self.counting:
            return
        queue = self.truth.queue(command.queue_id)
        if queue is None or queue.view.epoch != command.replaces:
            return
        before = [(one.node, one.store) for one in in_sync_ids(queue.view)]
        head, *mirrors = [one.id for one in command.members if one.in_sync]
        assert (head.node, head.store) in before
        assert all(one in in_sync_ids(queue.view) for one in mirrors)

    # --- One process --------------------------------------------------------------------

    def step(self, process: Process, event: Event) -> None:
        leading = None
        if process.term:
            own = process.applied >= process.own_entry
            leading = Leading(process.term, own, self.known_commit(process), process.contact_ms)
        effects = process.supervisor.step(self.now_ms, event, leading)
        name = process.member.node
        for to, message in effects.send:
            self.post(name, to, message)
        for to, wanted in effects.yields:
            self.post(name, to, wanted)
        for probe in effects.probe:
            if probe.node not in self.live and not self.is_cut(name, probe.node):
                self.post(name, name, ProbeRefused(probe.node, probe.number))
        if process.term and process.term == self.term:
            for command in effects.propose:
                self.check_eviction(command)
                self.log.append(command)

    def known_commit(self, process: Process) -> int:
        """A leader learns how far the log is committed with the first entry of its own term."""
        sure = process.term == self.term and self.committed >= process.own_entry
        return self.committed if sure else process.applied

    def check_eviction(self, command: CatalogCommand) -> None:
        """No living master is replaced while it holds a lease, applied or not."""
        if not isinstance(command, ChangeView):
            return
        queue = self.truth.queue(command.queue_id)
        if queue is None or queue.view.epoch != command.replaces:
            return
        master = queue.view.members[0].id
        process = self.live.get(master.node)
        if command.members[0].id != master and process is not None and process.member == master:
            assert process.holder.valid_until_ms(1 << 60) <= self.now_ms

    def run_process(self, process: Process) -> None:
        if process.doomed_ms and self.now_ms >= process.doomed_ms:
            process.term = process.doomed_ms = 0
        for _ in range(self.rng.choice([0, 1, 1, 5])):
            self.apply_next(process)
        due = [item for item in process.inbox if item[0] <= self.now_ms]
        process.inbox = [item for item in process.inbox if item[0] > self.now_ms]
        for _, _, message in due:
            if isinstance(message, LeaseAnswer):
                process.holder.on_answer(message)
            elif isinstance(message, Yield):
                self.promise(process, message)
            else:
                assert isinstance(
                    message,
                    Heard | LinkBroken | ProbeRefused | LeaseRequest | LeaseRelease | Yielded,
                )
                self.step(process, message)
        if self.now_ms % CONFIG.heartbeat_ms == 0:
            self.say_hello(process)
        self.step(process, ControllerTick())
        masters = [queue for queue in process.catalog.queues() if self.masters(process, queue.id)]
        message = process.holder.poll(self.now_ms, bool(masters))
        if message is not None:
            self.send_leader(process, message)
        if self.rng.random() < 0.05:
            for queue in masters:
                self.count_in(process, queue.id)

    def promise(self, process: Process, wanted: Yield) -> None:
        """A master is asked for its word."""
        queue = process.catalog.queue(wanted.queue_id)
        if queue is not None and self.masters(process, queue.id):
            if queue.view.epoch == wanted.epoch:
                word = Yielded(queue.id, wanted.epoch, process.member)
                self.send_leader(process, word)

    def apply_next(self, process: Process) -> None:
        if process.applied >= self.committed or process.slow:
            return
        if process.term != self.term and not self.reaches_majority(process):
            return
        command = self.log[process.applied]
        process.applied += 1
        if command is not None:
            result = process.catalog.apply(process.applied, command)
            self.step(process, CatalogChanged(result.queues, result.nodes, result.redefines))

    def say_hello(self, process: Process) -> None:
        for name in self.names:
            if name != process.member.node and not process.mute:
                heard = Heard(process.member, process.supervisor.unheard())
                self.post(process.member.node, name, heard)
        record = process.catalog.node(process.member.node)
        if record is None or record.member != process.member:
            member = process.member
            self.request(
                process,
                RegisterNode(member.node, member.store, member.incarnation, "tcp://x", False),
            )

    def request(self, process: Process, command: CatalogCommand) -> None:
        leader = self.leader()
        if leader is None or leader.paused:
            return
        if leader is not process and self.is_cut(leader.member.node, process.member.node):
            return
        own = leader.applied >= leader.own_entry
        leading = Leading(leader.term, own, self.known_commit(leader), leader.contact_ms)
        answer = leader.supervisor.admit(CatalogRequest(1, process.member, command), leading)
        if not isinstance(answer, CatalogAnswer):
            self.log.append(answer)
            if isinstance(answer, ChangeView):
                self.counting.append(answer)

    def count_in(self, process: Process, queue_id: int) -> None:
        """The master found its first joiner to be complete."""
        queue = process.catalog.queue(queue_id)
        assert queue is not None
        view = queue.view
        if joining_ids(view):
            size = len(in_sync_ids(view))
            members = (*view.members[:size], Member(view.members[size].id, True))
            self.request(
                process, ChangeView(queue_id, view.epoch, members + view.members[size + 1 :])
            )

    def masters(self, process: Process, queue_id: int) -> bool:
        queue = process.catalog.queue(queue_id)
        return queue is not None and is_master(queue.view, process.member)

    # --- The whole ----------------------------------------------------------------------

    def check_leases(self) -> None:
        """At most one living process may hand out messages of a queue."""
        for queue in self.truth.queues():
            able = [
                process.member
                for process in self.live.values()
                if self.masters(process, queue.id)
                and self.now_ms < process.holder.valid_until_ms(process.applied)
            ]
            assert len(able) <= 1, able

    def run(self, span_ms: int, fault_odds: float) -> None:
        end_ms = self.now_ms + span_ms
        while self.now_ms < end_ms:
            self.now_ms += STEP_MS
            if self.rng.random() < fault_odds:
                self.fault()
            leader = self.leader()
            able = leader is not None and self.reaches_majority(leader)
            if self.rng.random() < (0.005 * bool(fault_odds) if able else 0.05):
                self.elect()
            self.commit()
            for name in self.names:
                process = self.live.get(name)
                if process is not None and not process.paused:
                    self.run_process(process)
            self.check_leases()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("names", ["ab", "abc", "abcde"])
def test_no_two_masters_delivery_and_all_is_well_after_healing(names: str, seed: int) -> None:
    """Under kills, restarts, pauses, cuts, closings and elections at any time: never two
    leases for one queue, no lease is ignored, nobody slips into the set in sync; and when all
    nodes are back the queue has a living master, and every node is in sync."""
    world = World(seed, names)
    world.run(1000, 0)
    while world.leader() is None:
        world.run(STEP_MS, 0)
    world.run(500, 0)
    for name in ("q", "r"):
        declarer = world.live[names[-1]]
        world.request(declarer, DeclareQueue(name, True, False, False, names[-1], None, ()))
    world.run(500, 0)
    assert len(world.truth.queues()) == 2
    world.run(FAULTY_MS, 0.04)
    world.heal()
    world.run(HEALED_MS, 0)
    assert len(world.truth.queues()) == 2
    for queue in world.truth.queues():
        members = {process.member for process in world.live.values()}
        assert set(in_sync_ids(queue.view)) == members
        head = world.live[queue.view.members[0].id.node]
        assert world.now_ms < head.holder.valid_until_ms(head.applied)


def test_the_world_is_hard_enough() -> None:
    """Views, masters and leaders do change under it: else the test above shows nothing."""
    epochs = masters = terms = 0
    for seed in range(4):
        world = World(seed, "abcde")
        world.run(1000, 0)
        world.request(world.live["e"], DeclareQueue("q", True, False, False, "e", None, ()))
        world.run(FAULTY_MS, 0.04)
        (queue,) = world.truth.queues()
        epochs += queue.view.epoch
        masters += queue.view.master_epoch > 1
        terms += world.term
    assert epochs >= 20
    assert masters >= 2
    assert terms >= 12
