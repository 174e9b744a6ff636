"""Bytes of the ready messages at a master: counted in portions once a term, then kept up to date.
Pure.

Only a queue with a limit in bytes is counted. Sizes lie in blocks, most of them on the disk. A
portion reads few blocks, and other work has its turn between two portions.
"""

from __future__ import annotations

from mirrorq.replication.state.priorities import ReadyLevels
from mirrorq.replication.state.queue_state import QueueState

COUNT_RANGES = 512
"""Ranges that one portion counts, where all lie in one block."""
BLOCK_WEIGHT = 32
"""What a block takes that is read, in ranges."""


class ReadyBytes:
    """Made when somebody asks, from what is ready then; told what becomes ready or is it no more.

    Invariant: `total` is of what is ready at places before those from which on nothing is counted.
    """

    def __init__(self, state: QueueState, ready: ReadyLevels) -> None:
        self.total = 0
        self._state = state
        self._ready = ready
        self._rest = dict.fromkeys(ready.priorities, 0)
        """Priority -> the place from which on nothing is counted. All others are counted."""
        self._block = -1
        """That in which the last message lies that was counted."""

    @property
    def is_whole(self) -> bool:
        """Whether all is counted."""
        return not self._rest

    def note(self, priority: int, first: int, last: int, shift: int, sign: int) -> None:
        """These sequences, which stand so much further behind, have become ready (1), or are it no
        more (-1)."""
        if self._rest and priority in self._rest:
            last = min(last, self._rest[priority] - 1 - shift)
        if first <= last:
            self.total += sign * self._state.columns.total(first, last)

    def go_on(self) -> None:
        """Count a portion."""
        left = COUNT_RANGES
        while left > 0 and self._rest:
            priority, begin = next(iter(self._rest.items()))
            level = self._ready.level(priority)
            if not level or level.last < begin:
                del self._rest[priority]
            else:
                left -= self._count(priority, *level.run(begin, level.last))

    def _count(self, priority: int, first: int, end: int) -> int:
        """Count those of these places that have kept their order; return what that took."""
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
