"""Scenarios over the exploration's world, step by step, each step named by what it waits for."""

from __future__ import annotations

from collections.abc import Callable

from mirrorq.ring import Ring
from mirrorq.testing.explore import begin
from mirrorq.testing.explore_search import PLANS
from mirrorq.testing.explore_world import Action

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
    play.do(("slow", ("disk", d, 0)), ("slow", ("link", a, b)), ("slow", ("link", b, c)))
    play.do(("view", "append", ""))
    play.hear_until(lambda: not play.waiting(a, b), (a, b))
    play.hear_until(lambda: not play.waiting(b, c), (b, c))
    known = play.ring(b).stable
    play.do(("publish", a))
    play.hear_until(lambda: play.ring(b).received > known, (a, b))
    play.hear_until(lambda: play.ring(a).stable > known, (b, c), (a, b))
    assert play.ring(b).stable == known
    play.do(("crash", a), ("lose", a, b), ("view", "promote", "b"))
    play.hear_until(lambda: play.ring(c).repaired, (b, c))
    assert play.ring(b).stable == known
    while play.ring(d).durable < known:
        play.do(("write", d))
    assert play.ring(d).durable == known
    if play.state.proposals:
        play.do(("commit", 0))
