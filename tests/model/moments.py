"""Short lives of one queue as checkers of mutations, a moment of load with one mishap each.

Each takes a seed and returns what the checkers of the swarm say, "" when nothing; see `runs`.
"""

from __future__ import annotations

from collections import Counter
from random import Random

from harness import checkers
from harness.chain import Drain
from harness.cluster import SimulatedCluster
from harness.load import Load
from harness.staged_pair import StagedPair
from harness.workload import Place, Purger
from mirrorq.config import Config
from mirrorq.engine.events import Ask
from mirrorq.protocol.commands import Rebalance, SetPolicy
from mirrorq.protocol.policy import parse, to_text
from simulation.test_dead_letters import DeadLetters
from simulation.test_ends import promoted_without_its_master
from simulation.world import World

from .complaints import complaint, one_of_each


def ended(_: int) -> str:
    """A mirror fails, is closed, and is promoted without its master."""
    return one_of_each(promoted_without_its_master("failure").cluster.onlooker.wrong)


def drained(seed: int) -> str:
    """A queue on 3 nodes that was filled and emptied again."""
    world = World(seed=seed)
    world.put("b", 5)
    return _emptied(world)


def _emptied(world: World) -> str:
    """Empty the queue; what all checkers say of it then."""
    world.consumer("c")
    world.cluster.run_until(lambda: world.master is not None and not world.live(world.master))
    world.cluster.run(3000)
    world.journal.ended = world.cluster.onlooker.ended.get(world.queue_id, {})
    return one_of_each(checkers.all_of(world.journal, world.cluster, world.queue_id))


def purged(seed: int) -> str:
    """A queue that is purged before anybody consumes it."""
    world = World(seed=seed)
    world.put("b", 5)
    purger = Purger(Place(world.cluster, "c", world.queue_id, "x", Random(seed)), world.journal)
    world.until(lambda: purger.call.ended_ms is not None)
    return _emptied(world)


def full(seed: int) -> str:
    """A queue that refuses what is beyond its limit."""
    world = World(seed=seed)
    policy = parse("short", "orders", {"max-length": 3, "overflow": "reject-publish"})
    world.cluster.ask("a", SetPolicy(policy.name, to_text(policy)))
    producer = world.producer("b", 8)
    world.until(lambda: producer.is_done)
    return _emptied(world)


def sent_on(seed: int) -> str:
    """A queue whose messages go to another one as they expire, while its master dies."""
    world = DeadLetters(seed=seed, message_ttl=20)
    producer = world.producer("c", 120)
    world.kill_masters(50 + 9 * seed)
    world.until(lambda: producer.is_done or not producer.is_alive)
    world.cluster.run(6000)
    world.cluster.start()
    world.until(lambda: world.master is not None and world.live(world.master) == 0)
    world.until(lambda: world.outgoing() == 0)
    world.cluster.run(3000)
    world.journal.ended = world.cluster.onlooker.ended.get(world.queue_id, {})
    return one_of_each(checkers.unsent([world.journal], world.cluster, world.dead_id))


def crowded(seed: int) -> str:
    """Three producers fill a queue that keeps the newest three messages; it is looked at all the
    time."""
    world = World(seed=seed)
    policy = parse("short", "orders", {"max-length": 3, "overflow": "drop-head"})
    world.cluster.ask("a", SetPolicy(policy.name, to_text(policy)))
    watch = checkers.LimitWatch(world.cluster)
    producers = [world.producer(name, 40, name) for name in "abc"]
    for _ in range(300):
        world.cluster.run(3)
        watch.look([world.queue_id])
    return one_of_each([*watch.wrong, *([] if all(p.is_done for p in producers) else ["open: "])])


def rejoined(seed: int) -> str:
    """A member dies with messages that are acked while it is away, and is given the state."""
    world = World(seed=seed)
    world.put("b", 10)
    world.cluster.kill("c")
    world.cluster.run(3000)
    taker = world.consumer("b")
    world.until(lambda: world.master is not None and not world.live(world.master))
    taker.close()
    world.put("b", 10, "n")
    world.cluster.start("c")
    world.until_in_sync()
    world.cluster.run(500)
    return one_of_each(checkers.unequal(world.cluster, world.queue_id)) or _emptied(world)


def cut_off(seed: int) -> str:
    """A producer's link to the master breaks for a moment, and what was under way is sent again."""
    world = World(seed=seed)
    producer = world.producer("c", 4)
    world.cluster.run(3 + seed)
    world.cluster.cut("a", "c")
    world.cluster.run(5)
    world.cluster.heal("a", "c")
    world.cluster.run_until(lambda: producer.is_done, 5000)
    return _emptied(world)


def resent(seed: int) -> str:
    """The master dies three times while a producer has much under way, at any moment."""
    world = World(seed=seed)
    random = Random(seed)
    producer = world.producer("c", 200)
    for name in "aba":
        world.cluster.run(random.randint(8, 60))
        world.cluster.kill(name)
        world.cluster.run(1500)
        world.cluster.start(name)
        world.until_in_sync()
    world.cluster.run_until(lambda: producer.is_done, 5000)
    return _emptied(world)


def stray(seed: int) -> str:
    """Both members in sync go, and one remains that has taken no bodies, as nobody told it to."""

    def members() -> list[str]:
        queue = world.cluster.engine("d").catalog.queue(world.queue_id)
        return [member.id.node for member in queue.view.members] if queue else []

    world = World("abcde", witnesses="de", seed=seed)
    policy = parse("all", "orders", {"ha-mode": "all", "ha-sync-mode": "manual"})
    world.cluster.ask("a", SetPolicy(policy.name, to_text(policy)))
    world.cluster.kill("c")
    world.cluster.run(3000)
    world.put("b", 5)
    world.cluster.start("c")
    # It joins when it has been up for a while.
    world.until(lambda: "c" in members())
    world.cluster.run(500)
    for name in "ab":
        world.cluster.kill(name)
    world.cluster.run(5000)
    world.cluster.start()
    world.cluster.run(3000)
    return _emptied(world)


def halves(seed: int) -> str:
    """Four nodes are cut into halves, with a producer in each; neither may go on."""
    world = World("abcd", seed=seed)
    for name in "bc":
        world.producer(name, 400, name)
    world.cluster.run(100)
    for one in "ab":
        for other in "cd":
            world.cluster.cut(one, other)
    world.cluster.run(4000)
    return one_of_each(world.cluster.onlooker.wrong)


def waiting(seed: int) -> str:
    """One node of three, with something to ask of a leader that it does not find."""
    cluster = SimulatedCluster(seed=seed)
    cluster.start("a")
    cluster.tell("a", Ask(1, Rebalance()))
    cluster.run(1000)
    return one_of_each(cluster.onlooker.wrong)


def pairs(seed: int) -> str:
    """Versions that are staged into two queues on 3 nodes, the first queue's master is killed."""
    wrong: list[str] = []

    def run() -> None:
        cluster = SimulatedCluster(seed=seed, config=Config(sealed_timeout_ms=1000))
        cluster.start()
        ids = [cluster.declare("a", name) for name in ("first", "second")]
        counts: Counter[str] = Counter()
        load = StagedPair(cluster, Random(seed), "first", ids[0], counts, pace=1)
        load.second = Drain(cluster, Random(seed), "second", ids[1], counts, pace=1)
        loads: tuple[Load, ...] = (load, load.second)
        for one in loads:
            one.start()
        cluster.run(400)
        cluster.kill("a")
        cluster.run(800)
        cluster.start("a")
        for one in loads:
            one.quiet_down()
        cluster.run(400)
        for one in loads:
            one.drain()
        is_done = cluster.run_until(lambda: all(one.is_drained for one in loads), 10_000)
        load.judge()
        wrong.extend([] if is_done else ["no progress: the queues are not drained"])
        wrong.extend([*load.wrong, *cluster.onlooker.wrong])

    return complaint(run) or one_of_each(wrong)
