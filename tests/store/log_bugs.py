"""Deliberate bugs around the logs and pages, each of which a crash has to bring to light."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import lmdb

from mirrorq import system
from mirrorq.protocol.effects import Page, sorted_out
from mirrorq.store import queue_log, write_ahead
from mirrorq.store.write_ahead import LogMark, Tail, size_of

# --- Of a store that writes: made in its process, for good -----------------------------------


def told_before_the_disk() -> None:
    """A record is told durable when the kernel has it."""
    system.synced_writes = lambda: os.O_CLOEXEC


def begun_anew_before_the_sync() -> None:
    """The file begins anew after a transaction of LMDB that is not synced."""
    opened = lmdb.open

    def without_sync(*arguments: Any, **options: Any) -> lmdb.Environment:
        return opened(*arguments, **options, sync=False)

    lmdb.open = without_sync  # type: ignore[assignment,misc]


def begun_anew_when_full() -> None:
    """A file that is full begins anew, and LMDB has not got what was in it."""

    def takes(tail: Tail, payload_bytes: int) -> bool:
        if tail.end + size_of(payload_bytes) > tail.bytes_max:
            tail.end = 0
        return True

    Tail.takes = takes  # type: ignore[method-assign]


def carried_out_again() -> None:
    """LMDB is not told what it has: a start carries it out again, after what came later."""
    Tail.is_ahead = False  # type: ignore[assignment,method-assign]


WRITING: dict[str, Callable[[], None]] = {
    bug.__name__: bug
    for bug in (
        told_before_the_disk,
        begun_anew_before_the_sync,
        begun_anew_when_full,
        carried_out_again,
    )
}

# --- Of a store that starts: what stands in the place of a function of `write_ahead` -------------


def _unchecked(data: bytes, at: int, salt: int) -> tuple[int, bytes] | None:
    head = write_ahead._HEAD
    if len(data) - at < head.size:
        return None
    magic, _, its_salt, number, length, _ = head.unpack_from(data, at)
    if magic != write_ahead.MAGIC or its_salt != salt:
        return None
    return number, data[at + head.size : at + head.size + length]


def _nothing(data: bytes, mark: LogMark) -> list[bytes]:
    return []


def _oldest_counts(pages: Iterable[Page], lsn: int) -> tuple[tuple[Page, ...], tuple[Page, ...]]:
    found = sorted((one for one in pages if one.lsn <= lsn), key=lambda one: -one.lsn)
    counting = {(one.kind, one.first): one for one in found}
    return tuple(counting[place] for place in sorted(counting)), ()


def _staged_counts(pages: Iterable[Page], lsn: int) -> tuple[tuple[Page, ...], tuple[Page, ...]]:
    return sorted_out(pages, 1 << 62)


READING: dict[str, tuple[ModuleType, str, Callable[..., object]]] = {
    "torn_end_believed": (write_ahead, "_record_at", _unchecked),
    "not_taken_in": (write_ahead, "surviving", _nothing),
    "page_of_an_older_lsn_believed": (queue_log, "sorted_out", _oldest_counts),
    "page_without_its_head_believed": (queue_log, "sorted_out", _staged_counts),
}
