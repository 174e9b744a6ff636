"""Scenario 29: dead-lettered messages arrive once and carry why, whoever dies meanwhile."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest
from attrs import evolve

from harness import checkers
from harness.workload import Place, Producer
from mirrorq.protocol.commands import DeleteQueue, SetPolicy
from mirrorq.protocol.policy import parse, to_text
from mirrorq.replication.master.courier import is_courier
from mirrorq.replication.state.outbox import is_outbox
from mirrorq.wire.properties import Properties

from .world import World

SEEDS = range(4)


class DeadLetters(World):
    """Queue "orders" on a, whose messages go to "dead", mastered by another node."""

    def __init__(self, names: str = "abc", *, seed: int = 1, **definition: Any) -> None:
        super().__init__(names, seed=seed)
        self.dead_id = self.cluster.declare(names[1], "dead")
        assert self.cluster.master(self.dead_id) == names[1]
        self.define("orders", dead_letter_queue="dead", **definition)

    def define(self, queue: str, **definition: Any) -> None:
        given = {key.replace("_", "-"): value for key, value in definition.items()}
        command = SetPolicy(queue, to_text(parse(queue, f"^{queue}$", given, 5)))
        answer = self.cluster.ask(self.cluster.running[0], command)
        assert not answer.error, answer.text
        self.cluster.run(50)

    def dead(self) -> list[tuple[bytes, dict[str, Any]]]:
        """(body, headers) of what stands in the dead-letter queue."""
        return [
            (body, msgspec.msgpack.decode(column, type=Properties).headers)
            for body, column in checkers.standing(self.cluster, self.dead_id)
        ]

    def outgoing(self, queue_id: int | None = None) -> int:
        """Messages in the outbox, as the master has applied it."""
        queue_id = queue_id or self.queue_id
        master = self.cluster.master(queue_id)
        if master is None:
            return -1
        return self.cluster.engine(master).replicas[queue_id].state.outbox.count

    def until_arrived(self, count: int) -> None:
        self.until(
            lambda: (
                self.outgoing() == 0
                and self.cluster.master(self.dead_id) is not None
                and len(checkers.standing(self.cluster, self.dead_id)) == count
            )
        )

    def kill_masters(self, *at_ms: int) -> None:
        """In turn the master of the one queue and of the other dies, and comes back."""

        def kill(queue_id: int) -> None:
            master = self.cluster.master(queue_id)
            if master is not None and len(self.cluster.running) == len(self.cluster.nodes):
                self.cluster.kill(master)
                self.cluster.after(2500, lambda: self.cluster.start(master))

        for turn, time_ms in enumerate(at_ms):
            queue_id = (self.queue_id, self.dead_id)[turn % 2]
            self.cluster.after(time_ms, lambda queue_id=queue_id: kill(queue_id))

    def check_all(self, *ended: bytes) -> None:
        """Everything well again: each message in one place, the same on every copy."""
        self.cluster.start()
        self.cluster.run(5000)
        queues = (self.queue_id, self.dead_id)
        assert checkers.misrouted(self.journal, self.cluster, queues, ended) == []
        for queue_id in queues:
            assert checkers.unequal(self.cluster, queue_id) == []
        assert self.cluster.onlooker.wrong == []


@pytest.mark.parametrize("seed", SEEDS)
def test_29_expired_messages_arrive_once(seed: int) -> None:
    """message-ttl, while both masters die in turn."""
    world = DeadLetters(seed=seed, message_ttl=300)
    producer = world.producer("c", 80)
    world.kill_masters(100 + 17 * seed, 3500 + 29 * seed, 7000, 10_500 + 5 * seed)
    world.until(lambda: producer.is_done or not producer.is_alive)
    world.cluster.run(18_000)
    world.cluster.start()
    world.until(lambda: world.master is not None and world.live(world.master) == 0)
    world.until(lambda: world.outgoing() == 0)
    world.check_all()
    assert checkers.undrained(world.cluster, world.queue_id) == []
    dead = world.dead()
    assert len(dead) >= sum(a.state == "acknowledged" for a in world.journal.attempts.values())
    assert all(headers["x-death-reason"] == "expired" for _, headers in dead)


@pytest.mark.parametrize("seed", SEEDS)
def test_29_what_drop_head_drops_arrives_once(seed: int) -> None:
    """The oldest go to the other queue, the newest stay: nothing is lost between them."""
    world = DeadLetters(seed=seed, max_length=5, overflow="drop-head")
    producer = world.producer("c", 60)
    world.kill_masters(60 + 11 * seed, 3800 + 3 * seed)
    world.until(lambda: producer.is_done or not producer.is_alive)
    world.cluster.run(8000)
    world.cluster.start()
    world.until(lambda: world.outgoing() == 0)
    world.check_all()
    assert world.live("a") == 5


def test_29_all_stop_while_messages_are_on_their_way() -> None:
    """The target is down: the outbox waits, survives a restart of everything and a new copy of
    the source, and is emptied when the target is back."""
    world = DeadLetters("abcde", message_ttl=50, ha_mode="nodes", ha_params=["a", "c", "d"])
    world.define("dead", ha_mode="nodes", ha_params=["b"])
    world.until(lambda: world.cluster.in_sync(world.dead_id) == ("b",))
    world.until_in_sync("a", "c", "d")
    world.cluster.kill("b")
    bodies = world.put("c", 10)
    world.until(lambda: world.outgoing() == 10)
    world.cluster.run(5000)
    for name in "acde":
        world.cluster.kill(name)
    world.cluster.start("a", "c", "d", "e")
    world.until(lambda: world.outgoing() == 10)
    world.until_in_sync("a", "c", "d")
    world.cluster.run(1000)  # until all have heard of it: b's vote is gone, and d's goes now
    world.cluster.kill("d")
    world.until_in_sync("a", "c")
    world.cluster.wipe("d")
    world.cluster.start("d")
    world.until_in_sync("a", "c", "d")
    for name in "ac":
        world.cluster.kill(name)
        world.until(lambda name=name: world.master not in (None, name))
        world.cluster.run(3000)
        world.cluster.start(name)
        world.until_in_sync("a", "c", "d")
    assert world.outgoing() == 10
    world.cluster.start("b")
    world.until_arrived(10)
    assert sorted(body for body, _ in world.dead()) == sorted(bodies)
    world.check_all()


def test_29_a_queue_goes_only_when_its_outbox_is_empty() -> None:
    world = DeadLetters("abcd", message_ttl=50)
    world.define("dead", ha_mode="nodes", ha_params=["b"])
    world.until(lambda: world.cluster.in_sync(world.dead_id) == ("b",))
    world.cluster.kill("b")
    world.put("c", 10)
    world.until(lambda: world.outgoing() == 10)
    assert not world.cluster.ask("c", DeleteQueue(world.queue_id)).error
    world.cluster.run(5000)
    assert world.outgoing() == 10
    with pytest.raises(AssertionError, match="is being deleted"):
        world.cluster.declare("c", "orders")
    world.cluster.start("b")
    world.until(
        lambda: all(
            world.cluster.engine(name).catalog.queue(world.queue_id) is None for name in "abcd"
        )
    )
    assert len(world.dead()) == 10


def test_29_a_deleted_target_is_given_up() -> None:
    """By an op, on every copy; what comes later goes nowhere, and the log says so."""
    world = DeadLetters("abcd", message_ttl=50)
    world.define("dead", ha_mode="nodes", ha_params=["b"])
    world.until(lambda: world.cluster.in_sync(world.dead_id) == ("b",))
    world.cluster.kill("b")
    world.put("c", 10)
    world.until(lambda: world.outgoing() == 10)
    assert not world.cluster.ask("c", DeleteQueue(world.dead_id)).error
    world.until(lambda: world.outgoing() == 0)
    assert any("went nowhere: it was deleted" in line for line in world.cluster.trace)
    world.put("c", 5, "late")
    world.until(lambda: world.master is not None and world.live(world.master) == 0)
    assert any("'dead' does not exist: " in line for line in world.cluster.trace)
    assert "dead-letter-queue 'dead' does not exist" in "".join(world.status("c").warnings)
    master = world.master
    assert master is not None
    ended = world.cluster.engine(master).replicas[world.queue_id].master.endings.counts
    assert ended["no_dead_letter_queue"] == 5
    world.cluster.run(5000)
    assert checkers.undrained(world.cluster, world.queue_id) == []
    assert checkers.unequal(world.cluster, world.queue_id) == []


def test_29_a_circle_ends() -> None:
    """Both queues expire messages into each other: a message goes round once, and is dropped."""
    world = DeadLetters(message_ttl=100)
    world.define("dead", message_ttl=100, dead_letter_queue="orders")
    world.put("c", 7)
    world.until(lambda: world.live("a") == 0)
    world.cluster.run(2000)
    assert world.dead() == []
    assert world.live("a") == 0
    told = [line for line in world.cluster.trace if "went nowhere: they have died there" in line]
    assert sum(int(line.split(" message(s)")[0].split()[-1]) for line in told) == 7
    assert all("for queue 'orders'" in line for line in told)
    assert world.outgoing() == world.outgoing(world.dead_id) == 0


def test_29_a_rejected_message_may_go_round_again() -> None:
    """orders -> dead by a consumer's will, and back by time: that is a retry, no circle."""
    world = DeadLetters()
    world.define("dead", message_ttl=100, dead_letter_queue="orders")
    (body,) = world.put("c", 1)
    taker = world.taker("c")
    for turn in range(3):
        world.until(lambda: len(taker.held) == 1)
        assert len(taker.seen) == turn + 1
        taker.settle(body, "reject")
        world.until(lambda: not taker.held)
    world.until(lambda: len(taker.held) == 1)
    world.until(lambda: world.outgoing(world.dead_id) == 0)
    ((_, column),) = checkers.standing(world.cluster, world.queue_id)
    headers = msgspec.msgpack.decode(column, type=Properties).headers
    assert headers["x-death-count"] == 6
    assert headers["x-death-queue"] == "dead"


def test_what_is_not_stable_is_published_nowhere() -> None:
    """A rejection that only its master has: it dies, and with it the rejection."""
    world = DeadLetters("abcd", ha_mode="nodes", ha_params=["a", "c", "d"])
    world.define("dead", ha_mode="nodes", ha_params=["b"])
    world.until(lambda: world.cluster.in_sync(world.dead_id) == ("b",))
    world.until_in_sync("a", "c", "d")
    (body,) = world.put("b", 1)
    taker = world.taker("a")
    world.until(lambda: len(taker.held) == 1)
    world.cluster.cut("a", "c", silent=True)
    world.cluster.cut("a", "d", silent=True)
    taker.settle(body, "reject")
    world.cluster.run(50)
    world.cluster.kill("a")
    world.until(lambda: world.master not in (None, "a"))
    world.cluster.heal_all()
    world.check_all()
    assert world.dead() == []


def test_an_outbox_is_known_however_late_it_comes_back() -> None:
    """The target has the message; the op that says so is lost with the source's master, and the
    next one comes when every idle producer has been forgotten."""
    world = DeadLetters("abcde", ha_mode="nodes", ha_params=["a", "c"])
    world.define("dead", ha_mode="nodes", ha_params=["b"])
    world.until(lambda: world.cluster.in_sync(world.dead_id) == ("b",))
    world.until_in_sync("a", "c")
    world.cluster.kill("b")
    world.cluster.config = evolve(world.cluster.config, producer_expiry_ms=5000)
    world.cluster.start("b")
    world.until(lambda: world.cluster.master(world.dead_id) == "b")
    (body,) = world.put("d", 1)
    taker = world.taker("a")
    world.until(lambda: len(taker.held) == 1)
    taker.settle(body, "reject")
    world.until(lambda: world.outgoing() == 1)
    world.cluster.cut("a", "c", silent=True)
    world.until(lambda: len(world.dead()) == 1)
    assert world.outgoing() == 1
    world.cluster.kill("a")
    world.cluster.kill("c")
    world.cluster.run(15_000)
    other = Producer(Place(world.cluster, "e", world.dead_id, "o", Random(1)), world.journal, 1)
    other.publish()
    world.until(lambda: other.is_done)
    world.cluster.run(1000)
    world.cluster.heal_all()
    world.cluster.start("c")
    world.until(lambda: world.master == "c" and world.outgoing() == 0)
    world.check_all()


def test_an_outbox_entry_is_marked_done() -> None:
    """Nothing stays in the outbox, in memory or on a disk, once the target has confirmed."""
    world = DeadLetters(message_ttl=50)
    world.put("c", 20)
    world.until_arrived(20)
    world.cluster.run(5000)
    replica = world.cluster.engine("a").replicas[world.queue_id]
    assert replica.state.outbox.idle == {world.dead_id: 21}
    assert checkers.undrained(world.cluster, world.queue_id) == []


REPLIES = 12


def test_replies_to_clients_that_are_gone_leave_nothing_behind(world: World) -> None:
    """Request and reply with a queue for each client: when those are deleted, no copy of the
    requests' queue has an outbox or a number of theirs, and none of the answers' an id."""
    cluster, taker = world.cluster, world.taker("b")
    names = [f"reply-{number}" for number in range(REPLIES)]
    clients = [cluster.declare("c", name) for name in names]
    for client, body in zip(clients, world.put("c", REPLIES), strict=True):
        world.until(lambda body=body: any(held == body for _, held in taker.held))
        taker.settle(body, "move", target=client)
    world.until(lambda: len(taker.outcomes) == REPLIES)
    world.until(lambda: all(len(checkers.standing(cluster, client)) == 1 for client in clients))
    copies = [cluster.engine(name).replicas[world.queue_id].state for name in "abc"]
    world.until(lambda: all(copy.outbox.count == 0 for copy in copies))
    assert all(len(copy.outbox.image()) == REPLIES for copy in copies)
    for client in clients[1:]:
        assert not cluster.ask("a", DeleteQueue(client)).error
    world.until(lambda: all(list(copy.outbox.idle) == clients[:1] for copy in copies))
    assert not any("went nowhere" in line for line in cluster.trace)
    answers = [cluster.engine(name).replicas[clients[0]].state for name in "abc"]
    assert all(any(map(is_outbox, one.producers)) for one in answers)
    assert not cluster.ask("a", DeleteQueue(world.queue_id)).error
    world.until(lambda: not any(is_outbox(one) for copy in answers for one in copy.producers))
    master = cluster.engine("c").replicas[clients[0]].master
    assert master is not None
    assert not any(is_courier(session) for session in master.attachments)
    assert checkers.unequal(cluster, clients[0]) == []
