"""Rules of policies that are left out: length, time, levels, members in sync, unclean promotion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from harness.mutations.registry import Patch, named
from mirrorq.containers.ranges import Range, RangeSet
from mirrorq.protocol.ops import RefusalOp
from mirrorq.replication.master.confirms import Confirms
from mirrorq.replication.master.dispatch import Dispatch
from mirrorq.replication.master.endings import Endings
from mirrorq.replication.master.intake import Intake
from mirrorq.replication.master.limits import Depth, InLog
from mirrorq.replication.master.log_tail import LogTail
from mirrorq.replication.state.priorities import ReadyLevels
from mirrorq.replication.state.queue_state import QueueState


@named("limit judged on the applied state only")
def _limit_applied() -> Sequence[Patch]:
    def depth(self: InLog) -> Depth:
        return Depth(0, 0)

    return [(InLog, "depth", depth)]


@named("drop-head of the newest")
def _drop_newest() -> Sequence[Patch]:
    def drop(self: Dispatch, excess: Depth, count_max: int = 0) -> tuple[list[Range], Depth]:
        dropped: list[Range] = []
        level = self.ready.level(0)
        while level and excess.count:
            last = level.last
            level.remove(last, last)
            dropped.append((last, last))
            excess = replace(excess, count=excess.count - 1)
        return dropped, excess

    return [(Dispatch, "drop_oldest", drop)]


@named("expired message handed out")
def _expired_handed() -> Sequence[Patch]:
    def expire(self: Endings) -> None:
        self._term.dispatch.came_back = []

    return [(Endings, "expire", expire)]


@named("end by time that is no op")
def _expiry_no_op() -> Sequence[Patch]:
    """Each copy would have to find out by its own clock."""
    real = Endings.end

    def end(self: Endings, ranges: Any, reason: str) -> None:
        if reason != "expired":
            real(self, ranges, reason)

    return [(Endings, "end", end)]


@named("level order by sequence only")
def _levels_by_sequence() -> Sequence[Patch]:
    def top(self: ReadyLevels) -> tuple[int, RangeSet]:
        filled = [(self.level(one).first, one) for one in self.priorities if self.level(one)]
        priority = min(filled, default=(0, 0))[1]
        return priority, self.level(priority)

    return [(ReadyLevels, "top", top)]


@named("message of a level handed out of its order")
def _level_backwards() -> Sequence[Patch]:
    """The newest of a level first."""
    real = Dispatch._take_front

    def take(self: Dispatch, seat: Any, priority: int, horizon: int, share: int) -> Any:
        level = self.ready.level(priority)
        first, last = level.front()
        if last > first and last < horizon and not self._state.places:
            level.remove(first, last - 1)
            piece = real(self, seat, priority, horizon, 1)
            level.add(first, last - 1)
            return piece
        return real(self, seat, priority, horizon, share)

    return [(Dispatch, "_take_front", take)]


@named("min-in-sync ignored")
def _members_ignored() -> Sequence[Patch]:
    def lacks(self: Confirms) -> str:
        return ""

    return [(Confirms, "_lacks_members", lacks)]


@named("unclean promotion keeps the next sequence")
def _sequences_again() -> Sequence[Patch]:
    def skip(self: QueueState, sequence: int) -> None:
        return None

    real = LogTail.note

    def note(self: LogTail, entry: Any) -> None:
        kept = self.next_sequence
        real(self, entry)
        if getattr(entry.payload, "how", "") == "unclean":
            self.next_sequence = kept

    return [(QueueState, "_skip_to", skip), (LogTail, "note", note)]


@named("ack of a lost past taken")
def _no_fence() -> Sequence[Patch]:
    real = QueueState._begin_anew

    def begin(self: QueueState, payload: Any) -> Any:
        ended = real(self, payload)
        self.fence = 0
        return ended

    return [(QueueState, "_begin_anew", begin)]


@named("delay ended by each reader's clock")
def _delay_ignored() -> Sequence[Patch]:
    """A delayed message is ready at once."""
    real = QueueState._publish

    def publish(self: QueueState, entry: Any) -> None:
        header = replace(entry.header, delay_ms=0)
        real(self, replace(entry, header=header))

    return [(QueueState, "_publish", publish)]


@named("refused message stored all the same")
def _stored_anyway() -> Sequence[Patch]:
    real = Intake._take_in

    def take_in(self: Intake, session: Any, attachment: Any, body: Any, limit: Any) -> None:
        real(self, session, attachment, body, limit)
        entry = self._term.ring.entry(self._term.log.last)
        if entry is not None and isinstance(entry.payload, RefusalOp):
            self.store(body.frame)

    return [(Intake, "_take_in", take_in)]
