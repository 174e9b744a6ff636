"""Health of a cluster: missing copies, and what stopping a node would break. Pure.

The judgement rests on `nodes()` and `queues()` of one node of the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from attrs import frozen

from mirrorq.monitoring.alarms import ADVICE

if TYPE_CHECKING:
    from mirrorq.monitoring.status import NodeStatus, QueueStatus


@frozen
class Trouble:
    """One fault of a cluster that needs an operator."""

    kind: str
    """node: a node does not run. majority: without the judged node no majority runs. down: a queue
    has no master. paused: the answering node has no majority. copies: a queue has fewer copies in
    sync than its policy wants. last copy: without the judged node a queue would be down."""
    name: str
    """Name of the node or the queue."""
    text: str


@frozen
class Health:
    """Faults that forbid stopping a node now, and warnings. Frozen."""

    node: str
    """Name of the judged node: the one to be stopped."""
    node_count: int
    queue_count: int
    troubles: tuple[Trouble, ...]
    warnings: tuple[Trouble, ...]
    """Faults that do not forbid a stop: kind `warning`, with the queue's name, and kind `alarm`,
    with the node's name."""

    @property
    def is_good(self) -> bool:
        return not self.troubles

    @property
    def summary(self) -> str:
        """Return the health in one line."""
        sizes = f"{_count(self.node_count, 'node')}, {_count(self.queue_count, 'queue')}"
        if self.is_good:
            return f"{sizes}: all run, all copies are in sync, node {self.node} may stop"
        kinds = dict.fromkeys(trouble.kind for trouble in self.troubles)
        said = (f"{sum(t.kind == kind for t in self.troubles)} x {kind}" for kind in kinds)
        return f"{sizes}: {', '.join(said)}"


def judge(node: str, nodes: Sequence[NodeStatus], queues: Sequence[QueueStatus]) -> Health:
    """Judge a cluster.

    Args:
        node: name of the node to be stopped; one of `nodes`.
        nodes: every node of the cluster.
        queues: every queue of the cluster, and every shard of a sharded queue.
    """
    queues = [queue for queue in queues if not queue.shards]
    running = {one.name: None for one in nodes if one.alive}
    # If no other node could hold a copy, no wait is needed before the stop.
    others = any(one.name != node and not one.witness for one in nodes)
    troubles = [*_node_troubles(node, nodes)]
    for queue in queues:
        troubles += _queue_troubles(queue)
        if others and not queue.exclusive and _holders(queue, running) == [node]:
            text = f"node {node} has the only copy in sync that runs"
            troubles.append(Trouble("last copy", queue.name, text))
    warnings = [
        Trouble("alarm", one.name, f"{name}: {ADVICE.get(name, 'see docs/monitoring.md')}")
        for one in nodes
        for name in one.alarms
    ]
    warnings += [
        Trouble("warning", queue.name, text)
        for queue in queues
        for text in queue.warnings
        if not any(text == trouble.text for trouble in troubles)
    ]
    return Health(node, len(nodes), len(queues), tuple(troubles), tuple(warnings))


def _node_troubles(node: str, nodes: Sequence[NodeStatus]) -> Iterator[Trouble]:
    running = [one.name for one in nodes if one.alive]
    for one in nodes:
        if not one.alive:
            yield Trouble("node", one.name, f"node {one.name} at {one.endpoint} does not run")
    left = [name for name in running if name != node]
    if len(nodes) > 1 and 2 * len(left) <= len(nodes):
        yield Trouble(
            "majority",
            node,
            f"without node {node} {len(left)} of {len(nodes)} nodes run, which is no majority: "
            "the cluster would pause",
        )


def _queue_troubles(queue: QueueStatus) -> Iterator[Trouble]:
    if queue.state == "down":
        text = next(iter(queue.warnings), "no member in sync is running")
        yield Trouble("down", queue.name, text)
    elif queue.state == "paused":
        yield Trouble("paused", queue.name, "the node that answered has no majority")
    if queue.shortfall:
        yield Trouble("copies", queue.name, queue.shortfall)


def _holders(queue: QueueStatus, running: Iterable[str]) -> list[str]:
    """Return the running nodes with a copy in sync."""
    named = (queue.master, *queue.synchronised_mirrors)
    return [name for name in named if name is not None and name in running]


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
