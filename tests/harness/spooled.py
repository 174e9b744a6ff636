"""A spool in the simulator: the real `Line` and `Session`, a local store of its own, and a process
that may end at any moment.

It puts numbered messages; each is accepted when its commit is on its disk. Handles come and go with
the nodes that they are on. A restart leaves what the disk has: the messages that live, the next
sequence, and the mark. The disk may be copied for a second spool, or set back to an older copy.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partial
from random import Random

from attrs import define, field

from harness.cluster import SimulatedCluster
from harness.workload import Attempt, Journal, Place, SimulatedHandle, packer
from mirrorq.api.publish_options import PLAIN
from mirrorq.protocol.identities import spool_producer
from mirrorq.session.calls import Failed, Output, Put, Stored
from mirrorq.session.machine import Session
from mirrorq.spool.line import Flight, Line, TargetMark, Turn, cut

COMMIT_MS = (0, 1, 8)
LOOK_MS = 10
WINDOW = 8
"""Batches on their way at a time."""


@define
class SpoolDisk:
    """What survives the process."""

    live: dict[int, bytes] = field(factory=dict)
    """By local sequence, in order."""
    groups: dict[int, int] = field(factory=dict)
    """Local sequence -> the first one of what was put together: it is sent together."""
    next_sequence: int = 1
    named: int = 0
    """Messages that were put, ever."""
    mark: TargetMark | None = None

    def copy(self) -> SpoolDisk:
        """As it is now; later commits do not change it."""
        other = copy(self)
        other.live = dict(self.live)
        other.groups = dict(self.groups)
        return other


class _SpoolHandle(SimulatedHandle):
    """The handle by which a spool publishes."""

    def __init__(self, spool: SimulatedSpool, node: str, first: int) -> None:
        self.spool = spool
        super().__init__(Place(spool.cluster, node, spool.queue_id, f"spool on {node}", Random(1)))
        self.producer = spool.line.producer
        self.session = Session(
            self._session_id, spool.queue_id, spool.cluster.config, producer=self.producer
        )
        self.session.go_on_from(first)

    def take(self, outputs: list[Output]) -> None:
        if self.spool.handle is self:
            for output in outputs:
                if isinstance(output, Stored | Failed):
                    self.spool.on_outcome(output)


class SimulatedSpool:
    """One target's line.

    Args:
        count: messages to put, `name/1`, `name/2`, …
        restarts: how often its process ends, as a share of its looks.
        left_out: a rule to leave out, for mutations: "identity" (the mark's id is kept at each
            opening), "mark" (it is written after something is sent), "number" (numbers are places
            among the messages that live), "acked" (a message is acked when it is sent) or
            "settled" (the master is told so before the ack is on the disk).
        disk: of an earlier life, or a copy of another spool's; None: an empty one.
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
        disk: SpoolDisk | None = None,
    ) -> None:
        self.cluster = cluster
        self.queue_id = queue_id
        self.name = name
        self.random = random
        self.journal = journal
        self.count = count
        self.restarts = restarts
        self.left_out = left_out
        self.restarted = 0
        self.dropped: list[bytes] = []
        self.confirmed: set[bytes] = set()
        self.disk = SpoolDisk() if disk is None else disk
        self.handle: _SpoolHandle | None = None
        self._life = 0
        self._begin()
        cluster.after(LOOK_MS, self._look)

    @property
    def is_done(self) -> bool:
        """Everything was put, and has an outcome."""
        return self.disk.named >= self.count and not self.disk.live

    def set_back(self, disk: SpoolDisk) -> None:
        """The disk is an older one, and the process begins anew: what it puts are others."""
        self.disk = disk.copy()
        self.name += "~"
        self._begin()

    def _begin(self) -> None:
        """A process begins, with what is on the disk."""
        self._life += 1
        self._now = self.disk.copy()
        """What the disk will have when the commit under way is done."""
        disk = self.disk
        if self.left_out != "identity":
            disk.mark = self._now.mark = cut(disk.mark, disk.next_sequence)
        first = min(disk.live, default=disk.next_sequence)
        self.line = Line(first, disk.mark, self._fresh())
        self._is_writing = False
        self._acking: list[Flight] = []
        self._drop_handle()

    def _fresh(self) -> int:
        if self.left_out == "identity" and self.disk.mark is not None:
            return self.disk.mark.producer
        return spool_producer(self.random.getrandbits(61))

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
        self._drop()
        self._ack()
        self._commit()
        self._send()
        self.cluster.after(self.random.randint(1, LOOK_MS), self._look)

    def _put(self) -> None:
        now = self._now
        if now.named >= self.count or self.random.random() < 0.3:
            return
        first = now.next_sequence
        for _ in range(min(self.random.randint(1, 4), self.count - now.named)):
            now.named += 1
            now.groups[now.next_sequence] = first
            now.live[now.next_sequence] = b"%s/%d" % (self.name.encode(), now.named)
            now.next_sequence += 1

    def _drop(self) -> None:
        """A message that was not sent in this life ends in the local queue."""
        if self.random.random() < 0.02:
            unsent = [one for one in self.disk.live if one > self.line.read_to]
            for sequence in unsent[:1]:
                self._now.live.pop(sequence, None)

    def _ack(self) -> None:
        if not self._is_writing:
            self._acking = self.line.ended()
            for flight in self._acking:
                for sequence in range(flight.first, flight.last + 1):
                    self._now.live.pop(sequence, None)
            if self.left_out == "settled" and self._acking:
                self.line.acked_to = self._acking[-1].last

    def _commit(self) -> None:
        if self._is_writing or (self._now == self.disk and not self._acking):
            return
        self._is_writing = True
        due, life = self._now.copy(), self._life
        self.cluster.after(self.random.choice(COMMIT_MS), self._on_written, due, life)

    def _on_written(self, due: SpoolDisk, life: int) -> None:
        if life != self._life:
            return
        for sequence, body in due.live.items():
            if sequence >= self.disk.next_sequence:
                self.journal.attempts[body] = Attempt(body, put_ms=self.cluster.now_ms)
        acked = {n for flight in self._acking for n in range(flight.first, flight.last + 1)}
        gone = self.disk.live.keys() - due.live.keys() - acked
        if self.left_out != "acked":
            self.dropped += [self.disk.live[sequence] for sequence in sorted(gone)]
        self.disk = due
        self._is_writing = False
        self.line.mark = due.mark
        if self.line.flights:
            self.line.on_acked(self._acking)
        self._acking = []

    def _send(self) -> None:
        if self.handle is not None and not self.handle.is_alive:
            self._begin_again()
        line = self.line
        while len(line.flights) < WINDOW:
            unsent = [one for one in self._now.live if line.read_to < one and one in self.disk.live]
            if not unsent:
                break
            first = unsent[0]
            group = self.disk.groups[first]
            count = sum(self.disk.groups[one] == group for one in unsent)
            turn = line.turn(first, count)
            if turn is Turn.WRITE_MARK:
                self._now.mark = line.mark_due(first, count)
                if self.left_out != "mark":
                    return
                line.mark = self._now.mark
            elif turn is Turn.BEGIN:
                if not self._open(first):
                    return
            elif turn is Turn.WAIT:
                return
            else:
                self._publish(first, count)
        if self.handle is not None:
            self.handle.poke()

    def _open(self, first: int) -> bool:
        """Have a session on whatever node is there."""
        line = self.line
        if self.handle is not None and self.handle.producer != line.producer:
            self._drop_handle()
        if self.handle is None:
            names = self.cluster.running
            if not names or self.random.random() > 0.2:
                return False
            name = self.random.choice(names)
            if self.cluster.engine(name).catalog.queue(self.queue_id) is None:
                return False
            self.handle = _SpoolHandle(self, name, self._number_of(first))
        else:
            self.handle.session.go_on_from(self._number_of(first))
        line.begin_session(first)
        return True

    def _number_of(self, sequence: int) -> int:
        if self.left_out == "number":
            return sequence - min(self.disk.live) + 1
        return sequence

    def _publish(self, first: int, count: int) -> None:
        handle = self.handle
        assert handle is not None
        flight = self.line.send(first, count)
        bodies = [self.disk.live[sequence] for sequence in range(first, first + count)]
        if self.left_out == "acked":
            for sequence in range(first, first + count):
                self._now.live.pop(sequence, None)
        size = sum(map(len, bodies))
        is_whole = self.disk.groups[first] % 2 == 0
        put = Put((flight, bodies), count, size, self._packer(bodies), is_whole)
        handle.session.put(put)

    def _packer(self, bodies: list[bytes]) -> Callable[[int, int, int], bytes]:
        packed, line = packer(bodies, PLAIN), self.line

        def pack(producer: int, first_number: int, settled: int) -> bytes:
            if self.left_out != "number":
                settled = line.settled(settled)
            return packed(producer, first_number, settled)

        return pack

    def _begin_again(self) -> None:
        self._drop_handle()
        self.line.begin_again()
        self._acking = []

    def on_outcome(self, output: Stored | Failed) -> None:
        """A batch on its way has ended, in part."""
        assert isinstance(output.token, tuple)
        flight, bodies = output.token
        if isinstance(output, Failed) and output.unknown and not output.is_lost:
            handle = self.handle
            is_forgotten = handle is not None and handle.is_alive and not handle.session.closed
            self.cluster.after(0, partial(self._lose, self._life, handle, is_forgotten))
            return
        for offset in range(output.count):
            body = bodies[output.index + offset]
            attempt = self.journal.attempts[body]
            attempt.ended_ms = self.cluster.now_ms
            if isinstance(output, Stored):
                attempt.state = "acknowledged"
                attempt.sequence = output.first_sequence + offset
                self.confirmed.add(body)
            else:
                attempt.state = "unknown" if output.unknown else "refused"
        if isinstance(output, Stored):
            self.line.on_stored(flight, output.index, output.count, output.first_sequence)
        else:
            self.line.on_failed(
                flight, output.index, output.count, output.reason, is_lost=output.is_lost
            )

    def _lose(self, life: int, handle: _SpoolHandle | None, is_forgotten: bool) -> None:
        if life != self._life or handle is None or self.handle is not handle:
            return
        self._begin_again()
        if is_forgotten:
            self.line.renew(spool_producer(self.random.getrandbits(61)))
