"""A living master that is to move: it is asked, it promises, and only then it is replaced."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from mirrorq.cluster.controller.failure_detector import FailureDetector, LivenessNews
from mirrorq.cluster.controller.leases import Leading
from mirrorq.protocol.commands import (
    CatalogCommand,
    ChangeView,
    DeclareQueue,
    Rebalance,
    SetPolicy,
    TransferMaster,
)
from mirrorq.protocol.control import CatalogAnswer, CatalogRequest, Yield, Yielded
from mirrorq.protocol.identities import MemberId
from mirrorq.protocol.policy import parse, to_text

from .test_supervisor import A, B, C, again, in_sync, joining
from .test_supervisor import Leader as AnsweredLeader


class Leader(AnsweredLeader):
    """Its masters say nothing by themselves."""

    def promise(self, name: str, wanted: Yield) -> None:
        pass


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


def test_nothing_is_proposed_before_the_promise(leader: Leader) -> None:
    """The master is asked again and again; its leases are granted meanwhile."""
    assert leader.ask_lease(A, 1)
    assert transfer(leader, "b") == CatalogAnswer(1, 0, retry=True)
    asked = yields(leader, 500)
    assert 4 <= len(asked) <= 6
    assert set(asked) == {("a", Yield(1, 1))}
    assert leader.proposed == []
    assert leader.ask_lease(A, 2)


def test_with_the_promise_the_view_replaces_that_epoch(leader: Leader) -> None:
    """No lease is waited for; the old master is the first mirror."""
    assert leader.ask_lease(A, 1)
    transfer(leader, "b")
    leader.step(Yielded(1, 1, A))
    assert leader.proposed == [ChangeView(1, 1, in_sync(B, A, C), "clean")]
    assert leader.ask_lease(A, 2)
    # Asked again, it is done: the command goes through the log.
    assert transfer(leader, "b") == TransferMaster("q", "b")
    leader.run(3000)
    assert len(leader.proposed) == 1


def test_a_promise_is_no_reason_to_judge_nodes(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands come at once, each repeated until its view is there."""
    judged: list[FailureDetector] = []
    refresh = FailureDetector.refresh

    def counted(self: FailureDetector) -> LivenessNews:
        judged.append(self)
        return refresh(self)

    monkeypatch.setattr(FailureDetector, "refresh", counted)
    transfer(leader, "b")
    judged.clear()
    leader.commits = False
    leader.step(Yielded(1, 1, A))
    assert judged == []
    assert leader.proposed == [ChangeView(1, 1, in_sync(B, A, C), "clean")]


def test_promises_of_others_and_of_other_epochs_are_none() -> None:
    """Of a mirror, of an older incarnation, of an epoch to come or gone: nothing is proposed."""
    leader = Leader(A, B, C)
    leader.declare(A, B, C)
    transfer(leader, "b")
    for promise in (Yielded(1, 1, B), Yielded(1, 2, A), Yielded(1, 0, A), Yielded(9, 1, A)):
        leader.step(promise)
    leader.step(Yielded(1, 1, replace(A, incarnation=2)))
    assert leader.proposed == []


def test_a_promise_that_nobody_wants_is_voided(leader: Leader) -> None:
    """A new leader hears of it, or the wish has run out: the same members, a newer epoch."""
    leader.step(Yielded(1, 1, A))
    assert leader.proposed == [ChangeView(1, 1, in_sync(A, B, C))]
    leader.run(1000)
    assert len(leader.proposed) == 1


def test_a_wish_that_nobody_repeats_is_dropped(leader: Leader) -> None:
    """Who asked has gone: the master is left alone after two failure_ms."""
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


def test_20_an_unlisted_master_goes_when_the_first_of_the_list_is_in_sync(leader: Leader) -> None:
    """By policy, in the order of the list, and in the same way; its copy goes in a second change,
    on the new master's word."""
    nodes_policy(leader, "c", "b")
    leader.run(50)
    assert leader.proposed == []
    leader.step(Yielded(1, 1, A))
    assert leader.proposed == [ChangeView(1, 1, in_sync(C, A, B), "clean")]
    leader.run(500)
    assert leader.proposed[1:] == []
    leader.step(Yielded(1, 2, C))
    assert leader.proposed[1:] == [ChangeView(1, 2, in_sync(C, B))]


def test_spare_copies_stay_with_a_master_that_says_nothing(leader: Leader) -> None:
    """It may have died a moment ago: then one of them takes over, as if nothing had been asked."""
    nodes_policy(leader, "a")
    assert set(yields(leader, 500)) == {("a", Yield(1, 1))}
    leader.kill(A)
    leader.run(50)
    assert leader.proposed == [ChangeView(1, 1, in_sync(B, C), "clean")]


def test_a_master_is_left_alone_on_its_word_only(pair: Leader) -> None:
    """The last mirror has died: so may the master have, a moment ago, and either one that is back
    first then has all that was confirmed."""
    pair.kill(B)
    assert set(yields(pair, 500)) == {("a", Yield(1, 1))}
    pair.kill(A)
    pair.run(50)
    assert pair.proposed == []
    pair.start(again(B))
    pair.run(2000)
    assert pair.proposed[0].members[0].id == again(B)


def test_who_takes_over_alone_has_the_dead_beside_it_until_it_speaks(pair: Leader) -> None:
    """The same of a new master."""
    pair.kill(A)
    assert pair.proposed == [ChangeView(1, 1, in_sync(B, A), "clean")]
    pair.start(again(A))
    pair.run(500)
    assert pair.proposed[1:] == []
    pair.step(Yielded(1, 2, B))
    assert pair.proposed[1:] == [ChangeView(1, 2, in_sync(B) + joining(again(A)))]


def test_a_word_for_a_spare_copy_is_void_when_the_copy_is_wanted_again(leader: Leader) -> None:
    """The policy was taken back meanwhile: the same members, in a newer epoch."""
    nodes_policy(leader, "a")
    leader.run(50)
    nodes_policy(leader, "a", "b", "c")
    leader.step(Yielded(1, 1, A))
    assert leader.proposed == [ChangeView(1, 1, in_sync(A, B, C))]


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
