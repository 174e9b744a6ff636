"""A node's simulated store: replaces `store.Store`, on a `SimulatedDisk`.

A commit takes virtual time. The data is on the disk at a moment within that time; a process that
ends before has lost all of the commit, a process that ends after has lost nothing.

*Threads*: every call needs the baton (`schedule`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from attrs import define

from mirrorq.errors import StoreFull
from mirrorq.protocol.effects import QueueImage, QueueWrite, RaftImage, RaftWrite
from mirrorq.replication.disk_budget import PLENTY
from mirrorq.store.environment import Space
from mirrorq.store.queue_log import NextSequence, none_may
from mirrorq.testing.disk import SimulatedDisk
from mirrorq.testing.schedule import Scheduler

COMMIT_US = (200, 2000)
"""Least and most duration of a commit."""


@define(eq=False)
class Drive:
    """A node's drive, which outlives the node's processes."""

    disk: SimulatedDisk
    commit_us: tuple[int, int] = COMMIT_US
    full_until_us: int = 0
    """Commits are refused before this."""


class SimulatedStore:
    """One process's view of its drive, with the methods of `store.Store`."""

    def __init__(self, scheduler: Scheduler, node: str, drive: Drive) -> None:
        self.node = node
        self.path = Path("/simulated") / node
        self.store_id = drive.disk.store
        self.incarnation = drive.disk.start()
        self._scheduler = scheduler
        self._drive = drive

    def open_files(self) -> None:
        """There is nothing to open."""

    def close(self) -> None:
        """There is nothing to close."""

    def abandon(self) -> None:
        """Nor to leave."""

    def note_ending(self) -> None:
        """Do nothing: no process opens a simulated store twice."""

    def queue_ids(self) -> list[int]:
        """Return every queue with data on the disk, in order."""
        return sorted(self._drive.disk.queues)

    def load(
        self, queue_id: int, next_sequence: NextSequence = none_may, *, whole: bool = True
    ) -> QueueImage:
        """Return the stored state of a queue."""
        return self._drive.disk.queues[queue_id].image(queue_id, whole=whole)

    def page(self, queue_id: int, kind: int, first: int, lsn: int) -> bytes:
        """A page of a checkpoint."""
        return self._drive.disk.page(queue_id, kind, first, lsn)

    def raft_image(self) -> RaftImage:
        """Return the stored state of the catalog."""
        return self._drive.disk.raft_image()

    def commit(self, queues: Sequence[QueueWrite], raft: RaftWrite | None = None) -> None:
        """Carry out all writes, or none.

        Raises:
            StoreFull: the disk is full now.
        """
        scheduler, drive = self._scheduler, self._drive
        takes_us = scheduler.random.randint(*drive.commit_us)
        before_us = scheduler.random.randint(0, takes_us)
        scheduler.sleep_us(before_us)
        if scheduler.now_us < drive.full_until_us:
            raise StoreFull(f"the disk of {self.node} is full")
        drive.disk.commit(queues, raft)
        scheduler.sleep_us(takes_us - before_us)

    def check(self) -> None:
        """Do nothing: no process deletes the files."""

    def collect(self) -> bool:
        """Nothing is ever left behind."""
        return False

    def read(self, queue_id: int, first: int, last: int, bytes_max: int) -> list[memoryview]:
        """Read the frames with messages of a range, at least one if there is any."""
        found: list[memoryview] = []
        size = 0
        for entry in self._drive.disk.served(queue_id, first, last):
            found.append(memoryview(entry.frame))
            size += len(entry.frame)
            if size >= bytes_max:
                break
        return found

    def room(self, wanted: int = 0) -> Space:
        """Return the space for messages in the next commit."""
        return Space(PLENTY, PLENTY, "")

    def make_room(self) -> None:
        """There is always room."""

    def store_bytes(self) -> int:
        """Bytes of all frames."""
        return sum(self.queue_bytes(queue_id) for queue_id in self._drive.disk.queues)

    def queue_bytes(self, queue_id: int) -> int:
        """Bytes of a queue's frames."""
        files = self._drive.disk.queues.get(queue_id)
        frames = () if files is None else files.frames.values()
        return sum(len(entry.frame) for entry in frames)

    def note_known(self) -> None:
        """Note that the cluster knows this incarnation."""
        self._drive.disk.known = self.incarnation

    def put_meta(self, name: str, value: bytes) -> None:
        """Keep a small value under a name."""
        self._drive.disk.meta[name] = value

    def get_meta(self, name: str) -> bytes | None:
        """The value under a name, None when there is none."""
        return self._drive.disk.meta.get(name)
