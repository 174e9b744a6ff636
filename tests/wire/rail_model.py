"""The rail's decisions in plain Python, written from rail.h alone: the oracle of test_rail.py."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import NamedTuple

from reference import MalformedError, crc32c, decode

MAGIC = 0x3172716D
RAW, LOGGED, STOPPED = 1, 2, 3
ASKED, EPOCH, GAP, FRAME, LARGE, FULL, DISK = range(1, 8)
DATA = struct.Struct("<IIQQQQ")
MARK = struct.Struct("<IIQQQ")
MESSAGES_MAX = 128
URGENT_BYTES = 256 << 10
RECEIPT_BYTES_MAX = 4 << 20
PAGE = 4096


class Batch(NamedTuple):
    """What is handed over."""

    kind: int
    peer: int
    queue_id: int
    epoch: int
    stable: int
    time_us: int
    number: int
    frames: bytes

    @property
    def size(self) -> int:
        return 64 + len(self.frames)


@dataclass
class Lane:
    epoch: int
    received: int
    peer: int
    is_at_receipt: bool
    is_draining: bool = False


class Message(NamedTuple):
    peer: int
    queue_id: int
    epoch: int
    stable: int
    time_us: int
    frames: bytes


def split(run: bytes) -> list[bytes] | None:
    """The frames of a run; None: they are not what they should be."""
    frames = []
    at = 0
    while at < len(run):
        size = int.from_bytes(run[at + 44 : at + 48], "little")
        frame = run[at : at + size]
        try:
            decode(frame)
        except (MalformedError, struct.error):
            return None
        frames.append(frame)
        at += size
    return frames


@dataclass
class RailModel:
    salt: int
    number: int
    half_bytes: int
    group_bytes_max: int
    lanes: dict[int, Lane] = field(default_factory=dict)
    group: list[Message] = field(default_factory=list)
    in_flight: int = 0
    """Bytes of the record that is being written."""
    out: list[Batch] = field(default_factory=list)
    marks: dict[int, None] = field(default_factory=dict)
    ends: list[int] = field(default_factory=lambda: [0, 0])
    lasts: list[int] = field(default_factory=lambda: [0, 0])
    half: int = 0
    has: int = 0
    used: int = 0
    is_news: bool = False
    """Something is among what was handed over that Python should not be late for."""
    is_broken: bool = False
    garbage: int = 0

    def arm(self, queue_id: int, epoch: int, after: int, peer: int, at_receipt: bool) -> int:
        waits = any(batch.queue_id == queue_id for batch in self.out)
        if self.is_broken or waits or queue_id in self.lanes:
            return 1
        self.lanes[queue_id] = Lane(epoch, after, peer, at_receipt)
        return 0

    def disarm(self, queue_id: int) -> int:
        lane = self.lanes.get(queue_id)
        if lane is None:
            return int(
                not any(one.queue_id == queue_id and one.kind == STOPPED for one in self.out)
            )
        if self._is_in_group(queue_id):
            lane.is_draining = True
        else:
            self._stop(queue_id, ASKED)
        return 0

    def on_message(self, peer: int, data: bytes) -> int:
        if self.in_flight:
            return 1
        if len(data) < DATA.size or (len(data) - DATA.size) % 8:
            self.garbage += 1
            return 0
        magic, kind, *numbers = DATA.unpack_from(data)
        if (magic, kind) != (MAGIC, 1) or max(numbers) >= 1 << 63:
            self.garbage += 1
            return 0
        queue_id, epoch, stable, time_us = numbers
        frames = data[DATA.size :]
        return self._judge(Message(peer, queue_id, epoch, stable, time_us, frames))

    def _judge(self, message: Message) -> int:
        lane = self.lanes.get(message.queue_id)
        why = 0
        if lane is not None and not lane.is_draining:
            why, last = self._look(lane, message)
            if last:
                return self._take(lane, message, last)
        if self._is_in_group(message.queue_id):
            return 1
        if why:
            self._stop(message.queue_id, why)
        self.out.append(Batch(RAW, *message[:5], 0, message.frames))
        self.is_news = True
        return 0

    def _look(self, lane: Lane, message: Message) -> tuple[int, int]:
        """Why the queue is to stop, or the last lsn of what is taken, or nothing of both."""
        if message.peer != lane.peer or message.epoch != lane.epoch:
            return EPOCH, 0
        if not message.frames:
            return 0, 0
        if len(message.frames) > self.group_bytes_max:
            return LARGE, 0
        frames = split(message.frames)
        if frames is None:
            return FRAME, 0
        heads = [struct.unpack_from("<QQQ", frame, 8) for frame in frames]
        first = heads[0][2]
        told = [(message.queue_id, lane.epoch, first + index) for index in range(len(heads))]
        if heads != told or first == 0:
            return FRAME, 0
        last = heads[-1][2]
        if last <= lane.received:
            return 0, 0
        if first != lane.received + 1:
            return GAP, 0
        if lane.is_at_receipt and self.waiting + 64 + len(message.frames) > RECEIPT_BYTES_MAX:
            return LARGE, 0
        return 0, last

    def _take(self, lane: Lane, message: Message, last: int) -> int:
        if lane.is_at_receipt:
            self.out.append(Batch(RAW, *message[:5], 0, message.frames))
            self.marks[message.queue_id] = None
            lane.received = last
            return 0
        size = sum(len(one.frames) for one in self.group) + len(message.frames)
        if len(self.group) == MESSAGES_MAX or size > self.group_bytes_max:
            return 1
        self.group.append(message)
        lane.received = last
        return 0

    def begin_write(self) -> tuple[bytes, int] | None:
        if not self.group or self.in_flight:
            return None
        payload = b"".join(
            struct.pack("<QQII", one.queue_id, one.stable, len(one.frames), 0) + one.frames
            for one in self.group
        )
        space = -(-(32 + len(payload)) // PAGE) * PAGE
        if not self._find_room(space):
            self._give_group_up(FULL)
            return None
        self.number += 1
        summed = struct.pack("<QQII", self.salt, self.number, len(payload), 0)
        crc = crc32c(summed + payload).to_bytes(4, "little")
        self.in_flight = space
        record = (b"mqw1" + crc + summed + payload).ljust(space, b"\0")
        return record, self.half * self.half_bytes + self.ends[self.half]

    def _find_room(self, space: int) -> bool:
        if self.ends[self.half] + space <= self.half_bytes:
            return True
        other = 1 - self.half
        if self.lasts[other] > self.has or space > self.half_bytes:
            return False
        self.half, self.ends[other], self.lasts[other] = other, 0, 0
        return True

    def end_write(self, ok: bool) -> None:
        if not self.in_flight:
            return
        if not ok:
            self.is_broken = True
            self._give_group_up(DISK)
            for queue_id in list(self.lanes):
                self._stop(queue_id, DISK)
            return
        self.ends[self.half] += self.in_flight
        self.lasts[self.half] = self.number
        self.used += self.in_flight
        for one in self.group:
            self.out.append(Batch(LOGGED, *one[:5], self.number, one.frames))
        queues = dict.fromkeys(one.queue_id for one in self.group)
        self.group, self.in_flight = [], 0
        for queue_id in queues:
            if self.lanes[queue_id].is_draining:
                self._stop(queue_id, ASKED)
            else:
                self.marks[queue_id] = None

    def _give_group_up(self, why: int) -> None:
        for queue_id in dict.fromkeys(one.queue_id for one in self.group):
            self._stop(queue_id, why)
        self.out += [Batch(RAW, *one[:5], 0, one.frames) for one in self.group]
        self.is_news = self.is_news or bool(self.group)
        self.group, self.in_flight = [], 0

    def next_mark(self) -> tuple[bytes, int] | None:
        while self.marks:
            queue_id = next(iter(self.marks))
            del self.marks[queue_id]
            lane = self.lanes.get(queue_id)
            if lane is not None and not lane.is_draining:
                mark = MARK.pack(MAGIC, 2, queue_id, lane.epoch, lane.received)
                return mark, lane.peer
        return None

    def take(self, size: int) -> list[Batch] | int:
        """Whole batches, or less than 0."""
        if self.out and self.out[0].size > size:
            return -self.out[0].size
        taken = []
        while self.out and self.out[0].size <= size:
            size -= self.out[0].size
            taken.append(self.out.pop(0))
        if not self.out:
            self.used, self.is_news = 0, False
        return taken

    @property
    def is_urgent(self) -> bool:
        return self.is_news or self.waiting > URGENT_BYTES or self.used > self.half_bytes // 2

    @property
    def waiting(self) -> int:
        return sum(batch.size for batch in self.out)

    def cut(self, number: int) -> None:
        self.has = max(self.has, number)

    def _is_in_group(self, queue_id: int) -> bool:
        return any(one.queue_id == queue_id for one in self.group)

    def _stop(self, queue_id: int, why: int) -> None:
        lane = self.lanes.pop(queue_id)
        self.marks.pop(queue_id, None)
        self.out.append(Batch(STOPPED, lane.peer, queue_id, lane.epoch, why, 0, 0, b""))
        self.is_news = True
