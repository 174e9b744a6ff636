"""Sharded queues in the catalog: one command makes all rings, one deletes them."""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorq.cluster.catalog.catalog import Catalog
from mirrorq.cluster.catalog.commands import decode_command, encode_command
from mirrorq.cluster.catalog.records import CatalogResult
from mirrorq.cluster.controller.placement import Loads, Spread
from mirrorq.protocol.commands import (
    CatalogCommand,
    ChangeView,
    DeclareExchange,
    DeclareQueue,
    DeclareShards,
    DeleteQueue,
    RegisterNode,
    RemoveNode,
    SetPolicy,
    Synchronise,
)
from mirrorq.protocol.identities import MemberId, StoreId
from mirrorq.protocol.policy import DEFAULT, Definition, parse, to_text
from mirrorq.protocol.shard_names import logical_name, shard_name, shard_of, split_name
from mirrorq.protocol.validation import declaration_error
from mirrorq.protocol.views import Member

A, B, C, D = (MemberId(name, number, 1) for number, name in enumerate("abcd", 1))


def sharded(
    shards: int = 3, name: str = "orders", members: tuple[MemberId, ...] = (A, B), **kept: bool
) -> DeclareShards:
    return DeclareShards(name, shards, kept.get("durable", True), "a", (members,) * shards)


def plain(name: str = "orders", *, auto_delete: bool = False, durable: bool = True) -> DeclareQueue:
    return DeclareQueue(name, durable, False, auto_delete, "a", None, (A, B))


def policy(name: str, pattern: str, **definition: object) -> SetPolicy:
    given = {key.replace("_", "-"): value for key, value in definition.items()}
    return SetPolicy(name, to_text(parse(name, pattern, given, 0, "queues")))


def applied(*commands: CatalogCommand) -> tuple[Catalog, CatalogResult]:
    catalog, result = Catalog(), CatalogResult()
    for index, command in enumerate(commands, 1):
        result = catalog.apply(index, command)
    return catalog, result


# --- Names and keys -------------------------------------------------------------------------


@given(st.text(min_size=1), st.integers(0, 255))
def test_a_shards_name_tells_its_queue_and_number(queue: str, shard: int) -> None:
    """Whatever the queue's name is, of a shard of a shard too."""
    name = shard_name(queue, shard)
    assert split_name(name) == (queue, shard)
    assert logical_name(name) == queue


@pytest.mark.parametrize(
    "name", ["orders", "orders#shard", "orders#shard01", "#shard1", "a#shard-1", "a#shard1 "]
)
def test_other_names_are_no_shards(name: str) -> None:
    """Only the form that is made here is reserved."""
    assert split_name(name) is None
    assert logical_name(name) == name


def test_the_hash_of_a_key_is_fixed_for_ever() -> None:
    """Values that other languages compute: CRC-32 of the UTF-8 bytes, modulo."""
    assert [shard_of(key, 12) for key in ("", "a", "customer-7", "Zoë")] == [0, 3, 8, 2]
    assert shard_of("Zoë", 6) == shard_of("Zoë".encode(), 6) == crc32(b"Zo\xc3\xab") % 6
    with pytest.raises(TypeError, match="str or bytes"):
        shard_of(7, 3)  # type: ignore[arg-type]


def test_keys_spread_evenly() -> None:
    """Numbered keys, as people have them, reach all shards about equally."""
    for shards in (2, 3, 6, 8, 12):
        counts = [0] * shards
        for number in range(6000):
            counts[shard_of(f"customer-{number}", shards)] += 1
        assert max(counts) < 1.2 * 6000 / shards
        assert min(counts) > 0.8 * 6000 / shards


# --- Declaring ------------------------------------------------------------------------------


def test_one_command_makes_all_rings() -> None:
    """Each is a queue of its own, with its own view and a name that tells what it is."""
    catalog, result = applied(sharded(3))
    record = catalog.sharded_named("orders")
    assert record is not None
    assert result == CatalogResult(value=record.id, queues=record.rings)
    rings = [catalog.queue(ring) for ring in record.rings]
    assert [ring.name for ring in rings if ring is not None] == list(record.names())
    assert [catalog.home_of(ring) for ring in record.rings] == [record] * 3
    assert catalog.queue_named("orders") is None
    assert catalog.name_of(record.rings[2]) == catalog.name_of(record.id) == "orders"
    assert not catalog.is_deleted(record.id)


def test_declared_again_it_is_the_same() -> None:
    """With the same number, or by who says nothing of shards."""
    catalog, first = applied(sharded(3))
    assert catalog.apply(2, sharded(3)) == CatalogResult(value=first.value)
    assert catalog.apply(3, plain()) == CatalogResult(value=first.value)
    assert len(catalog.queues()) == 3


def test_another_number_is_refused_with_both() -> None:
    """And changes nothing."""
    catalog, _ = applied(sharded(6))
    refused = catalog.apply(2, sharded(4))
    assert refused.error == "PreconditionFailed"
    assert "shards=6, not 4" in refused.text
    assert "durable=True, not False" in catalog.apply(3, sharded(6, durable=False)).text
    assert "not auto_delete=True" in catalog.apply(4, plain(auto_delete=True)).text
    assert len(catalog.queues()) == 6


def test_a_plain_queue_does_not_become_sharded() -> None:
    """Messages would have to move; the user is told."""
    catalog, _ = applied(plain())
    refused = catalog.apply(2, sharded(4))
    assert refused.error == "PreconditionFailed"
    assert "is not sharded, not shards=4" in refused.text
    assert len(catalog.queues()) == 1


@pytest.mark.parametrize(
    "command",
    [
        DeclareShards("q", 0, True, "a", ()),
        DeclareShards("q", 257, True, "a", ((A,),) * 257),
        DeclareShards("q", 2, True, "a", ((A,),)),
        DeclareShards("q", 2, True, "a", ((A,), ())),
        DeclareShards("q", 2, True, "a", ((A,), (A, A))),
    ],
)
def test_what_cannot_be_made_changes_nothing(command: DeclareShards) -> None:
    """No ring is left of a declaration that is wrong in any of them."""
    catalog, result = applied(command)
    assert result.error
    assert catalog.queues() == ()
    assert catalog.sharded_queues() == ()


def test_a_declaration_fills_the_place_of_a_lost_ring() -> None:
    """forget_node(force) can end one ring; the next declaration makes it anew, the rest stays."""
    catalog, _ = applied(
        RegisterNode("a", 1, 1, "", False),
        RegisterNode("b", 2, 1, "", False),
        DeclareShards("orders", 2, True, "a", ((A,), (B,))),
        RemoveNode("a", 1, True),
    )
    record = catalog.sharded_named("orders")
    assert record is not None
    assert [catalog.queue(ring) is None for ring in record.rings] == [True, False]
    result = catalog.apply(5, sharded(2, members=(B,)))
    made = catalog.sharded_named("orders")
    assert made is not None
    assert result == CatalogResult(value=record.id, queues=(made.rings[0],))
    assert made.rings[0] not in record.rings
    assert made.rings[1] == record.rings[1]
    assert [catalog.queue(ring) is None for ring in made.rings] == [False, False]


# --- Deleting -------------------------------------------------------------------------------


def test_one_command_deletes_all_rings() -> None:
    """And the name is free for a queue of any kind."""
    catalog, first = applied(DeclareExchange("e", "fanout"), sharded(3))
    rings = tuple(queue.id for queue in catalog.queues())
    assert catalog.apply(3, DeleteQueue(first.value)) == CatalogResult(queues=rings)
    assert catalog.queues() == catalog.sharded_queues() == ()
    assert catalog.is_deleted(first.value)
    assert not catalog.apply(4, plain()).error


def test_a_queue_with_an_outbox_ends_when_its_last_ring_does() -> None:
    """Until then its name is taken, and that is said."""
    catalog, first = applied(policy("dead", "^orders$", dead_letter_queue="dead"), sharded(2))
    record = catalog.sharded(first.value)
    assert record is not None
    catalog.apply(3, DeleteQueue(record.id))
    assert catalog.is_ending(record.id)
    assert "is being deleted" in catalog.apply(4, sharded(2)).text
    assert "is being deleted" in catalog.apply(5, plain()).text
    for index, ring in enumerate(record.rings, 6):
        assert not catalog.is_deleted(record.id)
        catalog.apply(index, DeleteQueue(ring, is_drained=True))
    assert catalog.is_deleted(record.id)
    assert not catalog.apply(9, sharded(4)).error


# --- Policies, synchronising, bytes -----------------------------------------------------------


def test_a_policy_matches_the_name_that_users_know() -> None:
    """It holds for every shard; one for shards' own names is nobody's; expires is not for them."""
    catalog, _ = applied(
        sharded(2),
        policy("own", "^orders$", max_length=7, expires=1000),
        policy("never", "#shard1$", max_length=1),
    )
    names = [queue.name for queue in catalog.queues()]
    assert [catalog.definition_of(name).max_length for name in names] == [7, 7]
    assert [catalog.definition_of(name).expires for name in names] == [None, None]
    assert catalog.definition_of("orders").expires == 1000


def test_synchronising_by_the_name_is_of_all_rings() -> None:
    """sync_queue("orders") tells every joining member of every shard."""
    catalog, _ = applied(policy("m", "^orders$", ha_sync_mode="manual"), sharded(2))
    for index, queue in enumerate(catalog.queues(), 3):
        joined = (Member(A, True), Member(B, True), Member(C, False))
        assert not catalog.apply(index, ChangeView(queue.id, 1, joined)).error
    assert catalog.apply(5, Synchronise("orders", True)).value == 2
    assert [catalog.synchronising(queue.id) for queue in catalog.queues()] == [(C,), (C,)]


def test_snapshots_and_commands_keep_it() -> None:
    """Bytes there and back give the same answers, and equal bytes."""
    command = sharded(3)
    assert decode_command(encode_command(command)) == command
    catalog, _ = applied(command, plain("other"))
    again = Catalog.restore(catalog.snapshot())
    assert again.snapshot() == catalog.snapshot()
    assert again.sharded_queues() == catalog.sharded_queues()
    assert again.home_of(catalog.queues()[0].id) == catalog.sharded_named("orders")
    assert again.apply(3, sharded(4)).text == catalog.apply(3, sharded(4)).text
    assert again.apply(4, DeleteQueue(1)) == catalog.apply(4, DeleteQueue(1))
    assert again.snapshot() == catalog.snapshot()


def test_forgetting_ends_nothing_that_others_have() -> None:
    """A store that was in every ring goes out of each."""
    catalog, _ = applied(
        RegisterNode("a", 1, 1, "", False),
        RegisterNode("b", 2, 1, "", False),
        sharded(2),
        RemoveNode("a", 1),
    )
    assert catalog.is_past(StoreId("a", 1))
    assert [q.view.members for q in catalog.queues()] == [(Member(B, True),)] * 2


# --- Declarations before they are asked for ----------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("q", False, False, 0), "1 to 256"),
        (("q", False, False, 257), "1 to 256"),
        (("q", False, False, True), "1 to 256"),
        (("q", False, False, "6"), "1 to 256"),
        (("q", True, False, 3), "exclusive"),
        (("q", False, True, 3), "auto_delete"),
        (("q" * 250, False, False, 3), "at most 246 characters"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: tuple[object, ...], says: str) -> None:
    """Each with a sentence that says why."""
    assert says in declaration_error(*arguments, passive=False)


def test_the_names_of_shards_are_reserved() -> None:
    """Nobody makes a queue of such a name; a shard that exists may be opened."""
    assert "that of a shard" in declaration_error("orders#shard3", False, False, passive=False)
    assert declaration_error("orders#shard3", False, False, passive=True) == ""
    assert declaration_error("orders", False, False, 12, passive=False) == ""


# --- Where shards begin ------------------------------------------------------------------------


def spread(
    shards: int, running: tuple[MemberId, ...], loads: Loads, definition: Definition = DEFAULT
) -> list[tuple[MemberId, ...]]:
    command = DeclareShards("q", shards, True, running[0].node, ())
    one = Spread(definition, running, loads)
    return [one.members(command, shard) for shard in range(shards)]


def test_masters_and_their_successors_are_spread() -> None:
    """Whoever declares and whatever the locator: six shards on three nodes are two on each."""
    views = spread(6, (A, B, C), Loads({}, {}), Definition(queue_master_locator="client-local"))
    masters = [view[0].node for view in views]
    assert [masters.count(name) for name in "abc"] == [2, 2, 2]
    assert all(len(view) == 3 for view in views)
    for name in "abc":
        heirs = [view[1].node for view in views if view[0].node == name]
        assert len(set(heirs)) == 2, "one node's death falls on one other"


def test_shards_of_one_queue_count_before_other_queues() -> None:
    """A node that leads many others takes its part all the same, the smaller one."""
    views = spread(4, (A, B, C), Loads({"a": 40}, {"a": 40, "b": 40, "c": 40}))
    assert sorted(view[0].node for view in views) == ["a", "b", "b", "c"]


def test_copies_follow_the_policy() -> None:
    """Two copies of each on four nodes: all nodes have as many."""
    two = Definition(ha_mode="exactly", ha_params=2)
    views = spread(8, (A, B, C, D), Loads({}, {}), two)
    names = [member.node for view in views for member in view]
    assert [names.count(name) for name in "abcd"] == [4, 4, 4, 4]
    assert all(len(view) == 2 for view in views)
    listed = Definition(ha_mode="nodes", ha_params=("c", "d"))
    masters = [view[0].node for view in spread(4, (A, B, C, D), Loads({}, {}), listed)]
    assert [masters.count(name) for name in "abcd"] == [0, 0, 2, 2]
