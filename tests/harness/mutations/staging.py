"""Rules of staged publishing that are left out."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from harness.mutations.registry import Real, instead
from mirrorq.protocol.staged import FENCED, AbortOp, AskOp, CommitOp, CrossQueueTask, SealOp, Stage
from mirrorq.replication.state.staging import Staging, StagingResult

__all__: list[str] = []


@instead("refused commit without fence", Staging, "_refuse")
def _refused_without_fence(
    real: Real, self: Staging, op: CommitOp | SealOp, why: str
) -> StagingResult:
    return StagingResult(f"{FENCED}: {why}")


@instead("abort without fence", Staging, "_fence")
def _abort_without_fence(
    real: Real, self: Staging, transaction: str, version: int, run: str, why: str
) -> Any:
    dropped = real(self, transaction, version, run, why)
    if why.startswith(("aborted", "it has staged")):
        work = self.open.get((transaction, version))
        if work is not None:
            work.fenced.pop(run, None)
    return dropped


@instead("commit without chunk counts", Staging, "on_commit")
def _commit_without_counts(real: Real, self: Staging, op: CommitOp) -> Any:
    run = self.staged_run(op.transaction, op.version, op.run)
    known = run.attempts if run is not None else {}
    winners = tuple(
        (*name, known[name].chunks, known[name].count)
        for name in ((partition, attempt) for partition, attempt, _, _ in op.winners)
        if name in known
    )
    return real(self, replace(op, winners=winners, count=sum(one[3] for one in winners)))


@instead("commit applied twice", Staging, "verdict")
def _commit_twice(real: Real, self: Staging, transaction: str, version: int, run: str) -> Any:
    kept = self.committed
    self.committed = {}
    found = real(self, transaction, version, run)
    self.committed = kept
    return found


@instead("commit applied twice", Staging, "on_abort")
def _commit_twice_abort(real: Real, self: Staging, op: AbortOp) -> StagingResult:
    return StagingResult("", dropped=self._fence(op.transaction, op.version, op.run, op.reason))


@instead("sealed run that expires", Staging, "on_abort")
def _sealed_expires(real: Real, self: Staging, op: AbortOp) -> Any:
    return real(self, replace(op, is_decision=True))


@instead("question that fences nothing", Staging, "on_ask")
def _question_without_fence(real: Real, self: Staging, op: AskOp, me: int) -> Any:
    if op.asker == me:
        return real(self, op, me)
    told = CrossQueueTask("abort", op.transaction, op.version, op.run)
    return StagingResult("", tasks=[(op.asker, told)])


@instead("decided without a seal", Staging, "on_seal")
def _no_seal(real: Real, self: Staging, op: SealOp, stamp_us: int = 0) -> StagingResult:
    """The seal is told as taken, and holds nothing."""
    return StagingResult(self.verdict(op.transaction, op.version, op.run))


@instead("attempt begun again under its name", Staging, "on_stage")
def _attempt_again(
    real: Real, self: Staging, stage: Stage, first: int, offsets: bytes, count: int, stamp_us: int
) -> Any:
    """What was staged under it before is forgotten, and who stages it may go on."""
    run = self.staged_run(stage.transaction, stage.version, stage.run)
    known = run.attempts.get((stage.partition, stage.attempt)) if run is not None else None
    if known is not None and stage.chunk == 1:
        known.chunks, known.count, known.ranges = 0, 0, []
    return real(self, stage, first, offsets, count, stamp_us)
