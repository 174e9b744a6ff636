"""A line's numbers, against a master that knows what it has had: what any crash, any loss and any
drop leave is each accepted record once, in order.

The rules are taken away one by one too (`BROKEN`), and each time the same search finds what breaks.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from attrs import define, field
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrorq.spool.line import Flight, Line


@define
class Disk:
    """What survives a crash."""

    records: list[tuple[int, int]] = field(factory=list)
    """(ordinal, count)."""
    next_ordinal: int = 1
    base: int = 1
    sent_to: int = 0


@define
class Master:
    """Takes numbers without gaps, each once."""

    highest: int = 0
    had: list[tuple[int, int]] = field(factory=list)
    """(ordinal, index) of each message, in the order in which they were stored."""

    def take(self, ordinal: int, number: int, count: int, settled: int) -> bool:
        """Whether the batch has an outcome now."""
        expected = max(self.highest, settled) + 1
        if number > expected:
            return False
        for index in range(expected - number, count):
            self.had.append((ordinal, index))
        self.highest = max(self.highest, number + count - 1)
        return True


Rule = Callable[["World"], None]


class World:
    """A spool, its disk and a master, and the rules that somebody may have left out."""

    def __init__(self, left_out: str = "") -> None:
        self.left_out = left_out
        self.disk = Disk()
        self.master = Master()
        self.line = Line(1, 0)
        self.unsent: list[tuple[int, int]] = []
        self.flights: dict[int, Flight] = {}
        self.due = Disk()
        self.accepted: list[tuple[int, int]] = []
        self.dropped: set[int] = set()

    def put(self, count: int) -> None:
        """It is accepted: on the disk."""
        ordinal = self.disk.next_ordinal
        self.disk.next_ordinal += 1
        self.disk.records.append((ordinal, count))
        self.accepted.append((ordinal, count))
        self.unsent.append((ordinal, count))

    def free(self, count: int) -> None:
        """So many more may be sent: that is on the disk before one is."""
        free = [one for one in self.unsent if one[0] > self.line.sent_to][:count]
        if free:
            self.line.sent_to = free[-1][0]
            if self.left_out != "sent_to is on the disk first":
                self.disk.sent_to = self.line.sent_to

    def send(self) -> None:
        """The next record that is free for it."""
        if self.unsent and self.unsent[0][0] <= self.line.sent_to:
            ordinal, count = self.unsent.pop(0)
            self.flights[ordinal] = self.line.send(ordinal, count)

    def arrive(self, place: int, *, is_heard: bool) -> None:
        """What is on its way comes, and its outcome back, or not."""
        if not self.line.flights:
            return
        flight = list(self.line.flights)[place % len(self.line.flights)]
        settled = self.line.flights[0].number - 1
        taken = self.master.take(flight.ordinal, flight.number, flight.count, settled)
        if taken and is_heard and flight.left:
            self.line.on_stored(flight, 0, flight.count, 1)

    def commit(self) -> None:
        """What has ended goes, and `base` moves on."""
        gone = {flight.ordinal for flight in self.line.ended()}
        self.disk.records = [one for one in self.disk.records if one[0] not in gone]
        if self.left_out != "base moves with what goes":
            self.disk.base = self.line.base

    def drop(self, count: int) -> None:
        """The oldest that were certainly not sent."""
        is_free = self.left_out == "only what was not sent is dropped"
        for one in [r for r in self.unsent if is_free or self.line.may_drop(r[0])][:count]:
            self.unsent.remove(one)
            self.disk.records.remove(one)
            self.dropped.add(one[0])

    def lose_handle(self) -> None:
        """Nothing is known of what was on its way."""
        self.line.begin_again()
        self.unsent = list(self.disk.records)

    def crash(self) -> None:
        """The process ends, and begins anew with what is on the disk."""
        self.line = Line(self.disk.base, self.disk.sent_to)
        self.unsent = list(self.disk.records)

    def drain(self) -> None:
        """All goes well for long enough."""
        for _ in range(3 * len(self.accepted) + 3):
            self.free(100)
            self.send()
            for place in range(len(self.line.flights)):
                self.arrive(place, is_heard=True)
            self.commit()

    def wrong(self) -> str:
        """What is not as promised."""
        whole = [
            (ordinal, index)
            for ordinal, count in self.accepted
            if ordinal not in self.dropped
            for index in range(count)
        ]
        if self.master.had != whole:
            return f"stored {self.master.had}, accepted {whole}"
        if self.disk.records:
            return f"left {self.disk.records}"
        return ""


STEPS = ("put", "put", "free", "send", "send", "arrive", "arrive", "lost", "commit", "drop",
         "handle", "crash")  # fmt: skip


def play(world: World, steps: list[tuple[str, int]]) -> str:
    """Do the steps, then let all go well; return what is wrong."""
    for name, number in steps:
        match name:
            case "put":
                world.put(1 + number % 3)
            case "free":
                world.free(1 + number)
            case "send":
                world.send()
            case "arrive":
                world.arrive(number, is_heard=True)
            case "lost":
                world.arrive(number, is_heard=False)
            case "commit":
                world.commit()
            case "drop":
                world.drop(1 + number % 2)
            case "handle":
                world.commit()
                world.lose_handle()
            case _:
                world.crash()
    world.lose_handle()
    world.drain()
    return world.wrong()


@settings(max_examples=500, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 5)), max_size=40))
def test_each_accepted_record_is_stored_once_and_in_order(steps: list[tuple[str, int]]) -> None:
    assert play(World(), steps) == ""


BROKEN = (
    "sent_to is on the disk first",
    "base moves with what goes",
    "only what was not sent is dropped",
)


@pytest.mark.parametrize("left_out", BROKEN)
def test_each_rule_is_needed(left_out: str) -> None:
    """Without it some steps lose, double or hold up a message."""
    chance = random.Random(1)
    for _ in range(3000):
        steps = [(chance.choice(STEPS), chance.randrange(6)) for _ in range(chance.randrange(40))]
        world = World(left_out)
        try:
            if play(world, steps):
                return
        except AssertionError:
            return
    pytest.fail(f"nothing breaks without: {left_out}")
