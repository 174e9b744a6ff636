"""What a node asks of the catalog's leader: how often, and how much stays open."""

from __future__ import annotations

from mirrorq.containers.timers import FOREVER_MS
from mirrorq.engine.catalog_requests import ASK_AGAIN_MS, RETRY_MS, CatalogRequests
from mirrorq.protocol.commands import ChangeView, DeleteQueue, NoteOutbox
from mirrorq.protocol.identities import MemberId
from mirrorq.protocol.views import Member

A, B = (Member(MemberId(name, 1, 1), True) for name in "ab")


def _numbers(asks: CatalogRequests, now_ms: int) -> list[int]:
    return [ask.number for ask in asks.due(now_ms)]


def test_a_wish_is_repeated_and_not_added() -> None:
    """Wanted again and again while nobody leads, it is one ask; another queue's is another one."""
    asks = CatalogRequests()
    for _ in range(1000):
        asks.wish(ChangeView(1, 5, (A, B)))
        asks.wish(ChangeView(2, 5, (A, B)))
        asks.wish(NoteOutbox(1))
    assert len(asks) == 3
    assert _numbers(asks, 1000) == [1, 2, 3]
    assert _numbers(asks, 1000 + ASK_AGAIN_MS - 1) == []
    assert _numbers(asks, 1000 + ASK_AGAIN_MS) == [1, 2, 3]


def test_a_later_change_of_a_view_takes_the_place_of_an_earlier_one() -> None:
    """Under a number of its own: the leader would take it for a repetition of the other."""
    asks = CatalogRequests()
    asks.wish(ChangeView(1, 5, (A, B)))
    asks.wish(ChangeView(1, 6, (A,)))
    assert [(ask.number, ask.command) for ask in asks.due(0)] == [(2, ChangeView(1, 6, (A,)))]
    assert asks.finish(1) is None
    assert asks.finish(2) is not None
    asks.wish(ChangeView(1, 6, (A,)))
    assert _numbers(asks, 0) == [3], "it came to nothing, and is wanted again"


def test_wishes_of_one_queue_that_say_different_things_stand_beside_each_other() -> None:
    """That a queue is drained is said once, and must not be lost to that it is ownerless."""
    asks = CatalogRequests()
    asks.wish(DeleteQueue(1, is_drained=True))
    asks.wish(DeleteQueue(1))
    asks.add(7, DeleteQueue(1))
    assert len(asks) == 3
    assert [ask.number for ask in asks.take_all(7)] == [3]
    assert asks.oldest == 1


def test_a_retry_is_due_sooner() -> None:
    """The leader cannot do it yet."""
    asks = CatalogRequests()
    asks.wish(NoteOutbox(1))
    assert asks.next_ms(has_leader=True) == 0
    assert _numbers(asks, 100) == [1]
    asks.retry(1)
    assert asks.next_ms(has_leader=True) == 100 + RETRY_MS
    assert asks.next_ms(has_leader=False) == FOREVER_MS
    assert _numbers(asks, 100 + RETRY_MS) == [1]
