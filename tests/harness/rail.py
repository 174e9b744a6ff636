"""The rail of a node in Python: what the native thread does, without thread, file and socket.

One step of it is one message (`hear`), one group on the disk (`sync`), or what Python is handed
(`take`). Its log is what a crash leaves: records with a number, of which the store says up to which
it has them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from attrs import define, evolve, field
from msgspec.structs import replace

from mirrorq.protocol.effects import QueueWrite, RaftWrite, RailArm
from mirrorq.protocol.ops import Entry
from mirrorq.protocol.ring import Data, JoinerDurable
from mirrorq.replication.ring import STAR_BYTES_MAX
from mirrorq.testing.disk import QueueFiles, SimulatedDisk

__all__ = [
    "MARKED",
    "RAW",
    "RECEIVED",
    "STOPPED",
    "TAKEN",
    "Handed",
    "Rail",
    "RailDisk",
    "Record",
    "replayed",
]

RAW, TAKEN, RECEIVED, STOPPED = "raw", "taken", "received", "stopped"
"""As it came; logged; marked at receipt (`durability: replicated`); the queue is given back."""
MARKED = (TAKEN, RECEIVED)
"""Of what the master is told before Python has it."""


Sender = tuple[str, int]
"""A node and its incarnation."""


class Handed(NamedTuple):
    """One thing for Python, in the order in which it came."""

    kind: str
    sender: Sender
    queue_id: int
    data: Data | None = None
    number: int = 0
    """Of the record that it is in."""


class Record(NamedTuple):
    """A group on the disk."""

    number: int
    messages: tuple[Data, ...]


@define
class Rail:
    """The rail of one life of a node."""

    number: int = 0
    """Of the last record."""
    queues: dict[int, RailArm] = field(factory=dict)
    """What it has, each as if armed with what it has taken."""
    group: list[Handed] = field(factory=list)
    """What came since the last sync, in order."""
    out: list[Handed] = field(factory=list)

    def arm(self, queue_id: int, arm: RailArm) -> None:
        """Have a queue, or say at once that it is given back."""
        if any(one.queue_id == queue_id for one in (*self.group, *self.out)):
            self._hand(Handed(STOPPED, _sender(arm), queue_id))
        else:
            self.queues[queue_id] = arm

    def disarm(self, queue_id: int) -> None:
        arm = self.queues.pop(queue_id, None)
        if arm is not None:
            self._hand(Handed(STOPPED, _sender(arm), queue_id))

    def hear(self, sender: Sender, data: Data) -> None:
        """A message of the star came by the rail's own connection."""
        arm = self.queues.get(data.queue_id)
        if arm is not None and self._is_next(arm, sender, data):
            self.queues[data.queue_id] = replace(arm, after=data.entries[-1].lsn)
            kind = RECEIVED if arm.at_receipt else TAKEN
            self._hand(Handed(kind, sender, data.queue_id, data), is_taken=True)
            return
        if arm is None or not self._is_known(arm, sender, data):
            self.disarm(data.queue_id)
        self._hand(Handed(RAW, sender, data.queue_id, data))

    def _is_next(self, arm: RailArm, sender: Sender, data: Data) -> bool:
        if sender != _sender(arm) or data.epoch != arm.epoch or not data.entries:
            return False
        if sum(len(entry.frame) for entry in data.entries) > STAR_BYTES_MAX:
            return False
        told = [(entry.epoch, entry.lsn) for entry in data.entries]
        return told == [(arm.epoch, arm.after + 1 + index) for index in range(len(told))]

    def _is_known(self, arm: RailArm, sender: Sender, data: Data) -> bool:
        """Whether it says nothing new of ops, and may well come."""
        if sender != _sender(arm) or data.epoch != arm.epoch:
            return False
        return not data.entries or data.entries[-1].lsn <= arm.after

    def _hand(self, one: Handed, *, is_taken: bool = False) -> None:
        """Behind what is not on the disk yet."""
        (self.group if self.group or is_taken else self.out).append(one)

    def sync(self) -> tuple[Record | None, list[tuple[Sender, JoinerDurable]]]:
        """The group is on the disk, what is to be there: its record, and the marks that follow."""
        taken = [one.data for one in self.group if one.kind == TAKEN and one.data is not None]
        record = None
        if taken:
            self.number += 1
            record = Record(self.number, tuple(taken))
        for one in self.group:
            self.out.append(one._replace(number=self.number if one.kind == TAKEN else 0))
        queues = dict.fromkeys(one.queue_id for one in self.group if one.kind in MARKED)
        self.group = []
        marks = []
        for queue_id in queues:
            arm = self.queues.get(queue_id)
            if arm is not None:
                marks.append((_sender(arm), JoinerDurable(queue_id, arm.epoch, arm.after)))
        return record, marks

    def fail(self) -> None:
        """The disk has not taken the group: all that it has goes back."""
        group, self.group = self.group, []
        for queue_id in list(self.queues):
            self.disarm(queue_id)
        self.out += [one._replace(kind=RAW) if one.kind in MARKED else one for one in group]

    def copy(self) -> Rail:
        return Rail(self.number, dict(self.queues), list(self.group), list(self.out))

    def take(self) -> list[Handed]:
        taken, self.out = self.out, []
        return taken


def _sender(arm: RailArm) -> Sender:
    return arm.master.node, arm.master.incarnation


def replayed(
    files: QueueFiles, queue_id: int, records: Iterable[Record], has: int
) -> QueueWrite | None:
    """What the log holds of a queue behind its files, which have the records up to a number."""
    # Also of one whose checkpoint is damaged: what lies behind that is on the disk none the less.
    last = max((files.state_lsn, *files.ops, *(entry.lsn for entry in files.frames.values())))
    found: list[Entry] = []
    messages = [data for record in records if record.number > has for data in record.messages]
    for data in messages:
        for entry in data.entries if data.queue_id == queue_id else ():
            if entry.lsn == last + 1:
                found.append(entry)
                last = entry.lsn
    return QueueWrite(queue_id, append=tuple(found)) if found else None


@define
class RailDisk(SimulatedDisk):
    """A disk with a rail's log."""

    records: list[Record] = field(factory=list)
    has: int = 0
    """Up to this record the queues' files have all."""

    def start(self) -> int:
        """What the log holds is taken in first."""
        self.end_log()
        return super().start()

    def end_log(self, upto: int | None = None) -> None:
        """What the log holds, up to a record, is in the files, and the log begins anew: all of it
        at a start. A close knows of what its node has taken; that there is no more is not looked
        for here, as the real store does: the order of a node's end has to make it so."""
        if upto is not None:
            self.records = [record for record in self.records if record.number <= upto]
        for queue_id, files in self.queues.items():
            write = replayed(files, queue_id, self.records, self.has)
            if write is not None:
                files.apply(write)
        self.records, self.has = [], 0

    def commit_railed(
        self, writes: Iterable[QueueWrite], raft: RaftWrite | None, railed: int
    ) -> None:
        """One transaction, in which is what the rail has taken up to a record."""
        self.commit(writes, raft)
        self.has = railed
        self.cut(railed)

    def cut(self, number: int) -> None:
        self.records = [record for record in self.records if record.number > number]

    def found(self, queue_id: int) -> QueueFiles | None:
        """What a restart would find of a queue."""
        files = self.queues.get(queue_id)
        if files is None or not self.records:
            return files
        write = replayed(files, queue_id, self.records, self.has)
        if write is None:
            return files
        after = evolve(files, ops=dict(files.ops), frames=dict(files.frames))
        after.apply(write)
        return after
