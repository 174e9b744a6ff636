"""Bytes that change on simulated disks: nothing damaged is delivered, all that somebody has whole
is, and what nobody has keeps nothing else back."""

from __future__ import annotations

import pytest

from harness.swarm import Swarm
from mirrorq.protocol.commands import SetPolicy
from mirrorq.protocol.policy import parse, to_text
from mirrorq.session.calls import Query, purge_request

from .test_staged import Scene
from .world import Taker, World


def published(world: World, count: int = 5) -> list[bytes]:
    """One by one: a frame each."""
    return [world.put("a", 1, f"m{number}")[0] for number in range(count)]


def bodies(taker: Taker) -> list[bytes]:
    return [body for body, _ in taker.seen]


def damaged(world: World, *names: str, first: int) -> None:
    for name in names:
        world.cluster.damage(name, world.queue_id, first)


def is_whole(world: World, name: str) -> bool:
    return not world.cluster.nodes[name].disk.is_damaged


def delivery_of(world: World) -> list[tuple[int, int]]:
    """What the master has set aside."""
    assert world.master is not None
    master = world.cluster.engine(world.master).replicas[world.queue_id].master
    assert master is not None
    return list(master.dispatch.ready.aside)


@pytest.mark.parametrize("whole", ["bc", "b", "c"])
def test_the_master_fetches_a_damaged_frame(whole: str, world: World) -> None:
    """Whoever has it whole is found; until it has come nothing overtakes it, and it is whole on
    the master's disk then."""
    sent = published(world)
    damaged(world, *(name for name in "abc" if name not in whole), first=3)
    taker = world.taker("b")
    world.until(lambda: len(taker.seen) == 5)
    assert bodies(taker) == sent
    assert not any(redelivered for _, redelivered in taker.seen)
    world.until(lambda: is_whole(world, "a"))
    assert delivery_of(world) == []


def test_what_nobody_has_whole_is_set_aside(world: World) -> None:
    """All others are delivered, the one stays, counted and named; nothing asks without end."""
    sent = published(world)
    damaged(world, "a", "b", "c", first=3)
    taker = world.taker("a")
    world.until(lambda: len(taker.seen) == 4)
    assert bodies(taker) == [body for body in sent if body != sent[2]]
    assert delivery_of(world) == [(3, 3)]
    assert world.live("a") == 5
    assert sum("set aside: " in line for line in world.cluster.trace) <= 3
    asked = world.cluster.entries_sent.copy()
    world.cluster.run(60_000)
    assert world.cluster.entries_sent == asked
    lines = [line for line in world.cluster.trace if "damage" in line and "notice" not in line]
    assert len(lines) < 12
    assert delivery_of(world) == [(3, 3)]


def test_a_purge_ends_what_is_set_aside(world: World) -> None:
    """An operator can be done with it."""
    published(world)
    damaged(world, "a", "b", "c", first=3)
    taker = world.taker("a")
    world.until(lambda: len(taker.seen) == 4)
    for body in bodies(taker):
        taker.settle(body)
    world.until(lambda: world.live("a") == 1)
    taker.session.query(Query("purge", purge_request))
    taker.poke()
    world.until(lambda: world.live("a") == 0)
    world.cluster.run(5000)
    assert delivery_of(world) == []
    assert is_whole(world, "a")


def test_what_was_set_aside_comes_when_somebody_has_it(world: World) -> None:
    """The only whole copy is on a node that is away: the rest is delivered, and the one message
    when that node is back, though it has then to join."""
    sent = published(world)
    damaged(world, "a", "b", first=3)
    world.cluster.kill("c")
    taker = world.taker("a")
    world.until(lambda: len(taker.seen) == 4)
    assert sent[2] not in bodies(taker)
    world.cluster.start("c")
    world.until(lambda: len(taker.seen) == 5)
    assert bodies(taker)[-1] == sent[2]
    world.until(lambda: is_whole(world, "a") and is_whole(world, "b"))
    world.until_in_sync(*"abc")


def test_a_joiner_comes_in_sync_though_a_message_is_lost() -> None:
    """It waits for no body that nobody has, and gets what any member in sync has whole."""
    world = World()
    published(world)
    damaged(world, "a", first=2)
    damaged(world, "a", "b", first=3)
    damaged(world, "b", first=4)
    world.cluster.kill("c")
    world.until_in_sync(*"ab")
    world.cluster.wipe("c")
    world.cluster.start("c")
    world.until_in_sync(*"abc")
    files = world.cluster.nodes["c"].disk.queues[world.queue_id]
    assert sorted(files.frames) == [1, 2, 4, 5]


def test_a_mirror_mends_what_it_could_not_serve(world: World) -> None:
    """A joiner asks a mirror, whose frame is damaged: both have it whole in the end."""
    published(world)
    damaged(world, "b", first=3)
    world.cluster.kill("c")
    world.until_in_sync(*"ab")
    world.cluster.wipe("c")
    world.cluster.start("c")
    world.until_in_sync(*"abc")
    world.until(lambda: is_whole(world, "b"))
    files = world.cluster.nodes["c"].disk.queues[world.queue_id]
    assert sorted(files.frames) == [1, 2, 3, 4, 5]


def test_a_new_master_mends_what_it_knew_to_be_damaged(world: World) -> None:
    """A mirror found its damage and could ask nobody; it leads later, and asks who joins."""
    sent = published(world)
    damaged(world, "b", first=3)
    world.cluster.kill("a")
    world.until(lambda: world.master == "b")
    taker = world.taker("b")
    world.until(lambda: len(taker.seen) == 5)
    assert bodies(taker) == sent


@pytest.mark.parametrize("disk", ["state", "log"])
def test_a_copy_that_cannot_be_read_is_taken_anew(disk: str, world: World) -> None:
    """A node starts with a checkpoint, or the end of a log, that is damaged: it takes the queue
    from another member, and loses nothing."""
    sent = published(world)
    if disk == "state":
        world.cluster.run(20_000)
    else:
        # A frame that is damaged stands in its queue's files, not in the rail's log.
        world.until(lambda: 5 in world.cluster.nodes["b"].disk.queues[world.queue_id].frames)
    world.cluster.kill("b")
    world.until_in_sync(*"ac")
    if disk == "state":
        assert world.cluster.nodes["b"].disk.queues[world.queue_id].state is not None
        world.cluster.damage_state("b", world.queue_id)
    else:
        damaged(world, "b", first=5)
    world.cluster.start("b")
    world.until_in_sync(*"abc")
    world.until(lambda: is_whole(world, "b"))
    files = world.cluster.nodes["b"].disk.queues[world.queue_id]
    assert sorted(files.frames) == [1, 2, 3, 4, 5]
    taker = world.taker("b")
    world.until(lambda: len(taker.seen) == 5)
    assert bodies(taker) == sent


@pytest.mark.parametrize("broken", "abc")
def test_a_copy_that_cannot_be_read_leads_nobody(broken: str) -> None:
    """All nodes fail at once and one has nothing that it could read: alone with a witness it does
    not go on, and neither confirms nor shows an empty queue; when another comes back all is
    there."""
    world = World("abcw", witnesses="w")
    sent = published(world)
    world.cluster.run(20_000)
    for name in "abcw":
        world.cluster.kill(name)
    world.cluster.damage_state(broken, world.queue_id)
    others = [name for name in "abc" if name != broken]
    world.cluster.start(broken, "w", others[0])
    world.until(lambda: world.master == others[0])
    world.until_in_sync(broken, others[0])
    assert is_whole(world, broken)
    taker = world.taker(broken)
    world.until(lambda: len(taker.seen) == 5)
    assert bodies(taker) == sent


def test_a_queue_waits_for_a_copy_that_can_be_read() -> None:
    """Of two copies one cannot be read, and the other is away: the queue is down."""
    world = World("abcw", witnesses="cw")
    published(world)
    world.cluster.run(20_000)
    for name in "abcw":
        world.cluster.kill(name)
    world.cluster.damage_state("a", world.queue_id)
    world.cluster.start("a", "c", "w")
    world.cluster.run(20_000)
    assert world.master is None
    world.cluster.start("b")
    world.until(lambda: world.master == "b")
    world.until_in_sync(*"ab")
    assert world.live("b") == 5


def test_a_damaged_dead_letter_arrives(world: World) -> None:
    """It ended in its own queue, and its body was damaged before it had left: it is fetched, and
    arrives with all others, in order."""
    dead_id = world.cluster.declare("a", "dead")
    policy = parse("dlq", "orders", {"dead-letter-queue": "dead", "message-ttl": 3000})
    answer = world.cluster.ask("a", SetPolicy("dlq", to_text(policy)))
    assert not answer.error, answer.text
    published(world)
    damaged(world, "a", first=2)
    world.until(lambda: world.live("a") == 0)
    engine = world.cluster.engine("a")
    world.until(lambda: engine.replicas[dead_id].state.live.count == 5)
    world.until(lambda: is_whole(world, "a"))


@pytest.mark.slow
def test_nothing_damaged_is_delivered_whatever_breaks() -> None:
    """Bytes change on disks under load and all other faults: every body that is delivered was
    published, in order, and what somebody has whole comes in the end."""
    changed = mended = 0
    for seed in range(4, 14):
        swarm = Swarm(seed, flips=True, policies=False, members=False, is_short=True)
        report = swarm.run()
        assert report.wrong == [], seed
        changed += report.faults.get("changed byte in a frame", 0)
        mended += sum("whole again" in line for line in report.trace)
    assert changed > 20
    assert mended > 2


def test_damaged_bodies_that_were_staged_are_fetched() -> None:
    """What is staged lies under sequences of its own: a frame that is damaged before the commit,
    and one behind it, are fetched and delivered at the places that the commit gave them."""
    scene = Scene()
    run = scene.run("r1")
    records = [scene.stage(run, partition) for partition in range(2)]
    staged = sorted(scene.bodies("a"))
    assert len(staged) >= 2
    damaged(scene.world, "a", first=staged[0])
    driver = scene.driver(run, *records)
    driver.commit()
    scene.world.until(lambda: driver.is_done)
    damaged(scene.world, "a", first=staged[-1])
    taker = scene.world.taker("b")
    rows = [row for record in records for row in record.rows]
    scene.world.until(lambda: len(taker.seen) == len(rows))
    assert sorted(bodies(taker)) == sorted(rows)
    scene.world.until(lambda: is_whole(scene.world, "a"))


def test_a_confirm_may_count_a_copy_that_was_damaged_since() -> None:
    """A mirror's mark comes to the master; then the mirror's copy is damaged while it is down, and
    begins anew in a view that has it joining. The master's slow disk has the message only then,
    before the master knows that view: its confirm is true (seed 163)."""
    world = World("abcde", seed=2)
    leader = world.cluster.engine("a").leader
    assert leader not in (None, "a")
    victim = next(name for name in "bcde" if name != leader)
    disk = world.cluster.nodes[victim].disk
    producer = world.producer("a", 1)
    world.until(lambda: producer.is_done)
    world.cluster.fill_disk("a", 100)
    ring = world.cluster.engine("a").replicas[world.queue_id].ring
    lsn = ring.log.received + 1
    producer.count = 2
    producer.publish()
    world.until(lambda: list(ring.reported.values()) == 4 * [lsn])
    world.cluster.cut("a", leader)
    world.cluster.kill(victim)
    damaged(world, victim, first=2)
    world.cluster.start(victim)
    world.until(lambda: world.queue_id not in disk.queues)
    assert not producer.is_done
    world.until(lambda: producer.is_done)
    assert ring.epoch == 1
    assert world.cluster.onlooker.wrong == []
