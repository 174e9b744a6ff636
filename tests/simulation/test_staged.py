"""Staged writes while masters, drivers and tasks die: what shows, what never does, who notices."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from harness import checkers
from harness.staged_load import Decider, RunRecord, Task, TaskRecord, wrongly_staged
from harness.staged_pair import PairRun, torn
from harness.staged_swarm import StagedSwarm
from harness.workload import Consumer, Dispatch, Journal, Place
from mirrorq.protocol.staged import SealOp
from mirrorq.replication.replica import Replica
from mirrorq.session.calls import Failed, Stored

from .world import World


@pytest.mark.parametrize("seed", [2])
def test_random_faults(seed: int) -> None:
    """Drivers and tasks die and come back, nodes too: each version shows once, wholly."""
    report = StagedSwarm(seed).run()
    assert report.wrong == []
    assert report.faults["version committed"] > 10


@pytest.mark.slow
def test_random_faults_with_two_queues() -> None:
    """Whoever dies, a version shows in both queues or in none."""
    report = StagedSwarm(0, is_pair=True).run()
    assert report.wrong == []
    assert report.faults["run sealed"] > 10
    assert report.faults["version committed"] > 10


def test_what_shows_in_one_queue_only_is_seen() -> None:
    run = PairRun("t", 1, "r1", 2)
    run.tasks.append(TaskRecord(0, 0, [b"x"]))
    run.twin.tasks.append(TaskRecord(0, 0, [b"y"]))
    assert torn([run], [], []) == torn([run], [b"x"], [b"y"]) == []
    assert "first queue only" in torn([run], [b"x"], [])[0]
    assert "second queue only" in torn([run], [], [b"y"])[0]


# --- Chosen moments -----------------------------------------------------------------------


class Scene:
    """A queue on three nodes; drivers and tasks are on b, the master is a."""

    def __init__(self) -> None:
        self.world = World("abc")
        self.cluster = self.world.cluster
        self.journal = self.world.journal
        self.records: list[RunRecord] = []

    def run(self, name: str) -> RunRecord:
        self.records.append(RunRecord("t", 1, name))
        return self.records[-1]

    def stage(self, run: RunRecord, partition: int = 0) -> TaskRecord:
        """Two rows in two chunks, staged when this returns."""
        record = TaskRecord(partition, len(run.tasks))
        run.tasks.append(record)
        queue_id = self.world.queue_id
        Task(Place(self.cluster, "b", queue_id, "", Random(1)), run, record, self.journal, [1, 1])
        self.world.until(lambda: record.is_staged)
        return record

    def driver(self, run: RunRecord, *winners: TaskRecord) -> Decider:
        run.winners = list(winners) or run.winners
        place = Place(self.cluster, "b", self.world.queue_id, "", Random(1))
        return Decider(place, run, self.journal)

    def replica(self, node: str) -> Replica:
        return self.cluster.engine(node).replicas[self.world.queue_id]

    def bodies(self, node: str) -> set[int]:
        """Sequences of the frames on a disk."""
        return set(self.cluster.nodes[node].disk.queues[self.world.queue_id].frames)

    def drained(self) -> list[bytes]:
        """What there is to consume, in order."""
        consumer = self.world.consumer("c")
        self.world.until(lambda: not self.live())
        self.cluster.run(2500)
        consumer.close()
        assert wrongly_staged(self.records, self.journal) == []
        assert self.cluster.onlooker.wrong == []
        return [dispatch.body for dispatch in self.journal.deliveries]

    def live(self) -> int:
        master = self.world.master
        return 1 if master is None else self.replica(master).state.live.count


def test_a_node_that_joins_gets_what_is_staged() -> None:
    """It was away while chunks were staged, committed, and given up: it has the bodies that are
    needed, no others, and serves them as master."""
    scene = Scene()
    scene.cluster.kill("c")
    scene.world.put("a", 3)
    run, lost, open_run = scene.run("r"), scene.run("x"), RunRecord("u", 1, "o")
    scene.records.append(open_run)
    kept = [scene.stage(run, 0), scene.stage(run, 1)]
    scene.stage(lost)
    late = scene.stage(open_run)
    driver = scene.driver(run, *kept)
    driver.commit()
    scene.world.until(lambda: driver.is_done)
    scene.world.put("a", 2, "n")
    scene.cluster.start("c")
    scene.world.until(lambda: "c" in scene.cluster.in_sync(scene.world.queue_id))
    scene.cluster.run(2500)
    assert scene.bodies("c") == scene.bodies("a")
    scene.cluster.kill("a")
    scene.world.until(lambda: scene.world.master == "b")
    scene.cluster.start("a")
    scene.world.until(lambda: len(scene.cluster.in_sync(scene.world.queue_id)) == 3)
    scene.cluster.kill("b")
    scene.world.until(lambda: scene.world.master == "c")
    scene.cluster.start("b")
    last = scene.driver(open_run, late)
    last.commit()
    scene.world.until(lambda: last.is_done)
    rows = [row for task in (*kept, late) for row in task.rows]
    found = scene.drained()
    assert [row for row in found if row in rows] == rows
    assert len(found) == len(rows) + 5
    assert all(not scene.bodies(name) for name in "abc"), "a body was kept for nobody"


def test_the_disks_are_free_after_an_abort() -> None:
    scene = Scene()
    run = scene.run("r")
    scene.stage(run)
    assert scene.bodies("a")
    driver = scene.driver(run)
    driver.abort()
    scene.world.until(lambda: run.told == "never")
    scene.cluster.run(2500)
    assert all(not scene.bodies(name) for name in "abc")
    assert scene.drained() == []


# --- Several queues -----------------------------------------------------------------------


class Sealer(Decider):
    """Its seal in another queue than the one that decides."""

    def seal(self, home: int) -> None:
        run = self.run_record
        op = run.op()
        self.send(SealOp(run.transaction, run.version, run.name, op.winners, home), [], "seal")

    def on_outcome(self, outcome: Stored | Failed) -> None:
        self.is_over = True
        self.is_done = isinstance(outcome, Stored)


class Committer(Decider):
    """Commits in the queue that decides, for another one too."""

    other = 0

    def commit(self) -> None:
        self.send(replace(self.run_record.op(), others=(self.other,)), [], "commit")


@pytest.mark.parametrize("victim", ["a", "b"])
@pytest.mark.parametrize("pause_ms", [0, 1, 2, 4, 8, 20, 100])
def test_a_master_dies_between_two_queues(victim: str, pause_ms: int) -> None:
    """That of the queue that decides or of the other one, some time after the commit was sent:
    both show their part, once, and nothing is left on any disk."""
    scene = Scene()
    cluster, home = scene.cluster, scene.world.queue_id
    other = cluster.declare("b", "other")
    scene.world.until(lambda: len(cluster.in_sync(other)) == 3)
    parts = {}
    for queue_id in (home, other):
        run = RunRecord("t", 1, "r")
        record = TaskRecord(0, 0)
        run.tasks.append(record)
        journal = Journal()
        Task(Place(cluster, "c", queue_id, "", Random(1)), run, record, journal, [1, 1])
        scene.world.until(lambda record=record: record.is_staged)
        run.winners = [record]
        parts[queue_id] = (run, journal)
    sealer = Sealer(Place(cluster, "c", other, "", Random(1)), *parts[other])
    sealer.seal(home)
    scene.world.until(lambda: sealer.is_over)
    assert sealer.is_done
    driver = Committer(Place(cluster, "c", home, "", Random(1)), *parts[home])
    driver.other = other
    driver.commit()
    cluster.run(pause_ms)
    cluster.kill(victim)
    scene.world.until(lambda: driver.is_done)
    cluster.start(victim)
    for queue_id, (run, journal) in parts.items():
        name = f"c of {queue_id}"
        consumer = Consumer(Place(cluster, "c", queue_id, name, Random(3)), journal, 0.0)
        scene.world.until(lambda journal=journal: len(journal.deliveries) >= 2)
        scene.world.until(lambda queue_id=queue_id: len(cluster.in_sync(queue_id)) == 3)
        cluster.run(3000)
        consumer.close()
        assert [one.body for one in journal.deliveries] == run.winners[0].rows
        assert all(not cluster.nodes[n].disk.queues[queue_id].frames for n in "abc")
        assert checkers.unequal(cluster, queue_id) == []
    assert cluster.onlooker.wrong == []


# --- The checker --------------------------------------------------------------------------


def scenario() -> tuple[list[RunRecord], Journal]:
    winner = TaskRecord(0, 0, [b"a", b"b"], 1, True)
    loser = TaskRecord(0, 1, [b"c"], 1, True)
    run = RunRecord("t", 1, "r", [winner, loser], [winner], True, "done")
    other = RunRecord("t", 1, "s", [TaskRecord(0, 0, [b"d"], 1, True)], [], False, "never")
    return [run, other], Journal()


@pytest.mark.parametrize(
    ("shown", "complaint"),
    [
        ("", "committed and does not show"),
        ("a", "1 of 2"),
        ("ba", "out of order"),
        ("abc", "did not win"),
        ("abd", "by runs"),
        ("d", "given up"),
    ],
)
def test_the_checker_notices(shown: str, complaint: str) -> None:
    records, journal = scenario()
    for sequence, body in enumerate(shown, 1):
        journal.deliveries.append(Dispatch(sequence, body.encode(), 1, 0, (1, 1), "c"))
    assert any(complaint in text for text in wrongly_staged(records, journal))


def test_the_checker_is_content() -> None:
    records, journal = scenario()
    for sequence, body in enumerate("ab", 7):
        journal.deliveries.append(Dispatch(sequence, body.encode(), 1, 0, (1, 1), "c"))
    assert wrongly_staged(records, journal) == []
    assert wrongly_staged([RunRecord("t", 1, "r", [], [], True, "done")], journal) != []
