"""The outbox as applied state: numbers, what is kept, bytes, another past."""

from __future__ import annotations

import pytest

from mirrorq.protocol.effects import OutboxEntry
from mirrorq.replication.state.outbox import Outbox, producer_of


def full() -> Outbox:
    outbox = Outbox()
    outbox.add(7, [(3, 5), (9, 9)], "expired", 11)
    outbox.add(8, [(1, 1)], "rejected", 12)
    outbox.add(7, [(6, 6)], "maxlen", 13)
    return outbox


def test_numbers_go_on_for_each_target() -> None:
    outbox = full()
    assert [p.number for p in outbox.target_outboxes[7].entries] == [1, 4, 5]
    assert [p.number for p in outbox.target_outboxes[8].entries] == [1]
    assert (outbox.count, list(outbox.kept)) == (6, [(1, 1), (3, 6), (9, 9)])


def test_done_ends_a_part() -> None:
    outbox = full()
    assert outbox.done(7, 2) == ((3, 4),)
    assert outbox.target_outboxes[7].entries[0] == OutboxEntry(3, 5, 5, "expired", 11)
    assert outbox.done(7, 2) == ()
    assert outbox.done(99, 2) == ()
    assert outbox.done(7, 5) == ((5, 5), (9, 9), (6, 6))
    assert (list(outbox.target_outboxes), outbox.idle) == ([8], {7: 6})
    outbox.add(7, [(20, 20)], "expired", 14)
    assert outbox.target_outboxes[7].entries[0].number == 6
    assert list(outbox.kept) == [(1, 1), (20, 20)]


def test_an_unclean_promotion_numbers_what_is_left_anew() -> None:
    outbox = full()
    outbox.done(7, 1)
    outbox.begin_anew([(5, 5), (1, 1)])
    entries = [(p.number, p.first, p.last) for p in outbox.target_outboxes[7].entries]
    assert entries == [(1, 4, 4), (2, 9, 9), (3, 6, 6)]
    assert outbox.next_number(8) == 1
    assert list(outbox.kept) == [(4, 4), (6, 6), (9, 9)]
    assert producer_of(3, 0) != producer_of(3, 1) != producer_of(4, 1)


def test_bytes_give_the_same_outbox_again() -> None:
    outbox = full()
    outbox.done(7, 2)
    again = Outbox.restore(outbox.image(), 100)
    assert again.image() == outbox.image()
    assert again.kept == outbox.kept


@pytest.mark.parametrize(
    "image",
    [
        [(7, 3, [(1, 5, 5, "expired", 0)])],
        [(7, 3, [(1, 5, 4, "expired", 0)])],
        [(7, 2, [(1, 200, 200, "expired", 0)])],
        [(7, 3, [(1, 5, 5, "expired", 0), (2, 5, 5, "expired", 0)])],
        [(7, 4, [(1, 5, 5, "expired", 0), (3, 6, 6, "expired", 0)])],
    ],
)
def test_an_unsound_image_is_refused(image: list[tuple[int, int, list[tuple]]]) -> None:
    with pytest.raises(ValueError, match="outbox"):
        Outbox.restore(image, 100)
