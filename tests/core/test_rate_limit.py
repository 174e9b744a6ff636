"""max-rate, max-rate-bytes and max-consumers: what a queue takes, judged by its master."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mirrorq.protocol.policy import Definition
from mirrorq.protocol.sessions import ConsumerRefused, Settle, Subscribe, Unsubscribe
from mirrorq.replication.master.rate_limit import pace_of

from .test_expiry import Timed
from .test_master import TWO

ARRIVALS = st.lists(
    st.tuples(st.integers(0, 400), st.integers(1, 9), st.integers(0, 50)), min_size=1, max_size=60
)
"""(ms since the one before, messages, bytes)."""


@given(ARRIVALS, st.integers(1, 20), st.one_of(st.none(), st.integers(1, 200)))
def test_no_second_has_more_than_the_rates_and_one_batch(
    arrivals: list[tuple[int, int, int]], rate: int, rate_bytes: int | None
) -> None:
    """From any moment on, in any time: the rates, a second's worth at once, and one batch."""
    pace = pace_of(Definition(max_rate=rate, max_rate_bytes=rate_bytes))
    assert pace is not None
    now_ms, taken = 0, []
    for pause_ms, count, size in arrivals:
        now_ms += pause_ms
        if not pace.is_open(now_ms):
            opens_ms = pace.opens_at_ms(now_ms)
            assert opens_ms > now_ms
            assert not pace.is_open(opens_ms - 1)
            assert pace.is_open(opens_ms)
            now_ms = opens_ms
        pace.count_messages(count, size)
        taken.append((now_ms, count, size))
    for begin, (begin_ms, _, _) in enumerate(taken):
        counts = sizes = 0
        for end_ms, count, size in taken[begin:]:
            # What came before the last one of them was within the bound.
            assert counts <= rate * (end_ms - begin_ms + 1000) / 1000
            assert rate_bytes is None or sizes <= rate_bytes * (end_ms - begin_ms + 1000) / 1000
            counts, sizes = counts + count, sizes + size


def test_without_a_rate_there_is_no_pace() -> None:
    assert pace_of(Definition(max_length=1)) is None


def test_puts_beyond_the_rate_wait_and_none_is_lost() -> None:
    """A second's worth is taken at once, the rest as time goes on, whole batches in order."""
    queue = Timed(max_rate=2)
    queue.at(0)
    for size in (1, 1, 1, 1):
        queue.put(size)
    queue.put(1, 1, 1)
    queue.settle_all()
    assert sorted(queue.confirmed) == [1, 2]
    master = queue.replica.master
    assert master is not None
    assert master.blocked_by == "more is published than the policy takes in a second: max-rate 2"
    assert queue.wake_at_ms is not None
    assert 1000 < queue.wake_at_ms <= 1501
    queue.at(499)
    queue.settle_all()
    assert sorted(queue.confirmed) == [1, 2, 3]
    for ms in (600, 1100, 1600):
        queue.at(ms)
        queue.settle_all()
    assert sorted(queue.confirmed) == [1, 2, 3, 4, 5, 6, 7]
    assert list(queue.confirmed.values()) == sorted(queue.confirmed.values())
    assert queue.refused == {}
    assert master.blocked_by == ""
    # A batch larger than the rate was taken whole: the next waits for as long as it takes.
    queue.put(1)
    queue.at(2000)
    queue.settle_all()
    assert 8 not in queue.confirmed
    queue.at(4000)
    queue.settle_all()
    assert 8 in queue.confirmed


def test_bytes_count_without_messages() -> None:
    queue = Timed(max_rate_bytes=100)
    queue.at(0)
    queue.put(60)
    queue.put(60)
    queue.put(1)
    queue.settle_all()
    assert sorted(queue.confirmed) == [1, 2]
    queue.at(300)
    queue.settle_all()
    assert sorted(queue.confirmed) == [1, 2, 3]


def test_a_rate_that_is_taken_away_lets_all_go_on() -> None:
    queue = Timed(max_rate=1)
    queue.at(0)
    for _ in range(5):
        queue.put(1)
    queue.settle_all()
    assert len(queue.confirmed) == 1
    # A change of something else does not begin anew.
    queue.define(max_rate=1, delivery_limit=3)
    queue.settle_all()
    assert len(queue.confirmed) == 1
    queue.define()
    queue.tick()
    queue.settle_all()
    assert len(queue.confirmed) == 5


def test_acks_do_not_wait_for_the_pace() -> None:
    """A queue that takes no more for now can be drained."""
    queue = Timed(max_rate=1)
    queue.at(0)
    queue.put(1)
    queue.put(1)
    queue.settle_all()
    (piece,) = queue.take(1)
    queue.ask(TWO, Settle(1, "ack", (piece,)))
    queue.sync()
    assert queue.live == []


def test_one_consumer_more_than_allowed_is_refused() -> None:
    """Those that are there stay, also when the policy comes later; get is no consumer."""
    queue = Timed(max_consumers=2)
    queue.attach(TWO)

    def why(number: int, *, prefetch: int = 5) -> str:
        queue.ask(TWO, Subscribe(number, prefetch))
        queue.sync()
        refused = [reply for reply in queue.heard(TWO) if isinstance(reply, ConsumerRefused)]
        return refused[0].why if refused else ""

    assert why(0) == ""
    assert why(1) == ""
    assert why(2) == ""
    assert why(3) == "the queue has 2 consumers, its policy says max-consumers 2"
    assert why(2, prefetch=9) == ""
    queue.define(max_consumers=1)
    assert why(1, prefetch=7) == ""
    queue.ask(TWO, Unsubscribe(1))
    assert "has 1 consumers" in why(4)
    queue.ask(TWO, Unsubscribe(2))
    assert why(4) == ""
