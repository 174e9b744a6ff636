"""What LMDB says of the write-ahead log: whether there is one, and up to which record it has it."""

from __future__ import annotations

from pathlib import Path

from mirrorq.errors import StoreError
from mirrorq.protocol.effects import QueueWrite
from mirrorq.store.environment import Tables, Transaction
from mirrorq.store.queue_log import QueueLog
from mirrorq.store.records import Damaged, decoded, pack_u64, seal, unpack_u64
from mirrorq.store.write_ahead import Mark, left_in

FORMAT = b"format"
FORMAT_VERSION = 1
"""Of keys and values. Any change that an older mirrorq would misread raises it."""
FORMAT_WITH_LOG = 2
"""The same, and commits may be in the log that are not in LMDB: who does not know it must not take
LMDB for the whole store. After a close in good order it is `FORMAT_VERSION` again."""
MARK = b"write-ahead log"
"""There while the format is `FORMAT_WITH_LOG`."""


def check_format(txn: Transaction, tables: Tables, path: Path) -> int:
    """The store's format.

    Raises:
        StoreError: A later mirrorq has made it.
    """
    found = decoded("meta", FORMAT, _get(txn, tables, FORMAT), unpack_u64)
    if found not in (FORMAT_VERSION, FORMAT_WITH_LOG):
        raise StoreError(
            f"store {path} has format {found}, this mirrorq reads up to {FORMAT_WITH_LOG}: use the "
            "mirrorq that made it, or give this node a path of its own"
        )
    return found


def left_in_log(txn: Transaction, tables: Tables, path: Path) -> list[QueueWrite]:
    """What the log of the store at `path` holds that LMDB has not, one write a queue.

    Raises:
        StoreError: A later mirrorq has made the store.
        Damaged: The log is not as it was written, or is missing.
    """
    if check_format(txn, tables, path) == FORMAT_VERSION:
        return []
    return left_in(path, decoded("meta", MARK, _get(txn, tables, MARK), Mark.from_bytes))


def take_in(txn: Transaction, tables: Tables, path: Path) -> None:
    """Have everything in LMDB, and the log at its end: nothing in it counts any more."""
    writes = left_in_log(txn, tables, path)
    log = QueueLog(txn, tables)
    for write in writes:
        log.apply(write)
    for queue_id, record in log.changed.items():
        if record is not None:
            log.put_record(queue_id, record)
    end_log(txn, tables)


def put_mark(txn: Transaction, tables: Tables, mark: Mark) -> None:
    """From this transaction on LMDB has what the log holds up to this mark."""
    for key, data in ((FORMAT, pack_u64(FORMAT_WITH_LOG)), (MARK, mark.to_bytes())):
        txn.put(key, seal(key, data), db=tables.meta)


def end_log(txn: Transaction, tables: Tables) -> None:
    """LMDB has everything: the log is out of use."""
    txn.put(FORMAT, seal(FORMAT, pack_u64(FORMAT_VERSION)), db=tables.meta)
    txn.delete(MARK, db=tables.meta)


def _get(txn: Transaction, tables: Tables, key: bytes) -> bytes:
    value = txn.get(key, db=tables.meta)
    if value is None:
        raise Damaged("meta", key, "it is missing")
    return bytes(value)
