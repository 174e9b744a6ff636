"""An explored queue of one connection: what its owner and strangers do, and what must hold.

The owner has one handle, which attaches to each master whenever it pleases. Its entry node may
lose it: from then on it is there and not heard, until it attaches again; a goodbye in its name is
on the way meanwhile, and may come last. It closes, or dies. Strangers publish all the time, and
try to consume and to purge. A master asks the catalog to delete the queue; the catalog does so
whenever it pleases, or refuses. Checker `owned`:

    a queue goes only when its owner has gone, or was not heard by the master of the present term
    for longer than any wait (a tick);
    nobody else is handed a message or purges one, and nobody at all once the deletion is asked for.

That a queue does go when its owner has gone is looked at when all faults have ended (`progress`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

__all__ = ["OWNER", "Owner", "owner_actions"]

OWNER = "owner"
"""The connection that the queue belongs to."""


class Owner(NamedTuple):
    """What the outside world knows of the owner, and of its queue's end."""

    seated: tuple[tuple[int, int], ...] = ()
    """(term, number of its attachment there), sorted; what was lost is left out."""
    goodbyes: tuple[tuple[int, int], ...] = ()
    """The same, of attachments that were lost and of which the master has not been told."""
    unheard: tuple[int, ...] = ()
    """Terms in which it was not heard for longer than any wait."""
    asked: tuple[int, ...] = ()
    """Terms whose master has asked for the deletion."""
    is_gone: bool = False
    is_deleted: bool = False

    def number_in(self, term: int) -> int:
        """Of its attachment to this term's master; 0: it has none that is heard."""
        return dict(self.seated).get(term, 0)

    def next_in(self, term: int) -> int:
        """The number that its next attachment gets."""
        known = (*self.seated, *self.goodbyes)
        return 1 + max((number for known_in, number in known if known_in == term), default=0)

    def sit(self, term: int, number: int) -> Owner:
        return self._replace(seated=tuple(sorted((*self.seated, (term, number)))))

    def lost(self, terms: tuple[int, ...]) -> Owner:
        """Its entry node hears nothing of it any more, and will say so."""
        gone = tuple(one for one in self.seated if one[0] in terms)
        seated = tuple(one for one in self.seated if one[0] not in terms)
        return self._replace(seated=seated, goodbyes=tuple(sorted((*self.goodbyes, *gone))))

    def closed(self, term: int) -> Owner:
        """It says goodbye to this term's master itself, and to others through its entry node."""
        others = self.lost(tuple(t for t, _ in self.seated if t != term))
        return others._replace(seated=(), is_gone=True)

    def told(self, index: int) -> Owner:
        return self._replace(goodbyes=self.goodbyes[:index] + self.goodbyes[index + 1 :])

    def after_tick(self, terms: tuple[int, ...]) -> Owner:
        """More time than any wait has passed, for the masters of these terms."""
        away = {term for term in terms if not self.number_in(term)}
        return self._replace(unheard=tuple(sorted({*self.unheard, *away})))

    def may_go(self, term: int) -> bool:
        """Whether its queue may be deleted by the master of this term."""
        return self.is_gone or term in self.unheard


def owner_actions(owner: Owner, left: Any, place: int, term: int) -> Iterator[tuple[Any, ...]]:
    """What the owner and strangers can do at the active master of this term, at this place."""
    if owner.number_in(term):
        if left.losses:
            yield ("owner lost", place)
        if left.closes:
            yield ("owner closes", place)
            yield ("owner dies", place)
    elif not owner.is_gone:
        yield ("own", place)
    for index, (told, _) in enumerate(owner.goodbyes):
        if told == term:
            yield ("goodbye", place, index)
    if left.meddles:
        yield ("meddle", place)
