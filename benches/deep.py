"""A deep queue, of any shape, on one node: memory, checkpoint, start after SIGKILL.

    python benches/deep.py --messages 10000000 [--path DIR]
    python benches/deep.py --producers 1000000
    python benches/deep.py --holes 1000000

Messages of 1 to 59 bytes, each of a millisecond of its own; or so many producer ids, each of which
has published; or equal messages, of which every second one was acked. A producer would need hours
for so many milliseconds, so a process fills the store itself, through the modules by which a node
does (the applied state, its checkpoints, the store), with times that it sets; it ends by SIGKILL.
Then a node is started on that store, in a process of its own, and takes the first message.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from pathlib import Path

import mirrorq
from mirrorq.config import Config
from mirrorq.containers.run_length import sizes_of
from mirrorq.protocol.effects import Page, QueueWrite
from mirrorq.protocol.ops import AckOp, Entry, Payload, ProducerOp
from mirrorq.replication.checkpoints import Checkpoints, Open
from mirrorq.replication.state.pages import PageCache
from mirrorq.replication.state.queue_state import QueueState
from mirrorq.store.node_store import Store
from mirrorq.wire.frames import pack_publish
from mirrorq.wire.ops import FrameCodec

CONFIG = Config(store_bytes_max=40 << 30)
BATCH = 1000
SIZES = 59
ENTRIES = 2000
"""After so many there is a commit."""
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
        self.longest_s = self.longest_op_s = 0.0

    def spread_times(self) -> None:
        """From now on each message gets a millisecond of its own."""
        self.state.columns.publish = self._publish  # type: ignore[method-assign]

    def _publish(self, first: int, offsets: bytes, count: int, stamp: int, ttl: int) -> None:
        """As the columns do, with a millisecond for each message."""
        for index, size in enumerate(sizes_of(offsets, count)):
            self.time_ms += 1
            self.state.columns.append(first + index, first + index, size, self.time_ms, ttl)

    def put(self, bodies: list[bytes], producer: int = 0) -> int:
        """One publish; return the bytes of its frame."""
        self.lsn += 1
        entry = self.codec.publish(
            pack_publish(bodies, producer=producer, first_number=bool(producer)),
            queue_id=self.queue_id,
            epoch=self.epoch,
            lsn=self.lsn,
            first_sequence=self.state.next_sequence,
            timestamp_us=self.time_ms * 1000,
        )
        return self._apply(entry)

    def op(self, payload: Payload) -> int:
        """One op that is no publish; return the bytes of its frame."""
        self.lsn += 1
        where = {"queue_id": self.queue_id, "epoch": self.epoch, "lsn": self.lsn}
        return self._apply(self.codec.op(payload, **where, timestamp_us=self.time_ms * 1000))

    def _apply(self, entry: Entry) -> int:
        begun = time.process_time()
        self.state.apply(entry)
        self.longest_op_s = max(self.longest_op_s, time.process_time() - begun)
        self.pending.append(entry)
        if len(self.pending) == ENTRIES:
            self._commit()
        return len(entry.frame)

    def checkpoint(self) -> int:
        """A whole one; return its bytes."""
        written = 0
        while not self._begin():
            written += self._part()
        while self.checkpoints.is_open:
            written += self._part()
        self.state.release()
        return written

    def _begin(self) -> bool:
        begun = time.process_time()
        has_begun = self.checkpoints.begin_checkpoint(self.state)
        self.longest_s = max(self.longest_s, time.process_time() - begun)
        return has_begun

    def _part(self) -> int:
        begun = time.process_time()
        pages, whole = self.checkpoints.part(self.state)
        self.longest_s = max(self.longest_s, time.process_time() - begun)
        self._commit(tuple(pages), whole)
        return sum(len(page.data or b"") for page in pages) + (len(whole.head) if whole else 0)

    def _commit(self, pages: tuple[Page, ...] = (), whole: Open | None = None) -> None:
        write = QueueWrite(
            self.queue_id,
            append=tuple(self.pending),
            pages=pages,
            state=whole.head if whole else None,
            state_lsn=whole.lsn if whole else 0,
            stable=self.lsn,
        )
        self.store.commit([write])
        self.pending = []


def fill(path: Path, what: str, count: int) -> None:
    filling, since = Filling(path, count), 0
    gc.collect()
    gc.freeze()  # a walk of the interpreter's own objects is no part of a step
    for size in SHAPES[what](filling, count):
        since += size
        if since > CHECKPOINT_BYTES or filling.state.is_heavy:
            since = 0
            filling.checkpoint()
    filling.checkpoint()
    print(f"{count:,} {what}: RssAnon of who filled {anonymous_mb()} MB, CPU of the", end=" ")
    print(f"longest op {filling.longest_op_s * 1000:.1f} ms, of a checkpoint's", end=" ")
    print(f"longest part {filling.longest_s * 1000:.1f} ms")
    filling.put([b"last"])
    print(f"a checkpoint after one more put: {filling.checkpoint():,} bytes", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def messages(filling: Filling, count: int) -> Iterator[int]:
    """That differ in size and time."""
    filling.spread_times()
    for first in range(0, count, BATCH):
        last = min(first + BATCH, count)
        yield filling.put([b"z" * (1 + n * 31 % SIZES) for n in range(first, last)])


def producers(filling: Filling, count: int) -> Iterator[int]:
    """Each has published, one after the other, and then a tenth of them again, far apart."""
    ids = array("Q")
    for _ in range(count):
        yield filling.op(ProducerOp("bench/1"))
        ids.append(filling.state.producer_id(filling.lsn))
        yield filling.put([b"z"], ids[-1])
    for number in range(count // 10):
        yield filling.put([b"z"], ids[number * 7919 % count])


def holes(filling: Filling, count: int) -> Iterator[int]:
    """Of equal messages every second one is acked."""
    for first in range(1, 2 * count + 1, 2 * BATCH):
        last = min(first + 2 * BATCH - 1, 2 * count)
        yield filling.put([b"z" * SIZES] * (last - first + 1))
        yield filling.op(AckOp(tuple((n, n) for n in range(first, last, 2))))


SHAPES = {"messages": messages, "producers": producers, "holes": holes}


class Collections:
    """Python's garbage collections in this process."""

    def __init__(self) -> None:
        self.longest_s = self._begun = 0.0
        gc.callbacks.append(self._note)

    def _note(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._begun = time.thread_time()
        else:
            self.longest_s = max(self.longest_s, time.thread_time() - self._begun)

    def text(self) -> str:
        gc.collect()
        tracked = len(gc.get_objects())
        return f"{tracked:,} objects, longest garbage collection {self.longest_s * 1000:.1f} ms CPU"


def start(path: Path) -> None:
    begun, collections = time.perf_counter(), Collections()
    with mirrorq.Node("a", path=path, config=CONFIG) as node:
        queue = node.queue("deep", timeout=WAIT_S)
        message = queue.get(timeout=WAIT_S)
        took = time.perf_counter() - begun
        cpu_s = time.process_time()
        print(f"start until the first message: {took:.2f} s (CPU of the process", end=" ")
        print(f"{cpu_s:.2f} s), RssAnon {anonymous_mb()} MB, {collections.text()}")
        message.nack().result(WAIT_S)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for what in SHAPES:
        parser.add_argument(f"--{what}", type=int)
    parser.add_argument("--path", type=Path, help="directory on the disk that counts")
    parser.add_argument("--only", choices=("fill", "start"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    given = [(what, getattr(options, what)) for what in SHAPES if getattr(options, what)]
    what, count = given[0] if given else ("messages", 10_000_000)
    if options.only == "fill":
        fill(options.path, what, count)
    elif options.only == "start":
        start(options.path)
    else:
        with tempfile.TemporaryDirectory(prefix="mirrorq-deep-", dir=options.path) as place:
            for part in ("fill", "start"):
                words = ["--only", part, "--path", place, f"--{what}", str(count)]
                done = subprocess.run([sys.executable, __file__, *words], check=False)
                if done.returncode != (-signal.SIGKILL if part == "fill" else 0):
                    raise SystemExit(f"{part} ended with {done.returncode}")


if __name__ == "__main__":
    main()
