"""The lease that this node holds while a queue that it leads hands out; see `leases`."""

from __future__ import annotations

from mirrorq.cluster.controller.leases import LeaseHolder
from mirrorq.engine.consensus import Consensus
from mirrorq.engine.follower import Follower
from mirrorq.engine.leader_requests import LeaderRequests
from mirrorq.engine.life import Life
from mirrorq.protocol.control import LeaseAnswer
from mirrorq.replication.events import LeaseChanged

__all__ = ["LeaseKeeping"]


class LeaseKeeping:
    """Asks for this node's lease while it is wanted, and tells its masters. The engine has it.

    Args:
        life: what the engine's parts share.
        holder: asks for the lease, and knows how long it holds.
    """

    def __init__(
        self,
        life: Life,
        holder: LeaseHolder,
        consensus: Consensus,
        follower: Follower,
        leader_requests: LeaderRequests,
    ) -> None:
        self._life = life
        self._holder = holder
        self._consensus = consensus
        self._follower = follower
        self._leader_requests = leader_requests
        self._is_released = False

    def on_answer(self, answer: LeaseAnswer) -> None:
        """The leader has granted it, or not."""
        self._holder.on_answer(answer)

    def release(self, now_ms: int) -> None:
        """Give the lease up for good: the node is about to end."""
        self._is_released = True
        self._leader_requests.to_leader(now_ms, self._holder.release(now_ms))

    def hold(self, now_ms: int) -> None:
        """Ask for the lease when that is due, and tell the masters what has changed."""
        holder, life = self._holder, self._life
        hosting, raft = life.hosting, self._consensus.raft
        if now_ms < hosting.handing_until_ms and not self._is_released and now_ms >= holder.due_ms:
            request = holder.poll(now_ms, True)
            if request is not None:
                self._leader_requests.to_leader(now_ms, request)
        lease, follower = hosting.lease, self._follower
        was_held, was_paused = now_ms < lease.until_ms, lease.paused
        applied = min(raft.applied_index, follower.applied_max)
        lease.until_ms = until_ms = holder.valid_until_ms(applied)
        is_cut_off = now_ms - self._consensus.led_ms > life.config.heartbeat_ms
        lease.paused = is_paused = is_cut_off or follower.outdated != ""
        if was_paused is is_paused and was_held is (now_ms < until_ms):
            return
        if was_paused != is_paused:
            kind, has = ("paused", "no") if is_paused else ("resumed", "has")
            life.notice(kind, f"{kind}: {has} contact with a majority")
        hosting.post_masters(LeaseChanged())

    def wake_at_ms(self, now_ms: int) -> int | None:
        """When the lease is to be asked for again, None: it is not wanted."""
        if now_ms < self._life.hosting.handing_until_ms and not self._is_released:
            return max(self._holder.due_ms, now_ms)
        return None
