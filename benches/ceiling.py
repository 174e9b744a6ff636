"""The measuring stick: what this machine can do without a queue.

Three bare processes stand in a ring. The first makes batches, each passes a batch to the right
before it writes it, each commits what a round brought in one synced LMDB transaction, and the
running minimum of what is on disk travels round to the first. That is all of mirrorq's work
that the disk and the network do, and none of the queue's: no frames, no checksums, no state, no
handles. mirrorq's figures are quoted as a share of these, measured in the same run.

    python benches/ceiling.py                  # a table
    python benches/ceiling.py --json
    python benches/ceiling.py --path /mnt/ssd  # the disk that counts

`measure` is the same for programs. Nothing stays behind.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import lmdb
import zmq

MESSAGE_BYTES = 100
BATCH_COUNT = 1_000
IN_FLIGHT_MAX = 64
"""Batches of 100,000 bytes that are not yet on every disk: 6.4 MB, a tenth of mirrorq's bound."""
RUN_BYTES_MAX = 1 << 20
"""One LMDB value holds up to this: mirrorq's store does the same."""
SLOTS = 256
"""Values are overwritten in turn, so that the file stays small, as a drained queue's does."""
MAP_BYTES = 1 << 30
SILENCE_MS = 30_000
"""A member that hears nothing for this long ends: its neighbour is gone."""
LINGER_MS = 1_000
MEMBERS = 3
SENT_LEAST = 2
"""Batches, however long one takes."""
NUMBER_BYTES = 8
BATCH = b"batch"
STOP = b"stop"


class CeilingResult(NamedTuple):
    """What the machine can do. Times in milliseconds."""

    messages_per_second: float
    """Batches of `BATCH_COUNT` messages, `IN_FLIGHT_MAX` of them under way."""
    latency_p50_ms: float
    """One message at a time, from before its send until it is on every disk."""
    latency_p99_ms: float
    busy: bool
    """A thread that computes in Python ran beside the first member."""


def measure(
    path: str | os.PathLike[str] | None = None,
    *,
    busy: bool = False,
    seconds: float = 3.0,
    message_bytes: int = MESSAGE_BYTES,
    batch: int = BATCH_COUNT,
    in_flight: int = IN_FLIGHT_MAX,
    members: int = MEMBERS,
) -> CeilingResult:
    """Measure the ring.

    Args:
        path: where to make the stores, on the disk that counts; None: the temporary directory.
        busy: run a thread that computes in Python in the first member.
        seconds: length of each of the two parts.
        message_bytes: of one message.
        batch: messages that are sent and confirmed together.
        in_flight: batches under way at once.
        members: processes in the ring; one alone only writes.

    Returns:
        Figures of this run; the stores are removed.
    """
    task = {
        "message_bytes": message_bytes,
        "busy": busy,
        "seconds": seconds,
        "members": members,
    }
    many = _run_ring(path, task | {"batch": batch, "in_flight": in_flight})
    single = _run_ring(path, task | {"batch": 1, "in_flight": 1})
    cuts = statistics.quantiles(single["latencies_ms"], n=100, method="inclusive")
    return CeilingResult(many["messages"] / many["seconds"], cuts[49], cuts[98], busy)


# --- The ring, from outside ---------------------------------------------------------------


def _run_ring(path: str | os.PathLike[str] | None, task: dict[str, Any]) -> dict[str, Any]:
    """Start the members, join their sockets, and return what the first one reports."""
    directory = tempfile.mkdtemp(prefix="mirrorq-ceiling-", dir=path)
    members: list[subprocess.Popen[str]] = []
    try:
        for index in range(task["members"]):
            own = task | {"index": index, "path": str(Path(directory, str(index)))}
            command = [sys.executable, __file__, "--member", json.dumps(own)]
            members.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
        endpoints = [_line_of(member) for member in members]
        for index, member in enumerate(members):
            assert member.stdin is not None
            member.stdin.write(endpoints[(index + 1) % len(members)] + "\n")
            member.stdin.close()
        report: dict[str, Any] = json.loads(_line_of(members[0]))
        return report
    finally:
        for member in members:
            member.kill()
            member.wait()
            for pipe in (member.stdin, member.stdout):
                if pipe is not None:
                    pipe.close()
        shutil.rmtree(directory)


def _line_of(member: subprocess.Popen[str]) -> str:
    assert member.stdout is not None
    line = member.stdout.readline()
    if not line:
        raise RuntimeError(f"a member of the ring ended with status {member.wait()}")
    return line.strip()


# --- One member ---------------------------------------------------------------------------


class Member:
    """A store and two sockets: batches and marks come in from the left and go out right."""

    def __init__(self, path: str) -> None:
        self.context = zmq.Context()
        self.left = self.context.socket(zmq.PULL)
        self.left.rcvhwm = self.left.sndhwm = 0
        self.left.rcvtimeo = SILENCE_MS
        self.left.bind("tcp://127.0.0.1:*")
        self.right = self.context.socket(zmq.PUSH)
        self.right.rcvhwm = self.right.sndhwm = 0
        self.right.linger = LINGER_MS
        Path(path).mkdir()
        self.store = lmdb.open(path, map_size=MAP_BYTES)
        self.slot = 0
        self.sent_mark = 0
        self.durable = 0

    def join(self, endpoint: str) -> None:
        self.right.connect(endpoint)

    def close(self) -> None:
        self.right.close()
        self.left.close()
        self.context.term()
        self.store.close()

    def commit(self, batches: list[bytes]) -> None:
        """Write them with one synced transaction, as few large values."""
        with self.store.begin(write=True) as txn:
            for run in runs(batches):
                slots = max(1, min(SLOTS, MAP_BYTES // 4 // len(run)))
                self.slot = (self.slot + 1) % slots
                txn.put(self.slot.to_bytes(4, "big"), run)
        self.durable += len(batches)

    def drain(self, wait: bool) -> Iterator[list[bytes]]:
        """Yield what has arrived; with `wait`, at least one message."""
        if wait:
            yield self.left.recv_multipart()
        while True:
            try:
                yield self.left.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return

    def pass_mark(self, mark: int) -> None:
        """Tell the right how much is on disk here and to the left."""
        if mark > self.sent_mark:
            self.sent_mark = mark
            self.right.send(mark.to_bytes(NUMBER_BYTES, "big"))


def runs(batches: list[bytes]) -> Iterator[bytes]:
    """Join batches to values of bounded size."""
    count_max = max(1, RUN_BYTES_MAX // len(batches[0]))
    for start in range(0, len(batches), count_max):
        yield b"".join(batches[start : start + count_max])


def run_mirror(member: Member, index: int, members: int) -> None:
    """Pass batches on before writing them; then pass on what is durable so far."""
    is_last = index == members - 1
    left_durable = sys.maxsize if index == 1 else 0
    while True:
        batches: list[bytes] = []
        for parts in member.drain(wait=True):
            if parts[0] == STOP:
                if not is_last:
                    member.right.send(STOP)
                return
            if parts[0] == BATCH:
                batches.append(parts[1])
                if not is_last:
                    member.right.send_multipart(parts)
            else:
                left_durable = int.from_bytes(parts[0], "big")
        if batches:
            member.commit(batches)
        member.pass_mark(min(left_durable, member.durable))


def run_first(member: Member, task: dict[str, Any]) -> dict[str, Any]:
    """Keep `in_flight` batches under way until the time is over; report what came of it."""
    batch = os.urandom(task["message_bytes"] * task["batch"])
    sent_at: deque[float] = deque()
    latencies_ms: list[float] = []
    is_alone = task["members"] == 1
    sent = stable = left_durable = 0
    start = time.perf_counter()
    end = start + task["seconds"]
    while sent_at or sent < SENT_LEAST or time.perf_counter() < end:
        is_going_on = sent < SENT_LEAST or time.perf_counter() < end
        room = task["in_flight"] - len(sent_at) if is_going_on else 0
        for _ in range(room):
            sent_at.append(time.perf_counter())
            if not is_alone:
                member.right.send_multipart((BATCH, batch))
        sent += room
        if room:
            member.commit([batch] * room)
        # All that was sent is on this disk: only the others' news can change anything now.
        for (mark,) in member.drain(wait=bool(sent_at) and not is_alone):
            left_durable = int.from_bytes(mark, "big")
        if is_alone:
            left_durable = member.durable
        now = time.perf_counter()
        while stable < min(left_durable, member.durable):
            stable += 1
            latencies_ms.append((now - sent_at.popleft()) * 1_000)
    seconds = time.perf_counter() - start
    member.right.send(STOP)
    return {
        "messages": sent * task["batch"],
        "seconds": seconds,
        "latencies_ms": latencies_ms,
    }


def compute() -> None:
    """Hold the interpreter as an application that computes in Python does."""
    number = 1
    while True:
        number = number * 1_103_515_245 % 2_147_483_647


def run_member(task: dict[str, Any]) -> None:
    """Be one process of the ring; the first one prints its report."""
    with closing(Member(task["path"])) as member:
        print(member.left.getsockopt_string(zmq.LAST_ENDPOINT), flush=True)
        member.join(sys.stdin.readline().strip())
        if task["index"] > 0:
            run_mirror(member, task["index"], task["members"])
            return
        if task["busy"]:
            threading.Thread(target=compute, daemon=True).start()
        print(json.dumps(run_first(member, task)), flush=True)


# --- Command line -------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description="what this machine can do without a queue")
    parser.add_argument("--path", help="directory on the disk that counts")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each of four parts")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--member", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.member:
        run_member(json.loads(options.member))
        return
    results = [measure(options.path, busy=busy, seconds=options.seconds) for busy in (False, True)]
    if options.json:
        print(json.dumps([result._asdict() for result in results], indent=2))
        return
    print(f"{'beside a busy thread':20} {'messages/s':>12} {'p50 ms':>8} {'p99 ms':>8}")
    for result in results:
        print(
            f"{'yes' if result.busy else 'no':20} {result.messages_per_second:12,.0f} "
            f"{result.latency_p50_ms:8.2f} {result.latency_p99_ms:8.2f}"
        )


if __name__ == "__main__":
    main()
