"""Messages that reach several queues through an exchange, for a swarm: one confirmation for all.

    fan = Fan(cluster, random, [first, second], counts)     # loads of queues that others drain
    fan.declare("a")

Bindings come and go meanwhile. Routing is the real one, by the exchange as the publisher's node
knows it, and what several outcomes make of one is `fan_out`'s own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

from attrs import define, field

from harness.cluster import SimulatedCluster
from harness.load import Load
from harness.workload import Attempt, Journal, Place, SimulatedHandle, packer
from mirrorq.api.completion import Outcomes
from mirrorq.api.confirmation import Confirmation
from mirrorq.api.fan_out import Gathering, Part
from mirrorq.api.publish_options import PLAIN
from mirrorq.engine.events import Ask
from mirrorq.errors import ConfirmUnknown, MirrorQError, NotConfirmed
from mirrorq.protocol.commands import Bind, DeclareExchange, Unbind
from mirrorq.protocol.routing import Routes
from mirrorq.session.calls import Failed, Output, Put, Stored

__all__ = ["Fan", "Publish", "uneven"]

NAME = "fan"
KEYS = ("news", "news.sport")
"""Of messages. Queues are bound by `news` and by `#`."""
UNHEARD = 0
COUNT_MAX = 300
"""Messages of one publisher."""


@define
class Publish:
    """One message, and what its publisher was told."""

    body: bytes
    reached: tuple[Journal, ...]
    """Of the queues that it was routed to."""
    names: tuple[str, ...]
    confirmation: Confirmation


class Branch(SimulatedHandle):
    """A publisher's handle on one queue."""

    def __init__(
        self, cluster: SimulatedCluster, node: str, name: str, random: Random, load: Load
    ) -> None:
        self.load = load
        super().__init__(Place(cluster, node, load.life.queue_id, name, random))

    def publish(self, body: bytes, part: Part) -> None:
        attempts = self.load.life.journal.attempts
        attempts[body] = Attempt(body, put_ms=self.cluster.now_ms)
        self.session.put(Put((part, attempts[body]), 1, len(body), packer([body], PLAIN), False))
        self.poke()

    def take(self, outputs: list[Output]) -> None:
        for output in outputs:
            if isinstance(output, Stored | Failed):
                token: Any = output.token
                part, attempt = token
                error: MirrorQError | None = None
                if isinstance(output, Stored):
                    attempt.state, attempt.sequence = "acknowledged", output.first_sequence
                elif output.unknown:
                    attempt.state, error = "unknown", ConfirmUnknown(output.reason)
                else:
                    attempt.state, error = "refused", NotConfirmed(output.reason)
                part._finish(attempt.sequence, error)


class _Reached:
    """What an outcome asks of a handle of users."""

    def __init__(self, name: str, outcomes: Outcomes) -> None:
        self.name = self.queue_name = name
        self.outcomes = outcomes
        """A lock that is never contended here."""
        self.is_deleted = False


@define
class _Publisher:
    """Somebody's handle on the exchange: a branch to each queue that was reached so far."""

    name: str
    node: str
    life: int
    """Of its node."""
    count: int = 0
    branches: dict[int, Branch] = field(factory=dict)


class Fan:
    """Who publishes to the exchange, and who binds."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        random: Random,
        loads: Sequence[Load],
        counts: Counter[str],
        *,
        pace: int,
    ) -> None:
        self.publishes: list[Publish] = []
        self._cluster = cluster
        self._random = random
        self._loads = {load.life.queue_id: load for load in loads}
        self._counts = counts
        self._pace = pace
        self._publisher: _Publisher | None = None
        self._publishers = 0
        self._is_quiet = False

    def declare(self, node: str) -> None:
        """Make the exchange, with every queue bound to it."""
        self._cluster.ask(node, DeclareExchange(NAME, "topic", ""))
        for load in self._loads.values():
            self._cluster.ask(node, Bind(NAME, load.name, "#", ""))

    def start(self) -> None:
        self._tick()

    def quiet_down(self) -> None:
        """Nothing new is published."""
        self._is_quiet = True

    def drain(self) -> None:
        """All is well again: what died is dead."""
        publisher = self._publisher
        for branch in publisher.branches.values() if publisher is not None else ():
            if branch.is_open and not branch.is_alive:
                branch.die()

    @property
    def is_drained(self) -> bool:
        return all(publish.confirmation.done() for publish in self.publishes)

    def _tick(self) -> None:
        if self._is_quiet:
            return
        chance = self._random.random()
        if chance < 0.02:
            self._rebind()
        elif chance < 0.03 and self._publisher is not None:
            self._counts["publisher closes"] += 1
            self._leave()
        else:
            self._publish()
        self._cluster.after(self._random.randint(1, 60 * self._pace), self._tick)

    def _rebind(self) -> None:
        """The last queue is bound otherwise, or not at all for a while; the first one stays."""
        running = self._cluster.running
        if running:
            self._counts["binding changes"] += 1
            load = list(self._loads.values())[-1]
            kind = self._random.choice((Bind, Bind, Unbind))
            command = kind(NAME, load.name, self._random.choice(("#", "news")), "")
            self._cluster.tell(self._random.choice(running), Ask(UNHEARD, command))

    def _leave(self) -> None:
        if self._publisher is not None:
            for branch in self._publisher.branches.values():
                branch.close()
            self._publisher = None

    def _publish(self) -> None:
        publisher = self._present()
        if publisher is None:
            return
        record = self._cluster.engine(publisher.node).catalog.exchange(NAME)
        if record is None:
            return
        reached = [
            self._loads[queue_id]
            for queue_id in Routes(record).route(self._random.choice(KEYS), {})
            if self._cluster.engine(publisher.node).catalog.queue(queue_id) is not None
        ]
        publisher.count += 1
        body = b"%s/%d" % (publisher.name.encode(), publisher.count)
        confirmation = Confirmation(Outcomes())
        gathering = Gathering(confirmation, False, len(reached), lambda _: None)
        for load in reached:
            branch = self._branch(publisher, load)
            branch.publish(body, gathering.part(_Reached(load.name, confirmation._outcomes)))
        gathering.end_one()
        journals = tuple(load.life.journal for load in reached)
        names = tuple(load.name for load in reached)
        self.publishes.append(Publish(body, journals, names, confirmation))

    def _present(self) -> _Publisher | None:
        """Whoever publishes now; another one when the last has ended."""
        cluster, known = self._cluster, self._publisher
        if known is not None:
            is_there = cluster.nodes[known.node].life == known.life and known.count < COUNT_MAX
            if is_there and all(branch.is_alive for branch in known.branches.values()):
                return known
            for branch in known.branches.values():
                if branch.is_open and not branch.is_alive:
                    branch.die()
            self._leave()
        running = cluster.running
        if not running:
            return None
        self._publishers += 1
        node = self._random.choice(running)
        name = f"{NAME}-p{self._publishers}"
        self._publisher = _Publisher(name, node, cluster.nodes[node].life)
        return self._publisher

    def _branch(self, publisher: _Publisher, load: Load) -> Branch:
        queue_id = load.life.queue_id
        known = publisher.branches.get(queue_id)
        if known is None:
            make = partial(Branch, self._cluster, publisher.node, publisher.name)
            known = publisher.branches[queue_id] = make(self._random, load)
        return known


def uneven(publishes: Sequence[Publish]) -> list[str]:
    """The one outcome of a message is that of all queues that it reached, and names where it is."""
    wrong = []
    for publish in publishes:
        if not publish.confirmation.done():
            wrong.append(f"uneven: {publish.body!r} has no outcome")
            continue
        error = publish.confirmation.exception()
        attempts = [journal.attempts[publish.body] for journal in publish.reached]
        states = [attempt.state for attempt in attempts]
        if error is None:
            told = publish.confirmation.result()
            is_right = all(state == "acknowledged" for state in states) and told == {
                name: attempt.sequence
                for name, attempt in zip(publish.names, attempts, strict=True)
            }
        elif isinstance(error, NotConfirmed):
            is_right = "refused" in states and set(states) <= {"refused", "acknowledged"}
        else:
            is_right = "unknown" in states
        if not is_right:
            wrong.append(f"uneven: {publish.body!r} ended with {error!r}, its queues with {states}")
    return wrong
