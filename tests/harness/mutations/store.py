"""Rules of the store that are left out."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from harness.mutations.registry import Real, answer, instead
from mirrorq.protocol.effects import QueueWrite
from mirrorq.store.queue_log import QueueLog
from mirrorq.store.run_table import RunTable


@instead("cut that keeps publishes on disk", RunTable, "truncate")
def _cut_keeps(real: Real, self: RunTable, lsn: int) -> None:
    if self.name != "messages":
        real(self, lsn)


@instead("release of runs that are partly live", QueueLog, "_release")
def _release_partly(
    real: Real,
    self: QueueLog,
    queue_id: int,
    record: Any,
    messages: RunTable,
    first: int,
    last: int,
) -> None:
    real(self, queue_id, record, messages, max(first - 2, 1), last + 2)


@instead("checkpoint without its state", QueueLog, "_checkpoint")
def _checkpoint_stateless(
    real: Real, self: QueueLog, queue_id: int, record: Any, ops: RunTable, state: bytes, lsn: int
) -> None:
    """The ops that it stands for are gone, and the state before stays."""
    if not ops.delete(0, lsn, self._budget):
        self._discard(b"o", queue_id, record, 0, lsn)


# A queue that begins anew has the generation of the one before: what is still to be deleted
# is read as its own, or its own is deleted.
answer("deleted queue's runs come back", QueueLog, "_next_generation", 1)


@instead("fetched frames not written", QueueLog, "apply")
def _fetched_lost(real: Real, self: QueueLog, write: QueueWrite) -> None:
    real(self, replace(write, fetched=()))
