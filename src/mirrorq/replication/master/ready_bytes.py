"""Bytes of the ready messages at a master: counted in portions once a term, then kept up to date.
Pure.

Only a queue with a limit in bytes is counted. Sizes lie in blocks, most of them on the disk. A
portion reads few blocks, and other work has its turn between two portions.
"""

from __future__ import annotations

from mirrorq.replication.state.priorities import ReadyLevels
from mirrorq.replication.state.queue_state import QueueState

COUNT_RANGES = 512
"""Ranges counted in a portion, where all lie in one block."""
BLOCK_WEIGHT = 32
"""Cost of reading a block, in ranges."""


class ReadyBytes:
    """Bytes of the ready messages. Made on the first query, and told about changes from then on.

    Invariant: `total` covers the ready messages at places below `_rest` of their priority.
    """

    def __init__(self, state: QueueState, ready: ReadyLevels) -> None:
        self.total = 0
        self._state = state
        self._ready = ready
        self._rest = dict.fromkeys(ready.priorities, 0)
        """Priority -> first place that is not counted. Absent priorities are counted."""
        self._block = -1
        """Block of the last message that was counted."""

    @property
    def is_whole(self) -> bool:
        """Return true if all messages are counted."""
        return not self._rest

    def record_change(self, priority: int, first: int, last: int, shift: int, sign: int) -> None:
        """Note sequences, at places `shift` behind, that have become ready (sign 1), or are not
        ready any more (-1)."""
        if self._rest and priority in self._rest:
            last = min(last, self._rest[priority] - 1 - shift)
        if first <= last:
            self.total += sign * self._state.columns.total(first, last)

    def count_portion(self) -> None:
        """Count a portion."""
        left = COUNT_RANGES
        while left > 0 and self._rest:
            priority, begin = next(iter(self._rest.items()))
            level = self._ready.level(priority)
            if not level or level.last < begin:
                del self._rest[priority]
            else:
                left -= self._count(priority, *level.first_run(begin, level.last))

    def _count(self, priority: int, first: int, end: int) -> int:
        """Count a run of places in order; return the cost in ranges."""
        state, shift, last = self._state, 0, end
        if state.places:
            last, shift = state.places.at(first, end)
        columns = state.columns
        begin, block = columns.block_of(first - shift), columns.block_of(last - shift)
        reads = (begin != self._block) + (block != begin)
        self._block = block
        self.total += columns.total(first - shift, last - shift)
        self._rest[priority] = last + 1
        return 1 + BLOCK_WEIGHT * reads
