"""Rules of policies that are left out: length, time, levels, members in sync, unclean promotion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from harness.mutations.registry import Patch, Real, answer, instead, named
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

answer("limit judged on the applied state only", InLog, "depth", Depth(0, 0))


@instead("drop-head of the newest", Dispatch, "drop_oldest")
def _drop_newest(
    real: Real, self: Dispatch, excess: Depth, count_max: int = 0
) -> tuple[list[Range], Depth]:
    dropped: list[Range] = []
    level = self.ready.level(0)
    while level and excess.count:
        last = level.last
        level.remove(last, last)
        dropped.append((last, last))
        excess = replace(excess, count=excess.count - 1)
    return dropped, excess


@instead("expired message handed out", Endings, "expire")
def _expired_handed(real: Real, self: Endings) -> None:
    self._term.dispatch.came_back = []


@instead("end by time that is no op", Endings, "end")
def _expiry_no_op(real: Real, self: Endings, ranges: Any, reason: str) -> None:
    """Each copy would have to find out by its own clock."""
    if reason != "expired":
        real(self, ranges, reason)


@instead("level order by sequence only", ReadyLevels, "top")
def _levels_by_sequence(real: Real, self: ReadyLevels) -> tuple[int, RangeSet]:
    filled = [(self.level(one).first, one) for one in self.priorities if self.level(one)]
    priority = min(filled, default=(0, 0))[1]
    return priority, self.level(priority)


@instead("message of a level handed out of its order", Dispatch, "_take_front")
def _level_backwards(
    real: Real, self: Dispatch, seat: Any, priority: int, horizon: int, share: int
) -> Any:
    """The newest of a level first."""
    level = self.ready.level(priority)
    first, last = level.front()
    if last > first and last < horizon and not self._state.places:
        level.remove(first, last - 1)
        piece = real(self, seat, priority, horizon, 1)
        level.add(first, last - 1)
        return piece
    return real(self, seat, priority, horizon, share)


answer("min-in-sync ignored", Confirms, "_lacks_members", "")


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


@instead("ack of a lost past taken", QueueState, "_begin_anew")
def _no_fence(real: Real, self: QueueState, payload: Any) -> Any:
    ended = real(self, payload)
    self.fence = 0
    return ended


@instead("delay ended by each reader's clock", QueueState, "_publish")
def _delay_ignored(real: Real, self: QueueState, entry: Any) -> None:
    """A delayed message is ready at once."""
    header = replace(entry.header, delay_ms=0)
    real(self, replace(entry, header=header))


@instead("refused message stored all the same", Intake, "_take_in")
def _stored_anyway(
    real: Real, self: Intake, session: Any, attachment: Any, body: Any, limit: Any
) -> None:
    real(self, session, attachment, body, limit)
    entry = self._term.ring.entry(self._term.log.last)
    if entry is not None and isinstance(entry.payload, RefusalOp):
        self.store(body.frame)
