"""`mirrorq.testing.SimulatedCluster`: users' code on virtual time, with faults, by a seed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

import mirrorq
from mirrorq import clock
from mirrorq.testing import SimulatedCluster, SimulationError, Stuck, schedule, simulate

PROGRAM = "from test_simulated_cluster import history; print(history(11))"


def history(seed: int) -> tuple[list[str], list[tuple[float, str, bytes]], list[object], float]:
    """What happened in a run with workers, a producer and faults, and a number drawn at its end."""
    taken: list[tuple[float, str, bytes]] = []
    stored: list[object] = []
    with SimulatedCluster(seed=seed) as cluster:
        cluster.queue("orders", on="a")

        def work(node: str) -> None:
            queue = cluster.queue("orders", on=node)
            for message in queue:
                cluster.sleep(0.003)
                taken.append((cluster.now, node, message.body))
                message.ack()

        def produce() -> None:
            queue = cluster.queue("orders", on="c")
            for number in range(60):
                stored.append(queue.put(b"%d" % number).result(timeout=30))

        cluster.spawn(work, "a", on="a")
        cluster.spawn(work, "b", on="b")
        producer = cluster.spawn(produce)
        cluster.run(0.2)
        cluster.crash("a")
        cluster.run(1)
        cluster.restart("a")
        cluster.partition({"b"})
        cluster.run(2)
        cluster.heal()
        producer.result(60)
        cluster.run(3)
        return cluster.log, taken, stored, cluster._scheduler.random.random()


@pytest.mark.real
@pytest.mark.slow
def test_the_same_seed_gives_the_same_history() -> None:
    """To the last microsecond and the last draw, in one process and in another, whose hashes are
    others."""
    first = history(11)
    assert history(11) == first
    assert history(12) != first
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    environment = {**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == repr(first)


@pytest.mark.real
def test_virtual_time_costs_no_real_time_and_real_threads_keep_theirs() -> None:
    """A day is skipped at once; a thread outside sees the machine's clock all the while."""
    look = threading.Lock()
    look.acquire()
    seen: list[float] = []

    def see() -> None:
        with look:
            seen.extend((clock.monotonic(), time.monotonic()))

    outside = threading.Thread(target=see)
    outside.start()
    before = time.monotonic()
    with SimulatedCluster(1) as cluster:
        began = cluster.now
        wall_us = clock.wall_us()
        cluster.skip(24 * 3600)
        assert cluster.now - began >= 24 * 3600
        assert clock.wall_us() - wall_us >= 24 * 3600 * 1_000_000
        look.release()
        outside.join()
    assert before <= seen[0] <= seen[1] <= time.monotonic()
    assert clock.monotonic is time.monotonic


@pytest.mark.parametrize("seed", range(12))
def test_a_crash_at_any_moment_loses_no_confirmed_message(seed: int) -> None:
    """The master's process ends while messages are on their way, at a moment of the seed's; all
    that was confirmed is got, from others, though nobody waits for it to come back."""
    confirmed: list[bytes] = []
    with SimulatedCluster(seed=seed) as cluster:
        cluster.queue("orders", on="a")

        def produce() -> None:
            queue = cluster.queue("orders", on="b")
            for number in range(40):
                body = b"%d" % number
                queue.put(body).result(timeout=60)
                confirmed.append(body)

        producer = cluster.spawn(produce)
        cluster.run(seed * 0.017)
        cluster.crash("a")
        producer.result(120)
        queue = cluster.queue("orders", on="c")
        left = set(confirmed)
        while left:
            message = queue.get(timeout=30)
            message.ack().result(30)
            left.discard(message.body)
    assert len(confirmed) == 40


def test_what_is_not_on_the_disk_is_lost_with_the_process() -> None:
    """A node of its own that crashes before its commit has not the message; after it, it has."""
    outcomes = set()
    for seed in range(8):
        with SimulatedCluster(1, seed=seed) as cluster:
            cluster.slow_disk("a", 0.05, 0.05)
            queue = cluster.queue("orders", on="a")
            confirmation = queue.put(b"1")
            cluster.run(0.02 * seed)
            was_confirmed = confirmation.done()
            cluster.crash("a")
            cluster.restart("a")
            count = cluster.queue("orders", on="a").qsize()
            assert count == 1 or not was_confirmed
            outcomes.add(count)
    assert outcomes == {0, 1}


def test_a_wiped_disk_is_filled_from_the_others() -> None:
    """A node whose disk is replaced has the messages again, and serves them when it is alone in
    sync with the other one."""
    with SimulatedCluster(seed=3) as cluster:
        queue = cluster.queue("orders", on="a")
        queue.put_many([b"1", b"2", b"3"]).result(10)
        cluster.crash("c")
        cluster.wipe("c")
        cluster.restart("c")
        cluster.run_until(lambda: set(queue.status().synchronised_mirrors) == {"b", "c"})
        cluster.crash("a")
        bodies = [message.body for message in cluster.queue("orders", on="c").get_many(3, 60)]
        assert bodies == [b"1", b"2", b"3"]


def test_a_silent_cut_and_a_slow_link_are_survived() -> None:
    """Nobody is told of the one; the other delays what is confirmed by what it takes."""
    with SimulatedCluster(seed=6) as cluster:
        queue = cluster.queue("orders", on="a")
        cluster.delay("a", "b", 0.2)
        cluster.delay("a", "c", 0.2)
        began = cluster.now
        queue.put(b"1").result(10)
        assert cluster.now - began >= 0.4
        cluster.heal()
        cluster.cut("a", "b", silent=True)
        cluster.run(10)
        cluster.heal()
        queue.put(b"2").result(30)
        cluster.reset("a", "b")
        queue.put(b"3").result(30)


def test_a_full_disk_blocks_and_goes_on() -> None:
    """Nothing is confirmed while the master's disk is full, and everything after."""
    with SimulatedCluster(1, seed=2) as cluster:
        queue = cluster.queue("orders", on="a")
        cluster.fill_disk("a", 5)
        confirmation = queue.put(b"1")
        cluster.run(4)
        assert not confirmation.done()
        cluster.run(2)
        assert confirmation.done()


def test_a_frozen_process_stands_still_with_its_tasks() -> None:
    """A task of a frozen node does nothing meanwhile, and the others choose another master."""
    ticks: list[float] = []
    with SimulatedCluster(seed=4) as cluster:
        cluster.queue("orders", on="a")

        def tick() -> None:
            while True:
                ticks.append(cluster.now)
                cluster.sleep(0.1)

        cluster.spawn(tick, on="a")
        cluster.run(1)
        cluster.freeze("a", 10)
        frozen = cluster.now
        cluster.run(5)
        assert max(ticks) <= frozen
        assert [status.master for status in cluster.node("c").queues()] == ["b"]
        cluster.run(6)
        assert max(ticks) > frozen + 10


def test_what_a_task_raises_is_raised() -> None:
    """By `run`, by `result`, which tells once, and at the latest at the end; with a name."""

    def fail() -> None:
        raise ValueError("a bug")

    with SimulatedCluster(1) as cluster:
        cluster.spawn(fail, name="first")
        with pytest.raises(ValueError, match="a bug") as raised:
            cluster.run(1)
        assert raised.value.__notes__ == ["in task first, of the test"]
        with pytest.raises(ValueError, match="a bug"):
            cluster.spawn(fail).result()
        cluster.run(1)

    def leave() -> None:
        with SimulatedCluster(1) as cluster:
            cluster.spawn(fail)
            cluster.sleep(1)

    with pytest.raises(ValueError, match="a bug"):
        leave()


def test_a_task_returns_and_ends_with_its_process() -> None:
    """`result` gives what it has returned; one whose node crashes runs its `finally`, no more."""
    ends: list[str] = []
    with SimulatedCluster(1) as cluster:
        assert cluster.spawn(lambda: 7).result() == 7

        def wait() -> None:
            try:
                cluster.sleep(1000)
                ends.append("woke")
            finally:
                ends.append("left")

        task = cluster.spawn(wait, on="a")
        with pytest.raises(TimeoutError):
            task.result(timeout=1)
        cluster.crash("a")
        assert (task.is_done, ends) == (True, ["left"])
        with pytest.raises(SimulationError, match="ended with its process"):
            task.result()
        with pytest.raises(SimulationError, match="start it first"):
            cluster.queue("orders", on="a")


def test_a_task_may_crash_its_own_node() -> None:
    """It ends there, and the node can be started again."""
    with SimulatedCluster(1) as cluster:
        task = cluster.spawn(lambda: cluster.crash("a"), on="a")
        cluster.run(1)
        assert task.is_done
        assert cluster.running == ()
        cluster.restart("a")
        assert cluster.running == ("a",)


def test_who_waits_for_ever_is_told_what_everybody_waits_for() -> None:
    """Past the time limit `Stuck` names each task of the test, and the line where it is."""

    def wait_for_nothing(queue: mirrorq.MirroredQueue) -> None:
        queue.get()

    with SimulatedCluster(1, time_limit=20) as cluster:
        queue = cluster.queue("orders", on="a")
        task = cluster.spawn(wait_for_nothing, queue, name="waiter")
        with pytest.raises(Stuck) as raised:
            task.result()
    text = str(raised.value)
    assert "20 virtual seconds" in text
    assert "in wait_for_nothing" in text
    assert "in test_who_waits" in text


def test_what_would_not_run_is_refused() -> None:
    """An async def as a test would pass whatever it says."""

    async def wait(cluster: SimulatedCluster) -> None: ...

    def give(cluster: SimulatedCluster) -> Iterator[None]:
        yield

    for wrong in (wait, give):
        with pytest.raises(TypeError, match="would not run"):
            simulate(1)(wrong)
        with SimulatedCluster(1) as cluster, pytest.raises(TypeError, match="would not run"):
            cluster.spawn(wrong, cluster)


@pytest.mark.real
def test_a_running_loop_is_refused() -> None:
    """It would wait for itself."""

    async def enter() -> None:
        with SimulatedCluster(1):
            pass

    with pytest.raises(SimulationError, match="runs an event loop"):
        asyncio.run(enter())


def test_a_test_that_sleeps_and_looks_does_not_hang() -> None:
    """Its own sleeps are of the time limit, unless they are meant as a long pause."""
    with SimulatedCluster(1, time_limit=100) as cluster:
        queue = cluster.queue("orders", on="a")
        time.sleep(200)

        def look() -> None:
            while queue.qsize() == 0:
                time.sleep(0.5)

        with pytest.raises(Stuck, match="virtual seconds"):
            look()


def test_who_looks_again_and_again_is_told_that_time_stands_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(schedule, "CHOICES_MAX", 1000)

    def look() -> None:
        while True:
            time.sleep(0)

    with SimulatedCluster(1) as cluster:
        cluster.spawn(look, name="looker")
        with pytest.raises(Stuck, match="virtual time stands still at") as raised:
            cluster.run(1)
    assert "in look" in str(raised.value)


def test_a_task_that_waits_for_something_real_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds everything up; where it does is said instead of hanging."""
    reader, writer = os.pipe()

    def wait_for_real() -> None:
        os.read(reader, 1)

    with SimulatedCluster(1) as cluster:
        cluster.spawn(wait_for_real)
        with monkeypatch.context() as impatient:
            impatient.setattr(schedule, "STALL_S", 0.6)
            with pytest.raises(SimulationError, match="in wait_for_real"):
                cluster.run(1)
        os.write(writer, b"1")
    os.close(reader)
    os.close(writer)


@pytest.mark.real
def test_another_thread_is_refused() -> None:
    """It has no place in the order of things: nothing would be decided by the seed any more."""
    errors: list[BaseException] = []

    def use(function: Callable[[], object]) -> None:
        try:
            function()
        except SimulationError as error:
            errors.append(error)

    with SimulatedCluster(1, patch=False) as cluster:
        queue = cluster.queue("orders", on="a")
        for function in (lambda: queue.put(b"1"), lambda: cluster.sleep(1)):
            thread = threading.Thread(target=use, args=(function,))
            thread.start()
            thread.join()
    assert len(errors) == 2
    assert "start it by cluster.spawn" in str(errors[0])


@pytest.mark.parametrize(
    ("nodes", "text"),
    [(0, "1 to 26"), (-1, "1 to 26"), (27, "1 to 26"), ([], "one name"), (["a", "a"], "each once")],
)
def test_a_number_of_nodes_that_cannot_be(nodes: int | list[str], text: str) -> None:
    with pytest.raises(SimulationError, match=text):
        SimulatedCluster(nodes)


def test_arguments_that_cannot_be() -> None:
    """Told with the value; and a spool would write to the real disk."""
    with SimulatedCluster(2) as cluster:
        calls: list[tuple[str, Callable[[], object]]] = [
            ("there is no node 'q', only a, b", lambda: cluster.connect(to="q")),
            ("'a' has no link to itself", lambda: cluster.cut("a", "a")),
            ("-1 s: give virtual seconds", lambda: cluster.run(-1)),
            ("-1 s: give virtual seconds", lambda: cluster.freeze("a", -1)),
            ("inf s: give virtual seconds", lambda: cluster.sleep(float("inf"))),
            ("spools are not simulated", lambda: cluster.queue("s", on="a", spool=True)),
            ("spools are not simulated", lambda: cluster.node("a").queue("s", spool=True)),
        ]
        for text, call in calls:
            with pytest.raises(SimulationError, match=text):
                call()


def test_a_queue_whose_only_store_is_gone_says_so() -> None:
    """Its node runs: to start it is no remedy."""
    with SimulatedCluster() as cluster:
        cluster.node("a").set_policy("one", "^orders$", {"ha-mode": "exactly", "ha-params": 1})
        queue = cluster.queue("orders", on="a")
        queue.put(b"tea").result(30)
        cluster.crash("a")
        cluster.run_until(lambda: "start a (failed)" in str(cluster.node("b").queues()))
        cluster.wipe("a")
        cluster.restart("a")
        cluster.run_until(
            lambda: "start a (with its former store, or" in str(cluster.node("b").queues())
        )


def test_a_simulation_is_entered_once() -> None:
    cluster = SimulatedCluster(1)
    with cluster:
        time.sleep(3600)  # of any length: it is the test that says so
        assert cluster.now > 3600
    with pytest.raises(SimulationError, match="entered before"), cluster:
        pass


def test_two_simulations_do_not_run_inside_each_other() -> None:
    """The second is refused, and the first goes on; neither leaves threads behind."""
    before = threading.active_count()
    with SimulatedCluster(1) as cluster:
        with pytest.raises(SimulationError, match="already"), SimulatedCluster(1):
            pass
        cluster.run(1)
    assert threading.active_count() <= before


def served_by_a_client(seed: int) -> tuple[list[bytes], list[str], float]:
    """A worker on a client whose entry node crashes, which itself is cut off and crashes."""
    done: list[bytes] = []
    with SimulatedCluster(seed=seed) as cluster:

        def work(orders: mirrorq.MirroredQueue) -> None:
            for message in orders:
                cluster.sleep(0.2)
                with suppress(mirrorq.AckRefused):  # it was cut off, and the message goes elsewhere
                    message.ack().result()
                    done.append(message.body)

        web = cluster.connect("web", to="ab")
        assert web.entry_node == "a"
        orders = cluster.queue("orders", on="web")
        confirmation = orders.put_many([b"%d" % number for number in range(20)])
        confirmation.result(10)
        cluster.spawn(work, orders, on="web")
        cluster.run(1)
        cluster.crash("a")
        cluster.run(3)
        assert web.entry_node == "b"
        cluster.partition({"web"})
        cluster.run(2)
        cluster.heal()
        cluster.run(3)
        cluster.crash("web")
        with pytest.raises(SimulationError, match="connect another one"):
            cluster.queue("orders", on="web")
        cluster.run(3)
        cluster.connect("web", to="cb")
        cluster.spawn(work, cluster.queue("orders", on="web"), on="web")
        cluster.run_until(lambda: len(set(done)) == 20)
        cluster.freeze("web", 3)
        cluster.run(5)
        cluster.stop("web")
        return done, cluster.log, cluster.random.random()


def test_a_client_goes_on_over_crashes_and_cuts() -> None:
    """What `mirrorq.connect` returns, of a process that is no node; by the seed as all else."""
    done, log, drawn = served_by_a_client(1)
    assert set(done) == {b"%d" % number for number in range(20)}
    assert served_by_a_client(1) == (done, log, drawn)
