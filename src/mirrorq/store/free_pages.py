"""The free pages of an LMDB file usable by a transaction now, as LMDB would find them.

LMDB lists the pages freed by a transaction in a table, under the transaction's number. LMDB reuses
the pages when no reader looks at the old state or an older state. The state must not be the last
commit either, to which a crash would lead back. So pages freed by commit n are usable from commit n
+ 2 on, and later while a reader is older than n + 1. A value above half a page needs adjacent
pages.

The binding does not show the table, so its pages are read from the file. Call only from the writing
thread, between two transactions: then the table does not change.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Iterator

Stretch = tuple[int, int]
"""(first page, count) of adjacent free pages."""

IDS_MAX = 1 << 17
"""Limit of free pages read: 512 MiB. Further pages are not counted, which does no harm."""

_META = struct.Struct("<16xI60xQ48x8xQ")
"""Fields of a meta page: magic, root of the table of free pages, transaction."""
_MAGIC = 0xBEEFC0DE
_PAGE = struct.Struct("<10xHH")
"""Fields of a page: flags, end of the list of nodes."""
_NODE = struct.Struct("<HHHH")
"""Length or child, flags, length of the key."""
_BRANCH = 1
_BIG = 1
"""Flag of a node with its data on separate pages."""
_HEAD_BYTES = 16
_NOWHERE = (1 << 64) - 1
_U64 = struct.Struct("<Q")


def usable_stretches(descriptor: int, page_bytes: int, before: int, enough: int) -> list[Stretch]:
    """Return the free pages left by commits before number `before`, in order.

    Args:
        descriptor: Of the data file.
        page_bytes: Size of a page.
        before: Pages under this or a greater number are not usable.
        enough: Stop at so many pages.
    """
    root = _root(descriptor, page_bytes)
    found: list[Stretch] = []
    left = min(enough, IDS_MAX)
    for txn_id, count, at in _records(descriptor, page_bytes, root):
        if txn_id >= before or left <= 0:
            break
        ids = array("Q", os.pread(descriptor, 8 * min(count, left), at))
        left -= len(ids)
        found.extend(_stretches(ids))
    return _merged(found)


def _root(descriptor: int, page_bytes: int) -> int:
    """Return the root page of the table of free pages, as of the last commit."""
    last, root = 0, _NOWHERE
    for page in (0, 1):
        found = os.pread(descriptor, _META.size, page * page_bytes)
        if len(found) < _META.size:
            continue
        magic, of_page, txn_id = _META.unpack(found)
        if magic == _MAGIC and txn_id > last:
            last, root = txn_id, of_page
    return root


def _records(descriptor: int, page_bytes: int, page: int) -> Iterator[tuple[int, int, int]]:
    """(transaction, count of pages, offset of their numbers), in order of the transactions."""
    if page == _NOWHERE:
        return
    start = page * page_bytes
    data = os.pread(descriptor, page_bytes, start)
    flags, lower = _PAGE.unpack_from(data)
    offsets = struct.unpack_from(f"<{(lower - _HEAD_BYTES) // 2}H", data, _HEAD_BYTES)
    for offset in offsets:
        low, high, node_flags, key_bytes = _NODE.unpack_from(data, offset)
        if flags & _BRANCH:
            child = low | high << 16 | node_flags << 32
            yield from _records(descriptor, page_bytes, child)
            continue
        at = offset + _NODE.size
        (txn_id,) = _U64.unpack_from(data, at)
        at += key_bytes
        if node_flags & _BIG:
            (big,) = _U64.unpack_from(data, at)
            at = big * page_bytes + _HEAD_BYTES
        else:
            at += start
        (count,) = _U64.unpack(os.pread(descriptor, 8, at))
        yield txn_id, count, at + 8


def _stretches(ids: array[int]) -> Iterator[Stretch]:
    """Give falling page numbers as stretches; a long stretch costs few steps."""
    at, count = 0, len(ids)
    while at < count:
        end, step = at, 1
        while end + step < count and ids[end] - ids[end + step] == step:
            end += step
            step *= 2
        while step > 1:
            step //= 2
            if end + step < count and ids[end] - ids[end + step] == step:
                end += step
        yield ids[end], end - at + 1
        at = end + 1


def _merged(stretches: list[Stretch]) -> list[Stretch]:
    merged: list[Stretch] = []
    for first, count in sorted(stretches):
        if merged and sum(merged[-1]) == first:
            merged[-1] = (merged[-1][0], merged[-1][1] + count)
        else:
            merged.append((first, count))
    return merged
