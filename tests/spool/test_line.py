"""A line's numbers, against a master that knows what it has had: whatever crashes, drops, copies
and old copies of the store there are, what was accepted is stored, and once where no copy of the
store was used beside it or after it.

The rules are taken away one by one too (`RULES`), and each time the same search finds what breaks.
"""

from __future__ import annotations

import random
from copy import deepcopy

import pytest
from attrs import define, field

from mirrorq.spool.line import Flight, Line, TargetMark, Turn, cut

SEEDS = 300
STEPS = 120


@define
class Disk:
    """What survives a crash."""

    live: dict[int, str] = field(factory=dict)
    groups: dict[int, int] = field(factory=dict)
    """Local sequence -> the first one of what was put together: one frame."""
    next_sequence: int = 1
    mark: TargetMark | None = None


@define
class Producer:
    """One producer id at the master."""

    highest: int = 0
    settled: int = 0
    outcomes: dict[int, int] = field(factory=dict)
    """Number -> place in the queue."""


class Master:
    """Takes numbers without gaps, each once; forgets what is settled."""

    def __init__(self) -> None:
        self.producers: dict[int, Producer] = {}
        self.queue: list[str] = []

    def take(self, id_: int, number: int, bodies: list[str], settled: int) -> list[int] | str:
        """The outcome of a batch: places in the queue; or "forgotten", or "" (there is none)."""
        known = self.producers.setdefault(id_, Producer())
        if number <= known.settled:
            return "forgotten"
        known.settled = max(known.settled, settled)
        expected = max(known.highest, settled) + 1
        if number > expected:
            return ""
        for place in range(expected - number, len(bodies)):
            self.queue.append(bodies[place])
            known.outcomes[number + place] = len(self.queue)
        known.highest = max(known.highest, number + len(bodies) - 1)
        found = [known.outcomes.get(number + place, 0) for place in range(len(bodies))]
        known.outcomes = {n: at for n, at in known.outcomes.items() if n > known.settled}
        return found if all(found) else ""


class World:
    """A spool, its disk and a master, and the rule that is left out."""

    def __init__(self, seed: int, left_out: str = "") -> None:
        self.random = random.Random(seed)
        self.left_out = left_out
        self.disk = Disk()
        self.master = Master()
        self.copies: list[Disk] = []
        self.accepted: set[str] = set()
        self.dropped: set[str] = set()
        self.not_stored: set[str] = set()
        """Those of them that were certainly never sent: their producers are told so."""
        self.lost: set[str] = set()
        """They were only on a disk that is no more."""
        self.confirmed: set[str] = set()
        self.in_copies: set[str] = set()
        self.named = 0
        self.open()

    def open(self) -> None:
        disk = self.disk
        fresh = self.random.getrandbits(60)
        if self.left_out == "identity" and disk.mark is not None:
            fresh = disk.mark.producer
        kept = cut(disk.mark, disk.next_sequence)
        if self.left_out != "cut":
            disk.mark = kept
        self.line = Line(min(disk.live, default=disk.next_sequence), kept, fresh)
        self.base = 0
        self.untold: list[tuple[Flight, list[str]]] = []
        """Flights whose outcome has not come."""

    def put(self) -> None:
        first = self.disk.next_sequence
        for _ in range(self.random.randint(1, 3)):
            self.named += 1
            self.disk.groups[self.disk.next_sequence] = first
            body = f"m{self.named}"
            self.disk.live[self.disk.next_sequence] = body
            self.disk.next_sequence += 1
            self.accepted.add(body)

    def drop(self) -> None:
        """The oldest that was not sent in this life ends."""
        unsent = [one for one in self.disk.live if one > self.line.read_to]
        for sequence in unsent[: self.random.randint(0, 1)]:
            body = self.disk.live.pop(sequence)
            self.dropped.add(body)
            if sequence > self.line.sent_to or self.left_out == "sent":
                self.not_stored.add(body)

    def send(self) -> None:
        line, live = self.line, self.disk.live
        unsent = [one for one in live if one > line.read_to]
        if not unsent:
            return
        first = unsent[0]
        group = self.disk.groups[first]
        count = sum(self.disk.groups[one] == group for one in unsent)
        match line.turn(first, count):
            case Turn.WRITE_MARK:
                mark = line.mark_due(first, count)
                line.mark = mark
                if self.left_out != "mark":
                    self.disk.mark = mark
            case Turn.BEGIN:
                line.begin_session(first)
                self.base = min(live) - 1 if self.left_out == "number" else 0
            case Turn.SEND:
                flight = line.send(first, count)
                bodies = [live[one] for one in range(first, first + count)]
                self.untold.append((flight, bodies))
                self.publish(flight, bodies)
                if self.left_out == "acked":
                    for one in range(first, first + count):
                        del live[one]
            case Turn.WAIT:
                pass

    def publish(self, flight: Flight, bodies: list[str]) -> list[int] | str:
        """It reaches the master, or is lost on its way, with those behind it."""
        if self.random.random() < 0.3:
            return ""
        line = self.line
        told = self.untold[0][0].first - 1
        settled = told if self.left_out == "settled" else line.settled(told)
        return self.master.take(line.producer, flight.first - self.base, bodies, settled)

    def hear(self) -> None:
        """What is on its way is sent again by the session, until its outcome is heard."""
        for flight, bodies in list(self.untold):
            outcome = self.publish(flight, bodies)
            if outcome == "forgotten":
                self.untold.clear()
                self.line.renew(self.random.getrandbits(60))
                return
            if not outcome:
                return
            self.line.on_stored(flight, 0, flight.count, int(outcome[0]))
            self.untold.pop(0)
            self.confirmed |= set(bodies)

    def ack(self) -> None:
        ended = self.line.ended()
        for flight in ended:
            for one in range(flight.first, flight.last + 1):
                self.disk.live.pop(one, None)
        self.line.on_acked(ended)

    def crash(self) -> None:
        if self.random.random() < 0.5:
            self.open()
        else:
            self.untold.clear()
            self.line.begin_again()

    def copy(self) -> None:
        if self.random.random() < 0.3:
            self.copies.append(deepcopy(self.disk))
            self.in_copies |= set(self.disk.live.values())

    def set_back(self) -> None:
        """An older copy goes on in place of this one, or beside it: then they take turns."""
        if not self.copies or self.random.random() < 0.5:
            return
        former, self.disk = self.disk, self.copies.pop()
        if self.random.random() < 0.5:
            self.in_copies |= set(former.live.values())
            self.copies.append(former)
        else:
            self.lost |= set(former.live.values()) - set(self.disk.live.values())
        self.open()

    def run(self, *, has_copies: bool) -> list[str]:
        """What is not as promised."""
        steps = [self.put, self.put, self.send, self.send, self.send, self.hear, self.ack]
        steps += [self.drop, self.crash]
        if has_copies:
            steps += [self.copy, self.set_back]
        for _ in range(STEPS):
            self.random.choice(steps)()
        for disk in [self.disk, *self.copies]:
            self.disk = disk
            self.open()
            for _ in range(2000):
                if not disk.live:
                    break
                self.send()
                self.hear()
                self.ack()
            else:
                return ["no progress"]
        return self.wrong()

    def wrong(self) -> list[str]:
        queue = self.master.queue
        kept = self.accepted - self.dropped - self.lost
        found = [f"{one} is lost" for one in (kept | self.confirmed) - set(queue)]
        found += [
            f"{one} is doubled" for one in set(queue) - self.in_copies if queue.count(one) > 1
        ]
        found += [f"{one} is stored" for one in self.not_stored & set(queue) - self.in_copies]
        if not self.in_copies and sorted(queue, key=lambda one: int(one[1:])) != queue:
            found.append("out of order")
        return found


@pytest.mark.parametrize("has_copies", [False, True])
def test_what_was_accepted_is_stored(has_copies: bool) -> None:
    for seed in range(SEEDS):
        world = World(seed)
        assert world.run(has_copies=has_copies) == [], seed
        assert world.confirmed


RULES = {
    "identity": "lost",
    "cut": "lost",
    "mark": "doubled",
    "number": "",
    "acked": "lost",
    "settled": "doubled",
    "sent": "stored",
}
"""A rule of `Line`, or of its use -> what comes of leaving it out."""


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_needed(rule: str) -> None:
    """The mark's id for what was never sent; a mark that is not cut on the disk; one that is
    written too late; numbers that are places among what lives; an ack before the confirm; a master
    that is told too early; a drop of what was sent before, told as one of what never was."""
    for seed in range(SEEDS):
        if any(RULES[rule] in text for text in run_broken(seed, rule)):
            return
    pytest.fail(f"nothing is {RULES[rule]} without the rule {rule!r}")


def run_broken(seed: int, rule: str) -> list[str]:
    world = World(seed, rule)
    try:
        return world.run(has_copies=rule in ("identity", "cut"))
    except (AssertionError, KeyError):
        return []
