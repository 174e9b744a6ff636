"""From which shard a call takes: whole pieces where calls take many, and nobody is left out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mirrorq.config import Config
from mirrorq.receiver import CALLS_AHEAD
from mirrorq.sharded.receiver import MANY, ShardedReceiver

SHARDS = 6


class FakeReceiver:
    """What one shard has fetched ahead. Its messages are its number."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.buffered = 0
        self.ahead = 0
        self.asked = 1
        self.hinted = 0
        self.listeners: list[Any] = []

    def take_buffered(self, count: int) -> list[int]:
        taken = min(count, self.buffered)
        self.buffered -= taken
        return [self.number] * taken

    def hint(self, count: int) -> None:
        self.hinted = count


class Turns:
    """A receiver of shards that are filled by the test."""

    def __init__(self) -> None:
        self.shards = [FakeReceiver(number) for number in range(SHARDS)]
        parts = [SimpleNamespace(_receiver=each) for each in self.shards]
        queue: Any = SimpleNamespace(_config=Config(), _parts=parts, shards=SHARDS)
        self.receiver = ShardedReceiver(queue)

    def call(self, count: int) -> list[int]:
        """From which shards it took, in order, each piece once."""
        found: list[Any] = self.receiver.take_buffered(count)
        return list(dict.fromkeys(found))

    def fill(self, count: int, *, but: int = -1) -> None:
        for shard in self.shards:
            if shard.number != but:
                shard.buffered = count


@pytest.fixture
def turns() -> Turns:
    return Turns()


def test_calls_that_take_many_take_from_one_shard(turns: Turns) -> None:
    """While it has enough, for as many calls as are fetched ahead; then it is the next one's turn.

    Each call that takes from all of them would cost a delivery, an ack and an op of each.
    """
    turns.fill(CALLS_AHEAD * 1000)
    taken = [turns.call(1000) for _ in range(CALLS_AHEAD * SHARDS)]
    assert taken == [[shard] for shard in range(SHARDS) for _ in range(CALLS_AHEAD)]
    assert all(shard.asked == 1000 for shard in turns.shards)


def test_a_call_is_filled_from_the_next_shards(turns: Turns) -> None:
    """What one has not, others have: a call never gets less than there is."""
    turns.fill(400)
    assert turns.call(1000) == [0, 1, 2]
    assert turns.call(1000) == [2, 3, 4]
    assert turns.call(1000) == [5]
    assert turns.call(1000) == []


@pytest.mark.parametrize("count", [1, MANY - 1, MANY, 1000])
def test_no_shard_is_left_out(turns: Turns, count: int) -> None:
    """The others are always full; one gets a message now and then, which waits for its turn."""
    turn_calls = CALLS_AHEAD if count >= MANY else 1
    for poor in range(SHARDS):
        turns.shards[poor].buffered = 1
        for _ in range(turn_calls * SHARDS):
            turns.fill(CALLS_AHEAD * count, but=poor)
            if poor in turns.call(count):
                break
        else:
            pytest.fail(f"shard {poor} had no turn in a round of turns")


@pytest.mark.parametrize("count", [1, 1000])
def test_turns_are_shared_evenly(turns: Turns, count: int) -> None:
    """Over many calls each full shard gives as much as each other."""
    given = dict.fromkeys(range(SHARDS), 0)
    for _ in range(10 * CALLS_AHEAD * SHARDS):
        turns.fill(CALLS_AHEAD * count)
        for shard in turns.call(count):
            given[shard] += 1
    assert set(given.values()) == {10 * CALLS_AHEAD}


def test_a_shard_that_was_empty_is_asked_for_as_much_as_the_others(turns: Turns) -> None:
    """So its next turn is a whole one: at least a message, before anything is fetched ahead."""
    turns.shards[1].buffered = 5
    turns.call(1)
    assert [shard.hinted for shard in turns.shards] == [1, 0, 0, 0, 0, 0]
    turns.shards[4].ahead = 512
    turns.shards[3].buffered = 5
    turns.receiver._turn = 0
    turns.call(10)
    assert [shard.hinted for shard in turns.shards] == [512, 0, 512, 0, 512, 512]
