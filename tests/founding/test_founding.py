"""One node's part in founding, step by step."""

from __future__ import annotations

from mirrorq.cluster.bootstrap import (
    AdmissionRequest,
    Founded,
    Founding,
    FoundingDone,
    FoundingPromise,
    FoundingProposal,
    FoundingReceived,
    FoundingRefused,
    FoundingTick,
    PeerHello,
)
from mirrorq.config import Config
from mirrorq.protocol.identities import StoreId

A, B, C = (StoreId(name, 1) for name in "abc")
B2 = StoreId("b", 2)
A2 = StoreId("a", 2)
ALL = (A, B, C)
NAMES = ("a", "b", "c")


def make(store: StoreId, promised: bytes = b"", *, founded: bool = False) -> Founding:
    return Founding(store, NAMES, promised, Config(), founded=founded)


def test_a_node_without_peers_founds_itself_at_once() -> None:
    """The first step decides, with this store as the only voter."""
    founding = Founding(A, (), b"", Config(), founded=False)
    effects = founding.step(0, FoundingTick())
    assert effects.found == (A,)
    assert effects.promise
    assert not effects.send


def test_the_lowest_name_proposes_when_it_knows_every_store() -> None:
    """One missing hello, and nothing is proposed; with the last one all are asked."""
    founding = make(A)
    assert founding.step(0, PeerHello(B, False)).send == ()
    assert founding.waiting_for == ("c",)
    effects = founding.step(0, PeerHello(C, False))
    assert effects.send == ((B, FoundingProposal(ALL)), (C, FoundingProposal(ALL)))
    assert effects.promise is None
    assert effects.found is None


def test_others_never_propose() -> None:
    """A node that is not the lowest waits, whatever it knows."""
    founding = make(B)
    founding.step(0, PeerHello(A, False))
    effects = founding.step(0, PeerHello(C, False))
    assert effects.send == ()
    assert founding.waiting_for == ()


def test_a_promise_is_persisted_with_the_answer_that_tells_it() -> None:
    """The same effects hold the value for the disk and the answer that waits for it."""
    effects = make(B).step(0, FoundingReceived(A, FoundingProposal(ALL)))
    assert effects.promise is not None
    assert (A, FoundingPromise(ALL)) in effects.send
    assert effects.found is None


def test_the_coordinator_founds_when_all_have_promised() -> None:
    """With the last promise it decides, and tells the others in the same effects."""
    founding = make(A)
    founding.step(0, PeerHello(B, False))
    founding.step(0, PeerHello(C, False))
    assert founding.step(0, FoundingReceived(B, FoundingPromise(ALL))).found is None
    effects = founding.step(0, FoundingReceived(C, FoundingPromise(ALL)))
    assert effects.found == ALL
    assert effects.promise is not None
    assert effects.send == ((B, FoundingDone(ALL)), (C, FoundingDone(ALL)))


def test_a_promise_survives_a_restart_and_binds() -> None:
    """A restarted node refuses another coordinator's store and says why it is stuck."""
    promise = make(B).step(0, FoundingReceived(A, FoundingProposal(ALL))).promise
    assert promise is not None
    founding = make(B, promise)
    effects = founding.step(0, FoundingReceived(A2, FoundingProposal((A2, B, C))))
    assert effects.promise is None
    assert (A2, FoundingPromise(ALL)) in effects.send
    founding.step(0, PeerHello(A2, False))
    assert "delete their stores" in founding.stuck
    assert not founding.needs_admission


def test_a_coordinator_that_meets_a_foreign_promise_says_so() -> None:
    """The wiped coordinator tells which store has to be deleted."""
    founding = make(A2)
    founding.step(0, PeerHello(B, False))
    founding.step(0, PeerHello(C, False))
    founding.step(0, FoundingReceived(B, FoundingPromise(ALL)))
    assert "delete the store of b" in founding.stuck


def test_a_wiped_peer_only_delays_the_founding() -> None:
    """The same coordinator proposes with the new store, and promises move along."""
    coordinator, other = make(A), make(C)
    coordinator.step(0, PeerHello(B, False))
    coordinator.step(0, PeerHello(C, False))
    other.step(0, FoundingReceived(A, FoundingProposal(ALL)))
    effects = coordinator.step(0, PeerHello(B2, False))
    anew = (A, B2, C)
    assert (C, FoundingProposal(anew)) in effects.send
    effects = other.step(0, FoundingReceived(A, FoundingProposal(anew)))
    assert effects.promise is not None
    assert (A, FoundingPromise(anew)) in effects.send
    # A late promise to the first founding does not count for the second.
    assert coordinator.step(0, FoundingReceived(C, FoundingPromise(ALL))).found is None
    coordinator.step(0, FoundingReceived(B2, FoundingPromise(anew)))
    assert coordinator.step(0, FoundingReceived(C, FoundingPromise(anew))).found == anew


def test_an_empty_node_that_meets_a_founded_one_asks_to_be_admitted() -> None:
    """It neither proposes nor promises; the founded one passes its wish on."""
    empty = make(A2)
    empty.step(0, PeerHello(B, True))
    effects = empty.step(5_000, PeerHello(C, True))
    assert empty.needs_admission
    assert (C, AdmissionRequest()) in effects.send
    old = make(C, founded=True)
    assert old.step(0, FoundingReceived(A2, AdmissionRequest())).admit == (A2,)


def test_a_lost_decision_is_learned_from_any_founded_member() -> None:
    """Its promise, sent again, is answered by what was decided."""
    coordinator, other = make(A), make(B)
    coordinator.step(0, PeerHello(B, False))
    coordinator.step(0, PeerHello(C, False))
    promised = other.step(0, FoundingReceived(A, FoundingProposal(ALL))).promise
    coordinator.step(0, FoundingReceived(B, FoundingPromise(ALL)))
    decided = coordinator.step(0, FoundingReceived(C, FoundingPromise(ALL))).promise
    assert promised is not None
    assert decided is not None
    other, coordinator = make(B, promised), make(A, decided, founded=True)
    effects = other.step(0, PeerHello(A, True))
    assert effects.send == ((A, FoundingPromise(ALL)),)
    effects = coordinator.step(0, FoundingReceived(B, FoundingPromise(ALL)))
    assert effects.send == ((B, FoundingDone(ALL)),)
    assert other.step(0, FoundingReceived(A, FoundingDone(ALL))).found == ALL


def test_a_decision_holds_even_if_the_promise_has_moved_on() -> None:
    """Its coordinator decided with the earlier promise, which was still on the wire."""
    other = make(C)
    other.step(0, FoundingReceived(A, FoundingProposal(ALL)))
    other.step(0, FoundingReceived(A, FoundingProposal((A, B2, C))))
    effects = other.step(0, FoundingReceived(A, FoundingDone(ALL)))
    assert effects.found == ALL


def test_the_decision_of_another_coordinator_is_not_followed() -> None:
    """A store belongs to the coordinator's store that it promised to, and says so."""
    other = make(C)
    other.step(0, FoundingReceived(A, FoundingProposal(ALL)))
    effects = other.step(0, FoundingReceived(B, FoundingDone((A2, B, C))))
    assert effects.found is None
    assert "delete its store" in other.stuck
    assert not other.needs_admission


def test_a_store_that_its_coordinator_left_out_may_be_admitted() -> None:
    """What it promised is decided without it, so nobody else can count on it."""
    other = make(C)
    other.step(0, FoundingReceived(A, FoundingProposal(ALL)))
    effects = other.step(0, FoundingReceived(A, FoundingDone((A, B))))
    assert effects.found is None
    assert other.needs_admission


def test_a_founded_store_promises_nothing() -> None:
    """A proposal is answered by what was decided, if this store knows that."""
    for founded in (make(B, founded=True), Founding(B, (), b"", Config(), founded=False)):
        founded.step(0, FoundingTick())
        effects = founded.step(0, FoundingReceived(A, FoundingProposal(ALL)))
        assert effects.promise is None
        assert not [m for _, m in effects.send if isinstance(m, FoundingPromise)]


def test_a_store_founded_by_a_snapshot_tells_no_decision() -> None:
    """It knows only what it promised, which may not be what was decided."""
    founding = make(B)
    founding.step(0, FoundingReceived(A, FoundingProposal(ALL)))
    founding.step(0, Founded())
    assert founding.step(0, FoundingReceived(C, FoundingPromise(ALL))).send == ()


def test_different_peers_are_refused_with_both_lists() -> None:
    """A wrong setting is named on both sides and binds nobody."""
    founding = Founding(B, ("a", "b"), b"", Config(), founded=False)
    effects = founding.step(0, FoundingReceived(A, FoundingProposal(ALL)))
    assert effects.promise is None
    ((target, answer),) = effects.send
    assert target == A
    assert isinstance(answer, FoundingRefused)
    assert "a, b, c" in founding.stuck
    assert "same peers" in founding.stuck


def test_an_unanswered_proposal_is_repeated() -> None:
    """A lost proposal costs a heartbeat time, to those only who have not promised."""
    founding = make(A)
    founding.step(0, PeerHello(B, False))
    founding.step(0, PeerHello(C, False))
    effects = founding.step(1, FoundingReceived(B, FoundingPromise(ALL)))
    assert effects.wake_at_ms is not None
    effects = founding.step(effects.wake_at_ms, FoundingTick())
    assert effects.send == ((C, FoundingProposal(ALL)),)


def test_a_node_that_may_only_join_never_founds() -> None:
    """With `may_found=False` it waits for a founded peer, even without peers."""
    founding = Founding(A, (), b"", Config(), founded=False, may_found=False)
    assert founding.step(0, FoundingTick()).found is None
    assert founding.needs_admission
