"""Rules of staged publishing that are left out."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from harness.mutations.registry import Patch, named
from mirrorq.containers.ranges import Range
from mirrorq.protocol.staged import FENCED, AbortOp, AskOp, CommitOp, CrossQueueTask, SealOp, Stage
from mirrorq.replication.state.staging import Outcome, Staging

__all__: list[str] = []


@named("refused commit without fence")
def _refused_without_fence() -> Sequence[Patch]:
    def refuse(self: Staging, op: CommitOp | SealOp, why: str) -> Outcome:
        return Outcome(f"{FENCED}: {why}")

    return [(Staging, "_refuse", refuse)]


@named("abort without fence")
def _abort_without_fence() -> Sequence[Patch]:
    real = Staging._fence

    def fence(self: Staging, transaction: str, version: int, run: str, why: str) -> list[Range]:
        dropped = real(self, transaction, version, run, why)
        if why.startswith(("aborted", "it has staged")):
            work = self.open.get((transaction, version))
            if work is not None:
                work.fenced.pop(run, None)
        return dropped

    return [(Staging, "_fence", fence)]


@named("commit without chunk counts")
def _commit_without_counts() -> Sequence[Patch]:
    real = Staging.on_commit

    def on_commit(self: Staging, op: CommitOp) -> Outcome:
        run = self.run(op.transaction, op.version, op.run)
        known = run.attempts if run is not None else {}
        winners = tuple(
            (*name, known[name].chunks, known[name].count)
            for name in ((partition, attempt) for partition, attempt, _, _ in op.winners)
            if name in known
        )
        return real(self, replace(op, winners=winners, count=sum(one[3] for one in winners)))

    return [(Staging, "on_commit", on_commit)]


@named("commit applied twice")
def _commit_twice() -> Sequence[Patch]:
    real = Staging.verdict

    def verdict(self: Staging, transaction: str, version: int, run: str) -> str:
        kept = self.committed
        self.committed = {}
        found = real(self, transaction, version, run)
        self.committed = kept
        return found

    def abort(self: Staging, op: AbortOp) -> Outcome:
        return Outcome("", dropped=self._fence(op.transaction, op.version, op.run, op.reason))

    return [(Staging, "verdict", verdict), (Staging, "on_abort", abort)]


@named("sealed run that expires")
def _sealed_expires() -> Sequence[Patch]:
    real = Staging.on_abort

    def on_abort(self: Staging, op: AbortOp) -> Outcome:
        return real(self, replace(op, is_decision=True))

    return [(Staging, "on_abort", on_abort)]


@named("question that fences nothing")
def _question_without_fence() -> Sequence[Patch]:
    real = Staging.on_ask

    def on_ask(self: Staging, op: AskOp, me: int) -> Outcome:
        if op.asker == me:
            return real(self, op, me)
        told = CrossQueueTask("abort", op.transaction, op.version, op.run)
        return Outcome("", tasks=[(op.asker, told)])

    return [(Staging, "on_ask", on_ask)]


@named("decided without a seal")
def _no_seal() -> Sequence[Patch]:
    """The seal is told as taken, and holds nothing."""

    def on_seal(self: Staging, op: SealOp, stamp_us: int = 0) -> Outcome:
        return Outcome(self.verdict(op.transaction, op.version, op.run))

    return [(Staging, "on_seal", on_seal)]


@named("attempt begun again under its name")
def _attempt_again() -> Sequence[Patch]:
    """What was staged under it before is forgotten, and who stages it may go on."""
    real = Staging.on_stage

    def on_stage(
        self: Staging, stage: Stage, first: int, offsets: bytes, count: int, stamp_us: int
    ) -> str:
        run = self.run(stage.transaction, stage.version, stage.run)
        known = run.attempts.get((stage.partition, stage.attempt)) if run is not None else None
        if known is not None and stage.chunk == 1:
            known.chunks, known.count, known.ranges = 0, 0, []
        return real(self, stage, first, offsets, count, stamp_us)

    return [(Staging, "on_stage", on_stage)]
