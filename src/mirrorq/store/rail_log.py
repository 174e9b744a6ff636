"""The rail's log: what its thread has made durable before Python has seen it.

Records are those of `write_ahead`. There are two halves, and each is written from its start to its
end; when one is full the other begins anew, if LMDB has all that is in that. So the thread goes on
while LMDB is given what the other half holds. Who writes it: `_native`, rail.h.

LMDB says up to which record it has them. What is after that and whole is carried out at the next
start. A queue that LMDB does not know has been deleted since: its ops are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from mirrorq.protocol.effects import QueueWrite
from mirrorq.protocol.ops import Entry
from mirrorq.store.write_ahead import (
    FILE_BYTES,
    LogDamaged,
    Mark,
    contents,
    records_of,
    unpacked,
)

RAIL_FILE = "mirrorq.rail"
HALF_BYTES = FILE_BYTES // 2


def surviving_rail(path: Path, mark: Mark) -> list[QueueWrite]:
    """What the rail's log of a store holds that LMDB has not, in order.

    Raises:
        LogDamaged: It is missing, or a record that was durable is not whole.
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
    """What both logs hold, one write a queue: each op once, in order."""
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
