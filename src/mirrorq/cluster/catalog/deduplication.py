"""What nodes have asked the catalog for and was done: each request takes effect once. Pure.

A node asks the leader again when it hears nothing, and the next leader too, so one request may
stand in Raft's log more than once, a second time long after the first. Undetected, a late
SetPolicy would undo the ClearPolicy that came after it. So the catalog remembers, for each store
that ever asked, the requests of its newest incarnation:

    floor     all requests below it have ended at the asker: one that comes is of the past.
              Each request says which is the oldest one that its asker still waits for.
    outcomes  of each request at or above it that was applied, the newest of them. A node's
              requests may overtake each other, so these need not follow each other.
    past      numbers of older ones that were applied, without their outcomes: a request that the
              leader makes wait is not among them, however many later ones are done meanwhile.

A repeated request changes nothing and gets the outcome of the first: its asker may have missed
that, as a snapshot took the place of the entry. One of an older incarnation, or of the past, has
nobody who waits.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import define, field, frozen

from mirrorq.containers.ranges import Range, RangeSet
from mirrorq.protocol.identities import MemberId, StoreId

OUTCOMES_MAX = 256
"""Remembered of one asker, though it still waits for an older request."""
PAST_RANGES_MAX = 1024
"""Of one asker. An open request divides two ranges, and so does one that was refused. Beyond it the
oldest request that is still waited for fails."""


@frozen
class Request:
    """Which request a command of the log was."""

    member: MemberId
    number: int
    """From 1, in each incarnation anew."""
    oldest: int = 0
    """The oldest request that its asker waited for when it was sent; 0: not known."""


@frozen
class RequestOutcome:
    """What came of one request, kept so that a repetition of it changes nothing and is answered
    alike."""

    number: int
    value: int = 0
    error: str = ""
    text: str = ""


@frozen
class AskerRecord:
    """One asker, as it stands in a snapshot."""

    node: str
    store: int
    incarnation: int
    floor: int
    outcomes: tuple[RequestOutcome, ...]
    """By number."""
    past: tuple[Range, ...] = ()


@define
class _Asker:
    """One store that has sent requests: which incarnation of it, and the outcomes that it may
    still ask for."""

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
    """All that ever asked. The same on every node that has applied the same log."""

    def __init__(self, records: Iterable[AskerRecord] = ()) -> None:
        self._known: dict[StoreId, _Asker] = {}
        for record in records:
            outcomes = {outcome.number: outcome for outcome in record.outcomes}
            past = RangeSet(record.past)
            asker = _Asker(record.incarnation, record.floor, outcomes, past)
            self._known[StoreId(record.node, record.store)] = asker

    def records(self) -> tuple[AskerRecord, ...]:
        """Return all of it. Equal contents give equal records."""
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
        """Say whether a request has ended at its asker, or that incarnation of the asker has, or
        it was applied so long ago that its outcome is not kept."""
        asker = self._known.get(_store_of(member))
        if asker is None or member.incarnation > asker.incarnation:
            return False
        if member.incarnation < asker.incarnation:
            return True
        return number < asker.floor or number in asker.past

    def outcome(self, member: MemberId, number: int) -> RequestOutcome | None:
        """Return what came of a request that was applied and is not of the past."""
        asker = self._known.get(_store_of(member))
        if asker is None or asker.incarnation != member.incarnation:
            return None
        return asker.outcomes.get(number)

    def note(self, request: Request, value: int, error: str, text: str) -> None:
        """A request that is neither of the past nor known has been applied."""
        member = request.member
        store = _store_of(member)
        asker = self._known.get(store)
        if asker is None or asker.incarnation != member.incarnation:
            asker = self._known[store] = _Asker(member.incarnation)
        asker.outcomes[request.number] = RequestOutcome(request.number, value, error, text)
        asker.floor = max(asker.floor, min(request.oldest, request.number))
        asker.shrink()

    def forget(self, store: StoreId) -> None:
        """The store is none of this cluster's any more."""
        self._known.pop(store, None)


def _store_of(member: MemberId) -> StoreId:
    return StoreId(member.node, member.store)
