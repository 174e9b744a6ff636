"""CommitBatches: the writes of queues and of Raft that each commit of the store carries. Pure.

The engine closes a batch at the end of a step that has something to write. The driver commits
batches in order and reports the number of the last batch on disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from attrs import define, field
from msgspec import Struct


class CommitBatch(Struct, frozen=True, gc=False):
    """The writes that one commit carries, by number."""

    number: int
    writes: tuple[tuple[int, int], ...]
    """(queue, number of the queue's write)."""
    raft: int
    """Number of Raft's write; 0: none."""


@define
class _Open:
    writes: list[tuple[int, int]] = field(factory=list)
    raft: int = 0


class CommitBatches:
    """The batch that is being filled, and the closed batches that are not on disk yet."""

    def __init__(self) -> None:
        self.last = 0
        """Number of the batch that was closed last: `EngineEffects.round`."""
        self._open = _Open()
        self._closed: deque[CommitBatch] = deque()

    @property
    def waiting(self) -> tuple[CommitBatch, ...]:
        """Closed batches that are not on disk yet."""
        return tuple(self._closed)

    def note_write(self, queue_id: int, number: int) -> None:
        self._open.writes.append((queue_id, number))

    def note_raft(self, number: int) -> None:
        """Raft's writes in one batch are merged: the last number stands for all."""
        self._open.raft = number

    def close(self) -> int:
        """Close the batch that is being filled; return its number."""
        self.last += 1
        self._closed.append(CommitBatch(self.last, tuple(self._open.writes), self._open.raft))
        self._open = _Open()
        return self.last

    def committed(self, number: int) -> Iterator[CommitBatch]:
        """Yield the batches up to `number` that are now on disk, each once."""
        while self._closed and self._closed[0].number <= number:
            yield self._closed.popleft()

    def forget(self, queue_id: int) -> None:
        """Drop a queue's writes from all open and closed batches. A later copy of the queue counts
        its writes from 1 again and must not count the dropped writes as its own."""
        self._open.writes = list(_without(self._open.writes, queue_id))
        for place, closed in enumerate(self._closed):
            writes = tuple(_without(closed.writes, queue_id))
            self._closed[place] = CommitBatch(closed.number, writes, closed.raft)


def _without(
    writes: list[tuple[int, int]] | tuple[tuple[int, int], ...], queue_id: int
) -> Iterator[tuple[int, int]]:
    return (write for write in writes if write[0] != queue_id)
