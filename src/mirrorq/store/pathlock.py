"""One process, and in the process one `Store`, at a time on a path.

The locks are `flock` on the directory itself and on its data file. So no removal of a file lets a
second process in: the directory's lock holds whatever is deleted inside. The data file's lock is
for network file systems, where a directory lock counts on its own machine only. It also helps with
a directory open to other users: any user with access may lock a directory. A directory lock held by
another user's process does not count, as only its owner can open the data file.

A `flock` ends with the process, but a fork has a copy. So a forked child closes its copies at once:
a worker which outlives a killed parent keeps no process out.

`mirrorq.lock` is a record for operators and for the next start: the process with the open store,
and a mark of a close in good order.
"""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import threading
from contextlib import suppress
from pathlib import Path

from mirrorq import system
from mirrorq.errors import StoreError, StoreLocked

log = logging.getLogger("mirrorq")

FILE_NAME = "mirrorq.lock"
DATA_FILE = "data.mdb"
LMDB_LOCK_FILE = "lock.mdb"
CONTENT_BYTES = 32
"""Always the same length: overwriting needs no space on a full disk."""
OTHERS = 0o077
"""Rights of the group and of everybody else."""
_OWN_FILES = (DATA_FILE, LMDB_LOCK_FILE, FILE_NAME, "mirrorq.wal", "mirrorq.rail")

Identity = tuple[int, int]
"""Device and inode."""

_held: dict[Identity, PathLock] = {}
"""The stores open in this process, by their directories."""
_locked: dict[int, Identity] = {}
"""File of every descriptor with a lock. Code which closes all files of a process, as daemons do,
may have given the number to another file."""
_guard = threading.RLock()
"""Reentrant: a garbage collection may close one store during the opening of another."""


class PathLock:
    """The lock on a store's directory, against other processes and other `Store`s here. Held from
    construction to `release`. No write happens before `record_open`."""

    def __init__(self, path: Path) -> None:
        """Take the lock.

        Args:
            path: The store's existing directory.

        Raises:
            StoreLocked: Another process, or another `Store` of this process, has the lock.
            StoreError: The file system has no such locks.
        """
        self._path = path
        self._identity = _identity(os.stat(path))
        self._data: int | None = None
        self._is_begun = False
        self.is_ending = False
        """The owner was closed, and its disk has not answered yet."""
        with _guard:
            holder = _held.get(self._identity)
            if holder is not None:
                raise StoreLocked(
                    f"store {path} is already open in this process (pid {os.getpid()}): "
                    + (
                        "the node that has it was closed and has not ended yet, its disk is still "
                        "at work on a commit. Try again when that is done"
                        if holder.is_ending
                        else "use the node that has it, or close that first"
                    )
                )
            self.directory = self._lock(path, os.O_RDONLY | os.O_DIRECTORY)
            """Descriptor of the directory."""
            try:
                with suppress(FileNotFoundError):
                    self._data = self._lock(path / DATA_FILE, os.O_RDWR)
            except BaseException:
                _unlock(self.directory)
                raise
            _held[self._identity] = self
        self.was_clean = _recorded(path)[:1] == ["closed"]
        """False when the last holder did not close the store, or left no record of a close."""

    def record_open(self) -> None:
        """Record the store as open in this process, and make a missing data file.

        Raises:
            StoreLocked: Another machine has just made the data file.
            OSError: The directory cannot be written.
        """
        self._is_begun = True
        self._write("open")
        if self._data is None:
            self._data = self._lock(self._path / DATA_FILE, os.O_RDWR | os.O_CREAT)
        for name in _OWN_FILES:
            _make_private(name, self.directory)
        self._close_directory()

    def release(self, *, is_clean: bool) -> None:
        """Give the lock up; `is_clean` when the store was closed in good order. May be repeated."""
        with _guard:
            if _held.get(self._identity) is not self:
                return
            if self._is_begun and _is_ours(self.directory):
                self._write("closed" if is_clean else "open")
            for descriptor in (self._data, self.directory):
                if descriptor is not None:
                    _unlock(descriptor)
            _held.pop(self._identity, None)

    def note_ending(self) -> None:
        """Note the owner as closed; the lock stays until its disk has answered."""
        self.is_ending = True

    @property
    def is_at_path(self) -> bool:
        """Return true if the path still leads to the directory."""
        with suppress(OSError):
            return _identity(os.stat(self._path)) == self._identity
        return False

    def _close_directory(self) -> None:
        """Remove other users' rights to the store's directory. Another user's directory is left
        unchanged, with a warning in the log."""
        found = os.fstat(self.directory)
        mode = stat.S_IMODE(found.st_mode)
        if found.st_uid == os.geteuid():
            if mode & OTHERS:
                os.fchmod(self.directory, mode & ~OTHERS)
        elif mode & stat.S_IRWXO:
            log.warning(
                "directory %s of the store belongs to user %d and has mode %04o, so others may "
                "look into it, or more. Make it the node's own: chown it to user %d, and chmod 700 "
                "it",
                self._path,
                found.st_uid,
                mode,
                os.geteuid(),
            )

    def _lock(self, file: Path, flags: int) -> int:
        try:
            return _flocked(file, flags, fcntl.LOCK_EX)
        except BlockingIOError as error:
            raise StoreLocked(
                f"store {self._path} is open in another process (pid {_pid_text(self._path)}): one "
                "store is one node, in one process. Where several processes are to use its queues "
                "(workers of uvicorn, gunicorn or Celery), let one of them, or none, have the "
                "node: start it with Node.spawn before they are made, or with `mirrorq node run`, "
                "and connect() in each. Another node of the cluster needs a path of its own"
            ) from error

    def _write(self, word: str) -> None:
        """Write the record, with a new file if the old was deleted."""
        content = f"{word} {os.getpid()}".ljust(CONTENT_BYTES - 1) + "\n"
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        try:
            descriptor = os.open(FILE_NAME, flags, system.PRIVATE_FILE, dir_fd=self.directory)
            try:
                os.pwrite(descriptor, content.encode(), 0)
                system.sync(descriptor)
            finally:
                os.close(descriptor)
        except OSError:
            # A new file on a full disk: the lock holds, only the pid is not recorded.
            return


class SharedPathLock:
    """Keeps writers from opening a store during read-only access; changes no byte.

    Held from construction to `release`.
    """

    def __init__(self, path: Path) -> None:
        """Take the lock.

        Raises:
            StoreLocked: A process has the store open.
            StoreError: The file system has no `flock`.
        """
        self._descriptors: list[int] = []
        with _guard:
            if is_open_here(path):
                raise StoreLocked(f"store {path} is open in this process (pid {os.getpid()})")
            try:
                for file, flags in ((path, os.O_DIRECTORY), (path / DATA_FILE, 0)):
                    with suppress(FileNotFoundError):
                        self._descriptors.append(_flocked(file, flags, fcntl.LOCK_SH))
            except BlockingIOError as error:
                self.release()
                raise StoreLocked(
                    f"store {path} is open in another process (pid {_pid_text(path)}): stop that "
                    "process first"
                ) from error
            except BaseException:
                self.release()
                raise

    def release(self) -> None:
        """Give the lock up. May be repeated."""
        with _guard:
            while self._descriptors:
                _unlock(self._descriptors.pop())


def is_open_here(path: Path) -> bool:
    """Return true if this process has the store open."""
    with _guard:
        return _identity(os.stat(path)) in _held


def holder_of(path: Path) -> int | None:
    """Return the process with the store open, None without a process; 0 if unknown.

    Raises:
        OSError: No store is there, or access is denied.
    """
    if is_open_here(path):
        return os.getpid()
    try:
        SharedPathLock(path).release()
    except StoreLocked:
        return _pid_recorded(path)
    return None


def _flocked(file: Path, flags: int, how: int) -> int:
    """Return a locked descriptor of the file.

    Raises:
        BlockingIOError: Another process has the lock.
        StoreError: The file system has no `flock`.
    """
    descriptor = os.open(file, flags | os.O_CLOEXEC, system.PRIVATE_FILE)
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        if not (flags & os.O_DIRECTORY and _is_locked_by_strangers(os.fstat(descriptor))):
            os.close(descriptor)
            raise
    except OSError as error:
        os.close(descriptor)
        raise StoreError(
            f"{file} cannot be locked ({error}): put the store on a local file system"
        ) from error
    _locked[descriptor] = _identity(os.fstat(descriptor))
    return descriptor


def _is_locked_by_strangers(directory: os.stat_result) -> bool:
    """Return true if only other users' processes hold the lock, as far as the system reports."""
    owners = system.users_with_locks_on(directory)
    return bool(owners) and not owners & {os.geteuid(), directory.st_uid, 0}


def _unlock(descriptor: int) -> None:
    """The lock ends for forks, too, which closing alone does not do."""
    if _is_ours(descriptor):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)
    _locked.pop(descriptor, None)


def _is_ours(descriptor: int) -> bool:
    with suppress(OSError):
        return _identity(os.fstat(descriptor)) == _locked.get(descriptor)
    return False


def _identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino


def _make_private(name: str, directory: int) -> None:
    """Remove other users' rights to a store file, after a copy or a manual creation."""
    with suppress(OSError):
        mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
        if stat.S_ISREG(mode) and mode & OTHERS:
            os.chmod(name, system.PRIVATE_FILE, dir_fd=directory)


def _recorded(path: Path) -> list[str]:
    """Words of the record; none where there is none."""
    try:
        return (path / FILE_NAME).read_text("ascii", "replace").split()
    except OSError:
        return []


def _pid_recorded(path: Path) -> int:
    """Return the process with the open store by the record; 0 without a record."""
    words = _recorded(path)
    return int(words[1]) if len(words) > 1 and words[1].isdecimal() else 0


def _pid_text(path: Path) -> str:
    return str(_pid_recorded(path) or "unknown")


def _let_go_in_child() -> None:
    """Close a forked child's copies of the locks: the stores are the parent's. An unlock would
    unlock the parent's locks too."""
    global _guard
    _guard = threading.RLock()
    for descriptor in list(_locked):
        if _is_ours(descriptor):
            os.close(descriptor)
    _locked.clear()
    _held.clear()


os.register_at_fork(after_in_child=_let_go_in_child)
