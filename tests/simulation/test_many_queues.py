"""Many queues: what is said and written once for all, and work that grows only as they do."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from random import Random
from types import FrameType
from typing import Any

import pytest

from harness.cluster import SimulatedCluster, SimulatedNode
from harness.workload import Consumer, Journal, Place
from mirrorq.cluster.catalog.records import QueueRecord
from mirrorq.cluster.controller.controller import Controller
from mirrorq.cluster.controller.events import CatalogChanged, ControllerTick
from mirrorq.engine import hosting
from mirrorq.engine.events import Ask, EngineEffects
from mirrorq.protocol.commands import DeclareQueue, SetPolicy
from mirrorq.protocol.policy import parse, to_text
from mirrorq.replication.events import LeaseChanged

QUIET = {"Hello", "AppendRequest", "AppendAnswer"}
"""What nodes say to each other though nothing happens."""
RING = ("Data", "Mark", "Watermark", "History", "HistoryRequest", "Repaired", "ResendFrom")


class Many:
    """Three nodes and so many queues, a third of them mastered by each; counts of what they do."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.cluster = SimulatedCluster(seed=3)
        self.sent: Counter[str] = Counter()
        self.commits: Counter[str] = Counter()
        send, commit = self.cluster._send, self.cluster._commit_next

        def counted_send(node: SimulatedNode, messages: list[tuple[str, object]]) -> None:
            self.sent.update(type(message).__name__ for _, message in messages)
            send(node, messages)

        def counted_commit(node: SimulatedNode) -> None:
            self.commits[node.name] += 1
            commit(node)

        self.cluster._send = counted_send  # type: ignore[method-assign]
        self.cluster._commit_next = counted_commit  # type: ignore[method-assign]
        self.cluster.start()
        self.cluster.run(3000)

    def forget(self) -> None:
        self.sent.clear()
        self.commits.clear()

    def declare(self) -> None:
        """All of them at once."""
        for number in range(self.count):
            node = "abc"[number % 3]
            command = DeclareQueue(f"q{number}", True, False, False, node, None, ())
            self.cluster.tell(node, Ask(self.cluster.new_token(), command))
        self._until_served("abc")

    def declare_apart(self) -> int:
        """A queue without a copy on the first node; its id."""
        keys = {"ha-mode": "nodes", "ha-params": ["b", "c"]}
        policy = parse("apart", "^apart$", keys)
        assert not self.cluster.ask("b", SetPolicy(policy.name, to_text(policy))).error
        self.count += 1
        answer = self.cluster.ask("b", DeclareQueue("apart", True, False, False, "b", None, ()))
        return answer.value

    def kill(self) -> None:
        """One node; all its queues get another master."""
        self.cluster.kill("a")
        self._until_served("bc")

    def _until_served(self, nodes: str) -> None:
        engines = [self.cluster.engine(node) for node in nodes]
        for _ in range(100):
            # Not run_until: it looks at each event, and to look at all queues is work, too.
            self.cluster.run(20)
            replicas = [replica for engine in engines for replica in engine.replicas.values()]
            if sum(replica.is_serving for replica in replicas) == self.count:
                return
        raise AssertionError("not all queues have a master")


def test_what_is_sent_and_written_for_all_queues_is_together() -> None:
    """Declarations and new views travel and are written many in one; idle queues are silent."""
    many = Many(48)
    many.forget()
    many.declare()
    assert many.sent["AppendRequest"] <= 16
    assert max(many.commits.values()) <= 24
    many.forget()
    many.cluster.run(8000)
    # Each mark is said again at two ticks; all that was applied is checkpointed together.
    assert many.sent["Mark"] + many.sent["Watermark"] <= 6 * many.count
    assert max(many.commits.values()) <= 3
    many.forget()
    many.cluster.run(5000)
    assert set(many.sent) == QUIET
    assert not many.commits
    many.forget()
    many.kill()
    assert many.sent["AppendRequest"] <= 16
    assert max(many.commits.values()) <= 24
    # History, Repaired, Data; a new master's first op and its watermark; and what was said to
    # the dead node before it was known to be dead.
    assert many.sent["HistoryRequest"] == 0
    assert sum(many.sent[kind] for kind in RING) <= 6 * many.count


def test_a_failover_costs_the_leader_one_judgement_a_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The view that it has proposed needs no second look, nor when a retry would be due."""
    many = Many(24)
    many.declare()
    many.cluster.run(8000)
    judged: list[int] = []
    steps: list[object] = []
    decide, step = Controller._decide, Controller.step

    def counted_decide(self: Controller, now_ms: int, queue: QueueRecord, *rest: Any) -> Any:
        judged.append(queue.id)
        return decide(self, now_ms, queue, *rest)

    def counted_step(self: Controller, now_ms: int, event: Any, leading: Any) -> Any:
        steps.append(event)
        return step(self, now_ms, event, leading)

    monkeypatch.setattr(Controller, "_decide", counted_decide)
    monkeypatch.setattr(Controller, "step", counted_step)
    many.kill()
    many.cluster.run(1500)
    assert sorted(judged) == sorted(range(1, many.count + 1))
    told = [event for event in steps if isinstance(event, CatalogChanged) and event.queues]
    assert sum(len(event.queues) for event in told) == 2 * many.count
    assert len(told) <= 8


def test_a_lease_is_news_for_masters_that_wait() -> None:
    """Nothing changes for the copies of other nodes' queues, nor for queues that nobody uses: they
    are not stepped."""
    many = Many(12)
    many.declare()
    many.cluster.run(8000)
    copies = many.cluster.engine("a").hosting
    led = [queue_id for queue_id, replica in copies.replicas.items() if replica.is_master]
    assert 0 < len(led) < len(copies.replicas) == many.count
    copies.out = EngineEffects()
    Consumer(Place(many.cluster, "a", led[1], "one", Random(1)), Journal())
    many.cluster.run(1000)
    copies.post_masters(LeaseChanged(), lambda master: master.may_await_lease)
    assert list(copies.inbox) == [led[1]]
    copies.post_node_gone("b")
    assert list(copies.inbox) == [led[1]]


def test_a_lost_connection_is_no_step_for_copies_without_users_there() -> None:
    """Rings repeat when there is a new connection, and only those with a member at its end."""
    many = Many(12)
    many.declare()
    alone = many.declare_apart()
    many.cluster.run(8000)
    copies = many.cluster.engine("b").hosting
    copies.on_link_down("a")
    assert not copies.inbox
    copies.on_link("a")
    assert set(copies.inbox) == set(copies.replicas) - {alone}


def test_a_queue_apart_does_not_wait_for_the_crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue without a copy on the node concerned is stepped at once, however many others wait;
    and these are not held up by it."""
    monkeypatch.setattr(hosting, "RUN_MAX", 8)
    many = Many(24)
    many.declare()
    alone = many.declare_apart()
    many.cluster.run(8000)
    copies, now_ms = many.cluster.engine("b").hosting, many.cluster.now_ms
    copies.on_link("a")
    waiting = len(copies.inbox)
    for _ in range(2):
        copies.post(alone, LeaseChanged())
        copies.begin_step(EngineEffects())
        copies.step_copies(now_ms, 0)
        assert alone in copies.stepped
        assert len(copies.stepped) == 8
    assert len(copies.inbox) == waiting - 14


def test_copies_with_events_are_stepped_before_copies_that_are_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A new view or an answer is not late because thousands of other copies repeat their marks.
    A copy that is due waits for its turn, however many copies have events."""
    monkeypatch.setattr(hosting, "RUN_MAX", 8)
    many = Many(24)
    many.declare()
    many.cluster.run(8000)
    copies, now_ms = many.cluster.engine("a").hosting, many.cluster.now_ms
    busy, due = [*copies.replicas][:10], [*copies.replicas][10:]
    for queue_id in due:
        copies.due.set(queue_id, now_ms)
    ticked: list[int] = []
    for _ in range(len(due)):
        for queue_id in busy:
            copies.post(queue_id, LeaseChanged())
        copies.begin_step(EngineEffects())
        copies.step_copies(now_ms, 0)
        stepped = [*copies.stepped]
        assert len(set(stepped) & set(busy)) >= 6
        ticked += [queue_id for queue_id in stepped if queue_id in due]
    assert set(due[:8]) <= set(ticked)


def test_the_leader_judges_all_requests_of_a_step_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step of the controller for each step of the engine, not for each declared queue."""
    ticks: list[object] = []
    step = Controller.step

    def counted(self: Controller, now_ms: int, event: Any, leading: Any) -> Any:
        if leading is not None and isinstance(event, ControllerTick):
            ticks.append(event)
        return step(self, now_ms, event, leading)

    monkeypatch.setattr(Controller, "step", counted)
    many = Many(96)
    ticks.clear()
    many.declare()
    assert len(ticks) < many.count // 3


def calls_of(work: Callable[[], None]) -> int:
    """How many calls of Python functions something takes: the same in each run."""
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def test_work_grows_no_faster_than_queues() -> None:
    """To declare queues, and to replace the master of a third of them."""
    few, more = Many(16), Many(96)
    for what in ("declare", "kill"):
        one, other = (calls_of(getattr(many, what)) / many.count for many in (few, more))
        assert other < 1.25 * one, (what, one, other)
