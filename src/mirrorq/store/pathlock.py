"""One process, and in it one `Store`, at a time on a path.

The locks are `flock` on the directory itself and on its data file. No file whose removal would
let a second process in is needed: the directory's lock holds whatever is deleted in it. The data
file's lock is for network file systems, where a directory is locked on its own machine only, and
for a directory that others may open: whoever may open a directory may lock it. A directory's lock
that another user's process holds does not count, the data file is open to its owner alone.

A `flock` ends with the process, however that ends, but a fork has it, too. A forked child
therefore closes its copies at once: a worker that outlives a killed parent keeps nobody out.

`mirrorq.lock` is a record for people and for the next start: which process has the store open,
and whether it was closed in good order.
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
CONTENT_BYTES = 32
"""Always the same length: overwriting needs no space on a full disk."""
OTHERS = 0o077
"""Rights of the group and of everybody else."""
_OWN_FILES = (DATA_FILE, "lock.mdb", FILE_NAME, "mirrorq.wal", "mirrorq.rail")

Identity = tuple[int, int]
"""Device and inode."""

_held: dict[Identity, PathLock] = {}
"""The stores that this process has open, by their directories."""
_locked: dict[int, Identity] = {}
"""Every descriptor that carries a lock, with its file: who closes all files of a process, as
daemons do, may have given the number to another file."""
_guard = threading.RLock()
"""Taken again where a collection closes one store while another one is opened."""


class PathLock:
    """The lock on a store's directory, against other processes and others of this one. Held from
    construction to `release`. Nothing is written before `begin`."""

    def __init__(self, path: Path) -> None:
        """Take the lock.

        Args:
            path: The store's directory, which is there.

        Raises:
            StoreLocked: Another process, or another `Store` of this one, has it.
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
        """False when the last holder did not close the store, or no record says that it did."""

    def begin(self) -> None:
        """Record that this process has the store open, and make the data file if it is not there.

        Raises:
            StoreLocked: Another machine has made it this moment.
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
        """The owner was closed, and holds the lock until its disk has answered."""
        self.is_ending = True

    @property
    def is_at_path(self) -> bool:
        """Whether the path still leads to the directory."""
        with suppress(OSError):
            return _identity(os.stat(self._path)) == self._identity
        return False

    def _close_directory(self) -> None:
        """Let nobody else in: the directory is the store's own. One of another user is left as it
        is, and the log tells of it."""
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
        """Made anew where somebody has deleted it meanwhile."""
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
            # A new file on a full disk: the lock holds all the same, only the pid is not told.
            return


class SharedPathLock:
    """Keeps others from opening a store while it is only read; changes no byte of it.

    Held from construction to `release`.
    """

    def __init__(self, path: Path) -> None:
        """Take the lock.

        Raises:
            StoreLocked: A process has the store open.
            StoreError: The file system has no such locks.
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
    """Whether this process has the store open."""
    with _guard:
        return _identity(os.stat(path)) in _held


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
        return _pid_recorded(path)
    return None


def _flocked(file: Path, flags: int, how: int) -> int:
    """A descriptor of the file, locked.

    Raises:
        BlockingIOError: Another one has the lock.
        StoreError: The file system has no such locks.
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
    """Whether all who have locked it are other users' processes, as far as the system tells."""
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
    """Take others' rights to one of the store's files, which was copied or made by hand."""
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
    """Of the process that has it open, as the record says; 0 where it does not."""
    words = _recorded(path)
    return int(words[1]) if len(words) > 1 and words[1].isdecimal() else 0


def _pid_text(path: Path) -> str:
    return str(_pid_recorded(path) or "unknown")


def _let_go_in_child() -> None:
    """A forked child: the stores are its parent's. Its copies of the locks are closed and not
    unlocked, which would unlock the parent's."""
    global _guard
    _guard = threading.RLock()
    for descriptor in list(_locked):
        if _is_ours(descriptor):
            os.close(descriptor)
    _locked.clear()
    _held.clear()


os.register_at_fork(after_in_child=_let_go_in_child)
