"""The lease from both its sides, and both sides against each other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mirrorq.cluster.controller.leases import Leading, LeaseGrantor, LeaseHolder, outlast_ms
from mirrorq.protocol.control import LeaseAnswer, LeaseRelease, LeaseRequest
from mirrorq.protocol.identities import MemberId

A, B = MemberId("a", 1, 1), MemberId("b", 2, 1)
LEASE_MS = 300
SPAN_MS = 330


def leading(contact_ms: int, *, own: bool = True, commit: int = 5, term: int = 2) -> Leading:
    return Leading(term, own, commit, contact_ms)


# --- The holder -------------------------------------------------------------------------


def test_the_lease_runs_from_the_send_time_of_the_request() -> None:
    """Not from the answer's arrival: the leader counts from when it got the request."""
    holder = LeaseHolder(A, LEASE_MS)
    assert holder.poll(1000, True) == LeaseRequest(1, A)
    assert holder.valid_until_ms(9) == 0
    holder.on_answer(LeaseAnswer(1, 2, 5))
    assert holder.valid_until_ms(5) == 1300


def test_the_lease_needs_the_catalog_up_to_its_commit_index() -> None:
    """Under an older catalog the holder may not know yet that it was replaced."""
    holder = LeaseHolder(A, LEASE_MS)
    holder.poll(1000, True)
    holder.on_answer(LeaseAnswer(1, 2, 5))
    assert holder.valid_until_ms(4) == 0
    assert holder.valid_until_ms(5) == 1300


def test_a_renewal_that_needs_more_of_the_catalog_does_not_end_the_lease_before() -> None:
    """Each answer counts for itself: the older one goes on until its own end."""
    holder = LeaseHolder(A, LEASE_MS)
    for at, commit in ((1000, 5), (1150, 8)):
        request = holder.poll(at, True)
        assert isinstance(request, LeaseRequest)
        holder.on_answer(LeaseAnswer(request.number, 2, commit))
    assert (holder.valid_until_ms(7), holder.valid_until_ms(8)) == (1300, 1450)


def test_a_master_asks_three_times_a_lease_until_it_is_answered_and_others_never_ask() -> None:
    """So one lost answer costs nothing, and a node without masters costs no round."""
    holder = LeaseHolder(A, LEASE_MS)
    assert holder.poll(1000, False) is None
    assert holder.poll(1000, True) == LeaseRequest(1, A)
    assert holder.poll(1099, True) is None
    assert holder.due_ms == 1100
    assert holder.poll(1100, True) == LeaseRequest(2, A)


def test_a_lease_that_is_granted_in_time_is_renewed_at_its_half() -> None:
    """An answer that stays out brings the next request forward; a late one does not hurry."""
    holder = LeaseHolder(A, LEASE_MS)
    assert holder.poll(1000, True) == LeaseRequest(1, A)
    holder.on_answer(LeaseAnswer(1, 2, 0))
    assert holder.poll(1149, True) is None
    assert holder.poll(1150, True) == LeaseRequest(2, A)
    assert holder.due_ms == 1250
    assert holder.poll(1250, True) == LeaseRequest(3, A)
    holder.on_answer(LeaseAnswer(2, 2, 0))
    assert holder.due_ms == 1350
    holder.on_answer(LeaseAnswer(3, 2, 0))
    assert holder.due_ms == 1400


def test_answers_count_once_and_only_to_known_requests() -> None:
    """A repeated answer, one to a number never sent, and one older than the last: ignored."""
    holder = LeaseHolder(A, LEASE_MS)
    for at in (1000, 1100):
        holder.poll(at, True)
    holder.on_answer(LeaseAnswer(7, 2, 0))
    assert holder.valid_until_ms(9) == 0
    holder.on_answer(LeaseAnswer(2, 2, 0))
    holder.on_answer(LeaseAnswer(1, 2, 0))
    assert holder.valid_until_ms(9) == 1400


def test_a_release_gives_up_at_once_and_for_good() -> None:
    """Answers to requests from before it are ignored, also after the node asks again; until
    then the release is repeated, as the first may be lost."""
    holder = LeaseHolder(A, LEASE_MS)
    holder.poll(1000, True)
    holder.on_answer(LeaseAnswer(1, 2, 0))
    holder.poll(1150, True)
    assert holder.release(1150) == LeaseRelease(A, 2)
    assert holder.valid_until_ms(9) == 0
    holder.on_answer(LeaseAnswer(2, 2, 0))
    assert holder.valid_until_ms(9) == 0
    assert holder.poll(1249, True) is None
    assert holder.poll(1250, True) == LeaseRelease(A, 2)
    holder.resume()
    assert holder.poll(1251, True) == LeaseRequest(3, A)
    holder.on_answer(LeaseAnswer(2, 2, 0))
    assert holder.valid_until_ms(9) == 0
    holder.on_answer(LeaseAnswer(3, 2, 0))
    assert holder.valid_until_ms(9) == 1551


# --- The grantor ------------------------------------------------------------------------


def grantor_at(now_ms: int) -> LeaseGrantor:
    grantor = LeaseGrantor(LEASE_MS)
    grantor.elected(now_ms)
    return grantor


def test_a_grant_needs_an_entry_of_the_own_term() -> None:
    """Before it the leader does not know all that was committed, a new master perhaps."""
    grantor = grantor_at(0)
    grantor.on_request(10, LeaseRequest(1, A))
    assert grantor.answers(10, leading(10, own=False)) == ()
    assert grantor.answers(11, leading(11)) == ((A, LeaseAnswer(1, 2, 5)),)


def test_a_grant_needs_a_majority_that_answered_after_the_request() -> None:
    """A leader cut off from the majority may have a successor since its last round."""
    grantor = grantor_at(0)
    grantor.on_request(10, LeaseRequest(1, A))
    assert grantor.answers(15, leading(9)) == ()
    assert grantor.answers(16, leading(10)) == ((A, LeaseAnswer(1, 2, 5)),)
    assert grantor.answers(17, leading(17)) == ()
    assert grantor.pending() == ()


def test_slow_rounds_do_not_starve_requests() -> None:
    """When requests come faster than rounds end, the newest covered one is answered."""
    grantor = grantor_at(0)
    for number, at in ((1, 10), (2, 20), (3, 30)):
        grantor.on_request(at, LeaseRequest(number, A))
    assert grantor.answers(35, leading(20)) == ((A, LeaseAnswer(2, 2, 5)),)
    assert grantor.answers(40, leading(30)) == ((A, LeaseAnswer(3, 2, 5)),)


def test_a_lease_that_has_run_out_meanwhile_is_not_granted() -> None:
    """It would only make the leader wait for nothing."""
    grantor = grantor_at(0)
    grantor.on_request(1000, LeaseRequest(1, A))
    assert grantor.answers(1300, leading(1300)) == ()
    assert grantor.free_at_ms(A) == SPAN_MS


def test_a_member_is_free_when_its_last_grant_has_run_out() -> None:
    """x 1.1, for clocks that drift apart, counted from the grant."""
    grantor = grantor_at(0)
    grantor.on_request(1000, LeaseRequest(1, A))
    grantor.answers(1020, leading(1010))
    assert (grantor.free_at_ms(A), grantor.free_at_ms(B)) == (1020 + SPAN_MS, SPAN_MS)


def test_a_new_leader_outlasts_what_others_may_have_granted() -> None:
    """It knows nothing of earlier grants, so for one lease x 1.1 everybody may hold one."""
    grantor = grantor_at(0)
    grantor.on_request(10, LeaseRequest(1, A))
    grantor.elected(5000)
    assert grantor.free_at_ms(A) == 5000 + SPAN_MS
    assert grantor.answers(5001, leading(5001)) == ()
    assert outlast_ms(LEASE_MS) == SPAN_MS
    assert outlast_ms(1) == 2


def test_a_release_frees_at_once_but_not_what_leaders_before_granted() -> None:
    """And one that was overtaken by a later grant is void."""
    grantor = grantor_at(0)
    grantor.on_request(1000, LeaseRequest(4, A))
    grantor.answers(1000, leading(1000))
    assert not grantor.on_release(LeaseRelease(A, 3))
    assert grantor.free_at_ms(A) == 1000 + SPAN_MS
    assert grantor.on_release(LeaseRelease(A, 4))
    assert grantor.free_at_ms(A) <= 1000
    late = grantor_at(2000)
    assert late.on_release(LeaseRelease(A, 4))
    assert late.free_at_ms(A) == 2000 + SPAN_MS


# --- Both -------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ask", "arrive", "round", "grant", "answer", "lose", "release"]),
            st.integers(0, 120),
        ),
        max_size=60,
    ),
    st.sampled_from([953, 1000, 1047]),
)
def test_the_leader_never_takes_a_member_for_free_that_holds_a_lease(
    steps: list[tuple[str, int]], drift: int
) -> None:
    """Any delays and losses, clocks up to 4.7 % apart: when the leader calls the member free,
    the member's own clock has passed the end of every lease that it holds."""
    holder, grantor = LeaseHolder(A, LEASE_MS), grantor_at(0)
    requests: list[LeaseRequest | LeaseRelease] = []
    answers: list[LeaseAnswer] = []
    now_ms, contact_ms = SPAN_MS, 0
    for what, wait_ms in steps:
        now_ms += wait_ms
        own_ms = now_ms * drift // 1000
        if what == "ask":
            message = holder.poll(own_ms, True)
            requests += [] if message is None else [message]
        elif what == "release":
            requests.append(holder.release(own_ms))
            holder.resume()
        elif what == "round":
            contact_ms = now_ms
        elif what == "arrive" and requests:
            request = requests.pop(0)
            if isinstance(request, LeaseRequest):
                grantor.on_request(now_ms, request)
            else:
                grantor.on_release(request)
        elif what == "grant":
            answers += [answer for _, answer in grantor.answers(now_ms, leading(contact_ms))]
        elif what == "answer" and answers:
            holder.on_answer(answers.pop(0))
        elif what == "lose":
            requests, answers = requests[:1], answers[:1]
        if now_ms >= grantor.free_at_ms(A):
            assert own_ms >= holder.valid_until_ms(5)
