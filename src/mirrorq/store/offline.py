"""Read-only access to a store not open in any process, without a changed byte.

The pages are walked before LMDB maps them: LMDB trusts the mapped file, and a damaged file would
end the process with a signal. The lock is a shared lock: no node can start meanwhile, and other
readers may look too. A backup has no lock file; no process writes there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import lmdb

from mirrorq.errors import StoreCorrupt, StoreError
from mirrorq.store.environment import Tables, is_store, open_to_look, walk
from mirrorq.store.pathlock import DATA_FILE, SharedPathLock
from mirrorq.store.records import Damaged

Result = TypeVar("Result")


class OfflineStore:
    """Open from construction to `close`; also a context manager."""

    def __init__(self, path: Path) -> None:
        """Lock the path and walk the pages.

        Raises:
            StoreLocked: A process has the store open.
            StoreError: No store of mirrorq is there, or the store is unreadable.
        """
        self.path = path
        try:
            if not is_store(path):
                raise StoreError(
                    f"{path} is not a store: it has no {DATA_FILE} of LMDB. Give the directory of "
                    "a node, or of a backup"
                )
            self._lock = SharedPathLock(path)
        except OSError as error:
            raise StoreError(f"store {path} cannot be read: {error}") from error
        self._lmdb: lmdb.Environment | None = None
        try:
            self.file_bytes = (path / DATA_FILE).stat().st_size
            self.problems, self.leaks = walk(path / DATA_FILE)
            """Problems of LMDB's pages, and leaked pages, which only cost space."""
            if not self.problems:
                self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        try:
            self._lmdb = open_to_look(self.path)
            with self._lmdb.begin(buffers=True) as txn:
                names = {bytes(name) for name in self._lmdb.dbs(txn)}
                if b"meta" not in names:
                    raise StoreError(
                        f"{self.path} is not a store: it holds an LMDB environment that mirrorq "
                        "did not make. Give the directory of a node, or of a backup"
                    )
            # Not in the first transaction: handles would end with it.
            self.tables = Tables.open(self._lmdb, None)
        except lmdb.NotFoundError as error:
            self.problems.append(f"a database of mirrorq is missing: {error}")
        except lmdb.Error as error:
            raise StoreError(f"store {self.path} cannot be read: {error}") from error

    def __enter__(self) -> OfflineStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the lock up."""
        if self._lmdb is not None:
            self._lmdb.close()
            self._lmdb = None
        self._lock.release()

    def read(self, work: Callable[[lmdb.Transaction[memoryview]], Result]) -> Result:
        """Run `work` in a read transaction and return its result, free of views of the map.

        Raises:
            StoreCorrupt: The pages are damaged.
        """
        if self.problems or self._lmdb is None:
            raise StoreCorrupt(f"store {self.path}: {self.problems[0]}")
        try:
            with self._lmdb.begin(buffers=True) as txn:
                return work(txn)
        except (lmdb.Error, Damaged) as error:
            raise StoreCorrupt(f"store {self.path}: {error}") from error
