"""Copies of whole stores: a backup, even of an open store, and the restore.

LMDB lets other processes read during a write. So a copy in one read transaction is the store at one
moment, with all messages confirmed before. The logs are copied first, both as of one moment:
records which leave the logs later are in LMDB's copy. During the copy the node cannot reuse freed
pages, so its file grows by its writes. An incomplete copy leaves nothing under the requested name.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path
from typing import cast

import lmdb

from mirrorq import system
from mirrorq.errors import StoreError, StoreLocked
from mirrorq.store.environment import is_store
from mirrorq.store.offline import OfflineStore
from mirrorq.store.pathlock import DATA_FILE, is_open_here
from mirrorq.store.rail_log import HALF_BYTES, RAIL_FILE
from mirrorq.store.write_ahead import FILE_NAME as LOG_FILE
from mirrorq.store.write_ahead import contents, whole_prefix

Progress = Callable[[int, int], None]
LOOK_S = 0.1
"""How often a progress bar is moved."""
CHUNK_BYTES = 8 << 20
TRIES = 10
"""The node may let its map grow between opening and reading."""
_LOGS = (LOG_FILE, RAIL_FILE)
LOOKS = 1000
"""Limit of reads of the logs, 1 ms each. A busy node usually writes to only one log."""


@contextmanager
def copied_to(target: Path) -> Iterator[Path]:
    """Give a directory to fill, which becomes `target` at the end, or vanishes on failure.

    Raises:
        StoreError: `target` exists already.
    """
    if target.exists() or target.is_symlink():
        raise StoreError(f"{target} is there already: give a path that is not")
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        system.make_private_directory(target.parent)
        part.mkdir(system.PRIVATE_DIRECTORY)
        yield part
        for file in part.iterdir():
            file.chmod(system.PRIVATE_FILE)
            _sync(file)
        _sync(part)
        part.rename(target)
        _sync(target.parent)
    except OSError as error:
        raise StoreError(f"{target} cannot be written: {error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        system.sync(descriptor)
    finally:
        os.close(descriptor)


def back_up(path: Path, part: Path, on_progress: Progress | None = None) -> None:
    """Copy a store, of a running node or not, into an empty directory, without free pages.

    Raises:
        StoreError: No store of mirrorq is there, the store is damaged or unreadable.
    """
    if not is_store(path):
        raise StoreError(f"{path} is not a store: it has no {DATA_FILE} of LMDB")
    try:
        with OfflineStore(path) as store:
            if store.problems:
                raise StoreError(
                    f"store {path} is damaged ({store.problems[0]}): look at it with mirrorq store "
                    "verify"
                )
    except StoreLocked:
        if is_open_here(path):
            # LMDB's locks belong to the process: a second open here would lose them.
            raise
        # The process with the open store has checked its pages.
    for _ in range(TRIES):
        logs = _logs_at_once(path)
        try:
            _copy(path, part, on_progress)
            if any(log is None and contents(path, name) for name, log in logs.items()):
                # The node has begun a log meanwhile.
                (part / DATA_FILE).unlink()
                continue
            for name, log in logs.items():
                if log is not None:
                    (part / name).write_bytes(_whole(name, log))
            return
        except lmdb.MapResizedError:
            continue
        except lmdb.Error as error:
            raise StoreError(f"store {path} cannot be copied to {part.parent}: {error}") from error
    raise StoreError(f"store {path} grows too fast to be copied: try again")


def _logs_at_once(path: Path) -> dict[str, bytes | None]:
    """Return both logs as of one moment: a queue's ops may be in both in turn. Reads each log again
    until the log is unchanged since before the read of the other.

    Raises:
        StoreError: Both change all the time.
    """
    logs = {name: contents(path, name) for name in _LOGS}
    for name in islice(cycle(_LOGS), LOOKS):
        found = contents(path, name)
        if found == logs[name]:
            return logs
        logs[name] = found
    raise StoreError(f"the logs of store {path} change too fast to be copied: try again")


def _whole(name: str, log: bytes) -> bytes:
    """Return the whole records of a log under concurrent writes."""
    if name == LOG_FILE:
        return whole_prefix(log)
    return whole_prefix(log[:HALF_BYTES]) + whole_prefix(log[HALF_BYTES:])


def _copy(path: Path, part: Path, on_progress: Progress | None) -> None:
    # With LMDB's own lock file: the writer must see this reader and leave its pages alone.
    # As bytes, unknown to the types of `copy`: lmdb refuses names outside the locale.
    place, target = os.fsencode(path), cast("str", os.fsencode(part))
    with lmdb.open(place, readonly=True, create=False, max_dbs=8, lib_version=0) as source:
        total = int((source.info()["last_pgno"] + 1) * source.stat()["psize"])
        with _watched(part / DATA_FILE, total, on_progress):
            try:
                source.copy(target, compact=True)
            except lmdb.IncompatibleError:
                # Some pages are neither in use nor in a free list: LMDB cannot leave them out.
                (part / DATA_FILE).unlink(missing_ok=True)
                source.copy(target, compact=False)


@contextmanager
def _watched(file: Path, total: int, on_progress: Progress | None) -> Iterator[None]:
    """Report the growth of a file, on a thread: LMDB copies in one call."""
    if on_progress is None:
        yield
        return
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(LOOK_S):
            done = file.stat().st_size if file.exists() else 0
            on_progress(min(done, total), total)

    watcher = threading.Thread(target=watch, name="mirrorq-backup", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()


def put_back(backup: Path, part: Path, on_progress: Progress | None = None) -> None:
    """Copy a backup into an empty directory.

    Raises:
        StoreLocked: The backup is a store open in a process.
        StoreError: No store is there, or the store is unreadable.
    """
    # Held open for its lock; a check of the copy finds damage.
    with OfflineStore(backup), (backup / DATA_FILE).open("rb") as source:
        total = os.fstat(source.fileno()).st_size
        done = 0
        with (part / DATA_FILE).open("wb") as target:
            while chunk := source.read(CHUNK_BYTES):
                target.write(chunk)
                done += len(chunk)
                if on_progress is not None:
                    on_progress(done, total)
        for name in _LOGS:
            log = contents(backup, name)
            if log is not None:
                (part / name).write_bytes(log)
