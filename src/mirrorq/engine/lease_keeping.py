"""The node's lease, held while a queue mastered here delivers; see `leases`."""

from __future__ import annotations

from mirrorq.cluster.controller.leases import LONG_AGO_MS, LeaseHolder
from mirrorq.containers.timers import FOREVER_MS
from mirrorq.engine.consensus import Consensus
from mirrorq.engine.context import EngineContext
from mirrorq.engine.follower import Follower
from mirrorq.engine.leader_requests import LeaderRequests
from mirrorq.protocol.control import LeaseAnswer
from mirrorq.replication.events import LeaseChanged


class LeaseKeeping:
    """Requests the node's lease while needed and notifies masters. The engine owns the object.

    Args:
        context: shared by the engine's parts.
        holder: requests the lease and knows how long it is valid.
    """

    def __init__(
        self,
        context: EngineContext,
        holder: LeaseHolder,
        consensus: Consensus,
        follower: Follower,
        leader_requests: LeaderRequests,
    ) -> None:
        self.next_ms = LONG_AGO_MS
        """Before then there is nothing to do here, unless there is news."""
        self._context = context
        self._holder = holder
        self._consensus = consensus
        self._follower = follower
        self._leader_requests = leader_requests
        self._is_released = False
        self._begun_ms = consensus.led_ms
        """Start of the node. Lack of contact before the first majority contact is not reported."""
        self._is_told_paused = False
        self._look_ms = LONG_AGO_MS
        """Before then nothing changes by time alone. A past time means a look at each step: contact
        with a majority may come back."""
        self._due = context.timers.new()
        """When to request the lease again."""

    def on_answer(self, answer: LeaseAnswer) -> None:
        """Take the leader's answer to a lease request."""
        self._holder.on_answer(answer)
        self._context.has_lease_news = True

    def release(self, now_ms: int) -> None:
        """Release the lease for good: the node is about to end."""
        self._is_released = True
        self._context.has_lease_news = True
        self._leader_requests.to_leader(now_ms, self._holder.release(now_ms))

    def hold(self, now_ms: int) -> None:
        """Request the lease when due, and notify the masters of changes.

        Called when there is news (`EngineContext.has_lease_news`), when `next_ms` has come, and
        when a queue begins to deliver.
        """
        is_wanted = now_ms < self._context.hosting.handing_until_ms and not self._is_released
        if is_wanted:
            request = self._holder.poll(now_ms, True)
            if request is not None:
                self._leader_requests.to_leader(now_ms, request)
        self._context.has_lease_news = False
        self._look(now_ms)
        self._due.set(self._holder.due_ms if is_wanted else FOREVER_MS)
        self.next_ms = min(self._look_ms, self._due.at_ms)

    def _look(self, now_ms: int) -> None:
        """Compute the lease and the pause state, and until when both hold without news."""
        context, follower, raft = self._context, self._follower, self._consensus.raft
        lease = context.hosting.lease
        was_held, was_paused = now_ms < lease.until_ms, lease.paused
        applied = min(raft.applied_index, follower.applied_max)
        lease.until_ms = until_ms = self._holder.valid_until_ms(applied)
        cut_off_ms = self._consensus.led_ms + context.config.heartbeat_ms + 1
        is_cut_off = now_ms >= cut_off_ms
        lease.paused = is_paused = is_cut_off or follower.outdated != ""
        self._look_ms = min(cut_off_ms, until_ms) if now_ms < until_ms else cut_off_ms
        if was_paused is is_paused and was_held is (now_ms < until_ms):
            return
        was_led = self._consensus.led_ms > self._begun_ms
        if is_paused != self._is_told_paused and (was_led or follower.outdated):
            self._is_told_paused = is_paused
            kind, has = ("paused", "no") if is_paused else ("resumed", "has")
            context.notice(kind, f"{kind}: {has} contact with a majority")
        context.hosting.post_masters(LeaseChanged(), lambda one: one.may_await_lease)
