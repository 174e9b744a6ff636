"""The rail's log: ops made durable by the rail's thread before Python has seen them.

Records have the format of `write_ahead`. The file has two halves, each written from start to end.
When one half is full the other begins anew, if LMDB has all records of the other. So the thread
goes on while LMDB takes the records of the full half. Writer: `_native`, rail.h.

LMDB names the last of its records. Whole later records are carried out at the next start. A queue
unknown to LMDB has been deleted since: its ops are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from mirrorq.protocol.effects import QueueWrite
from mirrorq.protocol.ops import Entry
from mirrorq.store.write_ahead import (
    FILE_BYTES,
    LogDamaged,
    LogMark,
    contents,
    records_of,
    unpacked,
)

RAIL_FILE = "mirrorq.rail"
HALF_BYTES = FILE_BYTES // 2


def surviving_rail(path: Path, mark: LogMark) -> list[QueueWrite]:
    """Return the records of a store's rail log missing in LMDB, in order.

    Raises:
        LogDamaged: The log is missing, or a durable record is not whole.
    """
    data = contents(path, RAIL_FILE)
    if data is None:
        raise LogDamaged("it is missing, and the last commits may be in it", RAIL_FILE)
    records: dict[int, bytes] = {}
    for half in (data[:HALF_BYTES], data[HALF_BYTES:]):
        records.update(records_of(half, mark, RAIL_FILE))
    writes: list[QueueWrite] = []
    for expected, number in enumerate(sorted(records), mark.number + 1):
        if number != expected:
            raise LogDamaged(f"record {expected} is missing, and record {number} is not", RAIL_FILE)
        writes += unpacked(records[number])
    return writes


def merged(logged: Iterable[QueueWrite], railed: Iterable[QueueWrite]) -> list[QueueWrite]:
    """Return the records of both logs, one write a queue: each op once, in order."""
    entries: dict[int, dict[int, Entry]] = {}
    stable: dict[int, int] = {}
    for write in (*logged, *railed):
        its_entries = entries.setdefault(write.queue_id, {})
        its_entries.update((entry.lsn, entry) for entry in write.append)
        if write.stable is not None:
            stable[write.queue_id] = max(stable.get(write.queue_id, 0), write.stable)
    return [
        QueueWrite(
            queue_id,
            append=tuple(its_entries[lsn] for lsn in sorted(its_entries)),
            stable=stable.get(queue_id),
        )
        for queue_id, its_entries in entries.items()
    ]
