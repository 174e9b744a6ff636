"""The catalog as a state machine: each command, compare-and-set, snapshots, bytes."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mirrorq.cluster.catalog.catalog import Catalog
from mirrorq.cluster.catalog.commands import decode_command, encode_command
from mirrorq.cluster.catalog.image import decode_page
from mirrorq.cluster.catalog.load_counts import LoadCounts
from mirrorq.cluster.catalog.records import CatalogResult
from mirrorq.errors import ProtocolError
from mirrorq.protocol.commands import (
    CatalogCommand,
    ChangeView,
    DeclareQueue,
    DeleteQueue,
    DropCopy,
    NameCluster,
    NodeStopped,
    NoteConsumers,
    RegisterNode,
    RemoveNode,
    SetPolicy,
)
from mirrorq.protocol.identities import MemberId, SessionId, StoreId
from mirrorq.protocol.policy import owned_arguments, parse, to_text
from mirrorq.protocol.views import Member, View, make_view, order_error

A, B, C = (MemberId(name, number, 1) for number, name in enumerate("abc", 1))


def register(member: MemberId, *, witness: bool = False, endpoint: str = "") -> RegisterNode:
    at = endpoint or f"tcp://{member.node}:1"
    return RegisterNode(member.node, member.store, member.incarnation, at, witness)


def declare(
    name: str = "orders",
    members: tuple[MemberId, ...] = (A, B, C),
    *,
    durable: bool = True,
    exclusive: bool = False,
    auto_delete: bool = False,
    owner: SessionId | None = None,
) -> DeclareQueue:
    return DeclareQueue(name, durable, exclusive, auto_delete, "a", owner, members)


def change(replaces: int, *members: MemberId, how: str = "", queue_id: int = 1) -> ChangeView:
    return ChangeView(queue_id, replaces, tuple(Member(one, True) for one in members), how)


def applied(*commands: CatalogCommand) -> tuple[Catalog, CatalogResult]:
    """Return a catalog after these commands, and the last result."""
    catalog, result = Catalog(), CatalogResult()
    for index, command in enumerate(commands, 1):
        result = catalog.apply(index, command)
    return catalog, result


def test_the_census_counts_masters_and_copies() -> None:
    """Joining members hold a copy too; a queue that is gone counts no more."""
    members = (Member(A, True), Member(B, False))
    catalog, _ = applied(declare(), declare("lines"), ChangeView(2, 1, members))
    assert numbers(catalog) == ({"a": 2}, {"a": 2, "b": 2, "c": 1})
    catalog.apply(4, change(1, B, C, how="clean"))
    assert numbers(catalog) == ({"b": 1, "a": 1}, {"a": 1, "b": 2, "c": 1})
    catalog.apply(5, DeleteQueue(2))
    assert numbers(catalog) == ({"b": 1}, {"b": 1, "c": 1})


# --- Nodes ------------------------------------------------------------------------------


def test_a_node_is_registered_once_per_incarnation() -> None:
    """A newer incarnation replaces, an equal one changes nothing, an older one is refused."""
    catalog, result = applied(register(A))
    assert result == CatalogResult(nodes=("a",))
    assert catalog.apply(2, register(A)) == CatalogResult()
    newer = MemberId("a", A.store, 3)
    assert catalog.apply(3, register(newer)).nodes == ("a",)
    assert catalog.is_superseded(A)
    assert not catalog.is_superseded(newer)
    refused = catalog.apply(4, register(A))
    assert refused.error == "PreconditionFailed"
    assert "incarnation 3" in refused.text
    assert "incarnation 1" in refused.text
    record = catalog.node("a")
    assert record is not None
    assert record.member == newer


def test_removing_a_node_names_its_store() -> None:
    """The old store of a wiped node can be removed without touching the new one."""
    catalog, _ = applied(register(A))
    assert catalog.apply(2, RemoveNode("a", 77)) == CatalogResult()
    assert catalog.apply(3, RemoveNode("a", A.store)).nodes == ("a",)
    assert catalog.node("a") is None


def test_stores_that_never_registered_are_forgotten_by_their_votes() -> None:
    """None of them may register any more; one that has registered meanwhile is no such store."""
    catalog, _ = applied(register(A))
    assert catalog.apply(2, RemoveNode("x", voters=(40,))).nodes == ("x",)
    assert catalog.apply(3, register(MemberId("x", 40, 1))).error == "PreconditionFailed"
    assert "alive" in catalog.apply(4, RemoveNode("a", voters=(A.store,))).text
    assert catalog.apply(5, RemoveNode("a", A.store, voters=(41,))).nodes == ("a",)
    assert catalog.is_past(StoreId("a", A.store))
    assert catalog.is_past(StoreId("a", 41))


def test_a_forgotten_store_is_in_no_view_and_never_comes_back() -> None:
    """The next in sync stands first, in a new epoch and term; kept over snapshots."""
    catalog, _ = applied(
        register(A), register(B), declare(members=(A, B, C)), declare("two", members=(B, A))
    )
    result = catalog.apply(5, RemoveNode("a", A.store))
    assert (result.nodes, result.queues) == (("a",), (1, 2))
    first, second = catalog.queues()
    assert first.view == make_view(2, (B, C), how="clean", master_epoch=2)
    assert second.view == make_view(2, (B,), master_epoch=1)
    catalog = Catalog.restore(catalog.snapshot())
    assert catalog.is_past(StoreId("a", A.store))
    refused = catalog.apply(6, register(MemberId("a", A.store, 9)))
    assert refused.error == "PreconditionFailed"
    assert "it was forgotten" in refused.text
    assert not catalog.apply(7, register(MemberId("a", 77, 1))).error


def test_a_node_with_a_last_copy_is_forgotten_by_force_only() -> None:
    """A copy that is joining is none; the queue goes with its messages."""
    catalog, _ = applied(register(A), declare(members=(A,)))
    catalog.apply(3, ChangeView(1, 1, (Member(A, True), Member(B, False))))
    refused = catalog.apply(4, RemoveNode("a", A.store))
    assert refused.error == "PreconditionFailed"
    assert "'orders'" in refused.text
    assert catalog.node("a") is not None
    assert catalog.apply(5, RemoveNode("a", A.store, force=True)).queues == (1,)
    assert catalog.queues() == ()


def test_a_cluster_is_named_once() -> None:
    """By whoever led first; kept over snapshots."""
    catalog, _ = applied(NameCluster(7), NameCluster(8))
    assert Catalog.restore(catalog.snapshot()).cluster == 7


# --- Queues -----------------------------------------------------------------------------


def test_a_new_queue_starts_in_epoch_1_with_all_in_sync() -> None:
    """The first view has every member in sync, in the order given, master first."""
    catalog, result = applied(declare())
    assert result == CatalogResult(value=1, queues=(1,))
    queue = catalog.queue(1)
    assert queue is not None
    assert queue == catalog.queue_named("orders")
    assert queue.view == make_view(1, (A, B, C), master_epoch=1)


def test_declaring_again_gives_the_same_queue() -> None:
    """Equal properties give the existing id; which node asks and whom it names is no matter."""
    catalog, _ = applied(declare())
    assert catalog.apply(2, declare(members=())) == CatalogResult(value=1)


@pytest.mark.parametrize("name", ["durable", "exclusive", "auto_delete"])
def test_declaring_with_other_properties_fails(name: str) -> None:
    """The refusal names the property, its value, and the value asked for."""
    catalog, _ = applied(declare())
    other = {"durable": False, "exclusive": True, "auto_delete": True}[name]
    result = catalog.apply(2, declare(**{name: other}))  # type: ignore[arg-type]
    assert (result.error, result.value) == ("PreconditionFailed", 0)
    assert f"{name}={not other}, not {other}" in result.text


def test_an_exclusive_queue_belongs_to_one_handle() -> None:
    """Its owner may declare it again, another handle may not."""
    owner, other = SessionId("a", 1, 1), SessionId("a", 1, 2)
    catalog, _ = applied(register(A), declare(exclusive=True, owner=owner, members=(A,)))
    assert catalog.apply(3, declare(exclusive=True, owner=owner)).value == 1
    assert catalog.apply(4, declare(exclusive=True, owner=other)).error == "PreconditionFailed"
    assert catalog.apply(5, declare()).error == "PreconditionFailed"


@pytest.mark.parametrize(
    ("command", "changed"), [(register(MemberId("a", 1, 2)), (1,)), (RemoveNode("a", 1), (1, 3))]
)
def test_an_exclusive_queue_ends_with_the_incarnation_of_its_node(
    command: CatalogCommand, changed: tuple[int, ...]
) -> None:
    """A restarted or forgotten node has lost its handles; others' queues stay."""
    catalog, _ = applied(
        register(A),
        register(B),
        declare(exclusive=True, owner=SessionId("a", 1, 1), members=(A,)),
        declare("other", exclusive=True, owner=SessionId("b", 1, 1), members=(B,)),
        declare("third", members=(A, B)),
    )
    assert catalog.apply(6, command).queues == changed
    assert [queue.name for queue in catalog.queues()] == ["other", "third"]
    assert Catalog.restore(catalog.snapshot()).snapshot() == catalog.snapshot()


def owned(connection: str, name: str = "orders") -> DeclareQueue:
    arguments = owned_arguments('{"max-length":3}', connection)
    return DeclareQueue(name, True, False, False, "a", None, (A, B), arguments)


def test_an_exclusive_queue_belongs_to_one_connection() -> None:
    """Which may declare it again, with the arguments it has; nobody else may, whatever they say."""
    catalog, _ = applied(register(A), owned("client-1"))
    assert catalog.apply(3, owned("client-1")).value == 1
    for command in (owned("client-2"), declare()):
        result = catalog.apply(4, command)
        assert result.error == "PreconditionFailed"
        assert "'orders' is exclusive and belongs to connection client-1" in result.text
    plain, _ = applied(declare())
    assert "exclusive=False, not True" in plain.apply(2, owned("client-1")).text


def test_an_exclusive_queue_ends_with_the_incarnation_of_the_node_that_declared_it() -> None:
    """Where the node itself is the connection; of another node of a like name it stays."""
    catalog, _ = applied(
        register(A), register(B), owned("a/1"), owned("b/1", "other"), owned("a", "client's")
    )
    assert catalog.apply(6, register(MemberId("a", 1, 2))).queues == (1,)
    assert [queue.name for queue in catalog.queues()] == ["other", "client's"]
    catalog.apply(7, owned("a/2"))
    assert catalog.apply(8, register(MemberId("b", 1, 2))).queues == (2,)
    assert Catalog.restore(catalog.snapshot()).snapshot() == catalog.snapshot()


def test_an_exclusive_queue_needs_an_owner_that_lives() -> None:
    """A declaration that arrives after its node's restart makes no queue that nobody ends."""
    catalog, _ = applied(register(MemberId("a", 1, 2)))
    for owner in (None, SessionId("a", 1, 1), SessionId("b", 1, 1)):
        result = catalog.apply(2, declare(exclusive=True, owner=owner, members=(A,)))
        assert result.error == "PreconditionFailed"
    assert catalog.queues() == ()


def test_a_deletion_that_names_a_term_fails_in_another() -> None:
    """An auto-delete queue lives on when another master took over before its deletion."""
    catalog, _ = applied(declare(auto_delete=True), change(1, B, A, how="clean"))
    refused = catalog.apply(3, DeleteQueue(1, master_epoch=1))
    assert (refused.error, refused.queues) == ("PreconditionFailed", ())
    assert catalog.apply(4, DeleteQueue(1, master_epoch=2)).queues == (1,)


def test_that_a_queue_was_consumed_is_kept() -> None:
    """Set once, over snapshots; of an unknown queue it says so."""
    catalog, result = applied(declare(auto_delete=True), NoteConsumers(1))
    assert result.queues == (1,)
    restored = Catalog.restore(catalog.snapshot()).queue(1)
    assert restored is not None
    assert restored.was_consumed
    assert catalog.apply(3, NoteConsumers(7)).error == "QueueNotFound"


def test_queue_ids_are_never_used_again() -> None:
    """A queue declared under the name of a deleted one is another queue."""
    catalog, result = applied(declare(), DeleteQueue(1))
    assert result.queues == (1,)
    assert catalog.queue(1) is None
    assert catalog.queue_named("orders") is None
    assert catalog.apply(3, declare()).value == 2
    assert Catalog.restore(catalog.snapshot()).apply(4, declare("other")).value == 3


def test_deleting_an_absent_queue_says_so() -> None:
    """The second of two deletes learns that the queue is gone, by its id."""
    _, result = applied(DeleteQueue(41))
    assert (result.error, result.queues) == ("QueueNotFound", ())
    assert "41" in result.text


def test_a_queue_needs_a_well_formed_first_view() -> None:
    """A declaration without members, or with one node twice, makes nothing."""
    for members in ((), (A, MemberId("a", 9, 1))):
        catalog, result = applied(declare(members=members))
        assert result.error == "ProtocolError"
        assert catalog.queues() == ()


# --- Views ------------------------------------------------------------------------------


def test_a_view_changes_by_compare_and_set() -> None:
    """Of two proposals for one epoch the second fails and names both epochs."""
    catalog, result = applied(declare(), change(1, A, B))
    assert result == CatalogResult(value=2, queues=(1,))
    late = catalog.apply(3, change(1, A, C))
    assert (late.error, late.queues) == ("PreconditionFailed", ())
    assert "epoch 1" in late.text
    assert "epoch 2" in late.text
    queue = catalog.queue(1)
    assert queue is not None
    assert queue.view == make_view(2, (A, B), master_epoch=1)


def test_only_who_was_in_sync_becomes_master() -> None:
    """R5: by store, restarted or not; neither a joiner, a stranger nor a wiped store."""
    again = MemberId("b", B.store, 2)
    for head, how, error in [
        (B, "clean", ""),
        (again, "cold", ""),
        (B, "", "ProtocolError"),
        (MemberId("b", 99, 2), "clean", "ProtocolError"),
        (C, "clean", "ProtocolError"),
        (C, "unclean", "ProtocolError"),
    ]:
        joining = ChangeView(1, 1, (Member(A, True), Member(B, True), Member(C, False)))
        catalog, _ = applied(declare(), joining)
        assert catalog.apply(3, change(2, head, how=how)).error == error, (head, how)


def test_a_term_lasts_while_the_master_lives() -> None:
    """It is named after the epoch of the change of master; a restarted master begins anew."""
    again = MemberId("a", A.store, 2)
    catalog, _ = applied(declare(), change(1, A, B))
    master_epochs = []
    steps = [(2, (B,), "clean"), (3, (B,), ""), (4, (B, A), ""), (5, (again,), "cold")]
    for replaces, members, how in steps:
        assert catalog.apply(9, change(replaces, *members, how=how)).error == ""
        queue = catalog.queue(1)
        assert queue is not None
        master_epochs.append(queue.view.master_epoch)
    assert master_epochs == [3, 3, 3, 6]


def _always(on_shutdown: str = "always", on_failure: str = "always") -> SetPolicy:
    told = {"ha-promote-on-shutdown": on_shutdown, "ha-promote-on-failure": on_failure}
    return SetPolicy("p", to_text(parse("p", "", told)))


@pytest.mark.parametrize("on_shutdown", ["when-synced", "always"])
@pytest.mark.parametrize("on_failure", ["when-synced", "always"])
@pytest.mark.parametrize("is_stopped", [True, False])
def test_the_policy_says_who_may_be_promoted_uncleanly(
    on_shutdown: str, on_failure: str, is_stopped: bool
) -> None:
    """on-failure: when-synced outranks on-shutdown: always; a shutdown needs both."""
    before = ChangeView(1, 1, (Member(A, True), Member(C, False)))
    commands = [register(A), declare(), before, _always(on_shutdown, on_failure)]
    if is_stopped:
        commands.append(NodeStopped("a", A.store, A.incarnation))
    catalog, _ = applied(*commands)
    allowed = on_failure == "always" and (on_shutdown == "always" or not is_stopped)
    unclean = ChangeView(1, 2, (Member(C, True),), "unclean")
    assert (catalog.apply(9, unclean).error == "") == allowed
    queue = catalog.queue(1)
    assert queue is not None
    assert queue.view.generation == allowed


def test_an_unclean_master_is_a_mirror_alone_in_sync() -> None:
    """Neither a stranger, nor one in sync, nor with others said to be in sync with it."""
    before = ChangeView(1, 1, (Member(A, True), Member(C, False)))
    catalog, _ = applied(register(A), declare(), before, _always())
    for members in [(Member(B, True),), (Member(A, True),), (Member(C, True), Member(A, True))]:
        assert catalog.apply(9, ChangeView(1, 2, members, "unclean")).error == "ProtocolError"
    good = ChangeView(1, 2, (Member(C, True), Member(A, False)), "unclean")
    assert catalog.apply(9, good).error == ""


def test_a_shutdown_is_of_one_incarnation() -> None:
    """It is forgotten when the node comes back, kept in a snapshot, and not said of others."""
    catalog, _ = applied(register(A), NodeStopped("a", A.store, A.incarnation))
    assert Catalog.restore(catalog.snapshot()).was_stopped(A)
    again = MemberId("a", A.store, A.incarnation + 1)
    catalog.apply(3, NodeStopped("a", A.store, A.incarnation + 1))
    assert not catalog.was_stopped(again)
    catalog.apply(4, register(again))
    assert not catalog.was_stopped(A)
    assert not catalog.was_stopped(again)


def test_a_malformed_view_is_refused() -> None:
    """A view whose master is not in sync never comes into force."""
    catalog, _ = applied(declare())
    result = catalog.apply(2, ChangeView(1, 1, (Member(A, False),)))
    assert result.error == "ProtocolError"
    assert catalog.apply(3, change(1, A, queue_id=9)).error == "QueueNotFound"


# --- Bytes ------------------------------------------------------------------------------

members_of = st.builds(MemberId, st.sampled_from("abc"), st.sampled_from([1, 2]), st.integers(1, 3))
commands = st.one_of(
    st.builds(
        RegisterNode,
        st.sampled_from("abc"),
        st.sampled_from([1, 2]),
        st.integers(1, 3),
        st.just("tcp://x:1"),
        st.booleans(),
    ),
    st.builds(
        DeclareQueue,
        st.sampled_from(["q", "r"]),
        st.booleans(),
        st.booleans(),
        st.booleans(),
        st.just("a"),
        st.none() | st.builds(SessionId, st.just("a"), st.just(1), st.integers(1, 2)),
        st.lists(members_of, max_size=3).map(tuple),
    ),
    st.builds(
        ChangeView,
        st.integers(1, 3),
        st.integers(1, 4),
        st.lists(st.builds(Member, members_of, st.booleans()), max_size=3).map(tuple),
        st.sampled_from(["", "clean", "cold", "unclean"]),
    ),
    st.builds(NodeStopped, st.sampled_from("abc"), st.sampled_from([1, 2]), st.just(1)),
    st.just(SetPolicy("p", to_text(parse("p", "", {"ha-promote-on-failure": "always"})))),
    st.builds(DeleteQueue, st.integers(1, 3)),
    st.builds(RemoveNode, st.sampled_from("abc"), st.sampled_from([1, 2])),
)


@given(st.lists(commands, max_size=30), st.integers(0, 30))
def test_any_history_is_well_formed_and_survives_a_snapshot(
    history: list[CatalogCommand], cut: int
) -> None:
    """Any commands: no exception, equal states give equal bytes, also across a restart of the
    machine from its snapshot, epochs grow by one, and a promoted member was in sync."""
    one, other = Catalog(), Catalog()
    for index, command in enumerate(history, 1):
        if index == cut:
            other = Catalog.restore(other.snapshot())
        before = {queue.id: queue.view for queue in one.queues()}
        assert decode_command(encode_command(command)) == command
        assert one.apply(index, command) == other.apply(
            index, decode_command(encode_command(command))
        )
        for queue in one.queues():
            assert order_error(queue.view.members) == ""
            _check_step(before.get(queue.id), queue.view)
            assert queue.has_outbox or not one.definition_of(queue.name).dead_letter_queue
        assert one.load_counts == _counted(one)
    assert one.snapshot() == other.snapshot()
    assert one.load_counts == other.load_counts
    assert Catalog.restore(one.snapshot()).snapshot() == one.snapshot()


def _counted(catalog: Catalog) -> LoadCounts:
    counted = LoadCounts()
    for queue in catalog.queues():
        counted.enter(queue)
    return counted


def numbers(catalog: Catalog) -> tuple[dict[str, int], dict[str, int]]:
    """How many queues each node leads, and of how many it has a copy."""
    masters, copies = (
        {node: len(queues) for node, queues in of_nodes.items()}
        for of_nodes in (catalog.load_counts.masters, catalog.load_counts.copies)
    )
    return masters, copies


def _check_step(before: View | None, after: View) -> None:
    if before is None or after == before:
        return
    assert after.epoch == before.epoch + 1
    head = after.members[0].id
    if head != before.members[0].id and after.how != "unclean":
        stores = [(m.id.node, m.id.store) for m in before.members if m.in_sync]
        assert (head.node, head.store) in stores


def test_foreign_bytes_are_a_protocol_error() -> None:
    """Garbage, a command of a later version and a snapshot of another one name themselves."""
    for data in (b"", b"\xff", msgspec.msgpack.encode((1, {"node": 5}))):
        with pytest.raises(ProtocolError, match=r"a catalog command of .* cannot be read"):
            decode_command(data)
    with pytest.raises(ProtocolError, match="command 200 is of a later version"):
        decode_command(msgspec.msgpack.encode((200, {})))
    with pytest.raises(ProtocolError, match="version 9"):
        Catalog.restore([msgspec.msgpack.encode((9, {}))])
    with pytest.raises(ProtocolError, match=r"a catalog snapshot of .* cannot be read"):
        Catalog.restore([b"\x92\x02\x05"])


@given(st.binary(max_size=60))
def test_any_bytes_decode_or_raise_protocol_error(data: bytes) -> None:
    """What peers send raises nothing but ProtocolError."""
    for decode in (decode_command, decode_page, lambda page: Catalog.restore([page])):
        try:
            decode(data)
        except ProtocolError:
            continue


def test_a_copy_may_go_in_the_epoch_that_does_not_name_its_store() -> None:
    """Not in another epoch, not as a member in whatever incarnation; and nothing changes by it."""
    catalog, _ = applied(declare(members=(A,)))
    before = catalog.snapshot()
    assert catalog.apply(1, DropCopy(1, 1, B)).value == 1
    other_a = replace(A, incarnation=7)
    for refused in (DropCopy(1, 2, B), DropCopy(1, 1, A), DropCopy(1, 1, other_a)):
        result = catalog.apply(1, refused)
        assert result.error == "PreconditionFailed"
        assert "look again" in result.text
    assert catalog.apply(1, DropCopy(7, 1, B)).error == "QueueNotFound"
    assert catalog.snapshot() == before
