"""Makes `status()`, `nodes()` and `policies()` from the knowledge of the node's engine.

On the node thread only; no other node is asked, and nothing waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from mirrorq.cluster.catalog.records import QueueRecord
from mirrorq.containers.ranges import RangeSet
from mirrorq.engine.engine import Engine
from mirrorq.engine.reports import report_of
from mirrorq.monitoring.status import NodeStatus, PolicyStatus, QueueStatus
from mirrorq.node.shortfall import missing, shortfall
from mirrorq.protocol.control import QueueReport
from mirrorq.protocol.identities import MemberId
from mirrorq.protocol.policy import Policy, shown_arguments
from mirrorq.protocol.views import counts_incarnations, in_sync_ids
from mirrorq.replication.ring import BEHIND_BYTES_MAX
from mirrorq.replication.writes import WRITE_BEHIND_MS

RANGES_SHOWN = 5
"""Limit on ranges of damaged messages in a warning."""


def queue_status(
    engine: Engine, queue_id: int, now_ms: int, store_bytes: int, blocked_by: str
) -> QueueStatus:
    """Return the status of a queue from the knowledge of the node's engine."""
    record = engine.catalog.queue(queue_id)
    if record is None:
        return QueueStatus.unknown()
    view = record.view
    master = view.members[0].id
    runs = engine.is_alive(master)
    mirrors = tuple(member.id.node for member in view.members[1:])
    in_sync = tuple(member.id.node for member in view.members[1:] if member.in_sync)
    state = "running" if len(in_sync) == len(mirrors) else "syncing"
    if not runs:
        state = "down"
    if engine.is_paused(now_ms):
        state = "paused"
    counts, age_ms = _report(engine, queue_id, now_ms)
    policy = engine.catalog.policy_of(record.name)
    replica = engine.replicas.get(queue_id)
    syncing = engine.catalog.synchronising(queue_id)
    progress = engine.sync_reports.of(now_ms, syncing, queue_id, replica)
    lacks, missing = _shortfall(engine, record)
    return QueueStatus(
        name=record.name,
        state=state,
        master=master.node if runs else None,
        mirrors=mirrors,
        synchronised_mirrors=in_sync,
        epoch=view.epoch,
        messages=counts.ready + counts.unacknowledged + counts.delayed,
        messages_ready=counts.ready,
        messages_unacknowledged=counts.unacknowledged,
        messages_delayed=counts.delayed,
        messages_staged=replica.state.staging.staged.count if replica is not None else 0,
        bytes_staged=replica.state.staging.size if replica is not None else 0,
        messages_published=counts.published,
        messages_delivered=counts.delivered,
        messages_acknowledged=counts.acked,
        counts_age_ms=age_ms,
        consumers=counts.consumers,
        policy=None if policy is None else policy.name,
        sync_progress=progress.share if progress else None,
        sync_messages_left=progress.messages_left if progress else 0,
        sync_bytes_left=progress.bytes_left if progress else 0,
        sync_seconds_left=progress.ms_left / 1000 if progress and progress.ms_left else None,
        store_bytes=store_bytes,
        blocked_by=blocked_by or (replica and replica.blocked_by) or counts.blocked_by,
        warnings=tuple(_warnings(engine, record, lacks)),
        exclusive=record.exclusive or bool(record.connection),
        arguments=shown_arguments(record.arguments),
        shortfall=lacks,
        missing=missing,
        messages_lost=_lost(engine, record),
        deliveries_paused=counts.paused if replica is None else replica.state.is_paused,
    )


def _warnings(engine: Engine, record: QueueRecord, lacks: str) -> Iterator[str]:
    replica = engine.replicas.get(record.id)
    if replica is not None and replica.halted:
        yield replica.halted
    yield from _damage_texts(engine, record.id)
    text = down_text(engine, record.id)
    if text:
        yield text
    if lacks:
        yield lacks
    if record.is_ending:
        yield "is being deleted: it goes when its last messages for other queues have arrived"
    dead = engine.catalog.definition_of(record.name).dead_letter_queue
    catalog = engine.catalog
    is_there = dead is None or catalog.queue_named(dead) or catalog.sharded_named(dead)
    if not is_there:
        yield f"dead-letter-queue {dead!r} does not exist: what ends goes nowhere. Declare it"
    if replica is not None and replica.master is not None:
        for name, count in replica.master.departures.circled.items():
            yield (
                f"{count} message(s) for {name!r} went nowhere: they had died there before, and "
                "the dead-letter queues form a circle. Give one of them another dead-letter-queue"
            )
    text = _durability_text(engine, record)
    if text:
        yield text
    lost = _lost(engine, record)
    if lost > record.losses_known:
        yield (
            f"{record.view.generation} unclean promotions: {lost} messages are known to be lost, "
            "and what only the masters before had beyond that. Put them again where you have "
            "them; mirrorq check --acknowledge ends this warning"
        )


def _lost(engine: Engine, record: QueueRecord) -> int:
    """Return the number of messages known to be lost by unclean promotions."""
    replica, report = engine.replicas.get(record.id), engine.reports.get(record.id)
    return max(
        replica.state.lost if replica is not None else 0,
        report[0].lost if report is not None else 0,
    )


def _durability_text(engine: Engine, record: QueueRecord) -> str:
    """Return the basis of a confirm, where it is not the disks of all members in sync."""
    told, found = engine.catalog.definition_of(record.name).durability, record.view.durability
    if found == told == "fsync":
        return ""
    before = "fsync" if found == "fsync" else "replicated"
    text = f"durability is changing from {before} to {told}"
    if found == told:
        text = f"durability {told}"
    if found == "fsync":
        return text
    return (
        f"{text}: when the power of all members in sync fails at once, what was confirmed or acked "
        f"in the last {WRITE_BEHIND_MS} ms and one commit is lost (up to {BEHIND_BYTES_MAX >> 20} "
        "MiB where the disk is slower than that)"
    )


def down_text(engine: Engine, queue_id: int) -> str:
    """Return why a queue has no master, and which node must come back; "": it has a master."""
    record = engine.catalog.queue(queue_id)
    if record is None or engine.is_alive(record.view.members[0].id):
        return ""
    named = [f"{one.node} ({_end_of(one, engine)})" for one in in_sync_ids(record.view)]
    if counts_incarnations(record.view):
        return (
            f"no member in sync is running: {', '.join(named)}. With durability replicated it goes "
            "on, by an unclean promotion, when one of these has started again and all others have "
            "started or are known to have ended; forget the node of one that does not come back"
        )
    start = f"no member in sync is running: start {' or '.join(named)}"
    if engine.catalog.may_lose(record):
        # A member out of the ring may lack everything since: more than a late mirror.
        return (
            f"{start}. The policy lets a mirror that is not in sync go on without them, but none "
            "that runs was in the ring when the last of them ended"
        )
    return (
        f"{start}, or allow the loss of what only they have with ha-promote-on-failure and "
        "ha-promote-on-shutdown: always"
    )


def _end_of(member: MemberId, engine: Engine) -> str:
    node = engine.catalog.node(member.node)
    if node is not None and node.member.store != member.store:
        return "with its former store, or delete the queue"
    return "shut down" if engine.catalog.was_stopped(member) else "failed"


def _shortfall(engine: Engine, record: QueueRecord) -> tuple[str, tuple[str, ...]]:
    definition = engine.catalog.definition_of(record.name)
    holders = {node.name: node.member for node in engine.catalog.nodes() if not node.witness}
    asked = (record, definition, holders, engine.is_alive)
    return shortfall(*asked), missing(*asked)


def _report(engine: Engine, queue_id: int, now_ms: int) -> tuple[QueueReport, int]:
    """Return the counts of a queue's master and their age: of the master here, else its last
    report. Without either, all messages of the copy here count as ready."""
    replica = engine.replicas.get(queue_id)
    own = None if replica is None else report_of(replica)
    if own is not None:
        return own, 0
    known = engine.reports.get(queue_id)
    if known is not None:
        return known[0], max(now_ms - known[1], 0)
    return QueueReport(queue_id, 0, 0 if replica is None else replica.state.live.count, 0, 0), 0


def _damage_texts(engine: Engine, queue_id: int) -> Iterator[str]:
    """Yield texts about damage in the local copy."""
    replica = engine.replicas.get(queue_id)
    image = engine.hosting.images.get(queue_id)
    if replica is None and image is not None and image.broken:
        yield f"the copy on node {engine.me.node} is damaged and is not used: {image.broken}"
    if replica is None or not replica.ring.in_sync:
        return
    transfer = replica.transfer
    if transfer.lost:
        yield (
            f"{transfer.lost.count} messages are set aside, sequences {_shown(transfer.lost)}: "
            f"they are damaged on node {engine.me.node}, and no member that could be asked has "
            "them whole. They are delivered when one comes that has; mirrorq store repair "
            "--discard ends them"
        )
    if transfer.missing.count > transfer.lost.count:
        yield (
            f"sequences {_shown(transfer.sought)} are damaged on node {engine.me.node} and are "
            "being fetched from another member"
        )


def _shown(ranges: RangeSet) -> str:
    """Return a few ranges in words."""
    texts = [f"{a}" if a == b else f"{a} to {b}" for a, b in islice(ranges, RANGES_SHOWN)]
    return ", ".join(texts) + (", …" if len(ranges) > RANGES_SHOWN else "")


def node_statuses(engine: Engine) -> list[NodeStatus]:
    """Return the status of all nodes from the knowledge of the node's engine."""
    return [
        NodeStatus(
            node.name,
            node.endpoint,
            node.incarnation,
            node.witness,
            engine.is_alive(node.member),
            engine.leader == node.name,
            engine.alarms_of(node.member),
            *engine.spooled_by(node.member),
        )
        for node in engine.catalog.nodes()
    ]


def policy_statuses(engine: Engine) -> list[PolicyStatus]:
    """Return the policies in force, by name."""
    return [_policy_status(policy) for policy in engine.catalog.policies()]


def _policy_status(policy: Policy) -> PolicyStatus:
    """Return the status of a policy in the catalog."""
    return PolicyStatus(
        policy.name, policy.pattern, policy.given(), policy.priority, policy.apply_to
    )
