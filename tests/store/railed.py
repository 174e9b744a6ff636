"""A store and a rail without a thread, and what they leave on the disk."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from mirrorq.protocol.effects import QueueWrite
from mirrorq.protocol.ops import Entry
from mirrorq.protocol.ring import STAR, Data
from mirrorq.store.node_store import Rail
from mirrorq.store.rail_log import HALF_BYTES
from mirrorq.wire.rail import LOGGED, pack_data

from .writing import QUEUE, Writer, frames_of, open_store

_rail: Any = pytest.importorskip("mirrorq._native._rail", reason="this system has no rail")
ffi, lib = _rail.ffi, _rail.lib
PEER = 1


class Railed:
    """A store, and a rail without a thread that writes into its log."""

    def __init__(self, path: Path) -> None:
        self.store = open_store(path)
        found = self.store.begin_rail()
        assert found is not None
        self.log: Rail = found
        from mirrorq.wire.native_rail import NativeRail

        self.native = NativeRail(self.log.salt, HALF_BYTES)
        self.rail = self.native._rail

    def arm(self, writer: Writer) -> None:
        assert self.store.may_rail(writer.queue_id, writer.lsn)
        assert self.native.arm(writer.queue_id, writer.epoch, writer.lsn, PEER)

    def write(self, *entries: Entry, stable: int = 0) -> None:
        """Into the log's file; Python has not taken it then."""
        message = pack_data(Data(entries[0].header.queue_id, 1, stable, entries, 0, STAR))
        assert lib.mq_rail_on_message(self.rail, PEER, message, len(message)) == 0
        out, offset = ffi.new("uint8_t[]", 1 << 18), ffi.new("uint64_t *")
        size = lib.mq_rail_begin_write(self.rail, out, 1 << 18, offset)
        assert size > 0
        self.log.file.write(offset[0], [bytes(ffi.buffer(out, size))])
        assert lib.mq_rail_end_write(self.rail, 1) == 0

    def take(self) -> list[Entry]:
        handed = [one for one in self.native.take_items() if one.kind == LOGGED]
        writes = [
            QueueWrite(one.queue_id, append=one.message.entries, stable=one.message.stable)
            for one in handed
            if one.message is not None
        ]
        if writes:
            self.store.take_railed(writes, handed[-1].number)
        return [entry for write in writes for entry in write.append]

    def crash(self, path: Path, copy: Path) -> Path:
        """What a killed process leaves."""
        shutil.copytree(path, copy)
        return copy


def begun(path: Path, *writers: Writer) -> Railed:
    """One op of each queue is in LMDB, and the rail has the queues."""
    railed = Railed(path)
    for writer in writers:
        railed.store.commit([QueueWrite(writer.queue_id, append=(writer.publish([b"first"]),))])
        railed.arm(writer)
    return railed


def loaded(path: Path, queue_id: int = QUEUE) -> list[bytes]:
    store = open_store(path)
    try:
        return frames_of(store.load(queue_id).entries)
    finally:
        store.close()
