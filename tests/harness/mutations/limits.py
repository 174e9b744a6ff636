"""Rules of policies that are left out: length, time, levels, members in sync, unclean promotion."""

from __future__ import annotations

from typing import Any

from harness.mutations.registry import Real, answer, instead
from mirrorq.protocol.ops import RefusalOp
from mirrorq.replication.master.confirms import Confirms
from mirrorq.replication.master.intake import Intake
from mirrorq.replication.master.limits import Depth, InLog
from mirrorq.replication.master.log_tail import LogTail
from mirrorq.replication.state.queue_state import QueueState

answer("limit judged on the applied state only", InLog, "depth", Depth(0, 0))


answer("min-in-sync ignored", Confirms, "_lacks_members", "")


@instead("unclean promotion keeps the next sequence", QueueState, "_skip_to")
def _sequences_again(real: Real, self: QueueState, sequence: int) -> None:
    return None


@instead("unclean promotion keeps the next sequence", LogTail, "add_op")
def _sequences_again_note(real: Real, self: LogTail, entry: Any) -> None:
    kept = self.next_sequence
    real(self, entry)
    if getattr(entry.payload, "how", "") == "unclean":
        self.next_sequence = kept


@instead("ack of a lost past taken", QueueState, "_begin_anew")
def _no_fence(real: Real, self: QueueState, payload: Any) -> Any:
    ended = real(self, payload)
    self.fence = 0
    return ended


@instead("refused message stored all the same", Intake, "_take_in")
def _stored_anyway(
    real: Real, self: Intake, session: Any, attachment: Any, body: Any, limit: Any
) -> None:
    real(self, session, attachment, body, limit)
    entry = self._term.ring.log.entry(self._term.log.last)
    if entry is not None and isinstance(entry.payload, RefusalOp):
        self.store(body.frame)
