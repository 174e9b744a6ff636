"""What a store makes of its catalog when it goes on alone."""

from __future__ import annotations

import pytest

from mirrorq.cluster.catalog.catalog import LOST_IDS_MAX, Catalog
from mirrorq.cluster.catalog.proposals import pack
from mirrorq.cluster.force_boot import EPOCH_STEP, RecoveredState, recovered_state
from mirrorq.cluster.raft.messages import KIND_COMMAND, KIND_VOTERS, encode_voters
from mirrorq.protocol.commands import (
    Bind,
    CatalogCommand,
    DeclareExchange,
    DeclareQueue,
    NameCluster,
    RegisterNode,
)
from mirrorq.protocol.effects import RaftEntry, RaftImage, RaftSnapshot, RaftState
from mirrorq.protocol.identities import (
    MemberId,
    SessionId,
    StoreId,
    first_incarnation,
    lineage,
    next_incarnation,
)

A, B, C = (MemberId(name, number, 7) for number, name in enumerate("abc", 1))
VOTERS = tuple(StoreId(one.node, one.store) for one in (A, B, C))
COMMANDS: tuple[CatalogCommand, ...] = (
    *(RegisterNode(m.node, m.store, m.incarnation, f"tcp://{m.node}:1", False) for m in (A, B, C)),
    NameCluster(99),
    DeclareQueue("all", True, False, False, "a", None, (A, B, C)),
    DeclareQueue("elsewhere", True, False, False, "b", None, (B,)),
    DeclareQueue("own", True, True, False, "a", SessionId("a", 7, 1), (A,)),
    DeclareExchange("e", "fanout"),
    Bind("e", "all", "", ""),
    Bind("e", "elsewhere", "", ""),
)
ALL, ELSEWHERE, OWN = 1, 2, 3


def image_of(*, compacted: int = 0) -> RaftImage:
    """The log of node a; its first entries in a snapshot."""
    data = encode_voters(VOTERS)
    entries = [RaftEntry(1, 1, KIND_VOTERS, data)]
    entries += [
        RaftEntry(index, 2, KIND_COMMAND, pack(A, 0, command))
        for index, command in enumerate(COMMANDS, 2)
    ]
    if not compacted:
        return RaftImage(RaftState(5), None, tuple(entries))
    catalog = Catalog()
    for index, command in enumerate(COMMANDS[: compacted - 1], 2):
        catalog.apply(index, command)
    snapshot = RaftSnapshot(compacted, 2, VOTERS, catalog.snapshot())
    return RaftImage(RaftState(5), snapshot, tuple(entries[compacted:]))


def recovered(image: RaftImage) -> RecoveredState:
    found = recovered_state("a", A.store, image)
    assert found is not None
    return found


@pytest.mark.parametrize("compacted", [0, 6, len(COMMANDS) + 1])
def test_what_a_store_knows_is_read_from_snapshot_and_log(compacted: int) -> None:
    """All entries count, wherever the snapshot ends."""
    found = recovered(image_of(compacted=compacted))
    assert found.others == ("b", "c")
    assert found.voters == VOTERS
    losses = {loss.queue: (loss.has_copy, loss.was_in_sync) for loss in found.losses([ALL, OWN])}
    assert losses == {"all": (True, True), "elsewhere": (False, False), "own": (True, True)}


def test_the_survivor_is_alone_in_another_cluster() -> None:
    """Another store, cluster, term and epochs; another past of each queue that is here; the others
    and their queues are gone, and none of the old stores is taken back, its own neither."""
    before = recovered(image_of()).catalog.queue(ALL)
    assert before is not None
    write = recovered(image_of()).inherited([ALL, OWN], 4711, 1234)
    assert write.state == RaftState(6)
    assert write.snapshot is not None
    assert (write.snapshot.index, write.snapshot.term) == (len(COMMANDS) + 2, 6)
    assert write.snapshot.voters == (StoreId("a", 4711),)
    catalog = Catalog.restore(write.snapshot.pages)
    assert catalog.cluster == 1234
    assert catalog.applied_index == write.snapshot.index
    me = MemberId("a", 4711, first_incarnation(4711))
    assert [node.member for node in catalog.nodes()] == [me]
    assert [queue.name for queue in catalog.queues()] == ["all"]
    (queue,) = catalog.queues()
    assert [(member.id, member.in_sync) for member in queue.view.members] == [(me, True)]
    assert queue.view.epoch == queue.view.master_epoch == before.view.epoch + EPOCH_STEP
    assert queue.view.generation == before.view.generation + 1
    assert all(catalog.is_past(voter) for voter in VOTERS)
    assert not catalog.is_past(StoreId("a", 4711))
    exchange = catalog.exchange("e")
    assert exchange is not None
    assert [binding.queue_id for binding in exchange.bindings] == [ALL]
    # A queue to come takes no id that was used before, here or by those who are lost.
    declare = DeclareQueue("next", True, False, False, "a", None, (me,))
    assert catalog.apply(50, declare).value == OWN + 1 + LOST_IDS_MAX


def test_clients_go_on_with_a_survivor() -> None:
    """Its cluster is another one of the same lineage; one that was founded anew is not."""
    before, chance = 0x1234_5678_9ABC_DEF0, 0x7F0F_0F0F_0F0F_0F0F
    after = next_incarnation(before, chance)
    assert after != before
    assert lineage(after) == lineage(before) != lineage(chance)


def test_nothing_is_recovered_of_a_store_without_a_cluster() -> None:
    """It was never founded: there is nothing to go on with."""
    assert recovered_state("a", 1, RaftImage()) is None
