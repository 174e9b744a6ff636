"""A living master that is to move: it is asked, it promises, and only then it is replaced."""

from __future__ import annotations

from msgspec.structs import replace

from mirrorq.lease import Leading
from mirrorq.messages import (
    CatalogAnswer,
    CatalogCommand,
    CatalogRequest,
    ChangeView,
    DeclareQueue,
    MemberId,
    Rebalance,
    SetPolicy,
    TransferMaster,
    Yield,
    Yielded,
)
from mirrorq.policy import parse, to_text

from .test_supervisor import A, B, C, Leader, in_sync


def admitted(
    leader: Leader, asker: MemberId, command: CatalogCommand
) -> CatalogCommand | CatalogAnswer:
    """What the leader makes of a request."""
    leading = Leading(1, True, leader.catalog.applied_index, leader.now_ms)
    return leader.supervisor.admit(CatalogRequest(1, asker, command), leading)


def transfer(leader: Leader, node: str) -> object:
    answer = admitted(leader, C, TransferMaster("q", node))
    leader.run(10)
    return answer


def nodes_policy(leader: Leader, *names: str) -> None:
    policy = parse("p", "", {"ha-mode": "nodes", "ha-params": list(names)})
    leader.commit(SetPolicy("p", to_text(policy)))


def yields(leader: Leader, span_ms: int) -> list[tuple[str, Yield]]:
    """What is asked of masters in a span."""
    asked = []
    for _ in range(span_ms // 10):
        leader.run(10)
        asked += leader.last.yields
    return asked


def test_nothing_is_proposed_before_the_promise() -> None:
    """The master is asked again and again; its leases are granted meanwhile."""
    leader = Leader(A, B, C)
    leader.declare(A, B, C)
    assert leader.ask_lease(A, 1)
    assert transfer(leader, "b") == CatalogAnswer(1, 0, retry=True)
    asked = yields(leader, 500)
    assert 4 <= len(asked) <= 6
    assert set(asked) == {("a", Yield(1, 1))}
    assert leader.proposed == []
    assert leader.ask_lease(A, 2)


def test_with_the_promise_the_view_replaces_that_epoch() -> None:
    """No lease is waited for; the old master is the first mirror."""
    leader = Leader(A, B, C)
    leader.declare(A, B, C)
    assert leader.ask_lease(A, 1)
    transfer(leader, "b")
    leader.step(Yielded(1, 1, A))
    assert leader.proposed == [ChangeView(1, 1, in_sync(B, A, C), "clean")]
    assert leader.ask_lease(A, 2)
    # Asked again, it is done: the command goes through the log.
    assert transfer(leader, "b") == TransferMaster("q", "b")
    leader.run(3000)
    assert len(leader.proposed) == 1


def test_promises_of_others_and_of_other_epochs_are_none() -> None:
    """Of a mirror, of an older life, of an epoch to come or gone: nothing is proposed."""
    leader = Leader(A, B, C)
    leader.declare(A, B, C)
    transfer(leader, "b")
    for promise in (Yielded(1, 1, B), Yielded(1, 2, A), Yielded(1, 0, A), Yielded(9, 1, A)):
        leader.step(promise)
    leader.step(Yielded(1, 1, replace(A, incarnation=2)))
    assert leader.proposed == []


def test_a_promise_that_nobody_wants_is_voided() -> None:
    """A new leader hears of it, or the wish has run out: the same members, a newer epoch."""
    leader = Leader(A, B, C)
    leader.declare(A, B, C)
    leader.step(Yielded(1, 1, A))
    assert leader.proposed == [ChangeView(1, 1, in_sync(A, B, C))]
    leader.run(1000)
    assert len(leader.proposed) == 1


def test_a_wish_that_nobody_repeats_is_dropped() -> None:
    """Who asked has gone: the master is left alone after two failure_ms."""
    leader = Leader(A, B, C)
    leader.declare(A, B, C)
    transfer(leader, "b")
    leader.run(2500)
    assert yields(leader, 500) == []
    assert leader.proposed == []


def test_the_target_dies_after_the_promise() -> None:
    """The proposal was not committed: the next one keeps the master, in a newer epoch."""
    leader = Leader(A, B, C, commits=False)
    leader.declare(A, B, C)
    transfer(leader, "b")
    leader.step(Yielded(1, 1, A))
    assert leader.proposed == [ChangeView(1, 1, in_sync(B, A, C), "clean")]
    leader.kill(B)
    leader.run(1500)
    assert leader.proposed[1:] == [ChangeView(1, 1, in_sync(A, C))]


def test_20_an_unlisted_master_goes_when_the_first_of_the_list_is_in_sync() -> None:
    """By policy, in the order of the list, and in the same way."""
    leader = Leader(A, B, C)
    leader.declare(A, B, C)
    nodes_policy(leader, "c", "b")
    leader.run(50)
    assert leader.proposed == []
    leader.step(Yielded(1, 1, A))
    assert leader.proposed[0] == ChangeView(1, 1, in_sync(C, B), "clean")


def test_25_one_rebalance_at_a_time() -> None:
    """The second asker is refused until the first is done, or has been silent for long."""
    leader = Leader(A, B, C)
    for name in ("q", "r", "s"):
        leader.commit(DeclareQueue(name, True, False, False, "a", None, (A, B, C)))
    assert isinstance(admitted(leader, B, Rebalance()), CatalogAnswer)
    refused = admitted(leader, C, Rebalance())
    assert isinstance(refused, CatalogAnswer)
    assert refused.error == "PreconditionFailed"
    leader.run(3000)
    again = admitted(leader, C, Rebalance())
    assert again == CatalogAnswer(1, 0, retry=True)
