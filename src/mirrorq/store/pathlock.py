"""One process, and in it one `Store`, at a time on a path.

The lock is a POSIX record lock: it ends with the process, however that ends, and is not
inherited by a fork, so a worker that outlives a killed parent keeps nobody out. Such a lock
does not exclude its own process and is dropped when any descriptor of its file is closed;
therefore a table of the paths open here is asked before the file is touched.
"""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

from mirrorq import system
from mirrorq.errors import StoreError, StoreLocked

FILE_NAME = "mirrorq.lock"
CONTENT_BYTES = 32
"""Always the same length: overwriting needs no space on a full disk."""

_open_paths: dict[tuple[int, int], int] = {}
"""(device, inode) of a store's directory -> pid that opened it; a forked child's parent counts
for nothing here, the lock itself keeps the child out."""
_ending: set[tuple[int, int]] = set()
"""Those of them whose owner was closed and waits for its disk."""
_guard = threading.RLock()
"""Taken again where a collection closes one store while another one is opened."""


class PathLock:
    """The lock on a store's directory, against other processes and others of this one. Held from
    construction to `release`."""

    def __init__(self, path: Path) -> None:
        """Take the lock.

        Args:
            path: The store's directory, which is there.

        Raises:
            StoreLocked: Another process, or another `Store` of this one, has it.
        """
        self._path = path
        status = os.stat(path)
        self._identity = (status.st_dev, status.st_ino)
        with _guard:
            if _open_paths.get(self._identity) == os.getpid():
                raise StoreLocked(
                    f"store {path} is already open in this process (pid {os.getpid()}): "
                    + (
                        "the node that has it was closed and has not ended yet, its disk is still "
                        "at work on a commit. Try again when that is done"
                        if self._identity in _ending
                        else "use the node that has it, or close that first"
                    )
                )
            self._descriptor = self._lock()
            _open_paths[self._identity] = os.getpid()
        self._is_held = True
        self.was_clean = self._content() != "open"
        """False when the last holder did not close the store."""
        self._write("open")

    def release(self, *, is_clean: bool) -> None:
        """Give the lock up; `is_clean` when the store was closed in good order."""
        with _guard:
            self._write("closed" if is_clean else "open")
            os.close(self._descriptor)
            _open_paths.pop(self._identity, None)
            _ending.discard(self._identity)
            self._is_held = False

    def note_ending(self) -> None:
        """The owner was closed, and holds the lock until its disk has answered."""
        with _guard:
            if self._is_held:
                _ending.add(self._identity)

    def _lock(self) -> int:
        descriptor = os.open(self._path / FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, CONTENT_BYTES, 0).decode("ascii", "replace").split()
            os.close(descriptor)
            if not isinstance(error, (BlockingIOError, PermissionError)):
                raise StoreError(
                    f"store {self._path} cannot be locked ({error}): put it on a local file system"
                ) from error
            pid = holder[1] if len(holder) > 1 else "unknown"
            raise StoreLocked(
                f"store {self._path} is open in another process (pid {pid}): one store is one "
                "node, in one process. Where several processes are to use its queues (workers of "
                "uvicorn, gunicorn or Celery), let one of them, or none, have the node: start it "
                "with Node.spawn before they are made, or with `mirrorq node`, and connect() in "
                "each. Another node of the cluster needs a path of its own"
            ) from error
        return descriptor

    def _content(self) -> str:
        words = os.pread(self._descriptor, CONTENT_BYTES, 0).decode("ascii", "replace").split()
        return words[0] if words else ""

    def _write(self, word: str) -> None:
        content = f"{word} {os.getpid()}".ljust(CONTENT_BYTES - 1) + "\n"
        try:
            os.pwrite(self._descriptor, content.encode(), 0)
            system.sync(self._descriptor)
        except OSError:
            # A new file on a full disk: the lock holds all the same, only the pid is not told.
            return


def is_open_here(path: Path) -> bool:
    """Whether this process has the store open."""
    status = os.stat(path)
    with _guard:
        return _open_paths.get((status.st_dev, status.st_ino)) == os.getpid()


def holder_of(path: Path) -> int | None:
    """Which process has the store open, None when nobody has; 0 where it is not known.

    Raises:
        OSError: there is no store, or it may not be looked at.
    """
    if is_open_here(path):
        return os.getpid()
    try:
        SharedPathLock(path).release()
    except StoreLocked:
        words = (path / FILE_NAME).read_text("ascii", "replace").split()
        return int(words[1]) if len(words) > 1 else 0
    return None


class SharedPathLock:
    """Keeps others from opening a store while it is only read; changes no byte of it.

    Held from construction to `release`. Where there is no lock file (a backup) nobody ever opened
    the store, and none is made.
    """

    def __init__(self, path: Path) -> None:
        """Take the lock.

        Raises:
            StoreLocked: A process has the store open.
        """
        self._descriptor: int | None = None
        status = os.stat(path)
        identity = (status.st_dev, status.st_ino)
        with _guard:
            if _open_paths.get(identity) == os.getpid():
                raise StoreLocked(f"store {path} is open in this process (pid {os.getpid()})")
            try:
                descriptor = os.open(path / FILE_NAME, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError as error:
                holder = os.pread(descriptor, CONTENT_BYTES, 0).decode("ascii", "replace").split()
                os.close(descriptor)
                pid = holder[1] if len(holder) > 1 else "unknown"
                raise StoreLocked(
                    f"store {path} is open in another process (pid {pid}): stop that process first"
                ) from error
            self._descriptor = descriptor

    def release(self) -> None:
        """Give the lock up. May be repeated."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
