"""A state most of which is on a simulated disk alone, and the checkpoints that bring it there."""

from __future__ import annotations

from random import Random

from mirrorq.protocol.effects import QueueImage, QueueWrite
from mirrorq.replication.checkpoints import Checkpoints
from mirrorq.replication.state.pages import PageCache
from mirrorq.replication.state.queue_state import QueueState
from mirrorq.testing.disk import SimulatedDisk

__all__ = ["QUEUE", "PagedState"]

QUEUE = 7


class PagedState:
    """A queue's state and its disk. Who inherits says which pages may be read."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.disk = SimulatedDisk(1)
        self.reads: list[int] = []
        """Firsts of the pages that were read."""
        self.state = QueueState()
        self.state.keep_in(self.cache(), QUEUE)
        self.checkpoints = Checkpoints()

    def note_read(self, kind: int, first: int) -> None:
        """A page is being read."""
        raise NotImplementedError

    def cache(self) -> PageCache:
        def read(queue_id: int, kind: int, first: int, lsn: int) -> bytes:
            assert queue_id == QUEUE
            self.note_read(kind, first)
            return self.disk.page(queue_id, kind, first, lsn)

        return PageCache(read)

    def checkpoint(self) -> None:
        """All of it is on the disk then, and most of it there alone."""
        while not self.checkpoints.begin_checkpoint(self.state):
            self.part()
        while self.checkpoints.is_busy:
            self.part()

    def part(self) -> None:
        pages, one = self.checkpoints.part(self.state)
        head, lsn = (one.head, one.lsn) if one is not None else (None, 0)
        write = QueueWrite(QUEUE, pages=tuple(pages), state=head, state_lsn=lsn, stable=1)
        self.disk.commit([write], None)
        if not self.checkpoints.is_open:
            self.state.release()

    def image(self) -> QueueImage:
        (image,) = self.disk.images(whole=False)
        return image

    def restart(self) -> None:
        image = self.image()
        self.state = QueueState.of_image(image, self.cache())
        self.checkpoints = Checkpoints(image.stale)
