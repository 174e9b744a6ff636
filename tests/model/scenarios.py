"""Scenarios over the exploration's world, step by step, each step named by what it waits for."""

from __future__ import annotations

from array import array
from collections.abc import Callable

from harness.explore import begin
from harness.explore_search import PLANS
from harness.explore_world import Action
from mirrorq.protocol.commands import DeclareQueue
from mirrorq.protocol.staged import CommitOp, Stage
from mirrorq.replication.ring import Ring
from mirrorq.replication.state.staging import Staging
from supervisor import test_supervisor_world

STEPS_MAX = 60


class Play:
    """One run of a plan."""

    def __init__(self, plan: str) -> None:
        self.world, self.state = begin(PLANS[plan])

    def do(self, *actions: Action) -> None:
        for action in actions:
            assert action in self.world.actions(self.state), action
            self.state = self.world.do(self.state, action)

    def hear_until(self, done: Callable[[], bool], *links: tuple[int, int]) -> None:
        """Let messages arrive on these slow links, in turn, until something is so."""
        for step in range(STEPS_MAX * len(links)):
            if done():
                return
            sender, receiver = links[step % len(links)]
            if self.waiting(sender, receiver):
                self.do(("hear", sender, receiver))
        raise AssertionError(f"not so after all: {self.world.describe(self.state)}")

    def waiting(self, sender: int, receiver: int) -> bool:
        return bool(self.state.links[sender * self.world.count + receiver])

    def ring(self, place: int) -> Ring:
        replica = self.world.processes[self.state.nodes[place]].replica
        assert replica is not None
        return replica.ring


def predecessor_confirmed_more() -> None:
    """A new master knows less to be stable than its predecessor has confirmed.

    a, b and c are in sync, d joins with a slow disk. An op becomes stable at a; b and c have it
    and do not know that it is stable. a dies, b is promoted, and d reports only what was on its
    disk before that op: all that b *knows* to be stable. It must not be counted in.
    """
    play = Play("fourth")
    a, b, c, d = range(4)
    play.do(("slow", ("disk", d, 0)), ("slow", ("link", a, b)), ("slow", ("link", c, b)))
    play.do(("view", "append", ""))
    play.hear_until(lambda: not play.waiting(a, b) and not play.waiting(c, b), (a, b), (c, b))
    known = play.ring(b).log.stable
    play.do(("publish", a))
    play.hear_until(lambda: play.ring(a).log.stable > known, (a, b))
    assert play.ring(b).log.stable == known < play.ring(b).log.received
    play.do(("crash", a), ("lose", a, b), ("view", "promote", "b"))
    assert play.ring(c).repaired
    assert play.ring(b).log.stable == known
    while play.ring(d).log.durable < known:
        play.do(("write", d))
    assert play.ring(d).log.durable == known
    if play.state.proposals:
        play.do(("commit", 0))


# --- Leases ---------------------------------------------------------------------------------


class Leased:
    """Five nodes, one queue whose master is e; the test plays the faults."""

    def __init__(self) -> None:
        self.world = test_supervisor_world.World(1, "abcde")
        self.let(lambda: self.world.leader() is not None)
        self.world.run(500, 0)
        command = DeclareQueue("q", True, False, False, "e", None, ())
        self.world.request(self.world.live["e"], command)
        self.let(lambda: self.is_leased("e"))
        if self.leader == "e":
            self.elect("a")
            self.let(lambda: self.is_leased("e"))

    @property
    def leader(self) -> str:
        leader = self.world.leader()
        return "" if leader is None else str(leader.member.node)

    @property
    def master(self) -> str:
        (queue,) = self.world.truth.queues()
        return str(queue.view.members[0].id.node)

    def is_leased(self, name: str) -> bool:
        process = self.world.live[name]
        until_ms = process.holder.valid_until_ms(process.applied)
        queues = self.world.truth.queues()
        is_master = queues and self.world.masters(process, queues[0].id)
        return bool(is_master and self.world.now_ms < until_ms)

    def let(self, done: Callable[[], bool], limit_ms: int = 20_000) -> None:
        """Let time pass until something is so; the world checks leases all the time."""
        end_ms = self.world.now_ms + limit_ms
        while not done():
            assert self.world.now_ms < end_ms, "not so after all"
            self.world.run(test_supervisor_world.STEP_MS, 0)

    def elect(self, name: str) -> None:
        """This node is elected, whoever else could be."""
        world = self.world
        able = world.reaches_majority
        world.reaches_majority = lambda process: process.member.node == name
        world.elect()
        world.reaches_majority = able
        for process in world.live.values():
            if process.member.node != name:
                process.term = process.doomed_ms = 0


def late_refusal() -> None:
    """A probe of a connection that ended long ago is answered now, and its node lives."""
    play = Leased()
    world = play.world
    world.post("e", play.leader, test_supervisor_world.LinkBroken("e"))
    world.run(1000, 0)
    assert play.is_leased("e")
    for _ in range(3):
        world.post(play.leader, play.leader, test_supervisor_world.ProbeRefused("e", 1))
        world.run(300, 0)
        assert play.master == "e", "a living master was replaced"


# --- One master -----------------------------------------------------------------------------


def name_used_again() -> None:
    """A task that begins again under its attempt's name, while the first one goes on.

    Its first chunk must be refused: else the second chunk of the other one follows it, and what
    is committed is half of each.
    """
    staging, first = Staging(), 100
    offsets = array("i", [0, 1]).tobytes()
    rows: dict[int, str] = {}
    for who, chunk in (("one", 1), ("other", 1), ("one", 2)):
        stage = Stage("t", 1, "run", 0, 0, chunk)
        if not staging.on_stage(stage, first, offsets, 1, 0):
            rows[first] = who
        first += 1
    outcome = staging.on_commit(CommitOp("t", 1, "run", ((0, 0, 2, 2),), count=2))
    shown = [rows[one] for low, high in outcome.pieces for one in range(low, high + 1)]
    assert shown == ["one", "one"], f"staged: the attempt shows rows of {shown}"
