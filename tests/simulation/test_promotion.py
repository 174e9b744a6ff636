"""Promotion on virtual time: shutdown and failure, in sync or not, and what is lost by it."""

from __future__ import annotations

import pytest

from harness import checkers
from mirrorq.protocol.commands import SetPolicy
from mirrorq.protocol.policy import parse, to_text

from .world import World

FOREVER_MS = 10_000_000
MODES = ("when-synced", "always")


@pytest.fixture(autouse=True)
def _no_new_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies without room would take the state anew, and know of all that there is."""
    monkeypatch.setattr("mirrorq.replication.replica.NO_ROOM_MS", FOREVER_MS)


def set_policy(world: World, **definition: object) -> None:
    """One policy for all queues; underscores stand for hyphens."""
    told = {key.replace("_", "-"): value for key, value in definition.items()}
    answer = world.cluster.ask("v", SetPolicy("p", to_text(parse("p", "", told))))
    assert not answer.error, answer.text


def alone_in_sync(seed: int, **definition: object) -> tuple[World, list[bytes]]:
    """Master A is alone in sync with 18 messages; B and C have ten of them, and no room for
    the others: of five they know without having the bodies, of three nothing. V and W are
    witnesses."""
    world = World("abcvw", witnesses="vw", seed=seed)
    set_policy(world, **definition)
    world.put("a", 10, "early")
    for name in "bc":
        world.cluster.kill(name)
    world.until_in_sync("a")
    late = world.put("a", 5, "late")
    for name in "bc":
        world.cluster.fill_disk(name, FOREVER_MS, noticed=True)
        world.cluster.start(name)
        world.cluster.run(1000)
    world.until(lambda: mirrors(world) == ("b", "c"))
    late += world.put("a", 3, "last")
    world.cluster.run(2000)
    assert world.cluster.in_sync(world.queue_id) == ("a",)
    return world, late


def mirrors(world: World) -> tuple[str, ...]:
    record = world.cluster.engine("v").catalog.queue(world.queue_id)
    assert record is not None
    return tuple(member.id.node for member in record.view.members[1:])


def make_room(world: World) -> None:
    for name in "bc":
        world.cluster.fill_disk(name, 0, noticed=True)


def drained(world: World) -> list[str]:
    """All is consumed with everything well again; what the checkers say then."""
    make_room(world)
    world.cluster.heal_all()
    world.cluster.start()
    world.until_in_sync()
    consumer = world.consumer("b")
    world.until(lambda: world.master is not None and world.live(world.master) == 0)
    world.cluster.run(3000)
    assert consumer.is_alive
    return checkers.all_of(world.journal, world.cluster, world.queue_id)


@pytest.mark.parametrize("on_shutdown", MODES)
@pytest.mark.parametrize("on_failure", MODES)
@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_21_a_master_whose_mirrors_are_out_of_sync(
    on_shutdown: str, on_failure: str, end: str
) -> None:
    """It is down until the master is back, or the oldest mirror goes on with what it has."""
    world, late = alone_in_sync(
        1, ha_promote_on_shutdown=on_shutdown, ha_promote_on_failure=on_failure
    )
    if end == "stopped":
        world.stop("a")
    else:
        world.cluster.kill("a")
    world.cluster.run(10_000)
    serves = on_failure == "always" and (end == "killed" or on_shutdown == "always")
    if not serves:
        assert world.master is None
        world.cluster.start("a")
        world.until(lambda: world.master == "a")
        assert drained(world) == []
        return
    assert world.master == "b"
    assert world.live("b") == 10
    engine = world.cluster.engine("b")
    assert engine.replicas[world.queue_id].state.lost == 8
    assert any("8 messages are known to be lost" in line for line in world.cluster.trace)
    wrong = drained(world)
    dropped = "a: queue 'orders': after an unclean promotion the queue goes on without ops"
    assert any(dropped in line for line in world.cluster.trace)
    assert sorted(wrong) == sorted(line for line in checkers.lost(world.journal))
    assert len(wrong) == len(late)


def test_a_loss_is_counted_where_as_many_were_acked() -> None:
    """The mirrors have ten old messages that the master saw acked, and none of the nine that it has
    confirmed since: nine are lost, though the queue is no smaller than it was."""
    world, _ = alone_in_sync(3, ha_promote_on_failure="always")
    taker = world.taker("a", prefetch=18)
    taker.ask()
    world.until(lambda: len(taker.seen) == 18)
    for body, _ in list(taker.seen):
        taker.settle(body)
    world.until(lambda: world.live("a") == 0)
    world.put("a", 9, "later")
    world.cluster.run(1000)
    assert world.live("a") == 9
    world.cluster.kill("a")
    world.until(lambda: world.master == "b")
    world.cluster.run(1000)
    assert world.live("b") == 10
    assert world.cluster.engine("b").replicas[world.queue_id].state.lost == 9


@pytest.mark.parametrize("policy", ["always", "when-synced"])
@pytest.mark.parametrize("pause_ms", [0, 4000])
@pytest.mark.parametrize("seed", range(3))
def test_a_master_alone_confirms_nothing_when_it_may_have_been_replaced(
    seed: int, pause_ms: int, policy: str
) -> None:
    """Cut off from all others, or asleep as well, it is replaced by one that has less: what is put
    to it from then on is lost, and so must not be confirmed. (What was before is counted.) It may
    not have heard of the policy that allows that."""
    world, _ = alone_in_sync(seed, ha_promote_on_failure=policy)
    for other in "bcvw":
        world.cluster.cut("a", other, silent=True)
    if pause_ms:
        world.cluster.pause("a", pause_ms)
    producer = world.producer("a", 10_000, "during")
    set_policy(world, ha_promote_on_failure="always")
    world.until(lambda: world.cluster.engine("b").replicas[world.queue_id].master is not None)
    world.cluster.run(5000)
    producer.count = producer.sent
    world.cluster.heal_all()
    world.journal.unclean_ms = world.cluster.onlooker.uncleans[world.queue_id]
    assert drained(world) == []
    assert producer.sent > 20


@pytest.mark.parametrize("ended", ["a", "abcvw"])
@pytest.mark.parametrize("seed", [1, 3, 4, 5])
def test_who_is_in_sync_and_comes_back_at_once_is_waited_for(seed: int, ended: str) -> None:
    """Its new process is heard and has not registered yet: no mirror that lacks what was confirmed
    takes its place in these milliseconds, though the policy allows that."""
    world, _ = alone_in_sync(seed, ha_promote_on_failure="always")
    for name in ended:
        world.cluster.kill(name)
    world.cluster.start(*ended)
    world.until(lambda: world.master is not None)
    assert world.master == "a"
    assert world.live("a") == 18
    assert drained(world) == []


def test_who_comes_back_with_a_copy_that_cannot_be_read_is_not_waited_for() -> None:
    """The mirror goes on, as the policy says."""
    world, _ = alone_in_sync(3, ha_promote_on_failure="always")
    world.cluster.kill("a")
    world.cluster.damage_state("a", world.queue_id)
    world.cluster.start("a")
    world.until(lambda: world.master == "b")


def test_the_time_of_the_last_report_before_an_unclean_promotion_is_known() -> None:
    """Checkers count a loss by it: it lies in the past, where a node's clock has been."""
    world, _ = alone_in_sync(3, ha_promote_on_failure="always")
    world.cluster.kill("a")
    killed_ms = world.cluster.now_ms
    world.until(lambda: world.master == "b")
    (reported_ms,) = world.cluster.onlooker.reports[world.queue_id]
    assert 0 < reported_ms <= killed_ms


def test_21_a_shutdown_is_known_to_the_next_leader_too() -> None:
    """The stopped master led the catalog: who leads after it judges its end as a shutdown."""
    for seed in range(30):
        world, _ = alone_in_sync(
            seed, ha_promote_on_shutdown="when-synced", ha_promote_on_failure="always"
        )
        if world.cluster.engine("v").leader == "a":
            break
    assert world.cluster.engine("v").leader == "a"
    world.stop("a")
    world.cluster.run(10_000)
    assert world.master is None
    world.cluster.start("a")
    world.until(lambda: world.master == "a")
    assert drained(world) == []


def test_what_was_delivered_before_an_unclean_promotion_cannot_be_acked_after_it() -> None:
    """The ack is refused, and the message is handed out again, flagged."""
    world, _ = alone_in_sync(2, ha_promote_on_failure="always")
    taker = world.taker("v", prefetch=3)
    world.until(lambda: len(taker.held) == 3)
    bodies = [body for _, body in taker.held]
    world.cluster.kill("a")
    world.until(lambda: world.master == "b")
    taker.settle(bodies[0])
    world.until(lambda: bodies[0] in taker.outcomes)
    assert taker.outcomes == {bodies[0]: False}
    taker.prefetch = 20
    world.until(lambda: len(taker.seen) == 13)
    again = taker.seen[3:]
    assert [body for body, _ in again][:3] == bodies
    assert all(flag for _, flag in again), "anything may have been handed out in the lost past"
    world.check_copies()


def test_sequences_after_an_unclean_promotion_are_new() -> None:
    """What the lost past gave out is given to no other message, nor are its producer ids."""
    world, _ = alone_in_sync(3, ha_promote_on_failure="always")
    before = max(a.sequence for a in world.journal.attempts.values())
    world.cluster.kill("a")
    world.until(lambda: world.master == "b")
    make_room(world)
    bodies = world.put("v", 3, "after")
    sequences = [world.journal.attempts[body].sequence for body in bodies]
    assert min(sequences) >= 1 << 40 > before
    state = world.cluster.engine("b").replicas[world.queue_id].state
    assert max(state.producers) > 1 << 40
    drained(world)


@pytest.mark.parametrize("killed_ms", [0, 1, 2, 3, 5, 8])
def test_the_new_master_dies_before_its_first_op_is_stable(killed_ms: int) -> None:
    """It restarts, or another one goes on: nothing of the lost past is taken for its own."""
    world, _ = alone_in_sync(4, ha_promote_on_failure="always")
    world.cluster.kill("a")

    def generation() -> int:
        record = world.cluster.engine("v").catalog.queue(world.queue_id)
        return record.view.generation if record is not None else 0

    world.until(lambda: generation() > 0)
    world.cluster.run(killed_ms)
    world.cluster.kill("b")
    world.cluster.kill("c")
    world.cluster.run(500)
    world.cluster.start("b")
    world.until(lambda: world.master is not None)
    make_room(world)
    bodies = world.put("v", 3, "after")
    assert min(world.journal.attempts[body].sequence for body in bodies) >= 1 << 40
    wrong = drained(world)
    assert all(line.startswith(("lost: b'late", "lost: b'last")) for line in wrong)


def test_an_unclean_promotion_during_a_transfer() -> None:
    """The oldest mirror has the state and not all bodies: it serves those that it has."""
    for wait_ms in range(0, 60, 4):
        world = World("abcvw", witnesses="vw", seed=wait_ms)
        set_policy(world, ha_promote_on_failure="always")
        world.cluster.kill("b")
        world.cluster.kill("c")
        world.until_in_sync("a")
        world.put("a", 300)
        for name in "bc":
            world.cluster.wipe(name)
            world.cluster.start(name)
        world.until(lambda w=world: "b" in mirrors(w))  # type: ignore[misc]
        world.cluster.run(wait_ms)
        if len(world.cluster.in_sync(world.queue_id)) > 1:
            break
        world.cluster.kill("a")
        world.until(lambda w=world: w.master in ("b", "c"))  # type: ignore[misc]
        master = world.master
        assert master is not None
        kept, state = world.live(master), world.cluster.engine(master).replicas[1].state
        assert kept + state.lost == 300
        wrong = drained(world)
        assert wrong == checkers.lost(world.journal)
        assert len(wrong) == 300 - kept


def test_a_planned_stop_redelivers_nothing_acked_and_costs_little(world: World) -> None:
    """With mirrors in sync: another master confirms within 100 ms of virtual time."""
    producer = world.producer("b", 3000)
    world.consumer("c", nack_share=0.0)
    world.cluster.run(500)
    done = len([a for a in world.journal.attempts.values() if a.state == "acknowledged"])
    assert 0 < done < 3000
    gaps = confirm_gaps(world)
    world.stop("a")
    world.until(lambda: producer.is_done)
    assert max(gaps) < 100
    world.check()


# --- min-in-sync -------------------------------------------------------------------------


def states(world: World, name: str) -> list[str]:
    start = name.encode() + b"/"
    return [a.state for body, a in world.journal.attempts.items() if body.startswith(start)]


def test_min_in_sync_withholds_confirms_until_members_are_back() -> None:
    """Below it puts are accepted and handed out, not confirmed; then it goes on by itself."""
    world = World("abcvw", witnesses="vw")
    set_policy(world, min_in_sync=2)
    world.put("a", 3, "before")
    for name in "bc":
        world.cluster.kill(name)
    world.until_in_sync("a")
    world.producer("v", 5, "during")
    taker = world.taker("v")
    world.until(lambda: len(taker.seen) == 8)
    world.cluster.run(5000)
    assert states(world, "during") == ["open"] * 5
    master = world.cluster.engine("a").replicas[world.queue_id].master
    assert master is not None
    assert master.blocked_by == "min-in-sync 2, have 1: a"
    world.cluster.start("b")
    world.until(lambda: states(world, "during") == ["acknowledged"] * 5)
    assert set(world.cluster.in_sync(world.queue_id)) == {"a", "b"}
    assert master.blocked_by == ""
    taker.close()
    world.check()


@pytest.mark.parametrize("killed_ms", [0, 1, 2, 4, 8, 16, 40])
def test_min_in_sync_outlives_the_death_of_one(killed_ms: int) -> None:
    """With 2 of 3, each message that was confirmed survives its master and then one more: the
    last one alone confirms nothing, and has it all."""
    world = World("abcvw", witnesses="vw", seed=killed_ms)
    set_policy(world, min_in_sync=2)
    producer = world.producer("v", 200)
    world.cluster.run(60 + killed_ms)
    world.cluster.kill("a")
    world.until(lambda: world.master == "b")
    world.cluster.run(killed_ms)
    world.cluster.kill("b")
    world.until(lambda: world.master == "c")
    done = states(world, "p").count("acknowledged")
    world.cluster.run(3000)
    assert states(world, "p").count("acknowledged") <= done + 4, "one reply may be on its way"
    assert not producer.is_done
    world.cluster.start("a")
    world.until(lambda: producer.is_done)
    world.check()


def test_a_lower_min_in_sync_lets_go_of_what_waited() -> None:
    """The policy is in force at once, upwards and downwards."""
    world = World("abcvw", witnesses="vw")
    set_policy(world, min_in_sync=4)
    world.producer("v", 2, "held")
    world.cluster.run(2000)
    assert states(world, "held") == ["open"] * 2
    set_policy(world, min_in_sync=3)
    world.until(lambda: states(world, "held") == ["acknowledged"] * 2)
    world.check()


def confirm_gaps(world: World) -> list[int]:
    """Spans without a confirm while something waits for one, measured each millisecond."""
    gaps = [0]
    last = [0, world.cluster.now_ms]

    def look() -> None:
        states = [a.state for a in world.journal.attempts.values()]
        confirmed = states.count("acknowledged")
        if confirmed != last[0] or "open" not in states:
            last[:] = [confirmed, world.cluster.now_ms]
        gaps.append(world.cluster.now_ms - last[1])
        world.cluster.after(1, look)

    look()
    return gaps
