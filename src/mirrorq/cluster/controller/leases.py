"""The lease under which a node hands messages out, seen from both its sides.

Two nodes must never hand out messages of one queue at the same time, even if a replaced master does
not know yet. `LeaseHolder` is the node's side, `LeaseGrantor` the catalog leader's. Why two holders
never overlap:

    1. A lease runs from the *send* time of the request. So the lease ends, on the holder's
       clock, no later than one lease after the leader received the request.
    2. The leader answers only when a majority has answered a round sent *after* the leader
       received the request. So no other leader was elected when the request was sent. A
       later leader's wait, which starts at its election, outlasts the lease.
    3. The leader remembers for how long each grant may run, x 1.1 for clocks which drift
       apart, and proposes another master only afterwards. From the proposal on the old
       master gets no grant (`refuse`), as the proposal may commit at any time.
    4. The answer names the commit index, and the holder uses the lease only with a catalog
       at that index: no lease counts under a view replaced before the grant.

Times are of one clock which goes on while the machine sleeps (CLOCK_BOOTTIME). Nothing here
compares the clocks of two nodes.
"""

from __future__ import annotations

from msgspec import Struct

from mirrorq.protocol.control import LeaseAnswer, LeaseRelease, LeaseRequest
from mirrorq.protocol.identities import MemberId, StoreId

REQUESTS_MAX = 16
"""Requests remembered at each side for one member: at most three a lease, so five leases. Bounds
the memory which a broken peer can take at a leader."""


LONG_AGO_MS = -(1 << 62)
"""Before every time."""


class Leading(Struct, frozen=True, gc=False):
    """State of the local Raft while the node leads the catalog."""

    term: int
    own_term_applied: bool
    """The catalog has applied an entry of the term, and so all entries committed before."""
    commit_index: int
    majority_contact_ms: int
    """Send time of the last round answered by a majority, this node included."""
    voters: tuple[StoreId, ...] = ()


class LeaseHolder:
    """The holder's side: request the node's one lease, and keep its end time."""

    def __init__(self, member: MemberId, lease_ms: int) -> None:
        self._member = member
        self._lease_ms = lease_ms
        self._renew_ms = max(lease_ms // 2, 1)
        """After the send time of the newest answered request."""
        self._retry_ms = max(lease_ms // 3, 1)
        """After the last request, answered or not."""
        self._number = 0
        self._sent: dict[int, int] = {}
        """Open requests: number -> send time."""
        self._asked_ms: int | None = None
        self._answered_ms: int | None = None
        """Send time of the newest answered request."""
        self.due_ms = LONG_AGO_MS
        """When `poll` has something to send next."""
        self._grants: list[tuple[int, int]] = []
        """(commit index needed, end of the lease); the ends grow."""
        self._released = False

    def poll(self, now_ms: int, needed: bool) -> LeaseRequest | LeaseRelease | None:
        """Return the message to send to the catalog leader now, or None.

        Args:
            needed: the node masters a queue. Without a queue the node asks for nothing: a lease
                costs the leader a round, and a new master can ask while its first op travels.
        """
        if not needed or now_ms < self.due_ms:
            return None
        self._asked_ms = now_ms
        self._set_due()
        if self._released:
            # The first release may be lost, or have gone to a former leader.
            return LeaseRelease(self._member, self._number)
        self._number += 1
        self._sent[self._number] = now_ms
        while len(self._sent) > REQUESTS_MAX:
            del self._sent[min(self._sent)]
        return LeaseRequest(self._number, self._member)

    def _set_due(self) -> None:
        if self._asked_ms is None:
            self.due_ms = LONG_AGO_MS
            return
        self.due_ms = self._asked_ms + self._retry_ms
        if self._answered_ms is not None:
            self.due_ms = max(self.due_ms, self._answered_ms + self._renew_ms)

    def on_answer(self, answer: LeaseAnswer) -> None:
        """Count an answer. Unknown, given-up and repeated numbers are ignored."""
        sent_ms = self._sent.pop(answer.number, None)
        if sent_ms is None:
            return
        for number in [number for number in self._sent if number < answer.number]:
            del self._sent[number]
        self._answered_ms = sent_ms
        self._set_due()
        self._grants.append((answer.commit_index, sent_ms + self._lease_ms))
        del self._grants[:-REQUESTS_MAX]

    def valid_until_ms(self, applied_index: int) -> int:
        """Return the end of the lease under a catalog applied up to this index; 0: none.

        A delivery at `now_ms` is allowed when now_ms < the returned value.
        """
        for index, end in reversed(self._grants):
            if index <= applied_index:
                return end  # the ends grow
        return 0

    def release(self, now_ms: int) -> LeaseRelease:
        """Give the lease up now; until `resume`, only releases are sent.

        The caller stops deliveries before sending the returned message.
        """
        self._released = True
        self._grants.clear()
        self._sent.clear()
        self._asked_ms, self._answered_ms = now_ms, None
        self._set_due()
        return LeaseRelease(self._member, self._number)

    def resume(self) -> None:
        """Ask for leases again after a release. Answers to older requests stay ignored."""
        self._released = False
        self._asked_ms = None
        self._set_due()


class _Pending(Struct, frozen=True, gc=False):
    """A lease request which waits until its round of Raft is confirmed."""

    number: int
    received_ms: int


class LeaseGrantor:
    """The leader's side: grant leases, and track the time until each has certainly ended."""

    def __init__(self, lease_ms: int) -> None:
        self._span_ms = outlast_ms(lease_ms)
        self._lease_ms = lease_ms
        self._elected_free_ms = 0
        self._pending: dict[MemberId, list[_Pending]] = {}
        self._granted: dict[MemberId, tuple[int, int]] = {}
        """(number of the last granted request, end of the grant for certain)."""

    def elected(self, now_ms: int) -> None:
        """Begin a term: earlier leaders' grants are unknown, so wait for the longest."""
        self._elected_free_ms = now_ms + self._span_ms
        self._pending.clear()
        self._granted.clear()

    def on_request(self, now_ms: int, request: LeaseRequest) -> None:
        """Note a request; `answers` grants it when the majority's contact covers its arrival."""
        pending = self._pending.setdefault(request.member, [])
        pending.append(_Pending(request.number, now_ms))
        del pending[:-REQUESTS_MAX]

    def on_release(self, release: LeaseRelease) -> bool:
        """Take a lease back. False: granted again since, so the release is void.

        Grants of earlier leaders are outlasted all the same: a delayed release may be older than
        their last grant.
        """
        number, _ = self._granted.get(release.member, (0, 0))
        if number > release.number:
            return False
        self._granted[release.member] = (release.number, self._elected_free_ms)
        self._pending.pop(release.member, None)
        return True

    def refuse(self, member: MemberId) -> None:
        """Drop the requests of a barred member; the member repeats them by itself."""
        self._pending.pop(member, None)

    @property
    def is_asked(self) -> bool:
        """Return true if some member waits for an answer."""
        return bool(self._pending)

    def pending(self) -> tuple[MemberId, ...]:
        """Return the members with unanswered requests."""
        return tuple(self._pending)

    def answers(self, now_ms: int, leading: Leading) -> tuple[tuple[MemberId, LeaseAnswer], ...]:
        """Return the grants due now, and remember their ends."""
        if not leading.own_term_applied:
            return ()
        granted = []
        for member, pending in list(self._pending.items()):
            covered = [one for one in pending if one.received_ms <= leading.majority_contact_ms]
            if not covered:
                continue
            newest = covered[-1]
            rest = pending[len(covered) :]
            if rest:
                self._pending[member] = rest
            else:
                del self._pending[member]
            if newest.received_ms + self._lease_ms <= now_ms:
                continue  # the lease would end before its arrival
            self._granted[member] = (newest.number, now_ms + self._span_ms)
            answer = LeaseAnswer(newest.number, leading.term, leading.commit_index)
            granted.append((member, answer))
        return tuple(granted)

    def free_at_ms(self, member: MemberId) -> int:
        """Return the time from which the member certainly holds no lease of any leader."""
        if member in self._granted:
            return self._granted[member][1]
        return self._elected_free_ms


def outlast_ms(lease_ms: int) -> int:
    """Return how long a leader waits for the end of a lease: x 1.1, rounded up.

    Two clocks with a drift of up to 4.7 % each stay within the factor of each other.
    """
    return (lease_ms * 11 + 9) // 10
