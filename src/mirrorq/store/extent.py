"""Disk space taken ahead of use, in steps.

A queue in steady use holds its live messages, what a checkpoint will release and what is being
committed, and the file of its store creeps up to the largest sum of these. Taken in steps the
space is there before it is needed: a store that has run for a moment keeps the size that it has,
no other file takes the place that its churn wants, and its pages lie together.

It is an offer, never a need: a disk that has little left is not asked.
"""

from __future__ import annotations

import os
from pathlib import Path

FIRST_BYTES = 512 << 10
"""A store below this takes what it uses; so many queues are never used."""
STEP_MIN = 4 << 20
STEP_MAX = 64 << 20
"""A step doubles the file, within these."""
SPARE_FACTOR = 16
"""A step is taken when the disk has so many times its bytes free."""


class Extent:
    """The bytes of one file that are taken. Used by whoever may write to the file."""

    def __init__(self, file: Path, used: int) -> None:
        self._file = file
        self._asked = max(used, FIRST_BYTES)
        """Nothing is done until more than this is in use."""

    def cover(self, used: int) -> None:
        """Take a step when the file has grown to the end of the last one. Never raises."""
        if used <= self._asked:
            return
        step = STEP_MIN
        while step < min(used, STEP_MAX):
            step *= 2
        size = (used // step + 1) * step
        self._asked = size
        try:
            free = os.statvfs(self._file)
            if free.f_bavail * free.f_frsize >= SPARE_FACTOR * (size - used):
                self._take(size)
        except (OSError, AttributeError):
            # Not on this system, or not so much: the file grows as it is written.
            return

    def _take(self, size: int) -> None:
        descriptor = os.open(self._file, os.O_RDWR | os.O_CLOEXEC)
        try:
            there = os.fstat(descriptor).st_size
            if size > there:
                os.posix_fallocate(descriptor, there, size - there)
        finally:
            os.close(descriptor)
