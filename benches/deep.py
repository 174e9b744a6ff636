"""A deep queue of messages that differ, on one node: memory, checkpoint, start after SIGKILL.

    python benches/deep.py --messages 10000000 [--path DIR]

Messages of 1 to 59 bytes, each of a millisecond of its own. A producer would need hours for so many
milliseconds, so a process fills the store itself, through the modules by which a node does (the
applied state, its checkpoints, the store), with times that it sets; it ends by SIGKILL. Then a
node is started on that store, in a process of its own, and takes the first message.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import mirrorq
from mirrorq.config import Config
from mirrorq.containers.run_length import sizes_of
from mirrorq.protocol.effects import QueueWrite
from mirrorq.protocol.ops import Entry
from mirrorq.replication.checkpoints import Checkpoints
from mirrorq.replication.state.pages import PageCache
from mirrorq.replication.state.queue_state import QueueState
from mirrorq.store.node_store import Store
from mirrorq.wire.frames import pack_publish
from mirrorq.wire.ops import FrameCodec

CONFIG = Config(store_bytes_max=40 << 30)
BATCH = 1000
SIZES = 59
CHECKPOINT_BYTES = 8 << 20
"""After so many bytes of frames there is a checkpoint, as on a node."""
WAIT_S = 600.0


def anonymous_mb() -> int:
    """RssAnon of this process."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("RssAnon"))


class Filling:
    """Puts messages into the store of a node that does not run."""

    def __init__(self, path: Path, count: int) -> None:
        with mirrorq.Node("a", path=path, config=CONFIG) as node:
            node.queue("deep", timeout=WAIT_S).close()
        self.store = Store(path, node="a", config=CONFIG)
        (self.queue_id,) = self.store.queue_ids()
        image = self.store.load(self.queue_id)
        self.state = QueueState.of_image(image, PageCache(self.store.page))
        for entry in image.entries:
            self.state.apply(entry)
        self.checkpoints = Checkpoints(image.stale)
        self.codec = FrameCodec()
        self.epoch = self.state.history[-1][0]
        self.lsn = self.state.applied
        self.time_ms = int(time.time() * 1000) - count
        self.pending: list[Entry] = []
        self.longest_s = 0.0
        self.state.columns.publish = self._publish  # type: ignore[method-assign]

    def _publish(self, first: int, offsets: bytes, count: int, stamp: int, ttl: int) -> None:
        """As the columns do, with a millisecond for each message."""
        for index, size in enumerate(sizes_of(offsets, count)):
            self.time_ms += 1
            self.state.columns.append(first + index, first + index, size, self.time_ms, ttl)

    def put(self, bodies: list[bytes]) -> int:
        """One publish; return the bytes of its frame."""
        self.lsn += 1
        entry = self.codec.publish(
            pack_publish(bodies, producer=0, first_number=0),
            queue_id=self.queue_id,
            epoch=self.epoch,
            lsn=self.lsn,
            first_sequence=self.state.next_sequence,
            timestamp_us=self.time_ms * 1000,
        )
        self.state.apply(entry)
        self.pending.append(entry)
        return len(entry.frame)

    def checkpoint(self) -> int:
        """A whole one; return its bytes."""
        written = 0
        while not self.checkpoints.begin(self.state):
            written += self._part()
        while self.checkpoints.is_open:
            written += self._part()
        self.state.release()
        return written

    def _part(self) -> int:
        begun = time.process_time()
        pages, whole = self.checkpoints.part(self.state)
        self.longest_s = max(self.longest_s, time.process_time() - begun)
        write = QueueWrite(
            self.queue_id,
            append=tuple(self.pending),
            pages=tuple(pages),
            state=whole.head if whole else None,
            state_lsn=whole.lsn if whole else 0,
            stable=self.lsn,
        )
        self.store.commit([write])
        self.pending = []
        return sum(len(page.data or b"") for page in pages) + (len(whole.head) if whole else 0)


def fill(path: Path, count: int) -> None:
    filling, since = Filling(path, count), 0
    for bodies in batches(count):
        since += filling.put(bodies)
        if since > CHECKPOINT_BYTES:
            since = 0
            filling.checkpoint()
    filling.checkpoint()
    longest_ms = filling.longest_s * 1000
    print(f"filled {count:,}: RssAnon {anonymous_mb()} MB, longest part of a checkpoint", end=" ")
    print(f"{longest_ms:.1f} ms")
    filling.put([b"last"])
    print(f"a checkpoint after one more put: {filling.checkpoint():,} bytes", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def batches(count: int) -> Iterator[list[bytes]]:
    for first in range(0, count, BATCH):
        yield [b"z" * (1 + n * 31 % SIZES) for n in range(first, min(first + BATCH, count))]


def start(path: Path) -> None:
    begun = time.perf_counter()
    with mirrorq.Node("a", path=path, config=CONFIG) as node:
        queue = node.queue("deep", timeout=WAIT_S)
        message = queue.get(timeout=WAIT_S)
        took = time.perf_counter() - begun
        print(f"start until the first message: {took:.2f} s, RssAnon {anonymous_mb()} MB")
        message.nack().result(WAIT_S)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--path", type=Path, help="directory on the disk that counts")
    parser.add_argument("--only", choices=("fill", "start"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only == "fill":
        fill(options.path, options.messages)
    elif options.only == "start":
        start(options.path)
    else:
        with tempfile.TemporaryDirectory(prefix="mirrorq-deep-", dir=options.path) as place:
            for part in ("fill", "start"):
                words = ["--only", part, "--path", place, "--messages", str(options.messages)]
                done = subprocess.run([sys.executable, __file__, *words], check=False)
                if done.returncode != (-signal.SIGKILL if part == "fill" else 0):
                    raise SystemExit(f"{part} ended with {done.returncode}")


if __name__ == "__main__":
    main()
