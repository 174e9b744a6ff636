"""Forwarders between two clusters, against a target that knows what it has had: whatever crashes,
loses its claim, or is deleted, each message is once in the target, and none is lost.

The rules are taken away one by one too (`RULES`), and each time the same search finds what breaks.
"""

from __future__ import annotations

import random

import pytest
from attrs import define, field

from mirrorq.spool.line import Flight, Line, TargetMark, Turn
from spool.test_line import Master

SEEDS = 300
STEPS = 150
NUMBER_MAX = 1 << 62
IDENTITY = 7


@define(eq=False)
class Worker:
    """A forwarder's process."""

    line: Line
    base: int = 0
    kept: set[int] = field(factory=set)
    untold: list[tuple[Flight, list[str]]] = field(factory=list)


class World:
    """A source, a target, and two forwarders, one of which has the claim."""

    def __init__(self, seed: int, left_out: str = "") -> None:
        self.random = random.Random(seed)
        self.left_out = left_out
        self.live: dict[int, str] = {}
        """The source's, by sequence."""
        self.next_sequence = 1
        self.target = Master()
        self.in_deleted: set[str] = set()
        self.ended: set[str] = set()
        """Messages that ended in the source, unsent as far as it knows."""
        self.put_all: set[str] = set()
        self.workers: list[Worker] = []
        self.holder: Worker | None = None

    # --- Steps ----------------------------------------------------------------------------

    def put(self) -> None:
        for _ in range(self.random.randint(1, 3)):
            body = f"m{self.next_sequence}"
            self.live[self.next_sequence] = body
            self.next_sequence += 1
            self.put_all.add(body)

    def expire(self) -> None:
        if self.live and self.random.random() < 0.3:
            self.ended.add(self.live.pop(self.random.choice(list(self.live))))

    def begin(self) -> None:
        """A forwarder begins, and has the claim: the other one has lost it, and does not know."""
        if len(self.workers) == 2:
            return
        identity = self.random.getrandbits(60) if self.left_out == "identity" else IDENTITY
        worker = Worker(Line(1, TargetMark(identity, NUMBER_MAX), identity))
        self.workers.append(worker)
        self.holder = worker

    def crash(self) -> None:
        if self.workers and self.random.random() < 0.4:
            self._end(self.random.choice(self.workers))

    def disconnect(self) -> None:
        """A session is gone: all that is on its way is sent anew."""
        if self.workers and self.random.random() < 0.4:
            worker = self.random.choice(self.workers)
            worker.untold.clear()
            worker.line.begin_again()

    def delete_target(self) -> None:
        if self.random.random() < 0.1:
            self.in_deleted |= set(self.target.queue)
            self.target = Master()
            for worker in self.workers:
                worker.untold.clear()
                worker.line.begin_again()

    def work(self) -> None:
        if self.workers:
            worker = self.random.choice(self.workers)
            self.random.choice((self._send, self._send, self._hear, self._ack))(worker)

    # --- A forwarder ------------------------------------------------------------------------

    def _end(self, worker: Worker) -> None:
        self.workers.remove(worker)
        if self.holder is worker:
            self.holder = None

    def _send(self, worker: Worker) -> None:
        line = worker.line
        unsent = [one for one in self.live if one > line.read_to and one not in worker.kept]
        if not unsent:
            return
        first = unsent[0]
        count = 1
        while first + count in unsent and self.random.random() < 0.6:
            count += 1
        match line.turn(first, count):
            case Turn.BEGIN:
                line.begin_session(first)
                worker.base = min(self.live) - 1 if self.left_out == "number" else 0
            case Turn.SEND:
                flight = line.send(first, count)
                bodies = [self.live[one] for one in range(first, first + count)]
                worker.untold.append((flight, bodies))
                self._publish(worker, flight, bodies)
                if self.left_out == "acked":
                    for one in range(first, first + count):
                        del self.live[one]
            case Turn.WAIT:
                pass
            case Turn.WRITE_MARK:
                pytest.fail("its mark reaches as far as numbers do")

    def _publish(self, worker: Worker, flight: Flight, bodies: list[str]) -> list[int] | str:
        if self.random.random() < 0.3:
            return ""
        line = worker.line
        told = worker.untold[0][0].first - 1
        settled = flight.first - 1 if self.left_out == "settled" else line.settled(told)
        return self.target.take(line.producer, flight.first - worker.base, bodies, settled)

    def _hear(self, worker: Worker) -> None:
        for flight, bodies in list(worker.untold):
            outcome = self._publish(worker, flight, bodies)
            if outcome == "forgotten":
                worker.untold.clear()
                worker.line.begin_again()
                known = range(flight.first, flight.last + 1)
                worker.kept |= set(known) & self.live.keys()
                return
            if not outcome:
                return
            worker.line.on_stored(flight, 0, flight.count, int(outcome[0]))
            worker.untold.pop(0)

    def _ack(self, worker: Worker) -> None:
        """Without the claim it is refused, and the forwarder ends."""
        ended = worker.line.ended()
        if ended and self.holder is not worker:
            self._end(worker)
            return
        for flight in ended:
            for one in range(flight.first, flight.last + 1):
                self.live.pop(one, None)
        worker.line.on_acked(ended)

    # --- The course -------------------------------------------------------------------------

    def run(self) -> list[str]:
        """What is not as promised."""
        steps = [self.put, self.begin, self.crash, self.disconnect, self.expire]
        steps += [self.delete_target, *[self.work] * 8]
        for _ in range(STEPS):
            self.random.choice(steps)()
        self.workers.clear()
        self.begin()
        (last,) = self.workers
        for _ in range(3000):
            if not self.live.keys() - last.kept:
                break
            self._send(last)
            self._hear(last)
            self._ack(last)
        else:
            return ["no progress"]
        return self._wrong()

    def _wrong(self) -> list[str]:
        queue = self.target.queue
        missing = self.put_all - self.ended - self.in_deleted - set(queue)
        found = [f"{body} is lost" for body in missing - set(self.live.values())]
        found += [f"{body} is kept" for body in self.live.values()]
        found += [f"{body} is doubled" for body in set(queue) if queue.count(body) > 1]
        if sorted(queue, key=lambda body: int(body[1:])) != queue:
            found.append("out of order")
        return found


def test_each_message_is_moved_once() -> None:
    moved = 0
    for seed in range(SEEDS):
        world = World(seed)
        assert world.run() == [], seed
        moved += len(world.target.queue)
    assert moved > SEEDS


RULES = {"identity": "doubled", "number": "lost", "acked": "lost", "settled": "kept"}
"""A rule of a forwarder -> what comes of leaving it out: the same id whoever forwards; numbers that
are sequences; an ack after the confirm; a target that is told what is settled after that ack."""


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_needed(rule: str) -> None:
    for seed in range(SEEDS):
        try:
            found = World(seed, rule).run()
        except (AssertionError, KeyError):
            continue
        if any(RULES[rule] in text for text in found):
            return
    pytest.fail(f"nothing is {RULES[rule]} without the rule {rule!r}")
