"""A queue that 40,000 producers have published to costs what one of 1,000 does."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from msgspec.structs import replace

from core.entries import CODEC, QUEUE, A, view
from core.test_producer_pages import Many, deep_of
from mirrorq.config import Config
from mirrorq.protocol.effects import Persisted
from mirrorq.protocol.ops import ProducerOp
from mirrorq.protocol.views import Member, View
from mirrorq.replication.events import Tick, ViewInstalled
from mirrorq.replication.master.term import Lease
from mirrorq.replication.replica import Replica
from mirrorq.replication.state.pages import PageCache
from mirrorq.replication.state.producer import LOSER_PAGES, LOST
from mirrorq.replication.state.queue_state import QueueState

from .work import Work, work_of

FEW, MANY = 1_000, 40_000
GROWTH_MAX = 2.0
DAY_US = 24 * 3_600_000_000
LOOKS = 3
"""The first steps of a look for idle ids: all of it would be done in them."""


_deep = cache(deep_of)


def _use(many: Many) -> None:
    """Producers of long ago publish once more, and what has changed is written."""
    many.publish(77)
    many.publish(777)
    many.checkpoint()


def _open(many: Many) -> None:
    many.open()
    many.checkpoint()


def _look_up(many: Many) -> None:
    assert many.state.producers.find(1 << 40) is None
    assert many.state.producers.find(78) is not None


def _work(call: Callable[[Many], None], many: Many) -> Work:
    return work_of(lambda: call(many))


@pytest.mark.parametrize("call", [_use, _open, _look_up])
def test_it_costs_the_same_however_many_producers_there_are(call: Callable[[Many], None]) -> None:
    few, many = (_work(call, _deep(count)) for count in (FEW, MANY))
    assert many.count < GROWTH_MAX * few.count, f"{few.count} lines, {many.growth_text(few)}"


def _tick(replica: Replica, now_ms: int) -> Work:
    return work_of(lambda: replica.step(now_ms, 2 * DAY_US, Tick()))


def test_idle_producers_end_by_portions() -> None:
    """A day later all of them are too old, and each step ends those of a few pages."""
    longest, ended = [], []
    for count in (10 * FEW, MANY):
        deep = _deep(count)
        cache = PageCache(deep.disk.page)
        replica = Replica(A, QUEUE, Config(), CODEC, deep.image(), Lease(1 << 60), cache=cache)
        number = replica.step(1000, 0, ViewInstalled(view(2, "a", master_epoch=2))).write_number
        replica.step(1000, 0, Persisted(number))
        assert replica.is_serving
        longest.append(max(_tick(replica, 2000 + n).count for n in range(LOOKS)))
        found = [
            one.payload for one in replica.ring.log.entries if isinstance(one.payload, ProducerOp)
        ]
        ended.append(sum(len(payload.expired) for payload in found))
    assert ended[0] == ended[1] > FEW
    assert longest[1] < GROWTH_MAX * longest[0]


def _promoted(count: int) -> tuple[Replica, QueueState, list[int]]:
    """So many producers, three of which published, at a member that lacks what two of them did: it
    is master by an unclean promotion. Also: the same state by one step, and what the steps took."""
    deep = deep_of(count)
    for number in (77, count // 2, count - 77):
        deep.publish(number)
    deep.checkpoint()
    last = deep.state.next_sequence - 1
    image = replace(deep.image(), lacking=((last - 1, last),))
    cache = PageCache(deep.disk.page)
    replica = Replica(A, QUEUE, Config(), CODEC, image, Lease(1 << 60), cache=cache)
    became = View(2, (Member(A, True),), "unclean", 2, generation=1)
    number = replica.step(1000, 0, ViewInstalled(became)).write_number
    deep.restart()
    deep.state.apply(replica.ring.log.entries[-1])
    event: Persisted | Tick = Persisted(number)
    costs = []
    while not replica.is_serving:
        costs.append(work_of(lambda: replica.step(1000, 0, event)).count)  # noqa: B023
        event = Tick()
    return replica, deep.state, costs


def test_an_unclean_promotion_looks_for_producers_by_portions() -> None:
    """Each step reads a few pages, and none is applied before all were read; what comes of it is
    what one step would have made of it."""
    (_, _, few), (replica, state, many) = _promoted(10 * FEW), _promoted(MANY)
    assert max(many) < GROWTH_MAX * max(few)
    assert len(many) >= MANY // 128 // LOSER_PAGES
    outcomes = [replica.state.producers[n].outcomes for n in (77, MANY // 2, MANY - 77)]
    assert [one[0][2] == LOST for one in outcomes] == [False, True, True]
    assert replica.state.encode() == state.encode()
