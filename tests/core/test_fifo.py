"""A queue of waiting items: it behaves as a deque, and takes no memory while it is empty."""

from __future__ import annotations

import gc
import random
from collections import deque

import pytest

from mirrorq.containers.fifo import Fifo


def test_it_behaves_as_a_deque() -> None:
    chance = random.Random(1)
    fifo, plain = Fifo[int](), deque[int]()
    for number in range(2000):
        match chance.randrange(8):
            case 0 | 1:
                fifo.append(number)
                plain.append(number)
            case 2:
                fifo.appendleft(number)
                plain.appendleft(number)
            case 3:
                fifo.extend((number, -number))
                plain.extend((number, -number))
            case 4 if not number % 50:
                fifo.clear()
                plain.clear()
            case _ if plain:
                assert fifo.popleft() == plain.popleft()
        assert list(fifo) == list(plain)
        assert (len(fifo), bool(fifo)) == (len(plain), bool(plain))
        if plain:
            assert (fifo[0], fifo[-1]) == (plain[0], plain[-1])
    assert list(Fifo.of(plain)) == list(plain)


def test_an_empty_one_gives_nothing_and_keeps_nothing() -> None:
    """Also after it held items: what a burst has left is given back."""
    fifo = Fifo[int]()
    with pytest.raises(IndexError):
        fifo.popleft()
    fifo.extend(range(100))
    while fifo:
        fifo.popleft()
    assert fifo._items == ()
    assert not gc.is_tracked(fifo)
