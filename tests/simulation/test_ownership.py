"""Queues that go with somebody: exclusive ones with their handle, auto-delete ones with their
last consumer, transient ones with the whole cluster (scenario 24)."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from harness import checkers
from harness.cluster import SimulatedCluster
from harness.fleeting import Fleeting, Visitor
from harness.owned import Keeper, User
from harness.swarm import Swarm
from harness.workload import Journal, Place, Producer, SimulatedHandle
from mirrorq.engine import follower
from mirrorq.engine.events import Ask, Forget
from mirrorq.protocol.commands import DeclareQueue, TransferMaster
from mirrorq.protocol.identities import connection_of
from mirrorq.protocol.policy import owned_arguments
from mirrorq.protocol.views import View
from model import runs

from .world import Taker

JUST_MS = 20
"""After the end of a cut: both ends know of it, and no session has attached yet."""


def a_cluster(names: str = "abc") -> SimulatedCluster:
    cluster = SimulatedCluster(tuple(names), seed=1)
    cluster.start()
    cluster.declare(names[0], "orders")
    return cluster


@pytest.fixture
def cluster() -> SimulatedCluster:
    return a_cluster()


def is_gone(cluster: SimulatedCluster, queue_id: int) -> bool:
    """Whether every running node has deleted it, its data too."""
    return all(
        cluster.engine(name).catalog.queue(queue_id) is None
        and queue_id not in cluster.engine(name).replicas
        for name in cluster.running
    )


def consuming(cluster: SimulatedCluster, node: str, queue_id: int) -> Taker:
    """A consumer, once its master knows of it."""
    taker = Taker(cluster, node, queue_id)

    def is_seated() -> bool:
        master = cluster.master(queue_id)
        replica = cluster.engine(master).replicas[queue_id] if master is not None else None
        return (
            replica is not None
            and replica.master is not None
            and any(key[0] == taker._session_id for key in replica.master.dispatch.consumers.by_key)
        )

    taker.poke()
    assert cluster.run_until(is_seated)
    return taker


# --- Exclusive ----------------------------------------------------------------------------


def test_24_an_exclusive_queue_is_on_its_owners_node_only_and_ends_with_the_handle() -> None:
    """No mirror, ever; closing the handle deletes it on the spot."""
    cluster = a_cluster()
    owner = cluster.new_session("b")
    queue_id = cluster.declare("b", "mine", owner=owner)
    cluster.open_session("b", queue_id, lambda _: None, owner)
    cluster.run(10_000)
    assert cluster.in_sync(queue_id) == ("b",)
    assert cluster.master(queue_id) == "b"
    cluster.close_session(owner)
    assert cluster.run_until(lambda: is_gone(cluster, queue_id), 1000)


def test_24_an_exclusive_queue_ends_when_its_node_dies(cluster: SimulatedCluster) -> None:
    """Killed for good: the catalog's leader deletes it; others' queues go on."""
    queue_id = cluster.declare("b", "mine", owner=cluster.new_session("b"))
    cluster.kill("b")
    assert cluster.run_until(lambda: is_gone(cluster, queue_id), 5000)
    cluster.start("b")
    assert cluster.run_until(lambda: is_gone(cluster, queue_id) and "b" in cluster.running, 1000)
    again = cluster.declare("c", "mine", owner=cluster.new_session("c"))
    assert cluster.in_sync(again) == ("c",)


@pytest.mark.parametrize("names", ["a", "abc"])
def test_24_an_exclusive_queue_ends_at_a_full_stop(names: str) -> None:
    """Everything killed at once, one node or three: nobody was left to delete it."""
    cluster = a_cluster(names)
    queue_id = cluster.declare("a", "mine", owner=cluster.new_session("a"))
    for name in names:
        cluster.kill(name)
    cluster.start()
    assert cluster.run_until(lambda: is_gone(cluster, queue_id), 20_000)


def test_24_an_exclusive_queue_outlives_a_partition_of_its_owner(cluster: SimulatedCluster) -> None:
    """Its handle lives, and what it was confirmed is there when the network is."""
    owner = cluster.new_session("b")
    queue_id = cluster.declare("b", "mine", owner=owner)
    for other in "ac":
        cluster.cut("b", other, silent=True)
    cluster.run(10_000)
    cluster.heal_all()
    cluster.run(10_000)
    assert cluster.master(queue_id) == "b"
    assert cluster.in_sync(queue_id) == ("b",)


def test_an_exclusive_queue_whose_declarer_gave_up_is_deleted(cluster: SimulatedCluster) -> None:
    """The call timed out, its command was done after all: nobody owns the queue."""
    owner = cluster.new_session("b")
    for other in "ac":
        cluster.cut("b", other)
    command = DeclareQueue("mine", True, True, False, "b", owner, ())
    cluster.tell("b", Ask(77, command))
    cluster.run(5)
    cluster.tell("b", Forget(77))
    cluster.heal_all()
    cluster.run(5000)
    assert cluster.engine("a").catalog.queue_named("mine") is None
    # Done and answered, but nobody came for it: as if the handle had been closed.
    queue_id = cluster.declare("b", "mine", owner=owner)
    cluster.open_session("b", queue_id, lambda _: None, owner)
    cluster.close_session(owner)
    assert cluster.run_until(lambda: is_gone(cluster, queue_id), 1000)


# --- Of one connection ------------------------------------------------------------------------


def declaring(node: str, connection: str) -> DeclareQueue:
    arguments = owned_arguments("", connection)
    return DeclareQueue("mine", True, False, False, node, None, (), arguments)


def owned_by(cluster: SimulatedCluster, connection: str, node: str = "a") -> int:
    """A queue of this connection that is in sync everywhere, its master on this node."""
    answer = cluster.ask(node, declaring(node, connection))
    assert not answer.error, answer.text
    queue_id: int = answer.value
    assert cluster.run_until(lambda: len(cluster.in_sync(queue_id)) == len(cluster.nodes))
    assert cluster.run_until(lambda: cluster.master(queue_id) == node)
    return queue_id


def kept_by(cluster: SimulatedCluster, node: str, queue_id: int, client: str = "") -> Keeper:
    """The owner's handle on it, attached: a client's, or the node's own."""
    keeper = Keeper(Place(cluster, node, queue_id, "keeper", Random(1)), Journal())
    if client:
        keeper.be_of(client, Random(1))
        keeper.may_leave = False
    keeper.poke()
    assert cluster.run_until(lambda: is_attached(cluster, queue_id, keeper))
    return keeper


def is_attached(cluster: SimulatedCluster, queue_id: int, handle: User) -> bool:
    name = cluster.master(queue_id)
    master = None if name is None else cluster.engine(name).replicas[queue_id].master
    return master is not None and handle._session_id in master.attachments


def test_a_connections_queue_outlives_its_master_and_its_clients_entry_node() -> None:
    """The client stays and attaches to each next master; as it closes the queue goes."""
    cluster = a_cluster()
    queue_id = owned_by(cluster, "client1")
    keeper = kept_by(cluster, "b", queue_id, "client1")
    for name in "ab":
        cluster.kill(name)
        cluster.run(cluster.config.consumer_return_ms)
        cluster.start(name)
        cluster.run(cluster.config.consumer_return_ms)
        assert is_attached(cluster, queue_id, keeper)
    keeper.close()
    assert cluster.run_until(lambda: is_gone(cluster, queue_id), 1000)


def test_a_connections_queue_goes_though_its_owner_died_with_its_master() -> None:
    """The next master has never seen the owner: it waits for it as for one that was lost."""
    cluster = a_cluster()
    queue_id = owned_by(cluster, "client1")
    keeper = kept_by(cluster, "b", queue_id, "client1")
    cluster.kill("a")
    keeper.fall_silent(Random(1))
    cluster.run(cluster.config.consumer_return_ms)
    assert not is_gone(cluster, queue_id)
    assert cluster.run_until(lambda: is_gone(cluster, queue_id), 10_000)


def test_a_nodes_queue_is_gone_when_its_next_life_comes(cluster: SimulatedCluster) -> None:
    """That may have the name at once; what the past life had in it is not its own."""
    queue_id = owned_by(cluster, connection_of(cluster.new_session("b")))
    kept_by(cluster, "b", queue_id)
    cluster.kill("b")
    cluster.start("b")
    assert cluster.run_until(lambda: cluster.engine("b").is_registered)
    again = owned_by(cluster, connection_of(cluster.new_session("b")), "b")
    assert again != queue_id
    assert cluster.run_until(lambda: is_gone(cluster, queue_id), 1000)


def test_a_nodes_queue_outlives_its_silence(cluster: SimulatedCluster) -> None:
    """Its master, on another node, hears nothing of it for as long as a dead one is silent; it may
    only be slow, or cut off."""
    queue_id = owned_by(cluster, connection_of(cluster.new_session("b")), "b")
    keeper = kept_by(cluster, "b", queue_id)
    assert not cluster.ask("a", TransferMaster("mine", "a")).error
    assert cluster.run_until(lambda: is_attached(cluster, queue_id, keeper))
    for other in "ac":
        cluster.cut("b", other, silent=True)
    cluster.run(5 * cluster.config.failure_ms)
    assert not is_attached(cluster, queue_id, keeper)
    cluster.heal_all()
    assert cluster.run_until(lambda: is_attached(cluster, queue_id, keeper))
    cluster.run(2 * cluster.config.consumer_return_ms)
    assert not is_gone(cluster, queue_id)


@pytest.mark.parametrize("seed", range(3))
def test_connections_queues_go_with_their_owners_whatever_breaks(seed: int) -> None:
    """Nobody loses its queue or takes from another's, none is left, nothing confirmed is lost."""
    assert runs.owned(seed) == ""


def test_connections_queues_in_a_swarm() -> None:
    """The same beside all other faults, and other queues."""
    swarm = Swarm(4, chain=False, fan=False, owned=True)
    assert swarm.run().wrong == []
    assert swarm.owned is not None
    assert sum(len(life.journal.attempts) for life in swarm.owned.lives) > 50


# --- Auto-delete --------------------------------------------------------------------------


def test_an_auto_delete_queue_survives_its_master_with_its_consumer() -> None:
    """The consumer attaches to the next master in time; when it leaves, the queue goes."""
    cluster = a_cluster()
    queue_id = cluster.declare("a", "fleeting", auto_delete=True)
    taker = consuming(cluster, "b", queue_id)
    cluster.run(1000)
    cluster.kill("a")
    cluster.run(10_000)
    assert cluster.master(queue_id) in ("b", "c")
    taker.close()
    assert cluster.run_until(lambda: is_gone(cluster, queue_id), 1000)


@pytest.mark.parametrize("silent", [True, False])
def test_an_auto_delete_queue_waits_for_a_consumer_that_a_cut_kept_from_its_new_master(
    silent: bool, cluster: SimulatedCluster
) -> None:
    """The new master knows nobody by name: another consumer that came back, and leaves when the cut
    has just been healed, does not take the queue along."""
    queue_id = cluster.declare("a", "fleeting", auto_delete=True)
    takers = {node: consuming(cluster, node, queue_id) for node in "bc"}
    for other in "ab":
        cluster.cut("c", other, silent=silent)
    assert not cluster.ask("a", TransferMaster("fleeting", "b")).error
    cluster.run(5 * cluster.config.failure_ms)
    assert cluster.master(queue_id) == "b"
    cluster.heal_all()
    cluster.run(JUST_MS)
    takers["b"].close()
    cluster.run(10 * cluster.config.failure_ms)
    assert not is_gone(cluster, queue_id)
    assert not takers["c"].session.closed
    takers["c"].close()
    assert cluster.run_until(lambda: is_gone(cluster, queue_id), 1000)


def test_an_auto_delete_queue_goes_when_its_consumer_died_with_the_master() -> None:
    """The new master has never seen a consumer; the catalog says that there was one. It may have
    been a client's, which would come back."""
    cluster = a_cluster()
    queue_id = cluster.declare("a", "fleeting", auto_delete=True)
    consuming(cluster, "a", queue_id)
    cluster.run(1000)
    cluster.kill("a")
    cluster.run(cluster.config.consumer_return_ms)
    assert not is_gone(cluster, queue_id)
    assert cluster.run_until(lambda: is_gone(cluster, queue_id), 20_000)


def test_a_consumer_that_races_the_deletion_learns_how_it_ended() -> None:
    """One leaves, another comes at every moment around it: it is seated and the queue lives,
    or the queue is gone and its handle is closed; never a handle on nothing."""
    ends = []
    for delay_ms in range(12):
        cluster = a_cluster()
        queue_id = cluster.declare("a", "fleeting", auto_delete=True)
        first = consuming(cluster, "b", queue_id)
        cluster.run(1000)
        late: list[SimulatedHandle] = []
        cluster.after(5, first.close)
        cluster.after(delay_ms, lambda: late.append(_come(cluster, queue_id)))  # noqa: B023
        cluster.run(5000)
        gone = is_gone(cluster, queue_id)
        assert gone == bool(late[0].session.closed)
        ends.append(gone)
    assert set(ends) == {True, False}


def _come(cluster: SimulatedCluster, queue_id: int) -> Taker:
    taker = Taker(cluster, "c", queue_id)
    taker.poke()
    return taker


# --- In a swarm -----------------------------------------------------------------------------


def test_a_visitor_ends_with_its_node_though_nothing_is_due() -> None:
    """Else what it had open would count as open for ever (seeds 1449 and 1660)."""
    cluster = SimulatedCluster(("a", "b", "c"), seed=1)
    cluster.start()
    cluster.run(3000)
    fleeting = Fleeting(cluster, Random(1), Counter())
    fleeting.start()

    def busy() -> list[Visitor]:
        visitors = [visitor for one in fleeting._visited for visitor in one.visitors]
        return [visitor for visitor in visitors if visitor.is_alive and visitor.open_count]

    assert cluster.run_until(lambda: bool(busy()), 60_000)
    visitor = busy()[0]
    cluster.kill(visitor.node)
    visitor._due_ms = None
    assert cluster.run_until(lambda: not visitor.is_open, 60_000)
    assert not visitor.open_count


def test_queues_that_go_with_somebody_do_so_whatever_breaks() -> None:
    """No visitor loses its queue, none is left at the end, nothing confirmed is lost."""
    swarm = Swarm(2, chain=False, fan=False, fleeting=True)
    assert swarm.run().wrong == []
    assert swarm.fleeting is not None
    lives = swarm.fleeting.lives
    assert any(not life.journal.is_deleted for life in lives)
    assert sum(len(life.journal.attempts) for life in lives) > 100


# --- Transient ----------------------------------------------------------------------------


class TransientProducer(Producer):
    """A producer whose messages are not persistent."""

    persistent = False


def stop_all(cluster: SimulatedCluster) -> None:
    for name in cluster.running:
        cluster.kill(name)


def test_24_a_full_stop_ends_what_is_not_durable(cluster: SimulatedCluster) -> None:
    """The transient message and the transient queue are gone, the durable ones are not; while
    one member runs on, all of them survive."""
    kept = cluster.engine("a").catalog.queue_named("orders")
    assert kept is not None
    fleeting = cluster.declare("a", "fleeting", durable=False)
    put(cluster, kept.id, b"persistent")
    put(cluster, kept.id, b"transient", transient=True)
    put(cluster, fleeting, b"any")
    cluster.kill("a")
    assert cluster.run_until(lambda: "a" not in cluster.in_sync(kept.id))
    cluster.start()
    assert cluster.run_until(lambda: set(cluster.in_sync(kept.id)) == set("abc"))
    assert cluster.run_until(lambda: set(cluster.in_sync(fleeting)) == set("abc"))
    assert live(cluster, kept.id) == {2}
    assert live(cluster, fleeting) == {1}
    stop_all(cluster)
    cluster.start()
    assert cluster.run_until(lambda: is_gone(cluster, fleeting))
    assert cluster.run_until(lambda: set(cluster.in_sync(kept.id)) == set("abc"))
    cluster.run(1000)
    assert live(cluster, kept.id) == {1}
    assert checkers.unequal(cluster, kept.id) == []


def test_a_term_that_was_learned_from_a_snapshot_begins_as_it_was_meant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a full stop A is promoted, cold, by a leader that it cannot hear at that moment. It
    learns of that from a snapshot, when B has joined: its first op still drops transient
    messages."""
    monkeypatch.setattr(follower, "COMPACT_ENTRIES", 1)
    cluster = SimulatedCluster(tuple("abvw"), seed=1, witnesses=tuple("vw"))
    cluster.start()
    queue_id = cluster.declare("a", "orders")
    put(cluster, queue_id, b"persistent")
    put(cluster, queue_id, b"transient", transient=True)
    before = life_of_a(cluster)
    stop_all(cluster)
    cluster.start("a", "v", "w")
    assert cluster.run_until(lambda: life_of_a(cluster) > before)
    assert cluster.engine("a").leader != "a"
    # A is known to run. From here on nothing reaches it, until a later view has come.
    for name in "bvw":
        cluster.cut(name, "a", silent=True, one_way=True)
    cluster.start("b")

    def newest() -> View:
        record = cluster.engine("w").catalog.queue(queue_id)
        assert record is not None
        return record.view

    assert cluster.run_until(lambda: newest().epoch > newest().master_epoch > 1, 20_000)
    assert newest().members[0].id.node == "a"
    record = cluster.engine("a").catalog.queue(queue_id)
    assert record is not None
    assert record.view.master_epoch == 1
    cluster.heal_all()
    assert cluster.run_until(lambda: set(cluster.in_sync(queue_id)) == set("ab"))
    cluster.run(1000)
    assert live(cluster, queue_id) == {1}


def life_of_a(cluster: SimulatedCluster) -> int:
    """The incarnation of A that the others know of."""
    records = [cluster.engine(name).catalog.node("a") for name in "vw"]
    return max(0 if record is None else record.incarnation for record in records)


def live(cluster: SimulatedCluster, queue_id: int) -> set[int]:
    """How many messages each running copy has: one number when they agree."""
    replicas = [cluster.engine(name).replicas.get(queue_id) for name in cluster.running]
    return {replica.state.live.count for replica in replicas if replica is not None}


def put(cluster: SimulatedCluster, queue_id: int, body: bytes, *, transient: bool = False) -> None:
    """Publish one message, confirmed, through a running node."""
    kind = TransientProducer if transient else Producer
    journal = Journal()
    node = cluster.running[0]
    producer = kind(Place(cluster, node, queue_id, body.decode(), Random(1)), journal, 1)
    producer.publish()
    assert cluster.run_until(lambda: producer.is_done)
    assert {attempt.state for attempt in journal.attempts.values()} == {"acknowledged"}
