"""Drivers and tasks as the applied state sees them: in every order, and at random."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from msgspec.structs import replace

from mirrorq.containers.ranges import Range, RangeSet
from mirrorq.protocol.ops import FLAG_STAGED, FLAG_STEP, AckOp, Entry, PromotedOp
from mirrorq.protocol.staged import (
    DONE,
    AbortOp,
    AskOp,
    CommitOp,
    CrossQueueTask,
    SealOp,
    Stage,
    Winner,
)
from mirrorq.replication.state.queue_state import QueueState
from mirrorq.replication.state.staging import Staging
from mirrorq.wire import frames
from mirrorq.wire.ops import FrameCodec, encode_staged

CODEC = FrameCodec()

AGENTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "task of a": (("stage", "a", "0", "1"), ("stage", "a", "0", "2")),
    "slow task of a": (("stage", "a", "1", "1"),),
    "driver a": (("commit", "a"), ("commit", "a")),
    "expiry": (("abort", "a"),),
    "b": (("stage", "b", "0", "1"), ("commit", "b")),
}
"""Each does its steps in order; they interleave as they please."""
WINNERS: dict[str, tuple[Winner, ...]] = {"a": ((0, 0, 2, 4),), "b": ((0, 0, 1, 2),)}
ONES = array("i", [9, 10, 11]).tobytes()
"""Offsets of two messages of one byte, behind something else."""
HALF: tuple[Winner, ...] = ((0, 0, 1, 2),)


class Interleaving:
    """One order of all steps of the agents, on the real state machine."""

    def __init__(self) -> None:
        self.state = Staging()
        self.next_origin = 10
        self.shown: list[Range] = []
        self.shown_run = ""
        self.told: dict[str, str] = {}
        """Run -> done or never, as somebody was told."""
        self.confirmed: dict[str, list[Range]] = {}
        """Run -> chunks of its attempt 0 whose task was told that they are staged."""

    def do(self, step: tuple[str, ...]) -> None:
        kind, run = step[:2]
        if kind == "stage":
            attempt, chunk = int(step[2]), int(step[3])
            first = self.next_origin
            self.next_origin += 10
            why = self.state.on_stage(Stage("t", 1, run, 0, attempt, chunk), first, ONES, 2, 0)
            if not why and not attempt:
                self.confirmed.setdefault(run, []).append((first, first + 1))
        elif kind == "commit":
            self._commit(run)
        else:
            outcome = self.state.on_abort(AbortOp("t", 1, run))
            if not outcome.why:
                self._tell(run, "never")
        live = [*self.shown, *self.state.staged]
        assert len(RangeSet(live)) == len(live), "staged: a body is in two places"

    def _commit(self, run: str) -> None:
        winners = WINNERS[run]
        count = sum(winner[3] for winner in winners)
        outcome = self.state.on_commit(CommitOp("t", 1, run, winners, 1000, count))
        if not outcome.why:
            assert not self.shown_run, f"staged: {self.shown_run} was committed, and now {run}"
            whole = self.confirmed.get(run, [])
            assert outcome.pieces == whole, f"staged: {run} shows {outcome.pieces}, not {whole}"
            assert sum(b - a + 1 for a, b in outcome.pieces) == count, "staged: not whole"
            self.shown, self.shown_run = outcome.pieces, run
            self._tell(run, "done")
        elif outcome.why.startswith(DONE):
            assert self.shown_run, "staged: nobody has committed it"
        else:
            self._tell(run, "never")

    def _tell(self, run: str, what: str) -> None:
        known = self.told.setdefault(run, what)
        assert known == what, f"staged: of run {run} both were told, {known} and {what}"

    @classmethod
    def run_all(cls) -> set[str]:
        """Every order; return which runs were shown in some of them."""
        seen = set()
        for order in _orders(tuple(len(steps) for steps in AGENTS.values())):
            world = cls()
            left = [list(steps) for steps in AGENTS.values()]
            for agent in order:
                world.do(left[agent].pop(0))
            seen.add(world.shown_run)
        return seen


def _orders(left: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    if not any(left):
        yield ()
    for agent, count in enumerate(left):
        if count:
            rest = (*left[:agent], count - 1, *left[agent + 1 :])
            for order in _orders(rest):
                yield (agent, *order)


class TwoQueues:
    """Every order in which two drivers, expiry, questions and tasks meet two queues.

    Queue 1 decides. Depth first, each state once.
    """

    STEPS: tuple[tuple[tuple[str, str], ...], ...] = (
        (("stage", "a"), ("seal", "a"), ("commit", "a")),
        (("stage", "b"), ("seal", "b"), ("commit", "b")),
        (("expire", "a"),),
        (("ask", "a"),),
        (("ask", "b"),),
        (("abort", "a"),),
    )

    def __init__(self) -> None:
        self.queues = {1: Staging(), 2: Staging()}
        self.channels: dict[int, list[CrossQueueTask]] = {1: [], 2: []}
        """What is on its way to each queue, in order."""
        self.done = [0] * len(self.STEPS)
        self.shown: dict[int, str] = {1: "", 2: ""}
        self.failed: tuple[str, ...] = ()
        """Runs whose driver was refused: it goes no further."""
        self.told: dict[str, str] = {}
        self.next_origin = 10

    def copy(self) -> TwoQueues:
        twin = TwoQueues()
        twin.queues = {n: Staging.restore(q.image(), 1 << 40) for n, q in self.queues.items()}
        twin.channels = {n: list(tasks) for n, tasks in self.channels.items()}
        twin.done, twin.shown, twin.told = list(self.done), dict(self.shown), dict(self.told)
        twin.failed, twin.next_origin = self.failed, self.next_origin
        return twin

    def key(self) -> str:
        images = [queue.image() for queue in self.queues.values()]
        return repr((images, self.channels, self.done, self.shown, self.failed, self.told))

    def choices(self) -> list[tuple[str, int]]:
        found = [("agent", n) for n, at in enumerate(self.done) if at < len(self.STEPS[n])]
        found += [("task", n) for n, tasks in self.channels.items() if tasks]
        # Who is sealed asks in the end, whatever came of it before.
        return found or [("question", n) for n, run in enumerate("ab") if self._waits(run)]

    def _waits(self, run: str) -> bool:
        known = self.queues[2].staged_run("t", 1, run)
        return known is not None and known.home > 0 and not known.has_asked

    def take(self, kind: str, which: int) -> None:
        if kind == "task":
            task = self.channels[which].pop(0)
            self._apply(which, task.op(3 - which))
            return
        if kind == "question":
            self._apply(2, AskOp("t", 1, "ab"[which], 2))
            return
        step, run = self.STEPS[which][self.done[which]]
        self.done[which] += 1
        if step == "ask":
            self._apply(2, AskOp("t", 1, run, 2))
        elif step == "expire":
            self._apply(2, AbortOp("t", 1, run, "expired"))
        elif step == "abort":
            # A driver that has died before: it does nothing else.
            self._apply(1, AbortOp("t", 1, run, others=(2,)))
        elif run not in self.failed:
            self._drive(step, run)

    def _drive(self, step: str, run: str) -> None:
        why = ""
        if step == "stage":
            for queue in self.queues.values():
                why = why or queue.on_stage(
                    Stage("t", 1, run, 0, 0, 1), self.next_origin, ONES, 2, 0
                )
                self.next_origin += 10
        elif step == "seal":
            why = self._apply(2, SealOp("t", 1, run, ((0, 0, 1, 2),), 1))
        else:
            why = self._apply(1, CommitOp("t", 1, run, ((0, 0, 1, 2),), 1000, 2, (2,)))
        if why and not (step == "seal" and why.startswith(DONE)):
            self.failed = (*self.failed, run)

    def _apply(self, number: int, op: SealOp | CommitOp | AbortOp | AskOp) -> str:
        queue = self.queues[number]
        if isinstance(op, SealOp):
            outcome = queue.on_seal(op)
        elif isinstance(op, AbortOp):
            outcome = queue.on_abort(op)
        elif isinstance(op, AskOp):
            outcome = queue.on_ask(op, number)
        else:
            if op.is_decision:
                op = replace(op, sequence=1000, count=queue.count(op))
            outcome = queue.on_commit(op)
            if not outcome.why:
                assert not self.shown[number], f"staged: queue {number} shows two runs"
                assert outcome.pieces, f"staged: queue {number} shows nothing of {op.run}"
                self.shown[number] = op.run
            elif op.is_decision:
                raise AssertionError(f"staged: queue {number} lost {op.run}: {outcome.why}")
        for target, task in outcome.tasks:
            self.channels[target].append(task)
        return outcome.why

    def check_end(self) -> None:
        """Nothing is on its way: both queues show the same run, and what is left is sealed."""
        assert self.shown[1] == self.shown[2], f"staged: the queues show {self.shown}"
        left = [run for work in self.queues[2].open.values() for run in work.runs.values()]
        assert not any(run.home for run in left), "staged: a sealed run waits for ever"

    @classmethod
    def run_all(cls) -> tuple[int, set[str]]:
        """(states, runs shown at an end)."""
        seen: set[str] = set()
        ends: set[str] = set()
        stack = [cls()]
        while stack:
            world = stack.pop()
            choices = world.choices()
            if not choices:
                world.check_end()
                ends.add(world.shown[1])
            for choice in choices:
                after = world.copy()
                after.take(*choice)
                key = after.key()
                if key not in seen:
                    seen.add(key)
                    stack.append(after)
        return len(seen), ends


class World:
    """A queue's state with real entries, and a plain model of it."""

    def __init__(self) -> None:
        self.state = QueueState()
        self.lsn = 0
        self.bodies: dict[int, bytes] = {}
        """By origin: all that is needed."""
        self.freed = RangeSet()
        self.named = 0
        self.chunks: dict[tuple[str, int], list[int]] = {}

    def do(self, what: int, which: int, count: int) -> None:
        """One step, from small numbers."""
        run, version = "ab"[which % 2], which // 2 + 1
        if what < 2:
            self._publish([b"p"] * count, None)
        elif what < 6:
            sent = self.chunks.setdefault((run, version), [])
            self._publish([b"s"] * count, Stage("t", version, run, 0, 0, len(sent) + 1))
            attempts = self.state.staging.staged_run("t", version, run)
            known = attempts.attempts.get((0, 0)) if attempts is not None else None
            self.chunks[run, version] = [1] * (known.chunks if known is not None else 0)
        elif what == 6:
            self._commit(run, version)
        elif what == 7:
            self._apply(AbortOp("t", version, run))
        elif what == 8 and self.state.live:
            first = self.state.live.first
            last = min(first + count, self.state.live.front()[1])
            self._apply(AckOp(((first, last),)))
        elif what == 9:
            self._apply(SealOp("t", version, run, self._winners(run, version), 9))

    def _winners(self, run: str, version: int) -> tuple[Winner, ...]:
        known = self.state.staging.staged_run("t", version, run)
        attempts = known.attempts if known is not None else {}
        return tuple((*name, one.chunks, one.count) for name, one in attempts.items())

    def _commit(self, run: str, version: int) -> None:
        known = self.state.staging.staged_run("t", version, run)
        is_sealed = known is not None and known.home > 0
        winners = () if is_sealed else self._winners(run, version)
        op = CommitOp("t", version, run, winners, is_decision=is_sealed)
        count = self.state.staging.count(op)
        sequence = self.state.next_sequence
        before = self.state.live.count
        self._apply(CommitOp("t", version, run, winners, sequence, count, (), is_sealed))
        shown = 0 if self.state.verdict else count
        assert self.state.live.count == before + shown
        assert self.state.next_sequence == sequence + count + 1

    def _publish(self, bodies: list[bytes], stage: Stage | None) -> None:
        flags = FLAG_STEP | FLAG_STAGED if stage is not None else 0
        packed = [encode_staged(stage), *bodies] if stage is not None else bodies
        raw = frames.pack_publish(packed, flags=flags)
        self.lsn += 1
        first = self.state.next_sequence
        entry = CODEC.publish(
            raw, queue_id=1, epoch=1, lsn=self.lsn, first_sequence=first, timestamp_us=0
        )
        self._take(entry)
        if stage is None or not self.state.verdict:
            skipped = 0 if stage is None else 1
            for sequence in range(first + skipped, first + len(packed)):
                self.bodies[sequence] = b"x"

    def _apply(self, payload: AbortOp | AckOp | SealOp | CommitOp | PromotedOp) -> None:
        self.lsn += 1
        self._take(CODEC.op(payload, queue_id=1, epoch=1, lsn=self.lsn, timestamp_us=0))

    def _take(self, entry: Entry) -> None:
        for first, last in self.state.apply(entry):
            for sequence in range(first, last + 1):
                self.bodies.pop(sequence, None)

    def promote(self, lost: tuple[Range, ...]) -> None:
        """An unclean promotion that lacks these bodies."""
        self._apply(PromotedOp("unclean", 1, 1, lost, len(lost)))

    def check(self) -> None:
        """What a copy must keep is what nobody was told to free."""
        state = self.state
        needed = RangeSet(state.needed(1, state.next_sequence - 1))
        assert needed == RangeSet((s, s) for s in sorted(self.bodies))
        live = 0
        for first, last in state.live:
            while first <= last:
                end, shift = state.staging.piece(first, last)
                assert all(s - shift in self.bodies for s in range(first, end + 1))
                assert state.columns.total(first, end) == end - first + 1
                live += end - first + 1
                first = end + 1
        assert live == state.live.count
        assert live + state.staging.staged.count == len(self.bodies)
        assert state.staging.size == state.staging.staged.count
        dead = RangeSet(((1, state.next_sequence - 1),)) if state.next_sequence > 1 else RangeSet()
        for first, last in needed:
            dead.remove(first, last)
        for first, last in state.dead_around(dead):
            assert not needed.within(first, last)

    def drain(self) -> None:
        """Everything is decided and acked: nothing is left but who has committed what."""
        for (transaction, version), work in list(self.state.staging.open.items()):
            for run in list(work.runs):
                self._apply(AbortOp(transaction, version, run, is_decision=True))
        if self.state.live:
            self._apply(AckOp(tuple(self.state.live)))
        assert not self.bodies
        assert not self.state.staging
        assert not self.state.staging.attempts
