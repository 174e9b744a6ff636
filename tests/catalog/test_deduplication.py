"""A request takes effect once, however often and however late it stands in the log."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mirrorq.cluster.catalog.catalog import Catalog
from mirrorq.cluster.catalog.deduplication import (
    OUTCOMES_MAX,
    PAST_RANGES_MAX,
    Deduplication,
    Request,
)
from mirrorq.cluster.catalog.records import CatalogResult
from mirrorq.protocol.commands import (
    AcknowledgeLosses,
    Bind,
    CatalogCommand,
    ChangeView,
    ClearPolicy,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    DropCopy,
    NodeStopped,
    RegisterNode,
    RemoveNode,
    SetPolicy,
    Synchronise,
    Unbind,
)
from mirrorq.protocol.identities import MemberId, StoreId
from mirrorq.protocol.policy import parse, to_text
from mirrorq.protocol.views import Member

A, B = MemberId("a", 1, 1), MemberId("b", 2, 1)
A2, OTHER_A = replace(A, incarnation=2), MemberId("a", 9, 1)
ONE = to_text(parse("p", "", {"ha-mode": "exactly", "ha-params": 1}))


def register(member: MemberId) -> RegisterNode:
    return RegisterNode(member.node, member.store, member.incarnation, "", False)


def declare(name: str = "q") -> DeclareQueue:
    return DeclareQueue(name, True, False, False, "a", None, (A, B))


def catalog_of(*commands: CatalogCommand) -> Catalog:
    catalog = Catalog()
    for command in commands:
        assert not catalog.apply(catalog.applied_index + 1, command).error
    return catalog


def apply(catalog: Catalog, command: CatalogCommand, request: Request) -> CatalogResult:
    return catalog.apply(catalog.applied_index + 1, command, request)


def test_a_late_set_policy_does_not_undo_the_clear() -> None:
    """Of the same node, or of another one."""
    for clearer in (A, B):
        catalog = catalog_of(register(A), register(B), declare())
        asked = Request(A, 1, 1)
        assert apply(catalog, SetPolicy("p", ONE), asked).redefines
        apply(catalog, ClearPolicy("p"), Request(clearer, 2, 2))
        again = apply(catalog, SetPolicy("p", ONE), asked)
        assert catalog.policies() == ()
        assert again.is_repeat
        assert not again.redefines


def test_a_late_declaration_does_not_bring_a_deleted_queue_back() -> None:
    """It is told the id that the first one got: that queue is deleted."""
    catalog = catalog_of(register(A), register(B))
    asked = Request(A, 1, 1)
    queue_id = apply(catalog, declare(), asked).value
    apply(catalog, DeleteQueue(queue_id), Request(B, 1, 1))
    assert apply(catalog, declare(), asked).value == queue_id
    assert catalog.queues() == ()
    assert catalog.is_deleted(queue_id)


def test_requests_may_overtake_each_other() -> None:
    """Those of one node are applied in any order, each once."""
    catalog = catalog_of(register(A), register(B), declare())
    for number in (3, 1, 2):
        command = DeclareExchange(f"x{number}", "fanout")
        assert not apply(catalog, command, Request(A, number, 1)).is_repeat
    for number in (1, 2, 3):
        command = DeclareExchange(f"x{number}", "fanout")
        assert apply(catalog, command, Request(A, number, 1)).is_repeat
    assert not apply(catalog, DeclareExchange("x4", "fanout"), Request(A, 4, 4)).is_repeat


def test_what_the_asker_has_given_up_is_not_done_later() -> None:
    """It timed out, and has asked for something else since: too late, though it is the first."""
    catalog = catalog_of(register(A))
    apply(catalog, ClearPolicy("p"), Request(A, 2, 2))
    late = apply(catalog, SetPolicy("p", ONE), Request(A, 1, 1))
    assert (late.error, late.is_repeat) == ("PreconditionFailed", True)
    assert "is too old" in late.text
    assert catalog.policies() == ()


def test_a_refusal_is_repeated_too() -> None:
    """The asker that missed it gets the same words, though it could be done now."""
    catalog = catalog_of(register(A), register(B))
    bind = Bind("x", "q", "", "")
    refused = apply(catalog, bind, Request(A, 1, 1))
    assert refused.error == "QueueNotFound"
    apply(catalog, declare(), Request(A, 2, 1))
    apply(catalog, DeclareExchange("x", "fanout"), Request(A, 3, 1))
    assert apply(catalog, bind, Request(A, 1, 1)) == evolve(refused, is_repeat=True)


def test_a_new_incarnation_counts_from_1_and_ends_the_old_one() -> None:
    """What the old process asked for comes too late, its registration too."""
    catalog = catalog_of(register(A))
    apply(catalog, SetPolicy("p", ONE), Request(A, 1, 1))
    apply(catalog, register(A2), Request(A2, 1, 1))
    assert not apply(catalog, ClearPolicy("p"), Request(A2, 2, 1)).is_repeat
    assert apply(catalog, SetPolicy("p", ONE), Request(A, 1, 1)).is_repeat
    assert apply(catalog, SetPolicy("r", ONE), Request(A, 5, 5)).is_repeat
    assert catalog.policies() == ()


def test_a_late_registration_does_not_put_a_replaced_store_back() -> None:
    """a came back with an empty store; its first registration comes once more."""
    catalog = Catalog()
    apply(catalog, register(A), Request(A, 1, 1))
    apply(catalog, register(OTHER_A), Request(OTHER_A, 1, 1))
    assert apply(catalog, register(A), Request(A, 1, 1)).is_repeat
    known = catalog.node("a")
    assert known is not None
    assert known.store == OTHER_A.store


def test_a_forgotten_node_is_not_listened_to() -> None:
    """Nor is anything of it remembered."""
    catalog = catalog_of(register(A), register(B))
    apply(catalog, SetPolicy("p", ONE), Request(B, 1, 1))
    apply(catalog, RemoveNode("b", B.store), Request(A, 1, 1))
    late = apply(catalog, SetPolicy("r", ONE), Request(B, 2, 2))
    assert (late.error, late.is_repeat) == ("PreconditionFailed", True)
    assert "forgotten" in late.text
    assert [record.node for record in catalog._deduplication.records()] == ["a"]


def test_a_repeated_permission_to_drop_a_copy_is_none() -> None:
    """It says that it is a repeat: the node may be a member again."""
    catalog = catalog_of(register(A), register(B))
    asked = Request(B, 1, 1)
    apply(catalog, DeclareQueue("q", True, False, False, "a", None, (A,)), Request(A, 1, 1))
    assert not apply(catalog, DropCopy(1, 1, B), asked).is_repeat
    members = (Member(A, True), Member(B, False))
    assert not apply(catalog, ChangeView(1, 1, members), Request(A, 2, 2)).error
    assert apply(catalog, DropCopy(1, 1, B), asked).is_repeat


def test_what_is_remembered_is_bounded() -> None:
    """What an asker no longer waits for goes; with one that waits for ever, old outcomes do."""
    askers = Deduplication()
    for number in range(1, 1000):
        askers.record_outcome(Request(A, number, number), number, "", "")
    (record,) = askers.records()
    assert [outcome.number for outcome in record.outcomes] == [999]
    for number in (one for one in range(1000, 2000) if one != 1100):
        askers.record_outcome(Request(A, number, 999), number, "", "")
    (record,) = askers.records()
    assert len(record.outcomes) == OUTCOMES_MAX
    assert record.past == ((999, 1099), (1101, 1999 - OUTCOMES_MAX))
    assert askers.is_past(A, 999)
    assert askers.is_past(A, 1999 - OUTCOMES_MAX)
    assert not askers.is_past(A, 1100)
    again = Deduplication()
    again.restore(record)
    assert again.records() == (record,)
    askers.record_outcome(Request(A, 2000, 2000), 2000, "", "")
    (record,) = askers.records()
    assert [outcome.number for outcome in record.outcomes] == [2000]
    assert record.past == ()
    for number in range(2001, 2001 + 4 * PAST_RANGES_MAX, 2):
        askers.record_outcome(Request(A, number, 2000), number, "", "")
    (record,) = askers.records()
    assert len(record.past) <= PAST_RANGES_MAX
    assert len(record.outcomes) == OUTCOMES_MAX


def test_a_request_that_waits_is_done_however_many_later_ones_are_done_before() -> None:
    """The leader makes a node wait that is to be forgotten; others declare meanwhile. It was told
    that it is too old."""
    catalog = catalog_of(register(A))
    for number in range(2, 600):
        apply(catalog, DeclareExchange(f"x{number}", "fanout"), Request(A, number, 1))
    restored = Catalog.restore(catalog.snapshot())
    for one in (catalog, restored):
        assert one.repeated(A, 1) is None
        assert not apply(one, SetPolicy("p", ONE), Request(A, 1, 1)).error
        assert apply(one, SetPolicy("p", ONE), Request(A, 1, 1)).is_repeat
        assert apply(one, DeclareExchange("x2", "topic"), Request(A, 2, 1)).is_repeat
    assert restored.snapshot() == catalog.snapshot()


# --- Any history ---------------------------------------------------------------------------

names = st.sampled_from("pq")
lives = st.sampled_from([A, B, A2, OTHER_A])
commands: st.SearchStrategy[CatalogCommand] = st.one_of(
    st.builds(register, lives),
    st.builds(lambda m: NodeStopped(m.node, m.store, m.incarnation), lives),
    st.builds(declare, names),
    st.builds(DeleteQueue, st.integers(1, 3)),
    st.builds(lambda name: SetPolicy(name, ONE), names),
    st.builds(ClearPolicy, names),
    st.builds(DeclareExchange, names, st.just("fanout")),
    st.builds(DeleteExchange, names),
    st.builds(Bind, names, names, st.just(""), st.just("")),
    st.builds(Unbind, names, names, st.just(""), st.just("")),
    st.builds(Synchronise, names, st.booleans()),
    st.builds(AcknowledgeLosses, names, st.integers(0, 9)),
    st.builds(RemoveNode, st.sampled_from("ab"), st.sampled_from([1, 2, 9]), st.booleans()),
    st.builds(
        lambda replaces, flag: ChangeView(1, replaces, (Member(A, True), Member(B, flag))),
        st.integers(1, 3),
        st.booleans(),
    ),
)
requests = st.builds(Request, lives, st.integers(1, 12), st.integers(0, 12))
entries = st.lists(st.tuples(commands, requests), max_size=30)


def run(script: Sequence[tuple[int, CatalogCommand, Request]]) -> Catalog:
    catalog = Catalog()
    for index, command, request in script:
        catalog.apply(index, command, request)
    return catalog


@given(entries, st.lists(st.tuples(st.integers(0, 29), st.integers(0, 30)), max_size=8))
def test_a_duplicate_anywhere_later_changes_nothing(
    history: list[tuple[CatalogCommand, Request]], copies: list[tuple[int, int]]
) -> None:
    """Any entries of a log come again, anywhere behind themselves, across a snapshot too: the
    catalog is byte for byte the one without them."""
    original = [(64 * place, *entry) for place, entry in enumerate(history, 1)]
    repeated = list(original)
    for number, (what, where) in enumerate(copies, 1):
        if what < len(history):
            after = min(what + where, len(history) - 1) + 1
            repeated.append((64 * after + number, *history[what]))
    repeated.sort(key=lambda entry: entry[0])
    end = (64 * 99, ClearPolicy("none"), Request(B, 99))
    plain = run([*original, end])
    again = Catalog()
    for place, (index, command, request) in enumerate([*repeated, end]):
        if place == len(repeated) // 2:
            again = Catalog.restore(again.snapshot())
        result = again.apply(index, command, request)
        assert not (index % 64 and not result.is_repeat)
        assert not (result.is_repeat and (result.queues or result.nodes))
    assert again.snapshot() == plain.snapshot()


@pytest.mark.parametrize("command", [SetPolicy("p", ONE), DeclareExchange("x", "topic")])
def test_the_leaders_own_wishes_are_no_requests(command: CatalogCommand) -> None:
    """They may be applied as often as they stand in the log."""
    catalog = catalog_of(command, command)
    assert catalog._deduplication.records() == ()
    assert catalog.repeated(A, 1) is None
    assert not catalog.is_past(StoreId("a", 1))
