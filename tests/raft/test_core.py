"""One core at a time: what each event makes it do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorq.cluster.raft import snapshot_pages
from mirrorq.cluster.raft.messages import (
    KIND_COMMAND,
    KIND_NOTHING,
    KIND_VOTERS,
    Compact,
    Contact,
    Found,
    Late,
    PeerDead,
    Promise,
    Propose,
    ProposeVoters,
    RaftEffects,
    RaftTick,
    Received,
    encode_voters,
)
from mirrorq.cluster.raft.raft import Raft, Role
from mirrorq.cluster.raft.snapshot_pages import OutgoingSnapshot
from mirrorq.config import Config
from mirrorq.protocol.effects import (
    Persisted,
    RaftEntry,
    RaftImage,
    RaftSnapshot,
    RaftState,
    RaftWrite,
    SnapshotPage,
)
from mirrorq.protocol.identities import StoreId
from mirrorq.protocol.raft import (
    AppendAnswer,
    AppendRequest,
    InstallSnapshot,
    RaftMessage,
    SnapshotAnswer,
    VoteAnswer,
    VoteRequest,
)

from .cluster import Cluster, written

A, B, C, D = (StoreId(name, 1) for name in "abcd")
CONFIG = Config()
QUIET_MS = CONFIG.election_ms + CONFIG.election_spread_ms
MEMBERS = (A, B, C)


def image(*entries: RaftEntry, voters: tuple[StoreId, ...] = MEMBERS, term: int = 1) -> RaftImage:
    return RaftImage(RaftState(term), RaftSnapshot(1, 1, voters, ()), tuple(entries))


def command(index: int, term: int) -> RaftEntry:
    return RaftEntry(index, term, KIND_COMMAND, b"%d.%d" % (index, term))


def make(store: StoreId, disk: RaftImage) -> Raft:
    raft = Raft(store, disk, CONFIG, seed=1)
    raft.step(0, RaftTick())
    return raft


@pytest.fixture
def raft() -> Raft:
    """Node a, from its first start on."""
    return make(A, image())


def elect(raft: Raft, now_ms: int, *voters: StoreId) -> RaftEffects:
    """Let a quiet core win an election with these votes."""
    raft.step(now_ms, RaftTick())
    for voter in voters:
        raft.step(now_ms, Received(voter, VoteAnswer(raft.term + 1, True, True)))
    effects = RaftEffects()
    for voter in voters:
        effects = raft.step(now_ms, Received(voter, VoteAnswer(raft.term, False, True)))
    assert raft.is_leader
    return effects


def answer(raft: Raft, index: int, sent_ms: int) -> AppendAnswer:
    return AppendAnswer(raft.term, True, index, 0, 0, sent_ms)


def heartbeat(term: int, previous: int = 1, previous_term: int = 1) -> AppendRequest:
    return AppendRequest(term, previous, previous_term, (), 1, 0)


def committed(raft: Raft, most: int = 1000) -> list[RaftEntry]:
    """Apply what is committed, so many entries of it at most."""
    taken = (raft.take_committed() for _ in range(most))
    return [entry for entry in taken if entry is not None]


def sent(effects: RaftEffects, kind: type) -> list[tuple[StoreId, RaftMessage]]:
    return [(target, message) for target, message in effects.send if type(message) is kind]


# --- Founding and passive stores ----------------------------------------------------------


def test_a_single_voter_leads_at_once_but_commits_only_what_is_on_disk() -> None:
    """The founding step makes it leader; its first entry is applied when it is synced."""
    raft = make(A, RaftImage())
    effects = raft.step(5, Found((A,)))
    assert raft.is_leader
    assert effects.persist is not None
    assert effects.persist.snapshot == RaftSnapshot(1, 1, (A,), ())
    assert committed(raft) == []
    raft.step(6, Persisted(effects.write_number))
    assert not raft.own_term_applied
    assert [entry.kind for entry in committed(raft)] == [KIND_NOTHING]
    assert raft.own_term_applied
    assert raft.majority_contact_ms == 6


def test_a_store_without_voters_waits_for_nothing_and_takes_a_snapshot() -> None:
    """It never stands, and becomes a replica by a leader's snapshot."""
    raft = Raft(D, RaftImage(), CONFIG, seed=1)
    assert raft.step(100_000, RaftTick()).wake_at_ms is None
    refused = raft.step(100_000, Received(A, heartbeat(2)))
    assert isinstance(refused.send[0][1], AppendAnswer)
    assert not refused.send[0][1].success
    snapshot = RaftSnapshot(7, 2, (A, B, C, D), (b"catalog",))
    effects = raft.step(100_000, Received(A, page_of(2, snapshot, 0, 3)))
    assert effects.install == snapshot
    assert raft.voters == (A, B, C, D)
    assert effects.send == ((A, AppendAnswer(2, True, 7, 0, 7, 3)),)
    assert effects.wake_at_ms is not None


def test_the_promise_of_a_founding_stays_in_the_hard_state() -> None:
    """It is written with what Raft itself keeps there, and is not lost by later writes."""
    raft = make(A, RaftImage())
    effects = raft.step(0, Promise(b"founding"))
    assert effects.persist is not None
    assert effects.persist.state == RaftState(0, None, b"founding")
    effects = raft.step(0, Received(B, VoteRequest(3, False, 0, 0)))
    assert effects.persist is not None
    assert effects.persist.state == RaftState(3, B, b"founding")


def test_a_founded_store_is_not_founded_again(raft: Raft) -> None:
    """Other voters change nothing."""
    assert raft.step(0, Found((A, D))).persist is None
    assert raft.voters == MEMBERS


# --- Elections ----------------------------------------------------------------------------


def test_a_pre_vote_moves_no_term(raft: Raft) -> None:
    """Silence makes a core ask, and only a majority makes it enter the next term."""
    effects = raft.step(QUIET_MS, RaftTick())
    assert raft.role.name == "PRE_CANDIDATE"
    assert raft.term == 1
    assert effects.persist is None
    assert effects.send == ((B, VoteRequest(2, True, 1, 1)), (C, VoteRequest(2, True, 1, 1)))
    effects = raft.step(QUIET_MS, Received(C, VoteAnswer(2, True, True)))
    assert raft.role.name == "CANDIDATE"
    assert raft.term == 2
    assert effects.persist is not None
    assert effects.persist.state == RaftState(2, A)
    effects = raft.step(QUIET_MS, Received(C, VoteAnswer(2, False, True)))
    assert raft.is_leader
    firsts = [m.entries[0] for _, m in effects.send if isinstance(m, AppendRequest)]
    assert [entry.kind for entry in firsts] == [KIND_NOTHING] * 2


def test_a_stranger_has_no_vote(raft: Raft) -> None:
    """Votes count by store: a wiped node is not the voter it was."""
    raft.step(QUIET_MS, RaftTick())
    raft.step(QUIET_MS, Received(StoreId("b", 2), VoteAnswer(2, True, True)))
    assert raft.role is Role.PRE_CANDIDATE


def test_a_vote_is_synced_and_given_once_in_a_term(raft: Raft) -> None:
    """After a restart the vote still binds; the same candidate may ask again."""
    effects = raft.step(0, Received(B, VoteRequest(2, False, 1, 1)))
    assert effects.persist is not None
    again = make(A, written(image(), effects.persist, {}))
    effects = again.step(0, Received(C, VoteRequest(2, False, 9, 2)))
    assert effects.send == ((C, VoteAnswer(2, False, False)),)
    effects = again.step(0, Received(B, VoteRequest(2, False, 1, 1)))
    assert effects.send == ((B, VoteAnswer(2, False, True)),)


def test_a_vote_of_an_earlier_term_is_no_vote(raft: Raft) -> None:
    """A candidate of two terms later does not count what it was given before."""
    raft.step(QUIET_MS, RaftTick())
    raft.step(QUIET_MS, Received(B, VoteAnswer(2, True, True)))
    raft.step(2 * QUIET_MS, RaftTick())
    raft.step(2 * QUIET_MS, Received(B, VoteAnswer(3, True, True)))
    assert raft.term == 3
    raft.step(2 * QUIET_MS, Received(C, VoteAnswer(2, False, True)))
    assert raft.role is Role.CANDIDATE


def test_a_second_leader_of_a_term_is_not_followed(raft: Raft) -> None:
    """There is none among honest nodes: what claims to be one is ignored."""
    raft.step(0, Received(B, heartbeat(2)))
    assert raft.step(1, Received(C, heartbeat(2))).send == ()
    assert raft.leader == B


def test_a_shorter_or_older_log_gets_no_vote() -> None:
    """The last term counts first, then the length."""
    raft = make(A, image(command(2, 1), command(3, 3), term=3))
    for last_index, last_term, granted in ((9, 2, False), (2, 3, False), (3, 3, True)):
        effects = raft.step(0, Received(B, VoteRequest(4, True, last_index, last_term)))
        assert effects.send == ((B, VoteAnswer(4 if granted else 3, True, granted)),)


def test_a_core_that_hears_a_leader_helps_nobody_else(raft: Raft) -> None:
    """Neither a pre-vote nor a vote of a higher term deposes a leader at work."""
    raft.step(0, Received(B, heartbeat(2)))
    effects = raft.step(10, Received(C, VoteRequest(3, True, 9, 9)))
    assert effects.send == ((C, VoteAnswer(2, True, False)),)
    assert raft.step(10, Received(C, VoteRequest(9, False, 9, 9))).send == ()
    assert raft.term == 2
    assert raft.leader == B
    effects = raft.step(CONFIG.election_ms, Received(C, VoteRequest(3, True, 9, 9)))
    assert effects.send == ((C, VoteAnswer(3, True, True)),)


def test_a_known_death_ends_the_wait() -> None:
    """Told that the leader is dead, the survivors stand in turn within 20 ms."""
    first, second = make(A, image()), make(C, image())
    for raft in (first, second):
        raft.step(0, Received(B, heartbeat(2)))
    first.step(10, PeerDead(B))
    assert sent(first.step(10, RaftTick()), VoteRequest)
    assert second.step(10, PeerDead(B)).wake_at_ms == 30
    for raft in (first, second):
        effects = raft.step(11, Received(D, VoteRequest(3, True, 9, 9)))
        assert effects.send == ((D, VoteAnswer(3, True, True)),)


def test_a_heartbeat_that_waited_is_seen_before_the_timer(raft: Raft) -> None:
    """A node that was given no time finds a vote request and, behind it, its leader's heartbeat:
    it stands for no election, though its timer ran out before both."""
    raft.step(0, Received(B, heartbeat(2)))
    late_ms = 2 * CONFIG.election_ms
    raft.step(late_ms, Received(C, VoteRequest(3, True, 1, 1)))
    raft.step(late_ms, Received(B, heartbeat(2)))
    assert raft.step(late_ms, RaftTick()).send == ()
    assert raft.leader == B


def test_silence_does_not_count_while_the_node_did_not_run(raft: Raft) -> None:
    """A follower that was late waits for its leader, and refuses rivals, for so much longer."""
    wake_at_ms = raft.step(0, Received(B, heartbeat(2))).wake_at_ms
    assert wake_at_ms is not None
    late_ms = 5 * CONFIG.election_ms
    assert raft.step(late_ms, Late(late_ms)).wake_at_ms == wake_at_ms + late_ms
    refused = raft.step(late_ms + 1, Received(C, VoteRequest(3, True, 9, 9)))
    assert refused.send == ((C, VoteAnswer(2, True, False)),)
    assert sent(raft.step(wake_at_ms + late_ms, RaftTick()), VoteRequest)


def test_a_vote_counts_though_its_candidate_asks_again(raft: Raft) -> None:
    """Answers that take longer than the wait between two attempts still elect a leader."""
    raft.step(QUIET_MS, RaftTick())
    raft.step(QUIET_MS, Received(B, VoteAnswer(raft.term + 1, True, True)))
    raft.step(QUIET_MS, Received(C, VoteAnswer(raft.term + 1, True, True)))
    term = raft.term
    raft.step(2 * QUIET_MS, RaftTick())
    assert raft.role is Role.PRE_CANDIDATE
    raft.step(2 * QUIET_MS, Received(B, VoteAnswer(term, False, True)))
    raft.step(2 * QUIET_MS, Received(C, VoteAnswer(term, False, True)))
    assert raft.is_leader
    assert raft.term == term


def test_the_last_words_of_a_dead_leader_do_not_bring_it_back() -> None:
    """What was on the wire still counts as entries, not as a sign of life."""
    raft = make(C, image())
    raft.step(0, Received(B, heartbeat(2)))
    wake_at_ms = raft.step(10, PeerDead(B)).wake_at_ms
    late = AppendRequest(2, 1, 1, (command(2, 2),), 1, 0)
    effects = raft.step(11, Received(B, late))
    assert raft.leader is None
    assert effects.wake_at_ms == wake_at_ms
    assert raft.last_index == 2


def test_the_death_of_another_than_the_leader_changes_nothing() -> None:
    """The leader known stays, and so does the timer."""
    raft = make(C, image())
    wake_at_ms = raft.step(0, Received(B, heartbeat(2))).wake_at_ms
    assert raft.step(10, PeerDead(A)).wake_at_ms == wake_at_ms
    assert raft.leader == B


def test_of_two_that_ask_at_once_the_lower_goes_first() -> None:
    """The higher one grants and waits; the lower one grants and goes on."""
    low, high = make(A, image()), make(B, image())
    request = low.step(QUIET_MS, RaftTick()).send[0][1]
    other = high.step(QUIET_MS, RaftTick()).send[0][1]
    effects = high.step(QUIET_MS, Received(A, request))
    assert high.role is Role.FOLLOWER
    assert effects.wake_at_ms is not None
    assert effects.wake_at_ms > QUIET_MS
    low.step(QUIET_MS, Received(B, other))
    assert low.role is Role.PRE_CANDIDATE


def test_a_cut_off_core_asks_less_and_less_often(raft: Raft) -> None:
    """Retries begin quick and end at the election time: no busy loop in a minority."""
    now_ms, waits = QUIET_MS, []
    for _ in range(12):
        wake_at_ms = raft.step(now_ms, RaftTick()).wake_at_ms
        assert wake_at_ms is not None
        waits.append(wake_at_ms - now_ms)
        now_ms = wake_at_ms
    assert waits[0] < 200
    assert min(waits[-3:]) >= CONFIG.election_ms
    assert raft.term == 1


def test_a_leader_without_a_majority_steps_down(raft: Raft) -> None:
    """Check-quorum: after an election time without answers it leads no more."""
    elect(raft, QUIET_MS, B)
    raft.step(QUIET_MS + CONFIG.election_ms - 1, RaftTick())
    assert raft.is_leader
    raft.step(QUIET_MS + CONFIG.election_ms, RaftTick())
    assert not raft.is_leader
    assert raft.leader is None
    assert raft.majority_contact_ms is None


def test_a_refusal_of_a_newer_term_deposes() -> None:
    """A follower that has gone on lets the old leader know."""
    old = make(A, image())
    elect(old, QUIET_MS, B)
    new = make(B, image(term=5))
    effects = new.step(0, Received(A, heartbeat(2)))
    old.step(QUIET_MS, Received(B, effects.send[0][1]))
    assert not old.is_leader
    assert old.term == 5


def test_a_single_heartbeat_time_is_the_idle_cost() -> None:
    """In ten quiet seconds each core is stepped only by heartbeats and their answers."""
    cluster = Cluster(1)
    for store in MEMBERS:
        cluster.add(store, MEMBERS)
    cluster.run(2_000)
    assert cluster.leader() is not None
    before = cluster.steps
    cluster.run(10_000)
    rounds = 10_000 // 50
    # A tick, two requests and two answers, and one wake-up that was put off in between.
    assert cluster.steps - before <= rounds * 6


# --- Leases -------------------------------------------------------------------------------


def test_majority_contact_is_the_send_time_of_an_answered_round() -> None:
    """Neither the time of the answer nor a minority's answers count."""
    voters = (A, B, C, D, StoreId("e", 1))
    raft = make(A, image(voters=voters))
    elect(raft, QUIET_MS, B, C)
    assert raft.majority_contact_ms is None
    round_ms = QUIET_MS + 300
    assert raft.step(round_ms, Contact()).send[0][1].sent_ms == round_ms  # type: ignore[union-attr]
    raft.step(round_ms + 90, Received(B, answer(raft, 1, round_ms)))
    assert raft.majority_contact_ms is None
    raft.step(round_ms + 95, Received(C, answer(raft, 1, QUIET_MS)))
    assert raft.majority_contact_ms == QUIET_MS
    raft.step(round_ms + 99, Received(D, answer(raft, 1, round_ms)))
    assert raft.majority_contact_ms == round_ms


def test_an_answer_of_an_earlier_term_proves_nothing() -> None:
    """It counts neither as contact nor for a commit."""
    raft = make(A, image(command(2, 1)))
    elect(raft, QUIET_MS, B)
    raft.step(QUIET_MS, Persisted(100))
    raft.step(QUIET_MS, Received(B, AppendAnswer(1, True, 3, 0, 0, QUIET_MS)))
    assert raft.majority_contact_ms is None
    assert raft.commit_index == 1


# --- Commits ------------------------------------------------------------------------------


def test_the_leader_counts_its_own_log_only_when_it_is_on_disk(raft: Raft) -> None:
    """One follower's answer commits nothing until the leader's own write is synced."""
    effects = elect(raft, QUIET_MS, B)
    assert effects.write_number > 0
    raft.step(QUIET_MS, Received(B, answer(raft, 2, QUIET_MS)))
    assert raft.commit_index == 1
    raft.step(QUIET_MS, Persisted(effects.write_number))
    assert raft.commit_index == 2
    assert len(committed(raft)) == 1


def test_entries_of_an_earlier_term_are_not_committed_by_counting() -> None:
    """Raft's figure 8: a majority holds it, and a later leader could still replace it."""
    raft = make(A, image(command(2, 1)))
    effects = elect(raft, QUIET_MS, B)
    raft.step(QUIET_MS, Persisted(effects.write_number))
    raft.step(QUIET_MS, Received(B, answer(raft, 2, QUIET_MS)))
    assert raft.commit_index == 1
    raft.step(QUIET_MS, Received(B, answer(raft, 3, QUIET_MS)))
    assert [entry.index for entry in committed(raft)] == [2, 3]


def test_a_write_that_was_cut_since_does_not_count_as_synced(raft: Raft) -> None:
    """A late `Persisted` names entries that other ones have replaced."""
    mine = tuple(command(index, 2) for index in (2, 3, 4))
    effects = raft.step(0, Received(B, AppendRequest(2, 1, 1, mine, 1, 0)))
    late = effects.write_number
    raft.step(1, Received(C, AppendRequest(3, 1, 1, (command(2, 3),), 1, 0)))
    effects = elect(raft, 1 + QUIET_MS, B)
    raft.step(QUIET_MS, Persisted(late))
    raft.step(QUIET_MS, Received(B, answer(raft, 3, QUIET_MS)))
    assert raft.commit_index == 1
    raft.step(QUIET_MS, Persisted(effects.write_number))
    assert raft.commit_index == 3


def test_a_replaced_entry_that_was_synced_is_not_its_successor() -> None:
    """The durable mark falls with a truncation."""
    raft = make(A, image(command(2, 1), command(3, 1)))
    raft.step(1, Received(C, AppendRequest(3, 1, 1, (command(2, 3),), 1, 0)))
    effects = elect(raft, 1 + QUIET_MS, B)
    raft.step(QUIET_MS, Received(B, answer(raft, 3, QUIET_MS)))
    assert raft.commit_index == 1
    raft.step(QUIET_MS, Persisted(effects.write_number))
    assert raft.commit_index == 3


def test_a_follower_commits_only_what_it_shares_with_the_leader() -> None:
    """A tail of an earlier term is not committed by a heartbeat that did not cover it."""
    raft = make(A, image(command(2, 1), command(3, 1)))
    raft.step(0, Received(B, AppendRequest(2, 2, 1, (), 3, 0)))
    assert raft.commit_index == 2


def test_a_committed_entry_is_never_cut() -> None:
    """A false leader's request against the commit is dropped without an answer."""
    raft = make(A, image(command(2, 1)))
    raft.step(0, Received(B, AppendRequest(2, 2, 1, (), 2, 0)))
    effects = raft.step(1, Received(B, AppendRequest(2, 1, 1, (command(2, 2),), 2, 0)))
    assert effects.persist is None
    assert effects.send == ()


def test_an_older_request_that_comes_late_cuts_nothing() -> None:
    """What agrees stays, though the request ends before it, or carries nothing at all."""
    raft = make(A, image(command(2, 1), command(3, 1), command(4, 1)))
    late = AppendRequest(1, 1, 1, (command(2, 1), command(3, 1)), 1, 0)
    for request in (late, heartbeat(1), heartbeat(1, 2)):
        raft.step(0, Received(B, request))
        assert raft.last_index == 4
    effects = raft.step(1, Received(B, AppendRequest(1, 4, 1, (command(5, 1),), 5, 1)))
    assert raft.last_index == 5
    assert effects.persist is not None
    assert effects.persist.truncate_from is None


def test_followers_learn_of_a_commit_at_once(raft: Raft) -> None:
    """They need not wait for the next heartbeat to apply."""
    effects = elect(raft, QUIET_MS, B)
    raft.step(QUIET_MS, Persisted(effects.write_number))
    effects = raft.step(QUIET_MS, Received(B, answer(raft, 2, QUIET_MS)))
    assert {(t, m.commit_index) for t, m in effects.send} == {(B, 2), (C, 2)}  # type: ignore[union-attr]


def test_proposals_of_one_commit_travel_together(raft: Raft) -> None:
    """They are sent after the commit, in one request; a follower refuses proposals."""
    effects = elect(raft, QUIET_MS, B)
    raft.step(QUIET_MS, Persisted(effects.write_number))
    raft.step(QUIET_MS, Received(B, answer(raft, 2, QUIET_MS)))
    for number in (7, 8, 9):
        effects = raft.step(QUIET_MS, Propose(number, b"x"))
        assert effects.send == ()
        assert effects.accepted == ((number, number - 4, 2),)
    effects = raft.step(QUIET_MS, Persisted(effects.write_number))
    ((target, request),) = sent(effects, AppendRequest)
    assert target == B
    assert isinstance(request, AppendRequest)
    assert [entry.index for entry in request.entries] == [3, 4, 5]
    assert make(B, image()).step(0, Propose(4, b"x")).rejected == (4,)


# --- Catching up --------------------------------------------------------------------------


def test_a_long_conflicting_tail_costs_one_refusal_a_term() -> None:
    """The refusal names the last place that can agree."""
    old = tuple(command(index, 1) for index in range(2, 10))
    tail = tuple(command(index, 2) for index in range(10, 500))
    lagging = make(B, image(*old, *tail, term=2))
    new = tuple(command(index, 3) for index in range(10, 400))
    leader = make(A, image(*old, *new, term=3))
    effects = elect(leader, QUIET_MS, C)
    refusals = 0
    for _ in range(4):
        requests = [message for target, message in effects.send if target == B]
        answers: list[tuple[StoreId, RaftMessage]] = []
        for request in requests:
            answers += lagging.step(0, Received(A, request)).send
        effects = RaftEffects()
        for _, one in answers:
            assert isinstance(one, AppendAnswer)
            refusals += not one.success
            effects = leader.step(QUIET_MS, Received(B, one))
    assert lagging.last_index == leader.last_index
    assert refusals == 1


def test_sending_ahead_is_bounded(raft: Raft) -> None:
    """A silent replica gets no more than the allowed number of requests with entries."""
    effects = elect(raft, QUIET_MS, B)
    raft.step(QUIET_MS, Received(B, answer(raft, 2, QUIET_MS)))
    count = 0
    for number in range(40):
        effects = raft.step(QUIET_MS, Propose(number, b"x"))
        effects = raft.step(QUIET_MS, Persisted(effects.write_number))
        count += sum(target == B for target, _ in effects.send)
    assert count == 16
    effects = raft.step(QUIET_MS, Received(B, answer(raft, 10, QUIET_MS)))
    assert any(target == B for target, _ in effects.send)


def test_lost_requests_are_found_by_the_next_heartbeat() -> None:
    """A heartbeat after a loss is refused, and what is missing is sent again."""
    raft, replica = make(A, image()), make(B, image())
    first = elect(raft, QUIET_MS, B)
    for target, message in first.send:
        if target == B:
            replica.step(0, Received(A, message))
    raft.step(QUIET_MS, Received(B, answer(raft, 2, QUIET_MS)))
    effects = raft.step(QUIET_MS, Propose(1, b"lost"))
    raft.step(QUIET_MS, Persisted(effects.write_number))
    effects = raft.step(QUIET_MS + CONFIG.heartbeat_ms, RaftTick())
    (beat,) = [message for target, message in effects.send if target == B]
    (refusal,) = replica.step(1, Received(A, beat)).send
    effects = raft.step(QUIET_MS + 300, Received(B, refusal[1]))
    (again,) = [message for target, message in effects.send if target == B]
    replica.step(2, Received(A, again))
    assert replica.last_index == raft.last_index


# --- Snapshots ----------------------------------------------------------------------------


def leader_with_a_snapshot() -> Raft:
    raft = make(A, image())
    effects = elect(raft, QUIET_MS, B)
    effects = raft.step(QUIET_MS, Propose(1, b"x"))
    raft.step(QUIET_MS, Persisted(effects.write_number))
    raft.step(QUIET_MS, Received(B, answer(raft, 3, QUIET_MS)))
    committed(raft)
    effects = raft.step(QUIET_MS, Compact(3, b"state"))
    assert effects.persist is not None
    assert effects.persist.snapshot == RaftSnapshot(3, 2, MEMBERS, (b"state",))
    return raft


def test_a_replica_behind_the_snapshot_gets_it_whole_and_once() -> None:
    """Heartbeats go on beside it; it is sent again only after an election time."""
    raft = leader_with_a_snapshot()
    refusal = AppendAnswer(2, False, 0, 0, 1, QUIET_MS)
    effects = raft.step(QUIET_MS, Received(C, refusal))
    assert [target for target, _ in sent(effects, InstallSnapshot)] == [C]
    raft.step(QUIET_MS + 500, Received(B, answer(raft, 3, QUIET_MS + 500)))
    effects = raft.step(QUIET_MS + 500, RaftTick())
    assert not sent(effects, InstallSnapshot)
    (beat,) = [message for target, message in effects.send if target == C]
    assert beat == AppendRequest(2, 3, 2, (), 3, QUIET_MS + 500)
    refusal = AppendAnswer(2, False, 1, 1, 3, QUIET_MS + 500)
    assert not raft.step(QUIET_MS + 520, Received(C, refusal)).send
    raft.step(QUIET_MS + 900, Received(B, answer(raft, 3, QUIET_MS + 900)))
    assert sent(raft.step(QUIET_MS + 1200, RaftTick()), InstallSnapshot)


def test_an_answered_snapshot_is_followed_by_entries() -> None:
    """The replica goes on right after the snapshot."""
    raft = leader_with_a_snapshot()
    replica = make(C, image())
    raft.step(QUIET_MS, Propose(2, b"y"))
    effects = raft.step(QUIET_MS + 250, RaftTick())
    (snapshot,) = [m for t, m in effects.send if t == C and isinstance(m, InstallSnapshot)]
    installed = replica.step(0, Received(A, snapshot))
    assert installed.install == raft._log.snapshot
    effects = raft.step(QUIET_MS + 260, Received(C, installed.send[0][1]))
    (entries,) = [m for t, m in effects.send if t == C]
    replica.step(1, Received(A, entries))
    assert replica.last_index == raft.last_index == 4


def page_of(
    term: int, snapshot: RaftSnapshot, number: int = 0, sent_ms: int = 0
) -> InstallSnapshot:
    """The message with one page of a snapshot."""
    return OutgoingSnapshot(snapshot, 0).page(term, number, sent_ms)


def pages(count: int, index: int = 7) -> RaftSnapshot:
    """A snapshot of so many pages."""
    return RaftSnapshot(index, 2, MEMBERS, tuple(b"%d.%d" % (index, n) for n in range(count)))


def take(raft: Raft, term: int, snapshot: RaftSnapshot, *numbers: int) -> list[object]:
    """Give a replica pages from A; return its answers."""
    answers: list[object] = []
    for number in numbers:
        effects = raft.step(0, Received(A, page_of(term, snapshot, number)))
        answers += [message for _, message in effects.send]
    return answers


def test_pages_are_taken_in_order_and_each_once() -> None:
    """One that is not the next is not taken: the answer says which is. Each is written as it
    comes, and the snapshot counts with the last."""
    raft = make(C, image())
    taken = take(raft, 2, pages(3), 0, 2, 0, 1)
    assert [one.count for one in taken if isinstance(one, SnapshotAnswer)] == [1, 1, 1, 2]
    effects = raft.step(0, Received(A, page_of(2, pages(3), 2)))
    assert effects.install == pages(3)
    assert effects.persist is not None
    assert effects.persist.pages == (SnapshotPage(7, 2, b"7.2"),)
    assert sent(effects, AppendAnswer) == [(A, AppendAnswer(2, True, 7, 0, 7, 0))]


def test_a_page_of_another_snapshot_begins_anew() -> None:
    """Of a later snapshot of the same leader, too."""
    raft = make(C, image())
    take(raft, 2, pages(3), 0, 1)
    (answer_,) = take(raft, 2, pages(3, 9), 2)
    assert answer_ == SnapshotAnswer(2, 9, 0, 0)
    take(raft, 2, pages(3, 9), 0, 1)
    effects = raft.step(0, Received(A, page_of(2, pages(3, 9), 2)))
    assert effects.install == pages(3, 9)


def test_a_page_of_another_leader_begins_anew() -> None:
    """Though it is of the same index: who else made it cut it in its own way."""
    raft = make(C, image())
    take(raft, 2, pages(3), 0, 1)
    effects = raft.step(0, Received(B, page_of(3, pages(3), 2)))
    assert [message for _, message in effects.send] == [SnapshotAnswer(3, 7, 0, 0)]


def test_a_leader_sends_so_many_pages_ahead_and_goes_on_as_they_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A replica that was restarted has none: the cursor goes back."""
    monkeypatch.setattr(snapshot_pages, "BYTES_IN_FLIGHT_MAX", 9)
    outgoing = OutgoingSnapshot(pages(8), 0)
    assert list(outgoing.due(0, 600)) == [0, 1, 2]
    assert list(outgoing.due(10, 600)) == []
    outgoing.answered(7, 2, 20)
    assert list(outgoing.due(20, 600)) == [3, 4]
    outgoing.answered(6, 9, 30)
    assert list(outgoing.due(30, 600)) == [], "an answer about another snapshot"
    outgoing.answered(7, 0, 40)
    assert list(outgoing.due(40, 600)) == [0, 1, 2]
    assert list(outgoing.due(700, 600)) == [0, 1, 2], "lost"
    assert list(outgoing.due(710, 600)) == []


def test_a_snapshot_is_made_page_by_page() -> None:
    """Each page is written as it is made; a page that does not follow is not taken."""
    raft = make(A, image(command(2, 1), command(3, 1)))
    raft.step(0, Received(B, AppendRequest(2, 3, 1, (), 3, 0)))
    committed(raft)
    first = raft.step(0, Compact(2, b"a", 0, is_last=False))
    assert first.persist == RaftWrite(pages=(SnapshotPage(2, 0, b"a"),))
    assert raft.step(0, Compact(2, b"c", 2)).persist is None
    assert raft.step(0, Compact(3, b"b", 1)).persist is None
    last = raft.step(0, Compact(2, b"b", 1))
    assert last.persist is not None
    assert last.persist.snapshot == RaftSnapshot(2, 1, MEMBERS, (b"a", b"b"))
    assert last.persist.pages == (SnapshotPage(2, 1, b"b"),)


def test_a_snapshot_that_the_log_holds_only_commits() -> None:
    """Nothing is installed: the entries are applied, and the tail stays."""
    raft = make(A, image(command(2, 1), command(3, 1)))
    snapshot = RaftSnapshot(2, 1, MEMBERS, (b"state",))
    effects = raft.step(0, Received(B, page_of(2, snapshot)))
    assert effects.install is None
    assert [entry.index for entry in committed(raft)] == [2]
    assert raft.last_index == 3


def test_a_snapshot_below_the_commit_is_not_installed() -> None:
    """A late one would take the catalog back."""
    raft = make(A, RaftImage(RaftState(3), RaftSnapshot(9, 3, MEMBERS, (b"new",))))
    late = page_of(3, RaftSnapshot(5, 2, (A, B), (b"old",)))
    effects = raft.step(0, Received(B, late))
    assert effects.install is None
    assert effects.persist is None
    assert raft.voters == MEMBERS


def test_only_what_is_applied_is_compacted() -> None:
    """An index not applied, or compacted before, changes nothing."""
    raft = make(A, image(command(2, 1), command(3, 1)))
    raft.step(0, Received(B, AppendRequest(2, 3, 1, (), 3, 0)))
    committed(raft, 1)
    assert raft.step(0, Compact(3, b"")).persist is None
    assert raft.step(0, Compact(2, b"state")).persist is not None
    assert raft.step(0, Compact(2, b"state")).persist is None
    assert raft.snapshot_index == 2
    assert raft.last_index == 3


def test_a_snapshot_has_the_voters_of_its_index() -> None:
    """A change that is in the log but above the index is not in the snapshot."""
    change = RaftEntry(3, 1, KIND_VOTERS, encode_voters((A, B)))
    raft = make(A, image(command(2, 1), change))
    raft.step(0, Received(B, AppendRequest(2, 3, 1, (), 2, 0)))
    committed(raft)
    effects = raft.step(0, Compact(2, b"state"))
    assert effects.persist is not None
    assert effects.persist.snapshot is not None
    assert effects.persist.snapshot.voters == MEMBERS
    assert raft.voters == (A, B)


def test_a_snapshot_has_the_change_of_voters_below_it() -> None:
    change = RaftEntry(2, 1, KIND_VOTERS, encode_voters((A, B)))
    raft = make(A, image(change, command(3, 1)))
    raft.step(0, Received(B, AppendRequest(2, 3, 1, (), 3, 0)))
    committed(raft)
    effects = raft.step(0, Compact(3, b"state"))
    assert effects.persist is not None
    assert effects.persist.snapshot is not None
    assert effects.persist.snapshot.voters == (A, B)


# --- Voters -------------------------------------------------------------------------------


def ready_leader() -> Raft:
    raft = make(A, image())
    effects = elect(raft, QUIET_MS, B)
    raft.step(QUIET_MS, Persisted(effects.write_number))
    raft.step(QUIET_MS, Received(B, answer(raft, 2, QUIET_MS)))
    committed(raft)
    assert raft.own_term_applied
    return raft


def test_voters_change_only_after_an_entry_of_the_own_term() -> None:
    """A new leader that has committed nothing refuses (the bug found in 2015)."""
    raft = make(A, image())
    elect(raft, QUIET_MS, B)
    assert raft.step(QUIET_MS, ProposeVoters(5, (A, B))).rejected == (5,)


def test_voters_change_one_at_a_time() -> None:
    """No swap, no empty set, no second change before the first is committed."""
    raft = ready_leader()
    for voters in ((A, B, D), (), MEMBERS, (A,)):
        assert raft.step(QUIET_MS, ProposeVoters(5, voters)).rejected == (5,)
    assert raft.step(QUIET_MS, ProposeVoters(6, (D, C, B, A))).accepted == ((6, 3, 2),)
    assert raft.voters == (A, B, C, D)
    assert raft.is_changing_voters
    assert raft.step(QUIET_MS, ProposeVoters(7, (A, B, C))).rejected == (7,)


def test_a_change_counts_from_the_moment_it_is_in_the_log() -> None:
    """With four voters three have to hold it."""
    raft = ready_leader()
    effects = raft.step(QUIET_MS, ProposeVoters(6, (A, B, C, D)))
    assert D in [target for target, _ in sent(effects, AppendRequest)]
    raft.step(QUIET_MS, Persisted(effects.write_number))
    raft.step(QUIET_MS, Received(B, answer(raft, 3, QUIET_MS)))
    assert raft.is_changing_voters
    raft.step(QUIET_MS, Received(D, answer(raft, 3, QUIET_MS)))
    assert not raft.is_changing_voters


def test_a_change_that_is_cut_brings_the_old_voters_back(raft: Raft) -> None:
    """A follower's voters go with its log."""
    seen = [raft.voters]
    change = RaftEntry(2, 2, KIND_VOTERS, encode_voters((A, B)))
    for request in (
        AppendRequest(2, 1, 1, (change,), 1, 0),
        AppendRequest(3, 1, 1, (command(2, 3),), 1, 0),
    ):
        raft.step(0, Received(B, request))
        seen.append(raft.voters)
    assert seen == [MEMBERS, (A, B), MEMBERS]


def test_a_leader_that_left_steps_down_and_the_others_stand_at_once() -> None:
    """It leads until its leaving is committed; nobody waits for its silence."""
    raft = ready_leader()
    effects = raft.step(QUIET_MS, ProposeVoters(6, (B, C)))
    raft.step(QUIET_MS, Persisted(effects.write_number))
    raft.step(QUIET_MS, Received(B, answer(raft, 3, QUIET_MS)))
    assert raft.is_leader
    effects = raft.step(QUIET_MS, Received(C, answer(raft, 3, QUIET_MS)))
    assert not raft.is_leader
    assert effects.wake_at_ms is None
    change = RaftEntry(2, 2, KIND_VOTERS, encode_voters((B, C)))
    other = make(B, image())
    effects = other.step(0, Received(A, AppendRequest(2, 1, 1, (change,), 2, 0)))
    assert effects.wake_at_ms == 0 or other.role is Role.PRE_CANDIDATE


def test_who_leaves_is_told_that_it_is_committed() -> None:
    """So it stops standing for election, as a rule."""
    raft = ready_leader()
    effects = raft.step(QUIET_MS, ProposeVoters(6, (A, B)))
    raft.step(QUIET_MS, Persisted(effects.write_number))
    raft.step(QUIET_MS, Received(C, answer(raft, 2, QUIET_MS)))
    effects = raft.step(QUIET_MS, Received(B, answer(raft, 3, QUIET_MS)))
    assert (C, 3) in [(target, m.commit_index) for target, m in effects.send]  # type: ignore[union-attr]
    assert not any(target == C for target, _ in raft.step(QUIET_MS + 250, RaftTick()).send)


def test_a_new_leader_goes_on_telling_who_is_about_to_leave() -> None:
    """The change came from its predecessor and is not committed yet."""
    change = RaftEntry(2, 1, KIND_VOTERS, encode_voters((A, B)))
    effects = elect(make(A, image(change)), QUIET_MS, B)
    assert [target for target, _ in sent(effects, AppendRequest)] == [B, C]


# --- Remote input -------------------------------------------------------------------------

numbers = st.one_of(st.integers(0, 6), st.sampled_from([-(2**63), -1, 2**62]))
stores = st.sampled_from([A, B, C, D])
entries = st.builds(
    RaftEntry,
    numbers,
    numbers,
    st.integers(0, 3),
    st.sampled_from([b"", b"x", encode_voters((A, B)), encode_voters((B,))]),
)
messages = st.one_of(
    st.builds(VoteRequest, numbers, st.booleans(), numbers, numbers),
    st.builds(VoteAnswer, numbers, st.booleans(), st.booleans()),
    st.builds(
        AppendRequest,
        numbers,
        numbers,
        numbers,
        st.lists(entries, max_size=3).map(tuple),
        numbers,
        numbers,
    ),
    st.builds(AppendAnswer, numbers, st.booleans(), numbers, numbers, numbers, numbers),
    st.builds(
        InstallSnapshot,
        numbers,
        numbers,
        numbers,
        st.sampled_from([(), (A, B), (B, A), (D,)]),
        st.integers(0, 2),
        st.integers(0, 2),
        st.just(b"page"),
        numbers,
    ),
    st.builds(SnapshotAnswer, numbers, numbers, st.integers(-1, 4), numbers),
)
events = st.one_of(
    st.builds(Received, stores, messages),
    st.builds(Received, stores, messages),
    st.just(RaftTick()),
    st.just(Contact()),
    st.builds(Late, st.integers(1, 3000)),
    st.builds(Propose, numbers, st.just(b"x")),
    st.builds(ProposeVoters, numbers, st.sampled_from([(A,), (A, B), (A, B, C, D)])),
    st.builds(PeerDead, stores),
    st.builds(Persisted, st.integers(0, 50)),
    st.builds(Compact, st.integers(0, 6), st.just(b""), st.integers(0, 2), st.booleans()),
)
disks = st.sampled_from([RaftImage(), image(), image(command(2, 1)), image(voters=(A,))])


@given(disks, st.lists(st.tuples(st.integers(0, 900), events, st.integers(0, 2)), max_size=40))
def test_no_event_in_any_state_raises(
    disk: RaftImage, script: list[tuple[int, object, int]]
) -> None:
    """Whatever comes, effects are well-formed: the disk takes each write, in order."""
    raft = Raft(A, disk, CONFIG, seed=1)
    on_disk: dict[tuple[int, int], bytes] = {}
    now_ms, applied, commit = 0, raft.applied_index, raft.commit_index
    for wait_ms, event, most in script:
        now_ms += wait_ms
        effects = raft.step(now_ms, event)  # type: ignore[arg-type]
        if effects.persist is not None:
            disk = written(disk, effects.persist, on_disk)
        if effects.install is not None:
            applied = effects.install.index
        indexes = [entry.index for entry in committed(raft, most)]
        assert indexes == list(range(applied + 1, applied + 1 + len(indexes)))
        applied += len(indexes)
        assert applied == raft.applied_index <= raft.commit_index
        assert raft.commit_index >= commit
        commit = raft.commit_index
        assert all(target != A for target, _ in effects.send)
        if isinstance(event, RaftTick) and raft.is_leader:
            assert effects.wake_at_ms is None or effects.wake_at_ms > now_ms
    again = Raft(A, disk, CONFIG, seed=1)
    assert (again.term, again.vote) == (raft.term, raft.vote)
    assert (again.last_index, again.voters) == (raft.last_index, raft.voters)
