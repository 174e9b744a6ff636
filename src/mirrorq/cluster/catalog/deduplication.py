"""Requests of nodes to the catalog, and their outcomes: each request takes effect once. Pure.

A node repeats a request without an answer, to the next leader too. So Raft's log may hold a request
more than once, the second time long after the first. Undetected, a late SetPolicy would undo a
ClearPolicy which came after it. So the catalog remembers, for each store with a request ever, the
requests of the newest incarnation:

  floor     all lower requests have ended at the asker: a lower request is of the past.
            Each request carries the number of the oldest request still open at the asker.
  outcomes  outcomes of applied requests at or above the floor, only the newest. Requests of
            a node may overtake each other, so the numbers may have gaps.
  past      numbers of older applied requests, without outcomes. A request delayed by the
            leader is not among them, however many later requests are done meanwhile.

A repeated request changes nothing and gets the first outcome: a snapshot may have replaced the
entry before the asker saw it. For a request of an older incarnation, or of the past, no caller
waits.
"""

from __future__ import annotations

from attrs import define, field, frozen

from mirrorq.containers.ranges import Range, RangeSet
from mirrorq.protocol.identities import MemberId, StoreId

OUTCOMES_MAX = 256
"""Limit of outcomes kept for one asker, even with an older request open."""
PAST_RANGES_MAX = 1024
"""Limit of ranges for one asker. An open or refused request divides two ranges. Beyond the limit
the oldest open request fails."""


@frozen
class Request:
    """The request behind a command of the log."""

    member: MemberId
    number: int
    """From 1, in each incarnation anew."""
    oldest: int = 0
    """Oldest request open at the asker when the request was sent; 0: unknown."""


@frozen
class RequestOutcome:
    """Outcome of one request, kept so a repetition changes nothing and gets the same answer."""

    number: int
    value: int = 0
    error: str = ""
    text: str = ""


@frozen
class AskerRecord:
    """One asker in a snapshot."""

    node: str
    store: int
    incarnation: int
    floor: int
    outcomes: tuple[RequestOutcome, ...]
    """Outcomes in order of request number."""
    past: tuple[Range, ...] = ()


@define
class _Asker:
    """One store with requests: its incarnation, and the outcomes kept for repetitions."""

    incarnation: int
    floor: int = 0
    outcomes: dict[int, RequestOutcome] = field(factory=dict)
    past: RangeSet = field(factory=RangeSet)

    def shrink(self) -> None:
        """Keep no more than is bounded, and nothing below the floor."""
        while len(self.outcomes) > OUTCOMES_MAX:
            number = min(self.outcomes)
            del self.outcomes[number]
            self.past.add(number, number)
        while len(self.past) > PAST_RANGES_MAX:
            _, last = next(iter(self.past))
            self.floor = max(self.floor, last + 1)
            self.past.remove(0, last)
        for number in [number for number in self.outcomes if number < self.floor]:
            del self.outcomes[number]
        if self.past and self.past.first < self.floor:
            self.past.remove(0, self.floor - 1)


class Deduplication:
    """All askers ever. Equal on every node with the same applied log."""

    def __init__(self) -> None:
        self._known: dict[StoreId, _Asker] = {}

    def restore(self, record: AskerRecord) -> None:
        """Read an asker back."""
        outcomes = {outcome.number: outcome for outcome in record.outcomes}
        asker = _Asker(record.incarnation, record.floor, outcomes, RangeSet(record.past))
        self._known[StoreId(record.node, record.store)] = asker

    def records(self) -> tuple[AskerRecord, ...]:
        """Return all askers. Equal contents give equal records."""
        found = []
        for store in sorted(self._known, key=lambda store: (store.node, store.store)):
            asker = self._known[store]
            outcomes = tuple(asker.outcomes[number] for number in sorted(asker.outcomes))
            past = tuple(asker.past)
            record = AskerRecord(
                store.node, store.store, asker.incarnation, asker.floor, outcomes, past
            )
            found.append(record)
        return tuple(found)

    def is_past(self, member: MemberId, number: int) -> bool:
        """Return true if the request has ended at its asker, or the asker's incarnation has. Also
        true for a request whose outcome is no longer kept."""
        asker = self._known.get(_store_of(member))
        if asker is None or member.incarnation > asker.incarnation:
            return False
        if member.incarnation < asker.incarnation:
            return True
        return number < asker.floor or number in asker.past

    def outcome(self, member: MemberId, number: int) -> RequestOutcome | None:
        """Return the outcome of an applied request which is not of the past."""
        asker = self._known.get(_store_of(member))
        if asker is None or asker.incarnation != member.incarnation:
            return None
        return asker.outcomes.get(number)

    def record_outcome(self, request: Request, value: int, error: str, text: str) -> None:
        """Note the outcome of a new request, which was just applied."""
        member = request.member
        store = _store_of(member)
        asker = self._known.get(store)
        if asker is None or asker.incarnation != member.incarnation:
            asker = self._known[store] = _Asker(member.incarnation)
        asker.outcomes[request.number] = RequestOutcome(request.number, value, error, text)
        asker.floor = max(asker.floor, min(request.oldest, request.number))
        asker.shrink()

    def forget(self, store: StoreId) -> None:
        """Forget a store which left the cluster."""
        self._known.pop(store, None)


def _store_of(member: MemberId) -> StoreId:
    return StoreId(member.node, member.store)
