"""Staged load on two queues: what is committed shows in both or in none.

    load = StagedPair(cluster, random, "staged", queue_id, counts, pace=1)
    load.second = Drain(cluster, random, "staged2", second_id, counts, pace=1)

Each task stages for both queues. When all is there the driver seals the run in the second queue,
then has the first one decide, as `client.staged` does with several queues; it may die between.
"""

from __future__ import annotations

from typing import Any

from harness.load import Load
from harness.staged_load import (
    RunRecord,
    StagedHandle,
    StagedLoad,
    Stream,
    Task,
    TaskRecord,
    wrongly_staged,
)
from harness.workload import Place
from mirrorq.protocol.staged import DONE, SealOp, Winner
from mirrorq.session.calls import Failed, Stored

__all__ = ["PairRun", "StagedPair", "torn"]


class PairRun(RunRecord):
    """One try, in both queues."""

    def __init__(self, transaction: str, version: int, name: str, second_id: int) -> None:
        super().__init__(transaction, version, name)
        self.second_id = second_id
        self.others = (second_id,)
        self.twin = RunRecord(transaction, version, name)
        """The same in the second queue."""


class Sealer(StagedHandle):
    """Seals a run in the second queue."""

    outcome = ""
    """sealed, failed; "" while it is open."""

    def seal(self, run: RunRecord, home: int) -> None:
        winners: tuple[Winner, ...] = tuple(
            (task.partition, task.attempt, task.chunks, len(task.rows)) for task in run.winners
        )
        self.send(SealOp(run.transaction, run.version, run.name, winners, home), [], "seal")

    def on_outcome(self, outcome: Stored | Failed) -> None:
        """What is committed there already was decided: who decides says so, too."""
        is_done = isinstance(outcome, Stored) or outcome.reason.startswith(DONE)
        self.outcome = "sealed" if is_done else "failed"


class StagedPair(StagedLoad):
    """Streams that write into two queues."""

    second: Load

    def __init__(self, *arguments: Any, **names: Any) -> None:
        super().__init__(*arguments, **names)
        self._sealers: dict[str, Sealer] = {}
        """Stream -> who seals its present run."""

    def _new_run(self, stream: Stream) -> RunRecord:
        self._sealers.pop(stream.name, None)
        second_id = self.second.life.queue_id
        return PairRun(stream.name, stream.version, f"r{stream.runs}", second_id)

    def _add_task(self, stream: Stream, run: RunRecord, partition: int) -> None:
        before = len(run.tasks)
        super()._add_task(stream, run, partition)
        node = self._node()
        if len(run.tasks) == before:
            return
        assert isinstance(run, PairRun)
        record = TaskRecord(partition, run.tasks[-1].attempt)
        run.twin.tasks.append(record)
        if node is None:
            return  # it is never staged whole, and another attempt follows
        journal, sizes = self.second.life.journal, [self.random.randint(1, 3)]
        place = Place(self.cluster, node, run.second_id, "", self.random)
        stream.tasks.append(Task(place, run.twin, record, journal, sizes))

    def _commit_hastily(self, stream: Stream, run: RunRecord, driver: Any) -> None:
        """Not here: a driver that has not sealed everywhere asks for no decision."""

    def _staged(self, run: RunRecord, partition: int) -> list[TaskRecord]:
        assert isinstance(run, PairRun)
        there = [t.attempt for t in run.twin.tasks if t.partition == partition and t.is_staged]
        return [t for t in super()._staged(run, partition) if t.attempt in there]

    def _is_busy(self, stream: Stream, partition: int) -> bool:
        """Both halves of an attempt are there, or under way."""
        halves: dict[int, int] = {}
        for task in stream.tasks:
            if task.record.partition == partition:
                is_fine = task.record.is_staged or (task.is_alive and not task.is_failed)
                attempt = task.record.attempt
                halves[attempt] = halves.get(attempt, 0) + is_fine
        return 2 in halves.values()

    def _commit(self, stream: Stream, run: RunRecord, driver: Any) -> None:
        """First seal, and commit when that is heard."""
        assert isinstance(run, PairRun)
        sealer = self._sealers.get(stream.name)
        if sealer is None:
            attempts = [(task.partition, task.attempt) for task in run.winners]
            run.twin.winners = [
                task
                for attempt in attempts
                for task in run.twin.tasks
                if (task.partition, task.attempt) == attempt
            ]
            name = f"sealer of {run.transaction}/{run.version}/{run.name}"
            sealer = Sealer(Place(self.cluster, driver.node, run.second_id, name, self.random))
            self._sealers[stream.name] = sealer
            self._counts["run sealed"] += 1
            sealer.seal(run.twin, self.life.queue_id)
        elif sealer.outcome == "sealed":
            super()._commit(stream, run, driver)
        elif sealer.outcome or not sealer.is_alive:
            self._leave(stream, "run given up")

    @property
    def is_drained(self) -> bool:
        """Runs whose drivers have died after the seal are given up, too, by asking."""
        queue_id = self.second.life.queue_id
        master = self.cluster.master(queue_id)
        if master is None or not super().is_drained:
            return False
        return not self.cluster.engine(master).replicas[queue_id].state.staging.open

    def judge(self) -> None:
        super().judge()
        runs = [run for run in self.records if isinstance(run, PairRun)]
        for run in runs:
            run.twin.told, run.twin.is_asked = run.told, run.is_asked
        journal = self.second.life.journal
        self.wrong += wrongly_staged([run.twin for run in runs], journal)
        bodies = [one.body for one in journal.deliveries]
        self.wrong += torn(runs, [one.body for one in self.life.journal.deliveries], bodies)


def torn(runs: list[PairRun], first: list[bytes], second: list[bytes]) -> list[str]:
    """Whatever shows in one of the queues shows in the other."""
    shown, shown_there = dict.fromkeys(first), dict.fromkeys(second)
    wrong = []
    for run in runs:
        is_here = any(row in shown for task in run.tasks for row in task.rows)
        is_there = any(row in shown_there for task in run.twin.tasks for row in task.rows)
        if is_here != is_there:
            where = "first" if is_here else "second"
            wrong.append(
                f"torn: {run.transaction}/{run.version}/{run.name} shows in the {where} queue only"
            )
    return wrong
