"""Staged load on one queue: drivers and tasks that die, retry, speculate, and commit again.

A *stream* writes its versions one after the other. A driver, on some node, begins a run: its tasks,
on any nodes, stage their rows in chunks; who dies is followed by another attempt, and some have a
twin from the start. When each partition has an attempt that is staged whole the driver commits. It
may die before, in between or before it hears, or not wait for its tasks; then another driver begins
another run of the same version, until one of them hears that the version is committed. Some runs
are aborted. Old drivers come back: they commit again what may have been committed since.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from attrs import define, evolve, field

from harness.cluster import SimulatedCluster
from harness.load import Load
from harness.workload import Attempt, Journal, Place, SimulatedHandle
from mirrorq.protocol.ops import FLAG_STAGED, FLAG_STEP
from mirrorq.protocol.staged import DONE, FENCED, AbortOp, CommitOp, Stage, Staging, Winner
from mirrorq.session.calls import Failed, Output, Put, Stored
from mirrorq.wire import frames
from mirrorq.wire.ops import encode_staged

__all__ = ["StagedLoad", "wrongly_staged"]

STREAMS = 2
PARTITIONS_MAX = 3
CHUNKS_MAX = 3
ROWS_MAX = 4
"""Messages in one chunk, at most."""


@define
class TaskRecord:
    """One attempt of one task, as its driver knows it."""

    partition: int
    attempt: int
    rows: list[bytes] = field(factory=list)
    """All that it stages, in order."""
    chunks: int = 0
    is_staged: bool = False
    """Every chunk was confirmed."""


@define
class RunRecord:
    """One try of one driver, and what anybody was told of it."""

    transaction: str
    version: int
    name: str
    tasks: list[TaskRecord] = field(factory=list)
    winners: list[TaskRecord] = field(factory=list)
    """Those that its commit names; [] before."""
    is_asked: bool = False
    """A commit was sent."""
    told: str = ""
    """done: by its own commit; never: it was refused for ever, or aborted."""
    others: tuple[int, ...] = ()
    """Queues in which it is sealed, and which are told what was decided."""

    def op(self) -> CommitOp:
        """The commit of its winners."""
        winners: tuple[Winner, ...] = tuple(
            (task.partition, task.attempt, task.chunks, len(task.rows)) for task in self.winners
        )
        name = (self.transaction, self.version, self.name)
        return CommitOp(*name, winners, others=self.others)


class StagedHandle(SimulatedHandle):
    """A process that stages or decides."""

    def send(self, asked: Stage | Staging, bodies: list[bytes], token: object) -> None:
        """One op; `on_outcome` is called with the token."""
        packed = [encode_staged(asked), *bodies]

        def pack(producer: int, first_number: int, settled: int) -> bytes:
            return frames.pack_publish(
                packed,
                producer=producer,
                first_number=first_number,
                settled=settled,
                flags=FLAG_STEP | FLAG_STAGED,
            )

        self.session.put(Put(token, len(packed), sum(map(len, bodies)), pack, True))
        self.poke()

    def take(self, outputs: list[Output]) -> None:
        for output in outputs:
            if isinstance(output, Stored | Failed):
                self.on_outcome(output)

    def on_outcome(self, outcome: Stored | Failed) -> None:
        """What became of something sent."""
        raise NotImplementedError


class Task(StagedHandle):
    """Stages one attempt, chunk by chunk, and ends."""

    is_failed = False

    def __init__(
        self, place: Place, run: RunRecord, record: TaskRecord, journal: Journal, sizes: list[int]
    ) -> None:
        self.record = record
        self.run_record = run
        self._left = len(sizes)
        name = f"{run.transaction}/{run.version}/{run.name}/{record.partition}.{record.attempt}"
        super().__init__(evolve(place, name=name))
        for chunk, size in enumerate(sizes, 1):
            rows = [b"%s/%d" % (name.encode(), len(record.rows) + i) for i in range(size)]
            record.rows += rows
            for row in rows:
                journal.attempts[row] = Attempt(row, "unknown", put_ms=self.cluster.now_ms)
            stage = Stage(
                run.transaction, run.version, run.name, record.partition, record.attempt, chunk
            )
            self.send(stage, rows, chunk)
        record.chunks = len(sizes)

    def on_outcome(self, outcome: Stored | Failed) -> None:
        if isinstance(outcome, Stored) or outcome.reason.startswith(DONE):
            self._left -= 1
            if not self._left:
                self.record.is_staged = True
            return
        # No room, a run that was given up, or nobody knows: the task fails.
        self.is_failed = True
        if outcome.reason.startswith(FENCED):
            self.run_record.told = self.run_record.told or "never"


class Decider(StagedHandle):
    """A driver, or one that comes back late: asks once and hears, or dies before."""

    is_done = False
    """It has heard that the version is committed."""
    is_over = False
    """It has heard something."""

    def __init__(self, place: Place, run: RunRecord, journal: Journal) -> None:
        self.run_record = run
        self._journal = journal
        name = f"driver of {run.transaction}/{run.version}/{run.name}"
        super().__init__(evolve(place, name=name))

    def commit(self) -> None:
        """Ask for the run's winners."""
        self.run_record.is_asked = True
        self.send(self.run_record.op(), [], "commit")

    def abort(self) -> None:
        """Give the run up."""
        run = self.run_record
        op = AbortOp(run.transaction, run.version, run.name, others=run.others)
        self.send(op, [], "abort")

    def on_outcome(self, outcome: Stored | Failed) -> None:
        run = self.run_record
        if isinstance(outcome, Stored):
            self.is_over = True
            what = "done" if outcome.token == "commit" else "never"
            assert run.told in ("", what), f"staged: {self.name} is told {what} after {run.told}"
            run.told = what
            if what == "done":
                self.is_done = True
                self._acknowledge(outcome.first_sequence + 1)
        elif outcome.reason.startswith(DONE):
            self.is_over = self.is_done = True
        elif outcome.reason.startswith(FENCED):
            self.is_over = True
            assert run.told != "done", f"staged: {self.name} is refused after it was committed"
            run.told = "never"
        elif not outcome.unknown:
            self.is_over = True

    def _acknowledge(self, sequence: int) -> None:
        for task in self.run_record.winners:
            for row in task.rows:
                attempt = self._journal.attempts[row]
                attempt.state, attempt.sequence = "acknowledged", sequence
                sequence += 1


@define
class Stream:
    """One transaction."""

    name: str
    version: int = 1
    runs: int = 0
    run: RunRecord | None = None
    tasks: list[Task] = field(factory=list)
    driver: Decider | None = None
    partitions: int = 1
    is_over: bool = False
    """No version begins any more."""


class StagedLoad(Load):
    """Streams in the place of producers; the consumers are those of every load."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        random: Random,
        name: str,
        queue_id: int,
        counts: Counter[str],
        *,
        pace: int,
    ) -> None:
        super().__init__(cluster, random, name, queue_id, counts, pace=pace)
        self._purge_share = self._delete_share = 0.0
        self.records: list[RunRecord] = []
        self.streams = [Stream(f"s{number}") for number in range(STREAMS)]
        self._late: list[Decider] = []

    # --- The load's course ----------------------------------------------------------------

    def _tick_producers(self) -> None:
        for stream in self.streams:
            self._move(stream)
        pause_ms = 20 if self._is_quiet else self.random.randint(5, 60 * self._pace)
        self.cluster.after(pause_ms, self._tick_producers)

    @property
    def is_drained(self) -> bool:
        return all(stream.is_over for stream in self.streams) and super().is_drained

    def _move(self, stream: Stream) -> None:
        """One look at a stream by whoever runs it."""
        chance = self.random.random()
        driver, run = stream.driver, stream.run
        if stream.is_over:
            return
        if driver is None or run is None or not driver.is_alive:
            self._begin(stream)
        elif driver.is_done:
            self._end_version(stream)
        elif driver.is_over or run.told == "never":
            self._leave(stream, "run given up")
        elif not self._is_quiet and chance < 0.03:
            # Whatever it has sent may be on its way: nobody hears of it.
            driver.vanish()
            self._leave(stream, "driver dies")
        elif not run.is_asked:
            self._pursue_tasks(stream, run, driver)

    def _begin(self, stream: Stream) -> None:
        """A driver begins a version, or begins it again."""
        node = self._node()
        if node is None:
            return
        stream.runs += 1
        run = self._new_run(stream)
        stream.run = run
        stream.tasks = []
        stream.partitions = self.random.randint(1, PARTITIONS_MAX)
        self.records.append(run)
        stream.driver = Decider(self._at(node), run, self.life.journal)
        for partition in range(stream.partitions):
            twins = 2 if self.random.random() < 0.15 else 1
            for _ in range(twins):
                self._add_task(stream, run, partition)

    def _at(self, node: str) -> Place:
        """Of a handle that is named after its run."""
        return Place(self.cluster, node, self.life.queue_id, "", self.random)

    def _new_run(self, stream: Stream) -> RunRecord:
        return RunRecord(stream.name, stream.version, f"r{stream.runs}")

    def _add_task(self, stream: Stream, run: RunRecord, partition: int) -> None:
        node = self._node()
        if node is None:
            return
        attempt = sum(task.partition == partition for task in run.tasks)
        record = TaskRecord(partition, attempt)
        run.tasks.append(record)
        sizes = [
            self.random.randint(1, ROWS_MAX) for _ in range(self.random.randint(1, CHUNKS_MAX))
        ]
        stream.tasks.append(Task(self._at(node), run, record, self.life.journal, sizes))

    def _pursue_tasks(self, stream: Stream, run: RunRecord, driver: Decider) -> None:
        if not self._is_quiet and self.random.random() < 0.05:
            alive = [task for task in stream.tasks if task.is_alive]
            if alive:
                self._counts["task dies"] += 1
                self.random.choice(alive).vanish()
        if not self._is_quiet and self.random.random() < 0.05:
            self._commit_hastily(stream, run, driver)
            return
        winners = []
        for partition in range(stream.partitions):
            staged = self._staged(run, partition)
            if staged:
                winners.append(staged[0])
            elif not self._is_busy(stream, partition):
                self._add_task(stream, run, partition)
        if len(winners) < stream.partitions:
            return
        if not self._is_quiet and self.random.random() < 0.1:
            self._counts["run aborted"] += 1
            run.is_asked = True
            # Nobody comes back to commit it: in another queue it is perhaps not sealed.
            run.winners = []
            driver.abort()
            return
        run.winners = run.winners or winners
        self._commit(stream, run, driver)

    def _staged(self, run: RunRecord, partition: int) -> list[TaskRecord]:
        """The attempts of a partition that could be winners."""
        return [task for task in run.tasks if task.partition == partition and task.is_staged]

    def _is_busy(self, stream: Stream, partition: int) -> bool:
        """Whether some attempt of a partition may still be staged whole."""
        return any(
            task.is_alive and not task.is_failed and task.record.partition == partition
            for task in stream.tasks
        )

    def _commit(self, stream: Stream, run: RunRecord, driver: Decider) -> None:
        driver.commit()

    def _commit_hastily(self, stream: Stream, run: RunRecord, driver: Decider) -> None:
        """The driver does not wait for its tasks: what it names is there, or it is refused."""
        newest = {task.partition: task for task in run.tasks if task.chunks}
        if len(newest) < stream.partitions:
            return
        self._counts["commit too early"] += 1
        run.winners = [newest[partition] for partition in range(stream.partitions)]
        driver.commit()

    def _leave(self, stream: Stream, why: str) -> None:
        """Another run is to come; what this one has asked may still come true."""
        self._counts[why] += 1
        stream.driver = None
        self._come_back(stream)

    def _end_version(self, stream: Stream) -> None:
        self._counts["version committed"] += 1
        self._come_back(stream)
        for task in stream.tasks:
            task.close()
        if stream.driver is not None:
            stream.driver.close()
        stream.driver = stream.run = None
        stream.version += 1
        stream.is_over = self._is_quiet

    def _come_back(self, stream: Stream) -> None:
        """Someone asks again for what an earlier run of this stream has asked for."""
        self._late = [one for one in self._late if one.is_alive and not one.is_over]
        asked = [one for one in self.records if one.is_asked and one.winners]
        node = self._node()
        if node is None or not asked or self.random.random() < 0.5:
            return
        self._counts["commit comes again"] += 1
        run = self.random.choice(asked[-4:])
        late = Decider(self._at(node), run, self.life.journal)
        late.commit()
        self._late.append(late)

    def drain(self) -> None:
        super().drain()
        handles: list[Any] = [*self._late]
        for stream in self.streams:
            handles += [*stream.tasks, *([stream.driver] if stream.driver is not None else [])]
        for handle in handles:
            if handle.is_open and not handle.is_alive:
                handle.die()

    def judge(self) -> None:
        """At the end: put what is wrong into `wrong`."""
        self.wrong += wrongly_staged(self.records, self.life.journal)


def wrongly_staged(records: list[RunRecord], journal: Journal) -> list[str]:
    """Each committed version shows the winners of one run, wholly and in order; nothing else that
    was staged shows. After a drain to the last message."""
    shown: dict[bytes, int] = {}
    for dispatch in journal.deliveries:
        shown[dispatch.body] = dispatch.sequence
    wrong: list[str] = []
    by_version: dict[tuple[str, int], list[RunRecord]] = {}
    for run in records:
        by_version.setdefault((run.transaction, run.version), []).append(run)
    for key, runs in by_version.items():
        seen = [run for run in runs if any(row in shown for t in run.tasks for row in t.rows)]
        if len(seen) > 1:
            wrong.append(f"staged: {key} is shown by runs {[run.name for run in seen]}")
        for run in runs:
            wrong += _wrong_run(run, shown, is_shown=run in seen)
        is_done = any(run.told == "done" for run in runs)
        if is_done and not seen:
            wrong.append(f"staged: {key} was committed and nothing shows")
    return wrong


def _wrong_run(run: RunRecord, shown: dict[bytes, int], *, is_shown: bool) -> list[str]:
    name = f"{run.transaction}/{run.version}/{run.name}"
    if not is_shown:
        return [f"staged: {name} was committed and does not show"] * (run.told == "done")
    wrong = [f"staged: {name} shows, and was given up"] * (run.told == "never")
    wrong += [f"staged: {name} shows, and nobody has committed it"] * (not run.is_asked)
    rows = [row for task in run.winners for row in task.rows]
    losers = [row for t in run.tasks if t not in run.winners for row in t.rows if row in shown]
    if losers:
        wrong.append(f"staged: {name} shows {losers[0]!r} of an attempt that did not win")
    missing = [row for row in rows if row not in shown]
    if missing:
        wrong.append(f"staged: {name} shows {len(rows) - len(missing)} of {len(rows)} messages")
    places = [shown[row] for row in rows if row in shown]
    if places != [places[0] + i for i in range(len(places))]:
        wrong.append(f"staged: {name} is out of order")
    return wrong
