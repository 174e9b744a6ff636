"""Rights to a sharded queue are by its name, and hold for every shard of it."""

from __future__ import annotations

from mirrorq.cluster.catalog.catalog import Catalog
from mirrorq.node.permissions import Permits
from mirrorq.protocol.clients import ClientCall, ClientDeclare, ClientLook
from mirrorq.protocol.commands import Bind, DeclareExchange, DeclareShards
from mirrorq.protocol.identities import MemberId
from mirrorq.security.roles import Key, Right
from mirrorq.transport.curve import new_key_pair
from mirrorq.wire.ops import FrameCodec

A = MemberId("a", 1, 1)


def permits(**patterns: list[str]) -> Permits:
    catalog = Catalog()
    catalog.apply(1, DeclareShards("orders", 2, True, "a", ((A,), (A,))))
    catalog.apply(2, DeclareExchange("events", "fanout"))
    catalog.apply(3, Bind("events", "orders", "", ""))
    return Permits(Key("web", new_key_pair()[0], "client", **patterns), catalog, FrameCodec())


def declare(name: str, *, passive: bool = True) -> ClientCall:
    return ClientCall(1, ClientDeclare(name, True, False, False, passive, 0, 2))


def test_the_queues_name_counts_for_all_of_it() -> None:
    """What may be done to "orders" may be done to each of its rings, and nothing else."""
    mine = permits(read=["orders"])
    record = mine.catalog.sharded_named("orders")
    assert record is not None
    for queue_id in (record.id, *record.rings):
        assert mine.refusal(Right.READ, queue_id) == ""
        assert "orders" in mine.refusal(Right.WRITE, queue_id)
        assert mine.sees(queue_id)
    assert mine.refusal_of_call(declare("orders")) == ""
    assert mine.refusal_of_call(declare("orders#shard1")) == ""
    assert mine.refusal_of_call(ClientCall(1, ClientLook("shards"))) == ""


def test_who_has_no_right_learns_nothing() -> None:
    """Neither of the whole nor of a shard; a pattern for a shard's own name gives nothing."""
    for mine in (permits(read=["other"]), permits(read=["orders#shard1"])):
        record = mine.catalog.sharded_named("orders")
        assert record is not None
        assert not any(mine.sees(queue_id) for queue_id in (record.id, *record.rings))
        assert mine.refusal_of_call(declare("orders"))
        assert mine.refusal_of_call(declare("orders", passive=False))


def test_who_may_write_an_exchange_may_write_what_is_bound() -> None:
    """Its client chooses the shard."""
    mine = permits(write=["events"])
    record = mine.catalog.sharded_named("orders")
    assert record is not None
    assert [mine.refusal(Right.WRITE, ring) for ring in record.rings] == ["", ""]
    assert mine.refusal(Right.READ, record.rings[0])


def test_to_make_one_needs_configure() -> None:
    """Of its name, as for any queue."""
    assert permits(configure=["new"]).refusal_of_call(declare("new", passive=False)) == ""
    assert permits(read=["*"]).refusal_of_call(declare("new", passive=False))
