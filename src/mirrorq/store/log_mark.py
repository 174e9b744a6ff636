"""LMDB's marks about the logs: which logs are in use, and the last record known to LMDB."""

from __future__ import annotations

from pathlib import Path

from mirrorq.errors import StoreError
from mirrorq.protocol.effects import QueueWrite
from mirrorq.store.environment import Tables, Transaction
from mirrorq.store.queue_log import QueueLog
from mirrorq.store.rail_log import merged, surviving_rail
from mirrorq.store.records import Damaged, decoded, seal, unpack_u64
from mirrorq.store.write_ahead import LogMark, left_in

FORMAT = b"format"
FORMAT_VERSION = 2
"""Format of keys, values and logs. Any change raises the number."""
MARK = b"write-ahead log"
"""There while the write-ahead log is in use."""
RAIL_MARK = b"rail log"
"""There while the rail's log is."""


def check_format(txn: Transaction, tables: Tables, path: Path) -> None:
    """Check the store's format.

    Raises:
        StoreError: Another version of mirrorq has made the store.
    """
    found = decoded("meta", FORMAT, _get(txn, tables, FORMAT), unpack_u64)
    if found != FORMAT_VERSION:
        raise StoreError(
            f"store {path} has format {found}, this mirrorq reads {FORMAT_VERSION}: use the "
            "mirrorq that made it, or give this node a path of its own"
        )


def left_in_log(
    txn: Transaction, tables: Tables, path: Path, *, salvages: bool = False
) -> list[QueueWrite]:
    """Return the records in the logs of the store at `path` missing in LMDB, one write a queue.

    Args:
        salvages: of the write-ahead log, count all whole records.

    Raises:
        StoreError: Another version of mirrorq has made the store.
        Damaged: A log is changed or missing.
    """
    check_format(txn, tables, path)
    logged: list[QueueWrite] = []
    if txn.get(MARK, db=tables.meta) is not None:
        logged = left_in(path, _mark(txn, tables, MARK), salvages=salvages)
    if txn.get(RAIL_MARK, db=tables.meta) is None:
        return logged
    known = QueueLog(txn, tables)
    railed = surviving_rail(path, _mark(txn, tables, RAIL_MARK))
    return merged(logged, [one for one in railed if known.record(one.queue_id) is not None])


def take_in(txn: Transaction, tables: Tables, path: Path, *, salvages: bool = False) -> None:
    """Bring all log records into LMDB, and end the logs."""
    writes = left_in_log(txn, tables, path, salvages=salvages)
    log = QueueLog(txn, tables)
    for write in writes:
        log.apply(write)
    for queue_id, record in log.changed.items():
        if record is not None:
            log.put_record(queue_id, record)
    end_log(txn, tables)


def put_mark(txn: Transaction, tables: Tables, mark: LogMark, *, key: bytes = MARK) -> None:
    """From this transaction on LMDB has the log's records up to the mark."""
    txn.put(key, seal(key, mark.to_bytes()), db=tables.meta)


def end_log(txn: Transaction, tables: Tables) -> None:
    """LMDB has everything: the logs are out of use."""
    for key in (MARK, RAIL_MARK):
        txn.delete(key, db=tables.meta)


def _mark(txn: Transaction, tables: Tables, key: bytes) -> LogMark:
    return decoded("meta", key, _get(txn, tables, key), LogMark.from_bytes)


def _get(txn: Transaction, tables: Tables, key: bytes) -> bytes:
    value = txn.get(key, db=tables.meta)
    if value is None:
        raise Damaged("meta", key, "it is missing")
    return bytes(value)
