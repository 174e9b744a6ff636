"""Rules of the store that are left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from harness.mutations.registry import Patch, named
from mirrorq.protocol.effects import QueueWrite
from mirrorq.store.queue_log import QueueLog
from mirrorq.store.run_table import RunTable


@named("cut that keeps publishes on disk")
def _cut_keeps() -> Sequence[Patch]:
    real = RunTable.truncate

    def truncate(self: RunTable, lsn: int) -> None:
        if self.name != "messages":
            real(self, lsn)

    return [(RunTable, "truncate", truncate)]


@named("release of runs that are partly live")
def _release_partly() -> Sequence[Patch]:
    real = QueueLog._release

    def release(
        self: QueueLog, queue_id: int, record: Any, messages: RunTable, first: int, last: int
    ) -> None:
        real(self, queue_id, record, messages, max(first - 2, 1), last + 2)

    return [(QueueLog, "_release", release)]


@named("checkpoint without its state")
def _checkpoint_stateless() -> Sequence[Patch]:
    """The ops that it stands for are gone, and the state before stays."""

    def checkpoint(
        self: QueueLog, queue_id: int, record: Any, ops: RunTable, state: bytes, lsn: int
    ) -> None:
        if not ops.delete(0, lsn, self._budget):
            self._discard(b"o", queue_id, record, 0, lsn)

    return [(QueueLog, "_checkpoint", checkpoint)]


@named("deleted queue's runs come back")
def _generation_kept() -> Sequence[Patch]:
    """A queue that begins anew has the generation of the one before: what is still to be deleted
    is read as its own, or its own is deleted."""

    def same(self: QueueLog) -> int:
        return 1

    return [(QueueLog, "_next_generation", same)]


@named("fetched frames not written")
def _fetched_lost() -> Sequence[Patch]:
    real = QueueLog.apply

    def apply(self: QueueLog, write: QueueWrite) -> None:
        real(self, replace(write, fetched=()))

    return [(QueueLog, "apply", apply)]
