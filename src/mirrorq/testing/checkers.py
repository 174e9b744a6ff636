"""What must hold of a run, each a checker of its own, in Jepsen's words.

A checker returns sentences; none means that all is well.
"""

from __future__ import annotations

from collections import Counter

from mirrorq.limits import limit_of
from mirrorq.ranges import RangeSet
from mirrorq.testing.cluster import SimulatedCluster
from mirrorq.testing.workload import Journal


def lost(journal: Journal) -> list[str]:
    """P1: every acknowledged message was delivered (after a drain)."""
    seen = {delivery.body for delivery in journal.deliveries}
    return [
        f"lost: {attempt.body!r}, acknowledged as sequence {attempt.sequence}"
        for attempt in journal.attempts.values()
        if attempt.state == "acknowledged" and attempt.body not in seen
    ]


def unexpected(journal: Journal) -> list[str]:
    """Nothing is delivered that was never tried, was refused, or has another sequence."""
    wrong = []
    for delivery in journal.deliveries:
        attempt = journal.attempts.get(delivery.body)
        if attempt is None or attempt.state == "refused":
            wrong.append(f"unexpected: {delivery.body!r} at sequence {delivery.sequence}")
        elif attempt.state == "acknowledged" and attempt.sequence != delivery.sequence:
            wrong.append(
                f"unexpected: {delivery.body!r} at sequence {delivery.sequence}, acknowledged "
                f"as {attempt.sequence}"
            )
    return wrong


def duplicated(journal: Journal) -> list[str]:
    """P4: one message stands at one sequence; P3: at most one first delivery of each."""
    wrong = []
    places: dict[bytes, int] = {}
    for delivery in journal.deliveries:
        place = places.setdefault(delivery.body, delivery.sequence)
        if place != delivery.sequence:
            wrong.append(
                f"duplicated: {delivery.body!r} at sequences {place} and {delivery.sequence}"
            )
    bodies: dict[int, bytes] = {}
    for delivery in journal.deliveries:
        body = bodies.setdefault(delivery.sequence, delivery.body)
        if body != delivery.body:
            wrong.append(f"two bodies at sequence {delivery.sequence}: {body!r}, {delivery.body!r}")
    firsts = Counter(d.sequence for d in journal.deliveries if d.count == 1)
    wrong += [
        f"{count} deliveries of sequence {sequence} have redelivered=False"
        for sequence, count in firsts.items()
        if count > 1
    ]
    return wrong


def undercounted(journal: Journal) -> list[str]:
    """P3: each delivery of a message has a greater count than all that were handed out before.

    So the one with redelivered=False is the first.
    """
    counts: dict[int, int] = {}
    wrong = []
    for delivery in sorted(journal.deliveries, key=lambda d: d.handout):
        before = counts.get(delivery.sequence, 0)
        if delivery.count <= before:
            wrong.append(
                f"undercounted: sequence {delivery.sequence} delivered with count "
                f"{delivery.count} after one with {before}"
            )
        counts[delivery.sequence] = max(before, delivery.count)
    return wrong


def undone_acks(journal: Journal) -> list[str]:
    """P3: a message whose ack has resolved is never handed out again."""
    wrong = []
    for delivery in journal.deliveries:
        resolved_ms = journal.resolved_ms.get(delivery.sequence)
        if resolved_ms is not None and delivery.time_ms > resolved_ms:
            wrong.append(
                f"sequence {delivery.sequence} handed out at {delivery.time_ms} ms, acked at "
                f"{resolved_ms} ms"
            )
    return wrong


def unresolved(journal: Journal) -> list[str]:
    """Every confirmation and every ack has ended."""
    wrong = [f"open: {a.body!r}" for a in journal.attempts.values() if a.state == "open"]
    wrong += [f"ack open: {d.sequence}" for d in journal.deliveries if d.acked == "open"]
    return wrong


def unequal(cluster: SimulatedCluster, queue_id: int) -> list[str]:
    """Lemma 3: applied states at the same lsn are equal on all copies."""
    by_lsn: dict[int, tuple[str, bytes]] = {}
    wrong = []
    for name in cluster.running:
        replica = cluster.engine(name).replicas.get(queue_id)
        if replica is None:
            continue
        state = replica.state
        known = by_lsn.setdefault(state.applied, (name, state.encode()))
        if known[1] != state.encode():
            wrong.append(f"{name} and {known[0]} differ at lsn {state.applied}")
    return wrong


def undrained(cluster: SimulatedCluster, queue_id: int) -> list[str]:
    """An empty, quiet queue holds no message on any disk and no op in any memory."""
    wrong = []
    for name in cluster.running:
        files = cluster.nodes[name].disk.queues.get(queue_id)
        if files is not None and files.frames:
            wrong.append(f"undrained: {len(files.frames)} frames on the disk of {name}")
        replica = cluster.engine(name).replicas.get(queue_id)
        if replica is not None and replica.ring.log:
            wrong.append(f"undrained: {len(replica.ring.log)} ops in the memory of {name}")
    return wrong


def overfull(cluster: SimulatedCluster, queue_id: int) -> list[str]:
    """28: no master has more ready messages than its limit, at any moment of a run.

    What was handed out before does not count: it may have come back above the limit. Of a queue
    whose limit was not lowered while it was longer.
    """
    wrong = []
    handed = cluster.onlooker.given_out.get(queue_id, RangeSet())
    for name in cluster.running:
        replica = cluster.engine(name).replicas.get(queue_id)
        master = replica.master if replica is not None else None
        limit = limit_of(master.definition) if master is not None and master.active else None
        if replica is None or master is None or limit is None:
            continue
        fresh = RangeSet(master.delivery.ready)
        for first, last in handed:
            fresh.remove(first, last)
        size = sum(replica.state.sizes.total(first, last) for first, last in fresh)
        if fresh.count > limit.count or size > limit.size:
            wrong.append(
                f"overfull: {fresh.count} messages of {size} bytes are ready at {name}, the "
                f"policy says {limit.text()}"
            )
    return wrong


def all_of(journal: Journal, cluster: SimulatedCluster, queue_id: int) -> list[str]:
    """Every checker, after a drain to the last message."""
    return [
        *lost(journal),
        *unexpected(journal),
        *duplicated(journal),
        *undercounted(journal),
        *undone_acks(journal),
        *unresolved(journal),
        *unequal(cluster, queue_id),
        *undrained(cluster, queue_id),
        *cluster.onlooker.wrong,
        *cluster.onlooker.misordered(),
    ]
