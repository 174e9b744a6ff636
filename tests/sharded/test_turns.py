"""From which shard a call takes, and into which a put without a key goes: whole pieces where many
come, and nobody is left out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mirrorq.api.receiver import CALLS_AHEAD, MANY, Demand
from mirrorq.api.sharded.publisher import FEW, TURN_PART, ShardedPublisher
from mirrorq.api.sharded.receiver import ShardedReceiver
from mirrorq.api.waits import Signal
from mirrorq.config import Config

SHARDS = 6


class FakeReceiver:
    """What one shard has fetched ahead. Its messages are its number."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.buffered = 0
        self.ahead = 0
        self.asked = 1
        self.hinted = 0
        self.demands: list[Demand] = []
        self.signal = Signal()

    def take_buffered(self, found: list[int], count: int) -> None:
        taken = min(count, self.buffered)
        self.buffered -= taken
        found += [self.number] * taken

    def hint(self, count: int) -> None:
        self.hinted = count

    @property
    def wanted(self) -> int:
        return sum(demand.count for demand in self.demands)

    def want(self, demand: Demand) -> None:
        self.demands.append(demand)

    def unwant(self, demand: Demand) -> None:
        self.demands.remove(demand)


class Turns:
    """A receiver of shards that are filled by the test."""

    def __init__(self) -> None:
        self.shards = [FakeReceiver(number) for number in range(SHARDS)]
        parts = [SimpleNamespace(receiver=each) for each in self.shards]
        queue: Any = None
        self.receiver = ShardedReceiver(queue, queue, parts)  # type: ignore[arg-type]

    def call(self, count: int) -> list[int]:
        """From which shards it took, in order, each piece once."""
        found: list[Any] = []
        self.receiver.take_buffered(found, count)
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


@pytest.mark.parametrize(("count", "each"), [(1, 1), (7, 2), (MANY, MANY), (1000, 1000)])
def test_of_many_each_shard_is_asked_for_all(turns: Turns, count: int, each: int) -> None:
    """So the first calls take whole pieces too. When the call ends nothing of it is wanted."""
    demand = Demand(count)
    turns.receiver.want(demand)
    assert [shard.wanted for shard in turns.shards] == [each] * SHARDS
    turns.receiver.unwant(demand)
    assert [shard.wanted for shard in turns.shards] == [0] * SHARDS


# --- Puts without a key ---------------------------------------------------------------------


class PutTurns:
    """A publisher of shards that all run; the test says what is under way, and what is taken."""

    def __init__(self) -> None:
        self.given = dict.fromkeys(range(SHARDS), 0)
        self.shards = [
            SimpleNamespace(number=number, runs=True, inbox=[], puts=SimpleNamespace(count=0))
            for number in range(SHARDS)
        ]
        queue: Any = SimpleNamespace(config=Config(), outcomes=None)
        self.publisher = ShardedPublisher(queue, self.shards)  # type: ignore[arg-type]
        self.publisher.wants_credit = False

    def put(self, count: int = 1) -> list[int]:
        """Into which shards so many puts went, each turn once."""
        turns: list[int] = []
        for _ in range(count):
            chosen: Any = self.publisher.next_ready()
            chosen.inbox = [b""]
            chosen.puts.count += 1
            self.given[chosen.number] += 1
            if not turns or turns[-1] != chosen.number:
                turns.append(chosen.number)
        return turns

    def take(self) -> None:
        """The host takes what was put."""
        for shard in self.shards:
            shard.inbox = []


def test_while_little_is_under_way_each_put_is_another_shards_turn() -> None:
    """Taken by the host or not."""
    turns = PutTurns()
    assert turns.put(12) == [*range(SHARDS), *range(SHARDS)]
    turns.take()
    turns.put(FEW * SHARDS - 12)
    assert set(turns.given.values()) == {FEW}


def test_what_the_host_takes_together_is_one_shards() -> None:
    """Under load: a turn lasts until the host has taken what was put in it."""
    turns = PutTurns()
    turns.put(100 * FEW * SHARDS)
    turns.take()
    first = turns.put(50)
    assert len(first) == 1
    assert turns.put(50) == first
    turns.take()
    assert turns.put(50) == [(first[0] + 1) % SHARDS]


def test_a_turn_is_a_part_of_what_is_under_way() -> None:
    """However quick puts come and however slow the host is, none is left out or gets most."""
    turns = PutTurns()
    turns.put(20_000)
    assert max(turns.given.values()) < 20_000 / TURN_PART
    assert min(turns.given.values()) > 20_000 / SHARDS / 4


def test_over_many_turns_each_shard_is_given_as_much() -> None:
    turns = PutTurns()
    for _ in range(10 * SHARDS):
        turns.put(300)
        turns.take()
        turns.put(300)
        turns.take()
    assert max(turns.given.values()) - min(turns.given.values()) <= 600


def test_a_shard_that_does_not_run_has_no_turn() -> None:
    """Whoever asks then looks closer."""
    turns = PutTurns()
    turns.put(100 * FEW * SHARDS)
    for shard in turns.shards:
        shard.runs = False
    turns.take()
    assert turns.publisher.next_ready() is None
