"""Counts the contents of a queue, and decides about a publish that would exceed a limit. Pure.

A limit counts ready messages and all publishes in the log, stable or not. Messages that consumers
hold do not count. So returned messages may exceed a limit, and keep their places. Only the master
judges, when it takes a publish into the log. Its decision travels as an op (a refusal, a
drop-head); mirrors look at no limit.

`block` lets the publish wait. `reject-publish` refuses the publish. `drop-head` ends the oldest
ready messages in an op *before* the publish, so no copy ever holds more than the limit. A publish
that can never fit is refused in every mode: it would wait for ever, or empty the queue in vain.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, Protocol

from msgspec import Struct

from mirrorq.containers.ranges import Range, RangeSet
from mirrorq.containers.run_length import SizedPiece, Sizes
from mirrorq.protocol.ops import Entry
from mirrorq.protocol.policy import Definition

NO_LIMIT = 1 << 62


class Depth(Struct, frozen=True, gc=False):
    """Number and bytes of messages that are ready or in the log."""

    count: int
    size: int
    """Bytes of bodies; 0 without a limit in bytes."""


class Limit(Struct, frozen=True, gc=False):
    """Most messages and most bytes of bodies that may be ready."""

    count: int
    size: int
    overflow: Literal["block", "reject-publish", "drop-head"]

    @property
    def counts_bytes(self) -> bool:
        return self.size < NO_LIMIT

    def room(self, depth: Depth) -> Depth:
        """Room for more messages; below 0: excess."""
        return Depth(self.count - depth.count, self.size - depth.size)

    def is_reached(self, depth: Depth) -> bool:
        """Return true if no message with a body has room."""
        return depth.count >= self.count or depth.size >= self.size

    def exceeded_by(self, depth: Depth) -> Depth:
        """Excess above the limit."""
        return Depth(max(depth.count - self.count, 0), max(depth.size - self.size, 0))

    def text(self) -> str:
        """The limit in words of the policy."""
        parts = []
        if self.count < NO_LIMIT:
            parts.append(f"max-length {self.count}")
        if self.counts_bytes:
            parts.append(f"max-length-bytes {self.size}")
        return " and ".join(parts)


def limit_of(definition: Definition) -> Limit | None:
    """Limit of a definition; None: no limit."""
    count, size = definition.max_length, definition.max_length_bytes
    if count is None and size is None:
        return None
    return Limit(
        NO_LIMIT if count is None else count,
        NO_LIMIT if size is None else size,
        definition.overflow,
    )


class Verdict(Struct, frozen=True, gc=False):
    """Decision about the first `count` messages of a batch. The rest is judged afterwards."""

    action: Literal["store", "refuse", "hold"]
    count: int
    keep: int = 0
    """store, drop-head: number of messages, the newest, that stay."""
    room: Depth = Depth(0, 0)
    """store, drop-head: room that the staying messages need."""
    reason: str = ""


def judge(limit: Limit, depth: Depth, sizes: Sequence[int], whole: bool) -> Verdict:
    """Judge a batch: bodies of these sizes, all or none if `whole`."""
    if whole:
        return _judge_whole(limit, depth, sizes)
    if not _may_ever_fit(limit, 1, sizes[0]):
        bad = _prefix(sizes, lambda size: not _may_ever_fit(limit, 1, size))
        return Verdict("refuse", bad, reason=_never(limit, 1, sizes[0]))
    good = _prefix(sizes, lambda size: _may_ever_fit(limit, 1, size))
    if limit.overflow == "drop-head":
        return _dropping(limit, sizes[:good])
    room = limit.room(depth)
    fits = _fitting(room, sizes[:good])
    if fits:
        return Verdict("store", fits)
    if limit.overflow == "block":
        return Verdict("hold", len(sizes), reason=full_text(limit, depth))
    refused = good if room.count <= 0 else _prefix(sizes[:good], lambda size: size > room.size)
    return Verdict("refuse", refused, reason=full_text(limit, depth))


def _judge_whole(limit: Limit, depth: Depth, sizes: Sequence[int]) -> Verdict:
    count, size = len(sizes), sum(sizes)
    if limit.overflow == "drop-head":
        bad = [one for one in sizes if not _may_ever_fit(limit, 1, one)]
        if bad:
            return Verdict("refuse", count, reason=_never(limit, 1, bad[0]))
        return _dropping(limit, sizes)
    return _judge_sum(limit, depth, count, size)


def judge_pieces(limit: Limit, depth: Depth, pieces: Sequence[SizedPiece], largest: int) -> Verdict:
    """Judge a commit, all or none. The cost grows with the pieces, not with the messages.

    Args:
        largest: upper bound for the bytes of the largest body.
    """
    count = sum(last - first + 1 for first, last, _ in pieces)
    if limit.overflow != "drop-head":
        size = sum(sizes.total(first, last) for first, last, sizes in pieces)
        return _judge_sum(limit, depth, count, size)
    if not _may_ever_fit(limit, 1, largest):
        return Verdict("refuse", count, reason=_never(limit, 1, largest))
    need = _newest(limit, pieces)
    return Verdict("store", count, need.count, need)


def _newest(limit: Limit, pieces: Sequence[SizedPiece]) -> Depth:
    """Number and bytes of the newest messages that have room in an empty queue."""
    count = size = 0
    for first, last, sizes in reversed(pieces):
        low = max(first, last + 1 - (limit.count - count))
        room = limit.size - size
        # The sums rise as the beginning goes back: find the first beginning that is small enough.
        begins = range(low, last + 1)
        low += bisect_left(begins, True, key=partial(_has_room, sizes, last, room))
        if low <= last:
            count, size = count + last - low + 1, size + sizes.total(low, last)
        if low > first:
            break
    return Depth(count, size)


def _has_room(sizes: Sizes, last: int, room: int, first: int) -> bool:
    return sizes.total(first, last) <= room


def _judge_sum(limit: Limit, depth: Depth, count: int, size: int) -> Verdict:
    """Judge all or none, without dropping old messages."""
    if not _may_ever_fit(limit, count, size):
        return Verdict("refuse", count, reason=_never(limit, count, size))
    room = limit.room(depth)
    if count <= room.count and size <= room.size:
        return Verdict("store", count)
    action: Literal["refuse", "hold"] = "hold" if limit.overflow == "block" else "refuse"
    return Verdict(action, count, reason=full_text(limit, depth))


def _dropping(limit: Limit, sizes: Sequence[int]) -> Verdict:
    """Take all messages; beyond the limit only the newest stay."""
    keep = _fitting(Depth(limit.count, limit.size), sizes[::-1])
    need = Depth(keep, sum(sizes[len(sizes) - keep :]))
    return Verdict("store", len(sizes), keep, need)


def _may_ever_fit(limit: Limit, count: int, size: int) -> bool:
    return count <= limit.count and size <= limit.size


def _prefix(sizes: Sequence[int], test: Callable[[int], bool]) -> int:
    """Number of leading sizes that pass a test."""
    for index, size in enumerate(sizes):
        if not test(size):
            return index
    return len(sizes)


def _fitting(room: Depth, sizes: Sequence[int]) -> int:
    """Number of leading bodies that have room together."""
    most = min(len(sizes), max(room.count, 0))
    if sum(sizes[:most]) <= room.size:
        return most
    left = room.size
    for index, size in enumerate(sizes):
        left -= size
        if left < 0:
            return index
    return most


def _never(limit: Limit, count: int, size: int) -> str:
    return (
        f"{count} message(s) of {size} bytes together never fit a queue with {limit.text()}: "
        "publish less at once, or raise the limit"
    )


def full_text(limit: Limit, depth: Depth) -> str:
    """Why there is no room now."""
    held = f"{depth.count} messages"
    if limit.counts_bytes:
        held += f" of {depth.size} bytes"
    return f"the queue is full: {held} are ready, its policy says {limit.text()}: consume and ack"


class Summed(Protocol):
    """Sizes of messages, and sums of sizes."""

    def total(self, first: int, last: int) -> int:
        """Bytes of the messages from first to last, which must all be live."""

    def reach(self, first: int, last: int, size: int) -> int:
        """First message at which the bodies from `first` on reach `size` bytes."""


class InLog:
    """Messages that are in the master's log and not applied yet."""

    def __init__(self) -> None:
        self._sizes = Sizes()
        self._coming = RangeSet()
        """Messages that will be ready when their op is applied."""
        self._doomed = 0
        """Messages up to this sequence are dropped by a later op in the log."""

    def add_publish(self, entry: Entry) -> None:
        """Note a publish that is appended to the log."""
        header = entry.header
        self._sizes.append_offsets(header.first_sequence, entry.offsets, header.count)
        self._coming.add(header.first_sequence, header.last_sequence)

    def note_pieces(self, first: int, pieces: Sequence[SizedPiece]) -> None:
        """Note a commit that is appended to the log, with messages from `first` on."""
        count = sum(high - low + 1 for low, high, _ in pieces)
        if count:
            self._sizes.append_pieces(first, pieces)
            self._coming.add(first, first + count - 1)

    def on_applied(self, first: int, last: int) -> Range:
        """Note an applied publish; return its ready messages, (1, 0) without any."""
        self._sizes.forget(1, last)
        self._coming.remove(1, last)
        first = max(first, self._doomed + 1)
        return (first, last) if first <= last else (1, 0)

    def _left(self) -> list[Range]:
        """Messages in the log that will be ready."""
        coming = self._coming
        return coming.within(self._doomed + 1, coming.last) if coming else []

    def depth(self) -> Depth:
        """Depth of the messages that will be ready."""
        left = self._left()
        count = sum(last - first + 1 for first, last in left)
        return Depth(count, sum(self._sizes.total(first, last) for first, last in left))

    def drop_oldest(self, excess: Depth) -> tuple[list[Range], Depth]:
        """Drop the oldest messages until the excess is gone; return them and the rest."""
        dropped: list[Range] = []
        for first, last in self._left():
            end, excess = oldest(self._sizes, first, last, excess)
            if end < first:
                break
            self._doomed = end
            dropped.append((first, end))
        return dropped, excess


def oldest(sizes: Summed, first: int, last: int, excess: Depth) -> tuple[int, Depth]:
    """Last of the oldest messages that must go to end the excess, and the rest of the excess.

    The result is first - 1 when nothing is in excess.
    """
    end = min(first - 1 + max(excess.count, 0), last)
    if excess.size > 0:
        end = max(end, sizes.reach(first, last, excess.size))
    if end < first:
        return end, Depth(max(excess.count, 0), 0)
    count, size = end - first + 1, sizes.total(first, end)
    return end, Depth(max(excess.count - count, 0), max(excess.size - size, 0))
