"""Seeds as checkers of mutations: one run of a simulator each, and what it complains of.

Every function here takes a seed and returns "" or the complaint, which begins with the name of
the checker. The same runs, without any mutation, are tests of their own elsewhere.
"""

from __future__ import annotations

from collections import Counter
from random import Random

from attrs import evolve
from hypothesis import HealthCheck, Phase, settings
from hypothesis import seed as hypothesis_seed
from hypothesis.stateful import run_state_machine_as_test

from harness import checkers
from harness.cluster import SimulatedCluster
from harness.fleeting import Fleeting
from harness.holders import Holders
from harness.owned import Owned
from harness.swarm import Swarm
from harness.visits import Visits
from mirrorq.protocol.commands import SetPolicy
from mirrorq.protocol.policy import parse, to_text
from raft import storm as raft_storm
from raft import test_simulation as raft_runs
from simulation import test_entry_nodes, test_limits
from store import test_model
from supervisor import test_supervisor_world

from .complaints import complaint, one_of_each

HOLDERS_END_MS = 5000
"""The longest lease and the give-up of a dead handle are over by then."""
RETURN_MS = 8000
"""An owner is waited for so long, in place of half a minute."""
SIZES = ("ab", "abc", "abcde")


def leases(seed: int) -> str:
    """Supervisors, leases and catalogs of 2, 3 or 5 nodes."""
    names = SIZES[seed % len(SIZES)]
    run = test_supervisor_world.test_no_two_masters_delivery_and_all_is_well_after_healing
    return complaint(lambda: run(names, seed // len(SIZES)))


def raft(seed: int) -> str:
    """Cores of Raft, 3 or 5 of them."""

    def run() -> None:
        one = raft_runs.Run(seed // 2, 3 + seed % 2 * 2)
        one.faults()
        one.heal()
        one.check_progress()

    return complaint(run)


def swarm(seed: int) -> str:
    """Whole clusters."""
    return _of_swarm(Swarm(seed))


def _of_swarm(one: Swarm) -> str:
    wrong: list[str] = []

    def run() -> None:
        wrong.extend(one.run().wrong)

    raised = complaint(run)
    return raised or one_of_each(wrong)


def storm(seed: int) -> str:
    """Cores of Raft, 3 or 5 of them, in one election after the other."""
    return complaint(lambda: raft_storm.Storm(seed // 2, 3 + seed % 2 * 2).run())


def disorder(seed: int) -> str:
    """The same with messages that overtake each other."""
    return complaint(lambda: raft_storm.Disorder(seed // 2, 3 + seed % 2 * 2).run())


def copying(seed: int) -> str:
    """The same with snapshots of many pages for replicas that were left behind."""
    return complaint(lambda: raft_storm.Copying(seed // 2, 3 + seed % 2 * 2).run())


def turnover(seed: int) -> str:
    """The same with changes of voters, 4 or 5 of them."""
    return complaint(lambda: raft_storm.Turnover(seed // 2, 4 + seed % 2).run())


def lengths(seed: int) -> str:
    """A queue with a limit of length, its master killed under load: each overflow in turn."""
    tests = (
        test_limits.test_28_refused_messages_are_not_confirmed_and_never_show_up,
        test_limits.test_28_drop_head_keeps_the_newest,
        test_limits.test_28_block_makes_puts_wait,
    )
    return complaint(lambda: tests[seed % 3](seed // 3))


def delays(seed: int) -> str:
    """Whole clusters whose messages have priorities and delays."""
    delays_ms = (0, 0, 5, 300, 4000)
    one = Swarm(
        seed, priorities=(0, 0, 7), delays_ms=delays_ms, chain=False, fan=False, is_short=True
    )
    return _of_swarm(one)


def clocks(seed: int) -> str:
    """Whole clusters whose wall clocks are wrong and are set."""
    one = Swarm(seed, clocks=True, delays_ms=(0, 1500, 4000), chain=False, fan=False, is_short=True)
    return _of_swarm(one)


def chains(seed: int) -> str:
    """Whole clusters with messages that are acked together with the put of their results."""
    return _of_swarm(Swarm(seed, chain=True, fan=False, is_short=True))


def fans(seed: int) -> str:
    """Whole clusters with messages that reach two queues through an exchange."""
    return _of_swarm(Swarm(seed, chain=False, fan=True, is_short=True))


def unique(seed: int) -> str:
    """Whole clusters in which messages have unique keys."""
    return _of_swarm(Swarm(seed, chain=False, fan=False, keys=True, is_short=True))


def acts(seed: int) -> str:
    """Whole clusters in which somebody pauses queues and deletes messages."""
    return _of_swarm(Swarm(seed, chain=False, fan=False, acts=True, is_short=True))


def unclean(seed: int) -> str:
    """Whole clusters in which members that are not in sync may be promoted."""
    return _of_swarm(Swarm(seed, chain=False, fan=False, unclean=True))


def clients(seed: int) -> str:
    """Whole clusters whose clients' entry nodes die, or are left."""
    return _of_swarm(Swarm(seed, chain=False, fan=False, clients=True, is_short=True))


def entry_nodes(seed: int) -> str:
    """One worker whose client goes from entry node to entry node."""
    return one_of_each(test_entry_nodes.overtaken(seed))


def flips(seed: int) -> str:
    """Whole clusters on whose disks bytes change."""
    plain = {"policies": False, "members": False, "holders": False, "fleeting": False}
    return _of_swarm(Swarm(seed, flips=True, chain=False, fan=False, is_short=True, **plain))


def holders(seed: int) -> str:
    """One queue with leases and claims on 3 nodes, one active consumer in every other seed; its
    master is killed under them."""
    wrong: list[str] = []

    def run() -> None:
        cluster = SimulatedCluster(seed=seed)
        cluster.start()
        queue_id = cluster.declare("a", "held")
        if seed % 2:
            policy = parse("one", "held", {"ha-mode": "all", "single-active-consumer": True})
            cluster.ask("a", SetPolicy(policy.name, to_text(policy)))
        load = Holders(cluster, Random(seed), "held", queue_id, Counter(), pace=1)
        load.start()
        cluster.run(4000)
        cluster.kill("a")
        cluster.run(2500)
        cluster.start("a")
        cluster.run(1500)
        load.quiet_down()
        cluster.run(HOLDERS_END_MS)
        load.drain()
        is_done = cluster.run_until(lambda: load.is_drained, HOLDERS_END_MS)
        cluster.run(1000)
        load.judge()
        load.life.journal.ended = cluster.onlooker.ended.get(queue_id, {})
        wrong.extend([] if is_done else ["no progress: the queue is not drained"])
        wrong.extend([*load.wrong, *cluster.onlooker.wrong])
        wrong.extend(checkers.all_of_journal(load.life.journal))

    return complaint(run) or one_of_each(wrong)


def fleeting(seed: int) -> str:
    """Exclusive and auto-delete queues on 3 nodes, one of which is killed and comes back."""
    wrong: list[str] = []

    def run() -> None:
        cluster = SimulatedCluster(seed=seed)
        cluster.start()
        cluster.declare("a", "orders")
        load = Fleeting(cluster, Random(seed), Counter())
        load.start()
        cluster.run(3000)
        cluster.kill("abc"[seed % 3])
        cluster.run(1000)
        cluster.start("abc"[seed % 3])
        cluster.run(2000)
        wrong.extend(_leave(load, HOLDERS_END_MS))

    return complaint(run) or one_of_each(wrong)


def owned(seed: int) -> str:
    """Queues of one connection on 3 nodes: two of these are killed, one after the other, and
    come back; a third is cut off from the others for longer than the silence of a dead one."""
    wrong: list[str] = []

    def run() -> None:
        cluster = SimulatedCluster(seed=seed)
        cluster.config = evolve(cluster.config, consumer_return_ms=RETURN_MS)
        cluster.start()
        load = Owned(cluster, Random(seed), Counter())
        load.start()
        cluster.run(3000)
        for name in ("abc"[seed % 3], "bca"[seed % 3]):
            cluster.kill(name)
            cluster.run(1500)
            cluster.start(name)
            cluster.run(2500)
        lone = "cab"[seed % 3]
        for other in set("abc") - {lone}:
            cluster.cut(lone, other, silent=True)
        cluster.run(3000)
        cluster.heal_all()
        cluster.run(2000)
        wrong.extend(_leave(load, RETURN_MS + HOLDERS_END_MS))

    return complaint(run) or one_of_each(wrong)


def _leave(load: Visits, end_ms: int) -> list[str]:
    """All who are there take the rest and go; what the checkers say of it."""
    cluster = load.cluster
    load.quiet_down()
    cluster.run(500)
    load.drain()
    is_done = cluster.run_until(lambda: load.is_over, end_ms)
    cluster.run(1000)
    wrong = [] if is_done else ["no progress: not every queue is gone"]
    wrong += [*load.wrong, *cluster.onlooker.wrong]
    for life in load.lives:
        life.journal.ended = cluster.onlooker.ended.get(life.queue_id, {})
        wrong += checkers.all_of_journal(life.journal)
        wrong += checkers.undeleted(cluster, life.queue_id)
    return wrong


def brief(seed: int) -> str:
    """Whole clusters, for a moment."""
    return _of_swarm(Swarm(seed, chain=False, fan=False, is_short=True))


def store(seed: int) -> str:
    """The store against a model made of dicts: random writes, restarts and deletions."""
    machine = type("Seeded", (test_model.StoreMachine,), {})
    found = settings(
        max_examples=60,
        stateful_step_count=25,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    run = hypothesis_seed(seed)(machine)
    return complaint(lambda: run_state_machine_as_test(run, settings=found))  # type: ignore[no-untyped-call]
