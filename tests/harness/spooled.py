"""A spool in the simulator: the real `Line` and `Session`, a disk of its own, and a process that
may end at any moment.

It puts numbered records; each is accepted when its commit is on its disk. Handles come and go with
the nodes that they are on. A restart leaves what the disk has: the records, `base` and `sent_to`.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partial
from random import Random

from attrs import define, field

from harness.cluster import SimulatedCluster
from harness.workload import Attempt, Journal, SimulatedHandle, packer
from mirrorq.api.publish_options import PLAIN
from mirrorq.protocol.identities import spool_producer
from mirrorq.session.calls import Failed, Output, Put, Stored
from mirrorq.session.machine import Session
from mirrorq.spool.line import Flight, Line

COMMIT_MS = (0, 1, 8)
LOOK_MS = 10
WINDOW = 8
"""Records on their way at a time."""


@define
class SpoolDisk:
    """What survives the process."""

    records: dict[int, list[bytes]] = field(factory=dict)
    """By ordinal, in order."""
    next_ordinal: int = 1
    base: int = 1
    sent_to: int = 0

    def copy(self) -> SpoolDisk:
        """As it is now; later commits do not change it."""
        other = copy(self)
        other.records = dict(self.records)
        return other


class _SpoolHandle(SimulatedHandle):
    """The handle by which a spool publishes."""

    def __init__(self, spool: SimulatedSpool, node: str) -> None:
        self.spool = spool
        super().__init__(spool.cluster, node, spool.queue_id, f"spool on {node}", Random(1))
        self.session = Session(
            self._session_id, spool.queue_id, spool.cluster.config, producer=spool.producer
        )
        self.session.go_on_from(spool.line.base)

    def take(self, outputs: list[Output]) -> None:
        if self.spool.handle is self:
            for output in outputs:
                if isinstance(output, Stored | Failed):
                    self.spool.on_outcome(output)


class SimulatedSpool:
    """One queue's line.

    Args:
        count: messages to put, `name/1`, `name/2`, …
        restarts: how often its process ends, as a share of its looks.
        left_out: a rule to leave out, for mutations: "base" (it does not move on with what goes),
            "sent" (it is not on the disk before something is sent), "settled" (the master is told
            so before `base` is on the disk) or "identity" (a restart takes another id).
    """

    def __init__(
        self,
        cluster: SimulatedCluster,
        queue_id: int,
        name: str,
        random: Random,
        journal: Journal,
        count: int,
        *,
        restarts: float = 0.02,
        left_out: str = "",
    ) -> None:
        self.cluster = cluster
        self.queue_id = queue_id
        self.name = name
        self.random = random
        self.journal = journal
        self.count = count
        self.restarts = restarts
        self.left_out = left_out
        self.put_count = 0
        self.restarted = 0
        self.dropped: list[bytes] = []
        self.disk = SpoolDisk()
        self.producer = spool_producer(random.getrandbits(61))
        self.handle: _SpoolHandle | None = None
        self._life = 0
        self._begin()
        cluster.after(LOOK_MS, self._look)

    @property
    def is_done(self) -> bool:
        """Everything was put, and has an outcome."""
        return self.put_count >= self.count and not self.disk.records

    def _begin(self) -> None:
        """A process begins, with what is on the disk."""
        self._life += 1
        self._now = self.disk.copy()
        """What the disk will have when the commit under way is done."""
        self.line = Line(self.disk.base, self.disk.sent_to)
        self._read_to = 0
        self._is_writing = False
        self._named = self.put_count
        """With what no commit has brought to the disk yet."""
        self._flights: dict[int, Flight] = {}
        self._dropping: set[int] = set()
        self._drop_handle()
        if self.left_out == "identity":
            self.producer = spool_producer(self.random.getrandbits(61))

    def _drop_handle(self) -> None:
        handle, self.handle = self.handle, None
        if handle is not None and self.random.random() < 0.5:
            handle.close()
        elif handle is not None:
            handle.is_open = False  # it was killed: nobody says goodbye

    def _look(self) -> None:
        if self.random.random() < self.restarts and not self.is_done:
            self.restarted += 1
            self._begin()
        self._put()
        self._open()
        self._free()
        self._commit()
        self._send()
        self.cluster.after(self.random.randint(1, LOOK_MS), self._look)

    def _put(self) -> None:
        if self._named >= self.count or self.random.random() < 0.3:
            return
        size = min(self.random.randint(1, 4), self.count - self._named)
        bodies = [b"%s/%d" % (self.name.encode(), self._named + i + 1) for i in range(size)]
        self._named += size
        self._now.records[self._now.next_ordinal] = bodies
        self._now.next_ordinal += 1

    def _open(self) -> None:
        """Have a handle, on whatever node is there."""
        if self.handle is not None and not self.handle.is_alive:
            self._begin_again()
        names = self.cluster.running
        if self.handle is None and names and self._is_settled and self.random.random() < 0.2:
            name = self.random.choice(names)
            if self.cluster.engine(name).catalog.queue(self.queue_id) is not None:
                self.handle = _SpoolHandle(self, name)

    @property
    def _is_settled(self) -> bool:
        """What is on the disk is what is to be."""
        return not self._is_writing and self._now.base == self.disk.base

    def _begin_again(self) -> None:
        self._drop_handle()
        self.line.begin_again()
        self._flights.clear()
        self._read_to = 0

    def _free(self) -> None:
        """While it is connected, what is there may be sent soon; else some of it is dropped."""
        if self.handle is not None and self.random.random() < 0.5:
            last = self._now.next_ordinal - 1
            self._now.sent_to = max(self._now.sent_to, last)
            if self.left_out == "sent":
                self.line.sent_to = last
                self._now.sent_to = 0
        elif self.handle is None and self.random.random() < 0.02:
            free = [o for o in self.disk.records if o > max(self._now.sent_to, self.line.sent_to)]
            if self.left_out == "sent":
                free = [o for o in self.disk.records if o > self.disk.sent_to]
            for ordinal in free[:1]:
                self._dropping.add(ordinal)
                self._now.records.pop(ordinal, None)

    def _commit(self) -> None:
        if self._is_writing or self._now == self.disk:
            return
        self._is_writing = True
        due, life = self._now.copy(), self._life
        self.cluster.after(self.random.choice(COMMIT_MS), self._on_written, due, life)

    def _on_written(self, due: SpoolDisk, life: int) -> None:
        if life != self._life:
            return
        for ordinal, bodies in due.records.items():
            if ordinal >= self.disk.next_ordinal:
                self.put_count += len(bodies)
                for body in bodies:
                    self.journal.attempts[body] = Attempt(body, put_ms=self.cluster.now_ms)
        for ordinal in sorted(self._dropping & (self.disk.records.keys() - due.records.keys())):
            self.dropped += self.disk.records[ordinal]
        self.disk = due
        self._is_writing = False
        self.line.kept_base = due.base
        if self.left_out != "sent":
            self.line.sent_to = due.sent_to

    def _send(self) -> None:
        handle = self.handle
        if handle is None or not handle.is_alive:
            return
        for ordinal, bodies in list(self.disk.records.items()):
            free = ordinal <= self.line.sent_to and len(self.line.flights) < WINDOW
            if ordinal <= self._read_to or ordinal not in self._now.records:
                continue
            if not free:
                break
            flight = self._flights[ordinal] = self.line.send(ordinal, len(bodies))
            self._read_to = ordinal
            size = sum(map(len, bodies))
            pack = self._packer(bodies)
            is_whole = ordinal % 2 == 0
            handle.session.put(Put((flight, bodies), len(bodies), size, pack, is_whole))
        handle.poke()

    def _packer(self, bodies: list[bytes]) -> Callable[[int, int, int], bytes]:
        packed, line = packer(bodies, PLAIN), self.line

        def pack(producer: int, first_number: int, settled: int) -> bytes:
            if self.left_out != "settled":
                settled = line.settled(settled)
            return packed(producer, first_number, settled)

        return pack

    def on_outcome(self, output: Stored | Failed) -> None:
        """A record on its way has ended, in part."""
        assert isinstance(output.token, tuple)
        flight, bodies = output.token
        if isinstance(output, Failed) and output.unknown and not output.is_lost:
            self.cluster.after(0, partial(self._lose, self._life))
            return
        for offset in range(output.count):
            attempt = self.journal.attempts[bodies[output.index + offset]]
            attempt.ended_ms = self.cluster.now_ms
            if isinstance(output, Stored):
                attempt.state = "acknowledged"
                attempt.sequence = output.first_sequence + offset
            else:
                attempt.state = "unknown" if output.unknown else "refused"
        if isinstance(output, Stored):
            self.line.on_stored(flight, output.index, output.count, output.first_sequence)
        else:
            self.line.on_failed(
                flight, output.index, output.count, output.reason, is_lost=output.is_lost
            )
        for ended in self.line.ended():
            self._now.records.pop(ended.ordinal, None)
            if self.left_out != "base":
                self._now.base = self.line.base

    def _lose(self, life: int) -> None:
        if life == self._life and self.handle is not None:
            self._begin_again()
