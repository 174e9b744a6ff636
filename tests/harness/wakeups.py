"""Whether any part of a node was forgotten: what each would say that is asked when it wants to be
woken, worked out from what it holds, beside the time at which its node wants to be stepped.

Parts say it by themselves, with timers, and nobody asks them (`mirrorq.containers.timers`). A
timer may be early. One that is late is a part that sleeps on until something else happens to come.
"""

from __future__ import annotations

from collections.abc import Iterator

from mirrorq.containers.timers import FOREVER_MS
from mirrorq.engine.engine import Engine
from mirrorq.replication import writes as of_disk
from mirrorq.replication.master.delays import LOOK_MS
from mirrorq.replication.master.endings import EXPIRY_LOOK_MS
from mirrorq.replication.master.intake import HELD_MS
from mirrorq.replication.master.master import Master
from mirrorq.replication.replica import ROOM_LOOK_MS, Replica
from mirrorq.replication.ring import Ring
from mirrorq.replication.writes import Writes, quiet_tick_ms

__all__ = ["asleep"]

Wish = tuple[str, int | None]
"""(part, when it wants to be woken; None: not at any time)."""


def asleep(engine: Engine, now_ms: int) -> Iterator[str]:
    """What the last step of a node has forgotten."""
    for part, at_ms in _of_engine(engine, now_ms):
        if at_ms is not None and at_ms < engine._wanted_ms:
            yield f"{part} is due at {at_ms}, the node at {engine._wanted_ms}"
    for queue_id in engine.hosting.stepped:
        replica = engine.replicas.get(queue_id)
        if replica is not None:
            due_ms = engine.hosting.due._at.get(queue_id, FOREVER_MS)
            for part, at_ms in _of_copy(replica, now_ms):
                if at_ms is not None and at_ms < due_ms:
                    yield f"queue {queue_id}: {part} is due at {at_ms}, the copy at {due_ms}"


def _of_engine(engine: Engine, now_ms: int) -> Iterator[Wish]:
    consensus, keeping, requests = engine._consensus, engine._lease_keeping, engine.requests
    yield "raft", consensus.raft._wake_at_ms()
    founding = consensus.founding
    if not consensus.raft.is_founded and founding._repeats:
        yield "founding", founding._repeat_at_ms
    if now_ms < engine.hosting.handing_until_ms and not keeping._is_released:
        yield "lease", max(keeping._holder.due_ms, now_ms)
    if engine._admission.has_listeners:
        yield "hello", engine._hello_ms + engine.config.heartbeat_ms
    yield "an answer to a deletion", min((end[1] for end in requests._endings), default=None)
    if requests and consensus.raft.leader is not None:
        yield "a request", requests._again.next_ms


def _of_copy(replica: Replica, now_ms: int) -> Iterator[Wish]:
    ring, master = replica.ring, replica.master
    if ring.is_member and (ring.is_waiting or ring.ticks_left > 0):
        tick_ms = max(replica._next_tick_ms, now_ms + 1)
        is_quiet = not (ring.is_waiting or ring.has_joiners)
        yield "tick", quiet_tick_ms(replica._config, tick_ms) if is_quiet else tick_ms
    if not replica.broken:
        yield from _of_disk(replica._writes, replica, now_ms)
    if replica.halted:
        return
    yield "mark", now_ms + ring._mark_delay_ms if _owes_mark(ring) else None
    yield "room", now_ms + ROOM_LOOK_MS if ring.refused_bytes else None
    if master is not None and master.active:
        yield from _of_master(master, replica, now_ms)


def _owes_mark(ring: Ring) -> bool:
    """Whether the right is to hear what is stable."""
    is_part = ring.view is not None and ring.repaired and ring.is_member and ring.has_state
    is_news = (ring.log.stable, ring.log.received) != ring._marked
    return is_part and is_news and ring._standing.right is not None and not ring._awaits_right


def _of_disk(writes: Writes, replica: Replica, now_ms: int) -> Iterator[Wish]:
    if writes._part_number:
        return  # pages are on their way to the disk; that they are there wakes the copy
    # A small checkpoint has no pages, and those of a state that came meanwhile wait for its end.
    is_left = writes._checkpoints.is_busy and not replica.ring.log._writes
    yield "pages", now_ms + of_disk.WRITE_BEHIND_MS if is_left else None
    yield "checkpoint", writes._idle_ms(replica.state) if writes._ops_since else None
    yield "held back", now_ms + of_disk.WRITE_BEHIND_MS if replica.ring.log.has_append else None


def _of_master(master: Master, replica: Replica, now_ms: int) -> Iterator[Wish]:
    config, dispatch, term = replica._config, master.dispatch, master._term
    for _, attachment in master.attachments.all():
        if attachment.lost_ms is not None:
            yield "a lost handle", attachment.lost_ms + 2 * config.failure_ms
    oldest_ms = dispatch.open.oldest_ms
    timeout_ms = master.deliveries.timeout_ms
    if oldest_ms is not None and timeout_ms:
        yield "held for long", oldest_ms + timeout_ms + 1
    yield "an extension", dispatch.open.extended_ms
    for purge in master.purging.open._open:
        yield "a purge", purge.until_ms
    yield "auto-delete", master.auto_delete.wake_at_ms()
    yield "expires", master.idle_expiry.wake_at_ms(now_ms, term.log.time_us)
    intake = master.intake
    if intake.held:
        yield "held puts", None if intake.held_by else now_ms + HELD_MS
        if intake._pace is not None:
            yield "rate limit", intake._pace.opens_at_ms(now_ms)
    time_us = term.log.time_us
    if master.endings.expiry.next_ms is not None:
        left_ms = master.endings.expiry.next_ms - time_us // 1000
        yield "ttl", now_ms + min(max(left_ms, 1), EXPIRY_LOOK_MS)
    due_us = term.delays._timetable.next_us()
    if due_us is not None:
        yield "delay", now_ms + min(max(-((time_us - due_us) // 1000), 1), LOOK_MS)
    deadlines = master.departures.couriers._deadlines
    yield "courier", min(deadlines._at.values(), default=None)
    yield "staged", master.stages.look_ms if replica.state.staging.open else None
