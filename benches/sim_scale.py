"""Fifty nodes in three sites on virtual time: one site is lost and comes back.

    python benches/sim_scale.py [--queues N] [--pairs N]

Two sites have the same number of data nodes, the third has two witnesses. Each queue has one copy
in each of the first two sites. Then the first site, which leads half of the queues, is lost, and
comes back later. A step costs no virtual time; the CPU time of the steps is printed beside it.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

# The harness is beside the tests.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from harness.cluster import SimulatedCluster, SimulatedNode
from harness.onlooker import Onlooker
from harness.workload import Journal, Place, Producer
from mirrorq.engine.engine import Engine
from mirrorq.engine.events import Ask
from mirrorq.protocol.commands import DeclareQueue, SetPolicy
from mirrorq.protocol.control import Hello
from mirrorq.protocol.policy import parse, to_text
from mirrorq.protocol.raft import RAFT_MESSAGES
from mirrorq.wire.messages import encode

LOOK_MS = 20
LIMIT_MS = 300_000
IDLE_MS = 5000
DECLARED_AT_ONCE = 100
COUNTED = (Hello, *RAFT_MESSAGES)
SAMPLE = 100
"""Queues to which messages are put while the site is lost."""


class Blind(Onlooker):
    """Checks nothing: the figures are those of the nodes alone."""

    def on_step(self, *arguments: Any) -> None: ...


class Costs:
    """Messages, bytes and CPU time of each node since the last `clear`."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.sent: Counter[tuple[str, str]] = Counter()
        """(node, kind of message) -> how many."""
        self.sent_bytes: Counter[tuple[str, str]] = Counter()
        self.cpu_s: Counter[str] = Counter()
        self.step_s: Counter[str] = Counter()
        """The longest step of each node."""
        self._count(cluster)

    def clear(self) -> None:
        """Begin anew."""
        for counts in (self.sent, self.sent_bytes, self.cpu_s, self.step_s):
            counts.clear()

    def _count(self, cluster: SimulatedCluster) -> None:
        send, step = cluster._send, Engine.step

        def counted_send(node: SimulatedNode, messages: list[tuple[str, object]]) -> None:
            for _, message in messages:
                key = node.name, type(message).__name__
                self.sent[key] += 1
                if isinstance(message, COUNTED):
                    self.sent_bytes[key] += sum(map(len, encode(message)))  # type: ignore[arg-type]
            send(node, messages)

        def counted_step(engine: Engine, *arguments: Any) -> Any:
            began = time.process_time()
            out = step(engine, *arguments)
            took_s, name = time.process_time() - began, engine.me.node
            self.cpu_s[name] += took_s
            self.step_s[name] = max(self.step_s[name], took_s)
            return out

        cluster._send = counted_send  # type: ignore[method-assign]
        Engine.step = counted_step  # type: ignore[method-assign]

    def of(self, node: str, over_ms: int) -> dict[str, float]:
        """Return the rates of one node, a second."""
        raft = ("AppendRequest", "AppendAnswer")
        return {
            "hellos": self.sent[node, "Hello"] * 1000 / over_ms,
            "hello bytes": self.sent_bytes[node, "Hello"] * 1000 / over_ms,
            "raft messages": sum(self.sent[node, kind] for kind in raft) * 1000 / over_ms,
            "raft bytes": sum(self.sent_bytes[node, kind] for kind in raft) * 1000 / over_ms,
            "cpu share": self.cpu_s[node] * 1000 / over_ms,
            "longest step ms": self.step_s[node] * 1000,
        }


class Sites:
    """The cluster and its queues."""

    def __init__(self, pairs: int, queues: int) -> None:
        self.one = tuple(f"a{number:02}" for number in range(pairs))
        self.two = tuple(f"b{number:02}" for number in range(pairs))
        self.three = ("w00", "w01")
        names = (*self.one, *self.two, *self.three)
        self.cluster = SimulatedCluster(names, seed=1, witnesses=self.three, is_jittery=False)
        self.cluster.onlooker = Blind()
        self.costs = Costs(self.cluster)
        self.queues = queues
        self.began_s = time.process_time()

    def say(self, what: str, **figures: object) -> None:
        """Print one line of figures."""
        spent_s = round(time.process_time() - self.began_s)
        shown = {
            key: round(one, 3) if isinstance(one, float) else one for key, one in figures.items()
        }
        print(json.dumps({"what": what, **shown, "cpu s so far": spent_s}), flush=True)

    def begin(self) -> None:
        """Found the cluster, and declare the queues."""
        cluster = self.cluster
        cluster.start()
        cluster.run(5000)
        for number, nodes in enumerate(zip(self.one, self.two, strict=True)):
            keys = {"ha-mode": "nodes", "ha-params": list(nodes)}
            policy = parse(f"p{number}", f"^{number:02}-", keys)
            assert not cluster.ask(self.two[0], SetPolicy(policy.name, to_text(policy))).error
        for number in range(self.queues):
            pair = number % len(self.one)
            # Half of the queues begin in each site.
            node = (self.one, self.two)[number // len(self.one) % 2][pair]
            command = DeclareQueue(f"{pair:02}-{number}", True, False, False, node, None, ())
            cluster.tell(node, Ask(cluster.new_token(), command))
            if number % DECLARED_AT_ONCE == 0:
                cluster.run(100)
        took_ms = self.until_served(in_sync=2)
        self.say("declared", queues=self.queues, nodes=len(cluster.nodes), last_ms=took_ms)

    def until_served(self, *, in_sync: int = 1) -> int:
        """Wait until each queue has a master that serves; return how long that took."""
        cluster, began_ms = self.cluster, self.cluster.now_ms
        while cluster.now_ms < began_ms + LIMIT_MS:
            cluster.run(LOOK_MS)
            if self.served(in_sync) == self.queues:
                return cluster.now_ms - began_ms
        raise AssertionError(f"{self.served(in_sync)} of {self.queues} queues are served")

    def served(self, in_sync: int) -> int:
        """Count the queues with a master that serves and so many members in sync."""
        engines = [self.cluster.engine(name) for name in self.cluster.running]
        return sum(
            replica.is_serving
            and sum(member.in_sync for member in replica.ring.view.members) >= in_sync
            for engine in engines
            for replica in engine.replicas.values()
        )

    def idle(self) -> None:
        """Measure what nodes say to each other though nothing happens."""
        self.cluster.run(10_000)
        self.costs.clear()
        self.cluster.run(IDLE_MS)
        leader = self.cluster.engine(self.two[0]).leader or ""
        follower = next(name for name in self.two if name != leader)
        engine = self.cluster.engine(leader)
        pages = [len(page) for page, _ in engine.catalog.pages()]
        self.say("idle, leader", **self.costs.of(leader, IDLE_MS))
        self.say("idle, another node", **self.costs.of(follower, IDLE_MS))
        self.say("catalog", bytes=sum(pages), pages=len(pages))

    def lose(self) -> None:
        """Cut the first site off and kill it: nobody says that it is dead. Put to its queues."""
        cluster = self.cluster
        catalog = cluster.engine(self.two[0]).catalog
        lost = [one.id for one in catalog.queues() if one.view.members[0].id.node in self.one]
        self.costs.clear()
        for name in self.one:
            for other in (*self.two, *self.three):
                cluster.cut(name, other)
            cluster.kill(name)
        began_ms, journal = cluster.now_ms, Journal()
        sample = Random(2).sample(lost, min(SAMPLE, len(lost)))
        producers = [
            Producer(Place(cluster, self.two[0], one, f"p{one}", Random(2)), journal, 1)
            for one in sample
        ]
        for producer in producers:
            producer.publish()
        took_ms = self.until_served()
        assert cluster.run_until(lambda: all(one.is_done for one in producers))
        states = Counter(one.state for one in journal.attempts.values())
        over_ms = cluster.now_ms - began_ms
        leader = cluster.engine(self.two[0]).leader or ""
        self.say("site lost", led_there=len(lost), all_served_ms=took_ms, all_confirmed_ms=over_ms)
        self.say("site lost, puts", **states)
        self.say("site lost, leader", node=leader, **self.costs.of(leader, over_ms))
        worst = max(self.costs.step_s, key=lambda node: self.costs.step_s[node])
        self.say("site lost, longest step", node=worst, **self.costs.of(worst, over_ms))

    def come_back(self) -> None:
        """Start it again."""
        self.cluster.run(5000)
        self.costs.clear()
        began_ms = self.cluster.now_ms
        self.cluster.heal_all()
        self.cluster.start(*self.one)
        took_ms = self.until_served(in_sync=2)
        over_ms = self.cluster.now_ms - began_ms
        leader = self.cluster.engine(self.two[0]).leader or ""
        self.say("site back", all_in_sync_ms=took_ms)
        self.say("site back, leader", node=leader, **self.costs.of(leader, over_ms))
        worst = max(self.costs.step_s, key=lambda node: self.costs.step_s[node])
        self.say("site back, longest step", node=worst, **self.costs.of(worst, over_ms))


def main() -> None:
    """Run once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queues", type=int, default=2000)
    parser.add_argument("--pairs", type=int, default=24)
    told = parser.parse_args()
    # Collections of all nodes' garbage would count as one node's step.
    gc.disable()
    sites = Sites(told.pairs, told.queues)
    sites.begin()
    sites.idle()
    sites.lose()
    sites.come_back()


if __name__ == "__main__":
    main()
