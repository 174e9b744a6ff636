"""The inside of get and consume: what is fetched ahead, and what goes back. On virtual time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

import mirrorq
from mirrorq.api.receiver import CALLS_AHEAD
from mirrorq.api.waits import Waits
from mirrorq.errors import QueueDown
from mirrorq.monitoring.status import QueueStatus
from mirrorq.protocol.sessions import Counts, Deliver, Delivery
from mirrorq.session import window
from mirrorq.session.machine import Session
from mirrorq.testing import SimulatedCluster


@pytest.fixture
def cluster() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(1) as cluster:
        yield cluster


def fill(queue: mirrorq.MirroredQueue, count: int) -> None:
    """Publish bodies 0 to count - 1, confirmed."""
    queue.put_many([b"%d" % number for number in range(count)]).result(10)


def test_which_node_must_come_back_is_said_whatever_the_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A queue without a master is "paused" when the leader is late for a moment."""
    with SimulatedCluster(3) as cluster:
        node = cluster.node("b")
        node.set_policy("one", "q", {"ha-mode": "nodes", "ha-params": ["a"]})
        cluster.queue("q", on="a")
        queue = cluster.queue("q", on="b")
        cluster.crash("a")
        cluster.run_until(lambda: not queue._handle.session.available)  # type: ignore[union-attr]
        for state in ("down", "paused"):
            status = QueueStatus("q", state, warnings=("start a (failed)",))
            monkeypatch.setattr(node, "_queue_status", lambda _, status=status: status)
            with pytest.raises(QueueDown, match=r"has no master: start a \(failed\)"):
                queue.get_nowait()


def test_two_waiting_handles_do_not_take_a_message_from_each_other(
    cluster: SimulatedCluster,
) -> None:
    """A Recall asks for what nobody waits for: one waiting call gets it, the other goes on."""
    one, other = cluster.queue("q", on="a"), cluster.queue("q", on="a")
    got: list[mirrorq.Message] = []

    def get(queue: mirrorq.MirroredQueue) -> None:
        got.append(queue.get(timeout=30))

    for queue in (one, other):
        cluster.spawn(get, queue)
    cluster.run_until(lambda: one._handle.receiver._demand == other._handle.receiver._demand == 1)

    def steps() -> int:
        return one._handle.step_count + other._handle.step_count

    before = steps()
    fill(one, 1)
    cluster.run(10)
    assert len(got) == 1
    assert steps() - before < 50
    fill(one, 1)
    cluster.run_until(lambda: len(got) == 2)


@pytest.mark.parametrize("kind", ["handle", "adapter"])
def test_what_goes_back_while_it_is_counted_is_counted(
    kind: str, cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that is late reads an answer of before, when a message was here that is with its
    master again: the queue is not empty for that."""
    monkeypatch.setattr(window, "IDLE_GIVEBACK_MS", 10**9)
    queue = cluster.queue("q", on="a")
    fill(queue, 2)
    queue.get(timeout=10)
    handle = queue._handle
    handle.on_host(lambda: setattr(handle.receiver._window, "size", 8))
    queue.get(timeout=10)
    fill(queue, 5)
    cluster.run_until(lambda: handle.receiver.buffered == 5)
    counting, answers = handle.counting, []

    def late_counting(timeout: float = 20) -> Waits[Counts]:
        answers.append((yield from counting(timeout)))
        handle.on_host(lambda: handle.receiver.give_back(handle.session, 0))
        cluster.run_until(lambda: handle.receiver.buffered == 0)
        return answers[-1]

    monkeypatch.setattr(handle, "counting", late_counting)
    asked = queue if kind == "handle" else queue.as_queue()
    assert (asked.qsize(), asked.empty()) == (5, False)
    assert answers[0].ready == 0


def test_an_ack_finds_its_message_in_the_buffer_of_its_own_handle() -> None:
    """The new master handed it out again, to a handle whose user is still at work on it: the
    ack is taken and the message is not returned a second time."""
    with SimulatedCluster(3) as cluster:
        cluster.queue("q", on="a")
        queue = cluster.connect("web", to="c").queue("q")
        handle = queue._handle
        fill(queue, 3)
        held = queue.get(timeout=10)
        cluster.crash("a")
        cluster.run_until(lambda: cluster.master("q") not in (None, "a"))
        handle.on_host(lambda: setattr(handle.receiver._window, "size", 8))
        cluster.run_until(lambda: handle.receiver.buffered == 3)
        held.ack().result(10)
        assert [message.sequence for message in queue.browse()] == [2, 3]
        assert [queue.get(timeout=10).sequence for _ in range(2)] == [2, 3]


def test_what_goes_back_while_more_is_on_its_way_comes_first_again() -> None:
    """A slow link, a caller who pauses and calls again: the order is the queue's, and nothing
    counts as delivered that no call has returned."""
    with SimulatedCluster(1) as cluster:
        queue = cluster.connect("web", to="a").queue("q")
        handle = queue._handle
        fill(queue, 40)
        taken = [queue.get(timeout=10)]
        handle.on_host(lambda: setattr(handle.receiver._window, "size", 8))
        taken.append(queue.get(timeout=10))
        cluster.run_until(lambda: handle.receiver.buffered == 8)
        cluster.delay("a", "web", 0.4)
        taken += queue.get_many(5, timeout=10)
        cluster.run_until(lambda: handle.receiver.buffered == 0)
        while len(taken) < 40:
            taken += queue.get_many(10, timeout=10)
        assert [message.sequence for message in taken] == [*range(1, 41)]
        assert not any(message.redelivered for message in taken)
        queue.ack_many(taken).result(10)


def test_calls_that_take_many_have_more_fetched_ahead(cluster: SimulatedCluster) -> None:
    """What is fetched ahead is bounded by a few calls, not by the prefetch alone, and falls when
    calls ask for little again."""
    queue = cluster.queue("q", on="a")
    fill(queue, 30_000)
    window = queue._handle.receiver._window
    few = window.size_max
    taken: list[mirrorq.Message] = []
    while len(taken) < 30_000:
        taken += queue.get_many(few, timeout=10)
        assert window.size <= CALLS_AHEAD * few
    assert [message.sequence for message in taken] == [*range(1, 30_001)]
    assert window.size_max == CALLS_AHEAD * few
    queue.ack_many(taken).result(10)
    fill(queue, 1)
    queue.get(timeout=10).ack().result(10)
    cluster.run_until(lambda: window.size_max == few and window.size <= few)


def test_a_damaged_delivery_is_not_served(
    cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame whose checksum is wrong is dropped, logged, and fetched again."""
    queue = cluster.queue("q", on="a")
    damaged: list[int] = []
    take = queue._handle._on_deliver

    def damage(session: Session, deliver: Deliver) -> None:
        if not damaged:
            damaged.append(1)
            bad = bytearray(deliver.frames[0])
            bad[-1] ^= 1
            bad[96] ^= 1
            deliver = replace(deliver, frames=(bytes(bad),))
        take(session, deliver)

    monkeypatch.setattr(queue._handle, "_on_deliver", damage)
    fill(queue, 1)
    message = queue.get(timeout=10)
    assert damaged
    assert (message.body, message.redelivered) == (b"0", False)


def test_what_comes_for_a_consumer_that_is_cancelled_in_the_same_step_goes_back(
    cluster: SimulatedCluster,
) -> None:
    """The session had it still, the handle no longer: nobody would ever settle it."""
    given_back: list[object] = []

    class Returning:
        def give_back(self, deliveries: object) -> None:
            given_back.append(deliveries)

    pieces = (Delivery(1, 1, 1, 3, 1),)
    queue = cluster.queue("q", on="a")
    queue._handle._on_deliver(Returning(), Deliver(99, pieces))  # type: ignore[arg-type]
    assert given_back == [pieces]
