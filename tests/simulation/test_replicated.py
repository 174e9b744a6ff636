"""`durability: replicated` on virtual time: confirmed in memory, written behind."""

from __future__ import annotations

from itertools import permutations
from random import Random
from typing import Any

import pytest
from attrs import evolve

from harness import checkers
from harness.mutations.registry import mutation
from mirrorq.config import Config
from mirrorq.engine.events import WriteAll
from mirrorq.protocol.commands import AcknowledgeLosses, ClearPolicy, SetPolicy
from mirrorq.protocol.policy import parse, to_text
from mirrorq.protocol.views import View
from mirrorq.replication import writes
from mirrorq.replication.writes import WRITE_BEHIND_MS

from .world import World

BEHIND_MS = WRITE_BEHIND_MS + 20
"""What is older than this is on the disks: the wait, a commit, and the way of a message."""


@pytest.fixture(autouse=True, params=[False, True], ids=["row", "rail"])
def _with_rail(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each scenario is played along the row, and with star and rail."""
    if request.param:
        config = evolve(Config(), star=True, rail=True)
        monkeypatch.setattr("harness.cluster.Config", lambda: config)


def set_durability(world: World, durability: str, node: str = "a") -> None:
    policy = parse("p", "", {"durability": durability})
    answer = world.cluster.ask(node, SetPolicy("p", to_text(policy)))
    assert not answer.error, answer.text


def view_of(world: World) -> View:
    view = world.cluster.view(world.queue_id)
    assert view is not None
    return view


def replicated(names: str = "abc", *, witnesses: str = "", seed: int = 1) -> World:
    world = World(names, witnesses=witnesses, seed=seed)
    set_durability(world, "replicated")
    world.until(lambda: view_of(world).durability == "replicated")
    return world


@pytest.fixture
def world() -> World:
    return replicated()


def until_served(world: World) -> None:
    world.until(lambda: world.master is not None)


def confirmed(world: World) -> int:
    return [a.state for a in world.journal.attempts.values()].count("acknowledged")


def drained(world: World) -> list[str]:
    """All is consumed with everything well again; what the checkers say then."""
    world.cluster.heal_all()
    world.cluster.start()
    world.until_in_sync()
    consumer = world.consumer(world.data_nodes[0])
    world.until(lambda: world.master is not None and world.live(world.master) == 0)
    world.cluster.run(3000)
    assert consumer.is_alive
    return checkers.all_of(world.journal, world.cluster, world.queue_id)


# --- What a confirm rests on ---------------------------------------------------------------


def test_confirmed_and_handed_out_before_any_disk_has_it(world: World) -> None:
    for node in world.cluster.nodes.values():
        node.commit_ms = 2000
    start_ms = world.cluster.now_ms
    world.put("b", 20)
    taker = world.taker("c", prefetch=20)
    world.until(lambda: len(taker.seen) == 20)
    for body in [body for _, body in taker.held]:
        taker.settle(body)
    world.until(lambda: len(taker.outcomes) == 20)
    assert all(taker.outcomes.values())
    assert world.cluster.now_ms - start_ms < 1000
    for node in world.cluster.nodes.values():
        assert not node.disk.queues[world.queue_id].frames
    world.check_copies()


def test_many_ops_go_to_the_disk_in_few_commits(world: World) -> None:
    world.put("a", 200)
    world.cluster.run(BEHIND_MS)
    files = world.cluster.nodes["b"].disk.queues[world.queue_id]
    assert sum(entry.header.count for entry in files.frames.values()) == 200
    engine = world.cluster.engine("b")
    before = engine.hosting.rounds.last
    world.put("a", 200, "more")
    world.cluster.run(BEHIND_MS)
    assert engine.hosting.rounds.last - before < 50
    world.check()


def test_a_node_sleeps_while_a_checkpoint_waits_for_held_ops(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The quiet time ends while a mirror stands still, which then has ops to hold back."""
    world.put("a", 1)
    cluster, engine = world.cluster, world.cluster.engine("b")
    cluster.run(300)
    due_ms = engine.replicas[world.queue_id]._writes._quiet.at_ms
    cluster.run(cluster.true_ms(cluster.nodes["b"], due_ms) - cluster.now_ms - 20)
    cluster.pause("b", 40)
    world.producer("a", 3, "late")
    steps: list[bool] = []
    step = engine.step

    def watched(now_ms: int, *arguments: Any) -> Any:
        effects = step(now_ms, *arguments)
        steps.append(effects.wake_at_ms is not None and effects.wake_at_ms <= now_ms)
        return effects

    monkeypatch.setattr(engine, "step", watched)
    cluster.run(100)
    assert steps
    assert not any(steps)


def test_a_queue_declared_under_the_policy_is_so_from_its_first_view(world: World) -> None:
    queue_id = world.cluster.declare("b", "others")
    view = world.cluster.view(queue_id)
    assert view is not None
    assert (view.epoch, view.durability) == (1, "replicated")


def test_a_disk_that_lags_too_far_behind_holds_confirms_up(world: World) -> None:
    """Memory is bounded: beyond the bound a confirm waits for the slowest disk."""
    ring = world.cluster.engine("b").replicas[world.queue_id].ring
    world.cluster.nodes["b"].commit_ms = 3000
    world.put("a", 1)
    world.cluster.run(100)
    ring.log.behind_bytes += 16 << 20
    world.producer("a", 1, "first")
    world.cluster.run(50)  # with it the rail is asked to give the queue back, if it has it
    producer = world.producer("a", 3, "late")
    world.cluster.run(500)
    assert not producer.is_done
    assert ring.assured < ring.log.received
    ring.log.behind_bytes -= 16 << 20
    world.cluster.nodes["b"].commit_ms = 1
    world.until(lambda: producer.is_done)
    world.check()


# --- One at a time -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "seed",
    [
        0,
        *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 3)),
        *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 6)),
    ],
)
def test_kill_one_member_at_a_time_under_traffic(seed: int) -> None:
    """Nothing is lost, and no promotion is unclean: the others have it in memory."""
    world = replicated("abcv", witnesses="v", seed=seed)
    random = Random(seed)
    producer = world.producer("v", 1500)
    world.consumer("v", nack_share=0.2)
    for _ in range(6):
        world.cluster.run(random.randrange(1, 200))
        name = random.choice("abc") if random.random() < 0.5 else world.master or "a"
        world.cluster.kill(name)
        world.until(lambda: world.master is not None)
        world.cluster.run(random.randrange(1, 300))
        world.cluster.start(name)
        world.until_in_sync()
    world.until(lambda: producer.is_done)
    world.check()
    assert view_of(world).generation == 0


def test_a_restarted_member_is_not_in_sync_until_it_is_counted_in() -> None:
    """A mirror restarts at once; the master, the only one that has it all, falls silent: the
    queue waits for it, for the mirror has lost what it had in memory only."""
    world = replicated("abv", witnesses="v")
    world.put("a", 50)
    bodies = lose_the_tail_of_b(world)
    world.cluster.run(8000)
    view = view_of(world)
    assert view.members[0].id.node == "a", "b has not all of it, and a may come back"
    assert view.generation == 0
    for name in "bv":
        world.cluster.heal("a", name)
    until_served(world)
    assert drained(world) == []
    assert view_of(world).generation == 0
    assert len(bodies) == 10


def lose_the_tail_of_b(world: World) -> list[bytes]:
    """Ten messages are in memory only when b is killed and a is cut off; b starts again. No
    majority runs in between, so the last view has both in sync."""
    world.cluster.run(3 * BEHIND_MS)
    world.cluster.run(-world.cluster.now_ms % WRITE_BEHIND_MS)
    bodies = world.put("a", 10, "tail")
    for name in "bv":
        world.cluster.kill(name)
        world.cluster.cut("a", name, silent=True)
    world.cluster.start("b", "v")
    return bodies


def test_mutation_a_restarted_member_counted_as_in_sync_is_noticed() -> None:
    with mutation("restarted replicated member counted as in sync"):
        world = replicated("abv", witnesses="v")
        world.put("a", 50)
        lose_the_tail_of_b(world)
        world.until(lambda: view_of(world).members[0].id.node == "b")
        world.until(lambda: world.master == "b")
        world.put("v", 10, "other")
        wrong = drained(world)
    assert any(line.startswith("two orders") for line in wrong)
    assert sum(line.startswith("lost") for line in wrong) == 10


# --- All at once ---------------------------------------------------------------------------


QUICK_ORDERS = ("abc", "cba")
ORDERS = [
    pytest.param(order, marks=() if order in QUICK_ORDERS else pytest.mark.slow)
    for order in map("".join, permutations("abc"))
]


@pytest.mark.parametrize("order", ORDERS)
def test_kill_all_and_start_them_in_any_order(order: str) -> None:
    """The last moment is lost, and no more; the loss is an unclean promotion, under when-synced
    too; nothing comes twice unflagged, and nothing that nobody put."""
    for seed in range(4):
        world = replicated("abcvw", witnesses="vw", seed=seed)
        random = Random(seed)
        world.producer("v", 400)
        world.consumer("v", nack_share=0.1)
        world.cluster.run(random.randrange(100, 500))
        killed_ms = world.cluster.now_ms
        before = {b for b, a in world.journal.attempts.items() if a.state == "acknowledged"}
        for name in "abc":
            world.cluster.kill(name)
        world.cluster.run(random.randrange(1, 1500))
        for name in order:
            world.cluster.start(name)
            world.cluster.run(random.randrange(1, 400))
        until_served(world)
        wrong = drained(world)
        check_loss(world, wrong, killed_ms, before)
        assert view_of(world).generation >= 1
        assert view_of(world).durability == "replicated"


def check_loss(world: World, wrong: list[str], killed_ms: int, before: set[bytes]) -> None:
    """Only what was confirmed, or acked, in the last moment before `killed_ms` may be missing."""
    journal = world.journal
    late_ms = killed_ms - BEHIND_MS
    for line in wrong:
        if line.startswith("lost: "):
            body = next(body for body in before if f"lost: {body!r}," in line)
            assert journal.attempts[body].put_ms > late_ms, line
        elif line.startswith("undercounted: "):
            # Returned in the last moment: the count was lost with the op, the flag is there.
            assert int(line.rsplit(maxsplit=1)[1]) > 1, line
        else:
            # Acked in the last moment: it comes again, flagged.
            assert "handed out at" in line, line
            sequence = int(line.split()[1])
            assert journal.resolved_ms[sequence] > late_ms, line
            again = [d for d in journal.deliveries if d.sequence == sequence]
            assert all(d.count > 1 for d in sorted(again, key=lambda d: d.delivery)[1:])


def test_the_loss_is_counted_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that runs on remembers what the master said, and tells who comes back."""
    world = replicated("abcvw", witnesses="vw")
    world.put("a", 30, "early")
    world.cluster.run(500)
    monkeypatch.setattr(writes, "WRITE_BEHIND_MS", 1 << 20)
    world.put("a", 10, "late")
    world.cluster.run(600)
    for name in "abc":
        world.cluster.kill(name)
    monkeypatch.undo()
    world.cluster.run(100)
    for name in "abc":
        world.cluster.start(name)
    until_served(world)
    world.cluster.run(1000)
    status = world.status("v")
    assert "1 unclean promotions: 10 messages are known to be lost" in " ".join(status.warnings)
    assert any("power of all members" in text for text in status.warnings)
    assert status.messages_lost == 10
    for lost, is_warned in ((9, True), (10, False)):
        world.cluster.ask("v", AcknowledgeLosses("orders", lost))
        world.cluster.run(1000)
        for name in "abcv":
            status = world.status(name)
            assert ("unclean promotions" in " ".join(status.warnings)) == is_warned
            assert status.messages_lost == 10
    wrong = drained(world)
    assert len(wrong) == 10
    assert wrong == checkers.lost(world.journal)


def test_a_member_that_is_known_dead_is_not_waited_for() -> None:
    """a's process has ended, its node stays away: what it had in memory is gone anyway."""
    world = replicated("abvw", witnesses="vw")
    world.put("a", 20)
    world.cluster.run(200)
    for name in "ab":
        world.cluster.kill(name)
    world.cluster.start("b")
    until_served(world)
    assert world.master == "b"
    assert view_of(world).generation == 1
    assert world.live("b") == 20
    assert drained(world) == []


def test_a_clean_end_of_all_writes_everything(world: World) -> None:
    """Nothing is lost when the nodes are closed: what is written behind goes to disk first."""
    world.put("a", 5)
    for name in "abc":
        world.cluster.tell(name, WriteAll())
    world.cluster.run(5)
    for name in "abc":
        world.cluster.kill(name)
    world.cluster.start()
    until_served(world)
    assert drained(world) == []


def test_a_queue_that_is_not_durable_ends_with_the_last_life(world: World) -> None:
    queue_id = world.cluster.declare("a", "passing", durable=False)
    for name in "abc":
        world.cluster.kill(name)
    world.cluster.start()
    until_served(world)
    world.until(lambda: world.cluster.engine("a").catalog.queue(queue_id) is None)


# --- Switching -----------------------------------------------------------------------------


def test_what_was_confirmed_in_memory_is_on_all_disks_when_the_switch_is_done(world: World) -> None:
    for name in "bc":
        world.cluster.nodes[name].commit_ms = 300
    world.put("a", 40)
    set_durability(world, "fsync")
    world.producer("a", 10, "during")
    world.until(lambda: view_of(world).durability == "fsync")
    for name in "abc":
        files = world.cluster.nodes[name].disk.queues[world.queue_id]
        assert sum(entry.header.count for entry in files.frames.values()) >= 40
    for name in "abc":
        world.cluster.kill(name)
        world.cluster.nodes[name].commit_ms = 1
    world.cluster.start()
    until_served(world)
    assert view_of(world).generation == 0
    assert drained(world) == []


def test_no_confirm_rests_on_memory_once_the_master_knows_the_policy(world: World) -> None:
    world.put("a", 5)
    for name in "abc":
        world.cluster.nodes[name].commit_ms = 30
    set_durability(world, "fsync")
    producer = world.producer("a", 20, "during")
    master = world.cluster.engine("a").replicas[world.queue_id].master
    assert master is not None
    before = confirmed(world)
    texts = []
    while view_of(world).durability != "fsync":
        texts.append(master.blocked_by)
        ring = world.cluster.engine("a").replicas[world.queue_id].ring
        assert confirmed(world) == before or ring.is_settled
        world.cluster.run(1)
    assert any("durability is fsync from now on" in text for text in texts)
    world.until(lambda: producer.is_done)
    assert master.blocked_by == ""
    world.check()


@pytest.mark.parametrize("killed_ms", [0, 1, 2, 3, 5, 8, 13, 40, 80])
def test_the_master_dies_on_the_way_back_to_fsync(killed_ms: int) -> None:
    """The next one begins to settle anew; then all die, and nothing is lost."""
    world = replicated("abcv", witnesses="v", seed=killed_ms)
    producer = world.producer("v", 150)
    world.cluster.run(100)
    set_durability(world, "fsync", "v")
    world.cluster.run(killed_ms)
    world.cluster.kill("a")
    world.until(lambda: world.master not in (None, "a"))
    world.until(lambda: view_of(world).durability == "fsync")
    for name in "bc":
        world.cluster.kill(name)
    world.cluster.start()
    world.until(lambda: producer.is_done)
    world.check()
    assert view_of(world).generation == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 6))]
)
def test_switch_back_and_forth_under_faults(seed: int) -> None:
    """One member after the other dies while the policy changes: nothing is lost; whenever it is
    fsync again, all may die at once."""
    world = replicated("abcv", witnesses="v", seed=seed)
    random = Random(100 + seed)
    producer = world.producer("v", 2000)
    world.consumer("v", nack_share=0.1)
    for turn in range(8):
        set_durability(world, random.choice(["fsync", "replicated"]), "v")
        world.cluster.run(random.randrange(0, 60))
        if turn % 2:
            name = random.choice("abc")
            world.cluster.kill(name)
            world.cluster.run(random.randrange(1, 200))
            world.cluster.start(name)
            until_served(world)
            world.until_in_sync()
        else:
            answer = world.cluster.ask("v", ClearPolicy("p"))
            assert not answer.error
            world.until(lambda: view_of(world).durability == "fsync")
            for name in random.sample("abc", 3):
                world.cluster.kill(name)
                world.cluster.run(random.randrange(0, 30))
            world.cluster.start()
            until_served(world)
            world.until_in_sync()
    world.until(lambda: producer.is_done)
    world.check()
    assert view_of(world).generation == 0
