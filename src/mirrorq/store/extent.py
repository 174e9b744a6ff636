"""Disk space that the store's file has taken, ahead of use.

What LMDB writes behind the end of its file needs blocks that the disk may not have any more when
a full store has to be drained. So a reserve beyond the last page in use is always taken, and
messages get room only where blocks are owned already, or while the disk has plenty.

While it has, the file grows in steps: a store that has run for a moment keeps the size that it
has, no other file takes the place that its churn wants, and its pages lie together. A disk that
has little left, or refuses, is asked for what is needed next, and no more.

Blocks are taken with posix_fallocate, or written where that is missing. A file system that writes
each block to a new place (btrfs, zfs) may be full all the same when they are written.
"""

from __future__ import annotations

import os
from pathlib import Path

from mirrorq import system

RESERVE_BYTES = 8 << 20
"""What drains a full store is small; a large checkpoint of a queue is a few MiB."""
RESERVE_MIN = 1 << 20
"""Of a store that holds little."""
RESERVE_PART = 16
"""The reserve is at most such a part of the disk."""
STEP_MIN = 4 << 20
STEP_MAX = 64 << 20
"""A step doubles the file, within these; on a small disk it is a part of it, as the reserve."""
PLENTY_BYTES = 1 << 30
"""With so much free nobody else fills the disk between two commits."""
LEFT_BYTES = 64 << 10
"""A disk with less free is not asked for more."""


class Extent:
    """The bytes of one file that are taken. Used by whoever may write to the file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._end = file.stat().st_size
        """So much of the file has blocks."""
        self._is_refused = False
        """The disk, a quota or a limit did not give what was asked for last."""
        self._free, self._total = 0, 0
        self._look()

    @property
    def is_plenty(self) -> bool:
        """Whether nobody needs to own blocks before they are written."""
        return not self._is_refused and self._free >= PLENTY_BYTES

    @property
    def free_bytes(self) -> int:
        """On the disk, when it was looked at last."""
        return self._free

    def reserve(self, used: int) -> int:
        """What is kept for what drains a store whose pages end at `used`."""
        part = self._total // RESERVE_PART
        return min(RESERVE_BYTES, part, max(RESERVE_MIN, used))

    @property
    def end(self) -> int:
        """So much of the file has blocks."""
        return self._end

    def cover(self, used: int) -> None:
        """The file's pages end at `used` now: take the reserve behind it, and a step when they
        have come to the end of the last one. Never raises."""
        if used + self.reserve(used) <= self._end:
            return
        self._look()
        kept = used + self.reserve(used)
        self._take(kept + self._step(used) if self.is_plenty else kept)

    def room(self, used: int, wanted: int) -> int:
        """Bytes of messages for which the file may grow; below 0 what its reserve lacks.

        Args:
            used: Where its pages end.
            wanted: What somebody waits for; it is taken if the disk has it.
        """
        self._look()
        if self.is_plenty:
            return self._end - used - self.reserve(used) + self._free // 2
        kept = used + self.reserve(used)
        missing = kept + max(wanted, self._step(used)) - self._end
        spare = self._free - LEFT_BYTES
        if missing > 0 and spare > 0:
            self._take(self._end + min(missing, spare))
        return self._end - kept

    def _step(self, used: int) -> int:
        if used < RESERVE_MIN:
            return RESERVE_MIN // 2
        step = STEP_MIN
        while step < min(used, STEP_MAX):
            step *= 2
        return min(step, self._total // RESERVE_PART)

    def _look(self) -> None:
        try:
            found = os.statvfs(self._file)
        except OSError:
            return
        self._free = found.f_bavail * found.f_frsize
        self._total = found.f_blocks * found.f_frsize

    def _take(self, end: int) -> None:
        """Own the blocks up to `end`, or what is there of them."""
        try:
            descriptor = os.open(self._file, os.O_RDWR | os.O_CLOEXEC)
            try:
                system.take_blocks(descriptor, self._end, end)
            finally:
                os.close(descriptor)
        except OSError:
            self._is_refused = True
            return
        self._is_refused = False
        self._end = end
