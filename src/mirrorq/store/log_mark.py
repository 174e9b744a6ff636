"""What LMDB says of the logs beside it: which are in use, and up to which record it has them."""

from __future__ import annotations

from pathlib import Path

from mirrorq.errors import StoreError
from mirrorq.protocol.effects import QueueWrite
from mirrorq.store.environment import Tables, Transaction
from mirrorq.store.queue_log import QueueLog
from mirrorq.store.rail_log import merged, surviving_rail
from mirrorq.store.records import Damaged, decoded, pack_u64, seal, unpack_u64
from mirrorq.store.write_ahead import Mark, left_in

FORMAT = b"format"
FORMAT_VERSION = 1
"""Of keys and values. Any change that an older mirrorq would misread raises it."""
FORMAT_WITH_LOG = 2
"""The same, and commits may be in the log that are not in LMDB: who does not know it must not take
LMDB for the whole store. After a close in good order it is `FORMAT_VERSION` again."""
FORMAT_WITH_RAIL = 3
"""The same of the rail's log, and the write-ahead log may be in use, too."""
MARK = b"write-ahead log"
"""There while the write-ahead log is in use."""
RAIL_MARK = b"rail log"
"""There while the rail's log is."""


def check_format(txn: Transaction, tables: Tables, path: Path) -> int:
    """The store's format.

    Raises:
        StoreError: A later mirrorq has made it.
    """
    found = decoded("meta", FORMAT, _get(txn, tables, FORMAT), unpack_u64)
    if found not in (FORMAT_VERSION, FORMAT_WITH_LOG, FORMAT_WITH_RAIL):
        raise StoreError(
            f"store {path} has format {found}, this mirrorq reads up to {FORMAT_WITH_RAIL}: use "
            "the mirrorq that made it, or give this node a path of its own"
        )
    return found


def left_in_log(txn: Transaction, tables: Tables, path: Path) -> list[QueueWrite]:
    """What the logs of the store at `path` hold that LMDB has not, one write a queue.

    Raises:
        StoreError: A later mirrorq has made the store.
        Damaged: A log is not as it was written, or is missing.
    """
    found = check_format(txn, tables, path)
    if found == FORMAT_VERSION:
        return []
    logged: list[QueueWrite] = []
    if found == FORMAT_WITH_LOG or txn.get(MARK, db=tables.meta) is not None:
        logged = left_in(path, _mark(txn, tables, MARK))
    if found == FORMAT_WITH_LOG:
        return logged
    known = QueueLog(txn, tables)
    railed = surviving_rail(path, _mark(txn, tables, RAIL_MARK))
    return merged(logged, [one for one in railed if known.record(one.queue_id) is not None])


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


def put_mark(
    txn: Transaction,
    tables: Tables,
    mark: Mark,
    *,
    key: bytes = MARK,
    number: int = FORMAT_WITH_LOG,
) -> None:
    """From this transaction on LMDB has what a log holds up to this mark; `number`: the format."""
    for name, data in ((FORMAT, pack_u64(number)), (key, mark.to_bytes())):
        txn.put(name, seal(name, data), db=tables.meta)


def end_log(txn: Transaction, tables: Tables) -> None:
    """LMDB has everything: the logs are out of use."""
    txn.put(FORMAT, seal(FORMAT, pack_u64(FORMAT_VERSION)), db=tables.meta)
    for key in (MARK, RAIL_MARK):
        txn.delete(key, db=tables.meta)


def _mark(txn: Transaction, tables: Tables, key: bytes) -> Mark:
    return decoded("meta", key, _get(txn, tables, key), Mark.from_bytes)


def _get(txn: Transaction, tables: Tables, key: bytes) -> bytes:
    value = txn.get(key, db=tables.meta)
    if value is None:
        raise Damaged("meta", key, "it is missing")
    return bytes(value)
