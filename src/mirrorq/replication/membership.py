"""Changes of the ring that the master proposes: a joiner is counted in, a slow member moves to the
tail (R8 and R9 of docs/protocol.md)."""

from __future__ import annotations

from mirrorq.config import Config
from mirrorq.containers.fifo import Fifo
from mirrorq.containers.timers import earliest
from mirrorq.protocol.commands import ChangeView
from mirrorq.protocol.effects import ReplicaEffects
from mirrorq.protocol.identities import MemberId
from mirrorq.protocol.views import Member
from mirrorq.replication.ring import Ring

SLOW_FACTOR = 5
"""A slow member is counted in again after this many lag_ms_max at the earliest."""
PROPOSE_AGAIN_MS = 500
"""The master repeats a proposal without an effect after this time."""


class Membership:
    """Decides for the master of one queue which change of the ring to propose."""

    def __init__(self, ring: Ring, config: Config) -> None:
        self._ring = ring
        self._config = config
        self._proposed: tuple[int, int] = (0, 0)
        """Epoch and time of the last proposal."""
        self._samples: Fifo[tuple[int, int]] = Fifo()
        """R9: (time, received) of the master, a sample for each tick."""
        self._slow_until_ms: dict[MemberId, int] = {}

    def count_in(self, now_ms: int, out: ReplicaEffects, *, is_active: bool) -> None:
        """R8: propose to count joiners in. The master waits for these members from here on.

        The proposal also ends a settling view (`Ring.is_settled`). Members counted in by it have
        the whole history on their disks, because R8 requires the history of this epoch.

        Args:
            is_active: true if the promotion that began the term is applied.
        """
        ring = self._ring
        if not ring.has_joiners and not ring.is_settling:
            return
        slow = {member: t for member, t in self._slow_until_ms.items() if now_ms < t}
        if any(member in slow for member in ring.joiners):
            # Nothing else would look again in an idle queue.
            out.wake_at_ms = earliest(out.wake_at_ms, min(slow.values()))
        gates, settled = ring.admit_joiners(slow), ring.is_settled
        if not (gates or settled) or ring.view is None or not is_active:
            return
        epoch, asked_ms = self._proposed
        if epoch == ring.epoch and now_ms - asked_ms < PROPOSE_AGAIN_MS:
            out.wake_at_ms = earliest(out.wake_at_ms, asked_ms + PROPOSE_AGAIN_MS)
            return
        self._proposed = (ring.epoch, now_ms)
        counted = tuple(Member(m.id, m.in_sync or m.id in gates) for m in ring.view.members)
        in_sync = tuple(member for member in counted if member.in_sync)
        joining = tuple(member for member in counted if not member.in_sync)
        out.propose = ChangeView(ring.queue_id, ring.epoch, in_sync + joining, settled=settled)
        out.wake_at_ms = earliest(out.wake_at_ms, now_ms + PROPOSE_AGAIN_MS)

    def sample(self, now_ms: int) -> None:
        """Note the master's progress at a tick."""
        ring, lag_ms = self._ring, self._config.lag_ms_max
        if ring.is_master:
            self._samples.append((now_ms, ring.log.received))
            while len(self._samples) > 1 and now_ms - self._samples[1][0] >= lag_ms:
                self._samples.popleft()
        else:
            self._samples.clear()

    def move_slow_out(self, now_ms: int, out: ReplicaEffects) -> None:
        """R9: move a member to the tail if its disk lacks ops of lag_ms_max ago."""
        ring = self._ring
        if not self._samples:
            return
        sampled_ms, old = self._samples[0]
        if ring.log.stable >= old or now_ms - sampled_ms < self._config.lag_ms_max:
            return
        if ring.assured < old or ring.view is None or out.propose is not None:
            return
        behind = [m.id for m in ring.view.members if ring.reported.get(m.id, old) < old]
        epoch, asked_ms = self._proposed
        if not behind or (epoch == ring.epoch and now_ms - asked_ms < PROPOSE_AGAIN_MS):
            return
        self._proposed = (ring.epoch, now_ms)
        # Only the first member: members to its right may lag only because of it.
        slow = behind[0]
        self._slow_until_ms[slow] = now_ms + SLOW_FACTOR * self._config.lag_ms_max
        kept = tuple(member for member in ring.view.members if member.id != slow)
        out.propose = ChangeView(ring.queue_id, ring.epoch, (*kept, Member(slow, False)))
