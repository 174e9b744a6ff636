"""What a handle has fetched ahead, against a plain list of names."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from mirrorq.api.message import Chunk, Message, names_of, runs_of
from mirrorq.api.prefetch_buffer import Backlog
from mirrorq.protocol.sessions import Delivery
from mirrorq.wire.frames import pack_publish

Name = tuple[int, int]
"""Sequence and delivery count."""


def chunk_of(first: int, count: int, dispatch: int = 1) -> Chunk:
    handle: Any = None
    frame = pack_publish([b"%d" % (first + index) for index in range(count)])
    delivery = Delivery(1, first, first, first + count - 1, dispatch)
    return Chunk(handle, 0, delivery, first, count, 0, frame)


def name_of(message: Message) -> Name:
    assert message.body == b"%d" % message.sequence
    return message.sequence, message.delivery_count


@pytest.mark.parametrize("seed", range(20))
def test_it_is_a_queue_of_messages(seed: int) -> None:
    """Taken from the left, given back from the right, single ones out of the middle."""
    chance, backlog, expected = Random(seed), Backlog(), list[Name]()
    following = 1
    for _ in range(300):
        match chance.randrange(5):
            case 0:
                chunks = []
                for _ in range(chance.randrange(3)):
                    chunks.append(chunk_of(following, chance.randint(1, 9), chance.randint(1, 2)))
                    following += chunks[-1].count
                backlog.add(chunks)
                for chunk in chunks:
                    expected += [
                        (chunk.first + i, chunk.delivery.count) for i in range(chunk.count)
                    ]
            case 1:
                count = chance.randint(1, 12)
                taken: list[Message] = []
                backlog.take_into(taken, count)
                assert list(map(name_of, taken)) == expected[:count]
                del expected[:count]
            case 2:
                one: list[Message] = []
                backlog.take_into(one, 1)
                assert list(map(name_of, one)) == expected[:1]
                del expected[:1]
            case 3:
                keep = chance.randint(0, 20)
                gone = names_of(backlog.shrink(keep))
                found = [(at, p.count) for p in gone for at in range(p.first, p.last + 1)]
                assert found == expected[keep:]
                del expected[keep:]
            case 4 if expected:
                name = chance.choice(expected)
                assert backlog.take_out(name[0], 3) is None
                message = backlog.take_out(*name)
                assert message is not None
                assert name_of(message) == name
                expected.remove(name)
        assert backlog.count() == len(expected)


def test_names_of_messages_in_any_order() -> None:
    """Neighbours of one delivery are one piece, across its frames; the order is the caller's."""
    one, other = chunk_of(1, 4), chunk_of(5, 4)
    other.delivery = one.delivery = Delivery(1, 7, 1, 8, 1)
    a, b = one.messages(0, 4), other.messages(0, 4)
    assert names_of(runs_of([*a, *b])) == [Delivery(1, 7, 1, 8, 1)]
    spans = [(piece.first, piece.last) for piece in names_of(runs_of([a[2], a[3], a[0], b[1]]))]
    assert spans == [(3, 4), (1, 1), (6, 6)]
    spans = [(piece.first, piece.last) for piece in names_of(runs_of([a[1], a[1], b[3]]))]
    assert spans == [(2, 2), (2, 2), (8, 8)]
    assert names_of(runs_of([])) == []
