"""Disk space taken by the store's file, ahead of use.

LMDB's writes behind the end of the file need blocks, and the disk may have none left when a full
store must be drained. So a reserve beyond the last page in use is always taken. Messages get room
only where blocks are owned already, or while the disk has plenty.

With plenty of space the file grows in steps. A store keeps its size after a moment of work, no
other file takes the space for its churn, and its pages are adjacent. A disk with little space, or
with a refusal, is asked for the next need only.

Blocks are taken with posix_fallocate, or written where the call is missing. A file system with a
new place for each written block (btrfs, zfs) may still be full at the write.
"""

from __future__ import annotations

import os
from pathlib import Path

from mirrorq import system

RESERVE_BYTES = 8 << 20
"""Draining writes are small; a large checkpoint of a queue is a few MiB."""
RESERVE_MIN = 1 << 20
"""Reserve of a store with little content."""
RESERVE_PART = 16
"""The reserve is at most this part of the disk."""
STEP_MIN = 4 << 20
STEP_MAX = 64 << 20
"""A step doubles the file, within these limits; on a small disk a step is a part of the disk."""
PLENTY_BYTES = 1 << 30
"""With so many free bytes no other program fills the disk between two commits."""
LEFT_BYTES = 64 << 10
"""A disk with less free is not asked for more."""


class Extent:
    """The blocks taken for one file. Used by the writer of the file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._end = file.stat().st_size
        """End of the file's blocks, in bytes."""
        self._is_refused = False
        """The disk, a quota or a limit refused the last request."""
        self._free, self._total = 0, 0
        self._look()

    @property
    def is_plenty(self) -> bool:
        """Return true if blocks need not be owned before a write."""
        return not self._is_refused and self._free >= PLENTY_BYTES

    @property
    def free_bytes(self) -> int:
        """Free bytes of the disk at the last look."""
        return self._free

    def reserve(self, used: int) -> int:
        """Return the bytes reserved for draining writes, for pages ending at `used`."""
        part = self._total // RESERVE_PART
        return min(RESERVE_BYTES, part, max(RESERVE_MIN, used))

    @property
    def end(self) -> int:
        """End of the file's blocks, in bytes."""
        return self._end

    def cover(self, used: int) -> None:
        """Take the reserve behind the pages, which now end at `used`. Take a step too when the
        pages have reached the end of the last step. Never raises."""
        if used + self.reserve(used) <= self._end:
            return
        self._look()
        kept = used + self.reserve(used)
        self._take(kept + self._step(used) if self.is_plenty else kept)

    def room(self, used: int, wanted: int) -> int:
        """Return the bytes by which messages may grow the file; below 0 the reserve's deficit.

        Args:
            used: End of the pages.
            wanted: Bytes which a caller waits for; taken if the disk has them.
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
        """Take the blocks up to `end`, or as many as the disk gives."""
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
