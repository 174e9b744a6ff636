"""Scenarios 13 to 17: how a mirror comes in sync, on virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from harness.tiny_pages import tiny_pages
from mirrorq.protocol.commands import SetPolicy, Synchronise
from mirrorq.protocol.policy import parse, to_text
from mirrorq.protocol.ring import FetchFrames
from mirrorq.replication import history
from mirrorq.replication.state import contents, paging
from mirrorq.replication.state.queue_state import QueueState
from mirrorq.replication.transfer import Transfer

from .world import World


def _set_policy(world: World, **definition: Any) -> None:
    """Keys are written with underscores here."""
    given = {key.replace("_", "-"): value for key, value in definition.items()}
    policy = parse("sync", "", given)
    answer = world.cluster.ask(world.cluster.running[0], SetPolicy("sync", to_text(policy)))
    assert not answer.error, answer.text


def _manual(names: str = "abw", witnesses: str = "w", **more: Any) -> World:
    """A cluster whose queue is synchronised by hand, its copies in sync so far."""
    world = World(names, witnesses=witnesses)
    _set_policy(world, ha_sync_mode="manual", **more)
    return world


@pytest.fixture
def world() -> World:
    return _manual()


def _synchronise(world: World, on: bool = True, node: str = "a") -> int:
    """How many members were told."""
    answer = world.cluster.ask(node, Synchronise("orders", on))
    assert not answer.error, answer.text
    return answer.value


def _in_sync(world: World) -> str:
    """Names of the mirrors that count as in sync, once nothing more happens."""
    world.cluster.run(5000)
    return "".join(name for name in world.cluster.in_sync(world.queue_id) if name != world.master)


def _missing(world: World, name: str) -> int:
    return world.cluster.engine(name).replicas[world.queue_id].transfer.missing.count


def _stop_b(world: World) -> None:
    world.cluster.kill("b")
    world.until_in_sync("a")


@pytest.mark.parametrize("is_restarted", [False, True])
def test_13_natural_drain(is_restarted: bool, world: World) -> None:
    """B lacks m1 and has m2, which came along the ring, after a restart too: the ack of m1 alone
    brings it in."""
    taker = world.taker("a", prefetch=1)
    _stop_b(world)
    (m1,) = world.put("a", 1, "m1")
    world.until(lambda: len(taker.held) == 1)
    world.cluster.start("b")
    assert _in_sync(world) == ""
    assert world.live("b") == 1
    world.put("a", 1, "m2")
    assert _in_sync(world) == ""
    assert world.live("b") == 2
    if is_restarted:
        _stop_b(world)
        world.cluster.start("b")
        assert _in_sync(world) == ""
    assert _missing(world, "b") == 1
    taker.prefetch = 0
    taker.settle(m1)
    assert _in_sync(world) == "b"
    assert world.cluster.engine("b").replicas[world.queue_id].transfer.fetched_count == 0
    world.check_copies()


def test_13_a_requeued_message_keeps_the_mirror_out(world: World) -> None:
    """It lacks the body still, wherever the message is; the ack brings it in."""
    taker = world.taker("a", prefetch=1)
    _stop_b(world)
    (m1,) = world.put("a", 1, "m1")
    world.until(lambda: len(taker.held) == 1)
    world.cluster.start("b")
    assert _in_sync(world) == ""
    taker.settle(m1, "nack")
    world.until(lambda: len(taker.seen) == 2)
    assert taker.seen == [(m1, False), (m1, True)]
    assert _in_sync(world) == ""
    taker.settle(m1)
    assert _in_sync(world) == "b"
    world.check_copies()


def test_13_a_restarted_mirror_that_missed_nothing_is_in_sync(world: World) -> None:
    """Its data is on its disk: nothing was published or had to be fetched."""
    world.put("a", 20)
    _stop_b(world)
    world.cluster.start("b")
    assert _in_sync(world) == "b"
    world.check()


def test_13_a_policy_that_becomes_automatic_starts_the_transfer(world: World) -> None:
    """Manual until then; the mirror needs no restart and no new view."""
    _stop_b(world)
    world.put("a", 50)
    world.cluster.start("b")
    assert _in_sync(world) == ""
    assert _missing(world, "b") == 50
    _set_policy(world, ha_sync_mode="automatic")
    assert _in_sync(world) == "b"
    world.check()


def _joined(world: World, count: int) -> None:
    """B joins a queue of so many messages by hand: it lacks them all."""
    _stop_b(world)
    world.put("a", count, "old")
    world.cluster.start("b")
    world.until(lambda: _has_state(world, "b"))
    assert _in_sync(world) == ""
    assert _missing(world, "b") == count


def _has_state(world: World, name: str) -> bool:
    replica = world.cluster.engine(name).replicas.get(world.queue_id)
    return replica is not None and replica.ring.repaired and replica.ring.has_state


def _fetched(world: World, name: str) -> int:
    return world.cluster.engine(name).replicas[world.queue_id].transfer.meter.messages


@pytest.mark.parametrize("node", ["a", "b", "w"])
def test_15_told_by_any_node_a_mirror_comes_in(node: str, world: World) -> None:
    """It fetches what it lacks; told again, nothing happens."""
    _joined(world, 60)
    assert _synchronise(world, node=node) == 1
    assert _in_sync(world) == "b"
    assert _fetched(world, "b") == 60
    assert _synchronise(world, node=node) == 0
    assert _synchronise(world, on=False, node=node) == 0
    world.check()


def test_15_nothing_to_synchronise(world: World) -> None:
    """In sync, or without any mirror: told, it says that nobody was."""
    assert (_synchronise(world), _synchronise(world, on=False)) == (0, 0)
    _stop_b(world)
    assert (_synchronise(world), _synchronise(world, on=False)) == (0, 0)
    unknown = world.cluster.ask("a", Synchronise("nothing", True))
    assert unknown.error == "QueueNotFound"


@pytest.mark.parametrize("mode", ["manual", "automatic"])
def test_15_cancelled_half_way_and_gone_on_with(mode: str, world: World) -> None:
    """The mirror does not count as in sync; a later one fetches the rest and no more, over a
    restart of the mirror too."""
    _joined(world, 400)
    _synchronise(world)
    if mode == "automatic":
        _set_policy(world, ha_sync_mode="automatic")
    world.until(lambda: _fetched(world, "b") >= 100)
    assert _synchronise(world, on=False) == 1
    assert _in_sync(world) == ""
    half = _fetched(world, "b")
    assert 100 <= half < 400
    assert _missing(world, "b") == 400 - half
    assert _synchronise(world, on=False) == 0
    world.put("a", 5, "new")
    _set_policy(world, ha_sync_mode="manual")
    _stop_b(world)
    world.cluster.start("b")
    assert _in_sync(world) == ""
    assert _missing(world, "b") == 400 - half
    assert _synchronise(world) == 1
    assert _in_sync(world) == "b"
    assert _fetched(world, "b") == 400 - half
    world.check()


def test_15_a_request_outlives_the_master_that_was_there() -> None:
    """B was told by hand; the master dies in the middle: B goes on under the next one."""
    world = _manual("abcw")
    _joined_of_three(world, 300)
    _synchronise(world)
    world.until(lambda: 50 <= _fetched(world, "b") < 250)
    world.cluster.kill("a")
    assert _in_sync(world) == "b"
    assert world.master == "c"
    world.check()


def _joined_of_three(world: World, count: int) -> None:
    world.cluster.kill("b")
    world.until_in_sync("a", "c")
    world.put("a", count, "old")
    world.cluster.start("b")
    world.until(lambda: _has_state(world, "b"))
    assert _in_sync(world) == "c"
    assert _missing(world, "b") == count


def test_16_mirrors_die_in_the_middle() -> None:
    """The donor, then the joiner: the queue goes on, and nothing counts that is not in sync."""
    world = _manual("abcvw", witnesses="vw")
    _joined_of_three(world, 300)
    producer = world.producer("a", 300, "during")
    _synchronise(world)
    world.until(lambda: 50 <= _fetched(world, "b") < 250)
    world.cluster.kill("c")
    world.until(lambda: _in_sync_now(world) in ("a", "ab"))
    assert "b" not in _in_sync_now(world) or not _missing(world, "b")
    world.cluster.kill("b")
    world.until(lambda: _in_sync_now(world) == "a")
    world.until(lambda: producer.is_done)
    world.cluster.start("b", "c")
    world.cluster.run(3000)
    _synchronise(world)
    world.until_in_sync("a", "b", "c")
    world.check()


def _in_sync_now(world: World) -> str:
    return "".join(world.cluster.in_sync(world.queue_id))


def test_16_the_last_copy_in_sync_dies(world: World) -> None:
    """Half of the messages are at B: nobody may become master, until A is back with them all."""
    _joined(world, 300)
    _synchronise(world)
    world.until(lambda: 50 <= _fetched(world, "b") < 250)
    world.cluster.kill("a")
    world.cluster.run(10_000)
    assert world.master is None
    assert _in_sync_now(world) == "a"
    world.cluster.start("a")
    world.until(lambda: world.master == "a")
    assert world.live("a") == 300
    world.cluster.run(3000)
    _synchronise(world)
    world.until_in_sync("a", "b")
    world.check()


def test_17_a_requeue_during_the_sync_lands_in_its_place(world: World) -> None:
    """Unacked messages are synchronised too; given back in the middle, each copy has them where
    they were."""
    taker = world.taker("a", prefetch=5)
    _stop_b(world)
    old = world.put("a", 200, "old")
    world.until(lambda: len(taker.held) == 5)
    world.cluster.start("b")
    assert _in_sync(world) == ""
    _synchronise(world)
    world.until(lambda: 20 <= _fetched(world, "b") < 150)
    taker.prefetch = 0
    for body in (old[3], old[1]):
        taker.settle(body, "nack")
    taker.settle(old[0])
    world.until(lambda: len(taker.outcomes) == 3)
    assert _in_sync(world) == "b"
    assert world.live("b") == 199
    world.cluster.start()
    world.cluster.kill("a")
    world.until(lambda: world.master == "b")
    late = world.taker("b", prefetch=300)
    world.until(lambda: len(late.seen) == 199)
    assert [body for body, _ in late.seen] == old[1:]
    assert [flag for _, flag in late.seen[:4]] == [True] * 4
    world.check_copies()


def test_14_a_batch_is_no_larger_than_the_policy_says() -> None:
    """ha-sync-batch-size: most messages that one request names."""
    world = _manual(ha_sync_batch_size=3)
    _joined(world, 40)
    asked: list[int] = []
    engine = world.cluster.engine("b")
    step = engine.step

    def watching(*arguments: Any) -> Any:
        effects = step(*arguments)
        for _, message in effects.send_first:
            if isinstance(message, FetchFrames):
                asked.append(message.upto_sequence - message.after_sequence)
        return effects

    engine.step = watching  # type: ignore[method-assign]
    _synchronise(world)
    assert _in_sync(world) == "b"
    assert max(asked) == 3
    assert sum(asked) >= 40
    world.check()


def test_14_progress_is_seen_on_every_node(world: World) -> None:
    """How much is left is in the status of all nodes, and None when nothing is going on."""
    _joined(world, 4000)

    assert [world.status(node).sync_progress for node in "abw"] == [None] * 3
    _synchronise(world)
    for node in "abw":
        world.until(lambda n=node: 0 < (world.status(n).sync_progress or 0) < 1)  # type: ignore[misc]
        status = world.status(node)
        assert status.state == "syncing"
        assert 0 < status.sync_messages_left < 4000
        assert status.sync_bytes_left > status.sync_messages_left
        world.until(lambda n=node: world.status(n).sync_seconds_left is not None)  # type: ignore[misc]
    assert _in_sync(world) == "b"
    assert [world.status(node).sync_progress for node in "abw"] == [None] * 3
    assert [world.status(node).sync_messages_left for node in "abw"] == [0] * 3


@pytest.mark.parametrize("fault", ["", "donor", "joiner"])
def test_a_state_in_many_parts_comes_in_while_the_queue_goes_on(fault: str) -> None:
    """What is put and acked meanwhile is of no part, and comes behind them; who dies in the middle
    is left, or begins anew."""
    with tiny_pages(part_bytes=60):
        _joins_in_parts(fault)


def _joins_in_parts(fault: str) -> None:
    world = World("abcw", witnesses="w")
    world.cluster.kill("b")
    world.until_in_sync("a", "c")
    world.put("a", 200, "old")
    world.cluster.start("b")
    world.producer("a", 60, "during")
    world.consumer("a")
    world.until(lambda: _parts(world, "b") > 3)
    if fault:
        world.cluster.kill("c" if fault == "donor" else "b")
        world.cluster.run(3000)
        world.cluster.start()
    world.until_in_sync("a", "b", "c")
    world.until(lambda: not world.live("a"))
    world.cluster.run(2000)
    world.check()


def test_a_state_that_breaks_off_goes_on_with_what_has_come() -> None:
    """Twice its process dies, and then its donor: each time it begins with the pages that had
    come, and in the end it has what the others have, and nothing else on its disk."""
    with tiny_pages(part_bytes=60):
        world = World("abcw", witnesses="w")
        world.cluster.kill("b")
        world.until_in_sync("a", "c")
        world.put("a", 200, "old")
        world.cluster.start("b")
        world.producer("a", 60, "during")
        for name in ("b", "b", "c"):
            world.until(lambda: _parts(world, "b") > 6)
            before = _transfer(world, "b")._incoming
            world.cluster.kill(name)
            if name == "b":
                world.cluster.run(3000)
                world.cluster.start("b")
            world.until(lambda before=before: _is_another(world, before.number))  # type: ignore[misc]
            assert _transfer(world, "b")._incoming._retained
        world.cluster.start("c")
        world.until_in_sync("a", "b", "c")
        world.consumer("a")
        world.until(lambda: not world.live("a"))
        world.cluster.run(2000)
        world.check()
        files = world.cluster.nodes["b"].disk.queues[world.queue_id]
        assert not files.image(world.queue_id).stale


def _transfer(world: World, name: str) -> Transfer:
    return world.cluster.engine(name).replicas[world.queue_id].transfer


def _is_another(world: World, number: int) -> bool:
    """Whether b has got parts of another state than that of this number."""
    return _parts(world, "b") > 0 and _transfer(world, "b")._incoming.number != number


def _parts(world: World, name: str) -> int:
    """How many parts of a state a node has got."""
    replica = world.cluster.engine(name).replicas.get(world.queue_id)
    incoming = None if replica is None else replica.transfer._incoming
    return 0 if incoming is None else incoming.count


def test_a_node_below_the_oldest_epoch_of_the_history_takes_the_state_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R6: it shares no epoch with its master that anybody still knows, so its copy is made anew;
    nothing is lost, and the histories stay as short as they may be."""
    for module in (history, contents, paging):
        monkeypatch.setattr(module, "HISTORY_COUNT", 2)
    world = World("abcde", witnesses="de")
    world.put("a", 10)
    world.cluster.kill("c")
    for turn in range(4):
        world.cluster.kill("b")
        world.until(lambda: world.cluster.in_sync(world.queue_id) == ("a",))
        world.put("a", 2, f"x{turn}")
        world.cluster.start("b")
        world.until(lambda: set(world.cluster.in_sync(world.queue_id)) == {"a", "b"})
        world.put("a", 2, f"y{turn}")
    master = world.cluster.engine("a").replicas[world.queue_id]
    (image,) = world.cluster.nodes["c"].disk.images()
    own = QueueState.decode(image.state) if image.state else QueueState()
    epochs = {entry.epoch for entry in image.entries} | {epoch for epoch, _ in own.history}
    assert epochs.isdisjoint(epoch for epoch, _ in master.ring.log.history)
    world.cluster.start("c")
    world.until_in_sync("a", "b", "c")
    for name in "abc":
        replica = world.cluster.engine(name).replicas[world.queue_id]
        assert len(replica.state.history) == 2
        assert len(replica.ring.log.history) <= 3
    world.check()
