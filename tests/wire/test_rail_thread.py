"""The rail's thread: sockets of libzmq, a log on the disk, and what it leaves behind."""

from __future__ import annotations

import os
import random
import select
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.backend.cython._zmq as backend
from rail_frames import batches_of, data_of, frame_of, run_of
from rail_model import DISK, LOGGED, MAGIC, MARK, RAW, STOPPED, Batch

from mirrorq.store.write_ahead import LogMark, surviving, unpacked

pytestmark = pytest.mark.real

_rail: Any = pytest.importorskip("mirrorq._native._rail", reason="this system has no rail")
ffi, lib = _rail.ffi, _rail.lib

HALF = 1 << 20
SALT = 4711
PEER = 7
MIRROR = b"mirror"
WAIT_MS = 30_000

assert lib.mq_rail_load_zmq(backend.__file__.encode()) == 0


class Ends:
    """A rail with its thread, and the master's socket."""

    def __init__(self, path: Path, *, flags: int = os.O_RDWR, keys: bool = False) -> None:
        self.file = path / "mirrorq.rail"
        self.file.write_bytes(bytes(2 * HALF))
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.router = self.context.socket(zmq.ROUTER)
        self.dealer = self.context.socket(zmq.DEALER)
        self.dealer.setsockopt(zmq.ROUTING_ID, MIRROR)
        if keys:
            self._guard()
        port = self.router.bind_to_random_port("tcp://127.0.0.1")
        self.dealer.connect(f"tcp://127.0.0.1:{port}")
        self.log = os.open(self.file, flags | os.O_DSYNC)
        self.told, self.tell = os.pipe()
        self.rail = lib.mq_rail_new(SALT, 1, HALF, 64 << 10)
        assert lib.mq_rail_start(self.rail, self.log, self.tell, 10_000) == 0
        assert lib.mq_rail_add_socket(self.rail, PEER, socket_of(self.dealer)) == 0
        self.hear_hello()

    def _guard(self) -> None:
        public, secret = zmq.curve_keypair()
        self.router.setsockopt(zmq.CURVE_SECRETKEY, secret)
        self.router.setsockopt(zmq.CURVE_SERVER, 1)
        self.dealer.setsockopt(zmq.CURVE_SERVERKEY, public)
        public, secret = zmq.curve_keypair()
        self.dealer.setsockopt(zmq.CURVE_PUBLICKEY, public)
        self.dealer.setsockopt(zmq.CURVE_SECRETKEY, secret)

    def arm(self, queue_id: int = 1, after: int = 0, at_receipt: int = 0) -> None:
        assert lib.mq_rail_arm(self.rail, queue_id, 5, after, PEER, at_receipt) == 0

    def send(self, *parts: bytes) -> None:
        self.router.send_multipart([MIRROR, *parts])

    def _hear(self) -> bytes:
        assert self.router.poll(WAIT_MS), "nothing came"
        sender, message = self.router.recv_multipart()
        assert sender == MIRROR
        return message

    def hear_hello(self) -> None:
        assert self._hear() == struct.pack("<II", MAGIC, 3)

    def hear_mark(self, queue_id: int = 1) -> int:
        """The next mark that is said of this queue."""
        while len(message := self._hear()) == 8:
            pass
        magic, kind, its_queue, epoch, lsn = MARK.unpack(message)
        assert (magic, kind, its_queue, epoch) == (MAGIC, 2, queue_id, 5)
        return int(lsn)

    def hear_mark_of(self, lsn: int) -> None:
        while (heard := self.hear_mark()) < lsn:
            pass
        assert heard == lsn

    def take(self) -> list[Batch]:
        """Wait until it is told of something, and take it."""
        ready, _, _ = select.select([self.told], [], [], WAIT_MS / 1000)
        assert ready, "nothing was told"
        assert os.read(self.told, 8) == (1).to_bytes(8, sys.byteorder)
        return take_all(self.rail)

    def records(self) -> list[int]:
        """lsns that are in the log, in order of its numbers."""
        data = self.file.read_bytes()
        halves = [in_half(data[:HALF]), in_half(data[HALF:])]
        return [lsn for half in sorted(halves, key=lambda one: one[:1]) for lsn in half]

    def close(self) -> None:
        lib.mq_rail_stop(self.rail)
        lib.mq_rail_free(self.rail)
        self.context.destroy(linger=0)
        for file in (self.log, self.told, self.tell):
            os.close(file)


def in_half(data: bytes) -> list[int]:
    number = struct.unpack_from("<Q", data, 16)[0]
    payloads = surviving(data, LogMark(SALT, max(number - 1, 0)))
    writes = [write for payload in payloads for write in unpacked(payload)]
    return [entry.lsn for write in writes for entry in write.append]


def socket_of(socket: zmq.Socket[bytes]) -> Any:
    return ffi.cast("void *", int(socket.underlying))


def take_all(rail: Any) -> list[Batch]:
    """What waits; more may come meanwhile."""
    size = lib.mq_rail_waiting(rail)
    out = ffi.new("uint8_t[]", size + 1)
    taken = lib.mq_rail_take(rail, out, size)
    return batches_of(bytes(ffi.buffer(out, max(taken, 0))))


@pytest.fixture(params=[False, True], ids=["plain", "curve"])
def ends(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ends]:
    ends = Ends(tmp_path, keys=request.param)
    try:
        yield ends
    finally:
        ends.close()


def test_what_is_marked_is_on_the_disk_and_python_gets_it(ends: Ends) -> None:
    ends.arm()
    sent = {}
    for first in range(1, 301, 3):
        sent[first] = run_of(1, 5, first, 3)
        ends.send(data_of(1, 5, sent[first], stable=first, time_us=first + 1))
        if first % 4 == 0:
            ends.hear_mark_of(first + 2)
            assert ends.records()[-1] == first + 2
    ends.hear_mark_of(300)
    assert ends.records() == list(range(1, 301))
    taken: list[Batch] = []
    while len(taken) < len(sent):
        taken += ends.take()
    assert [one.frames for one in taken] == list(sent.values())
    assert [(one.kind, one.peer, one.queue_id, one.epoch) for one in taken] == [
        (LOGGED, PEER, 1, 5)
    ] * len(sent)
    assert [(one.stable, one.time_us) for one in taken] == [(at, at + 1) for at in sent]
    numbers = [one.number for one in taken]
    assert numbers == sorted(numbers)
    assert set(numbers) == set(range(1, numbers[-1] + 1))


def test_both_halves_are_used_and_begun_anew(ends: Ends) -> None:
    ends.arm()
    records = 2 * HALF // 4096 + 10
    for lsn in range(1, records + 1):
        ends.send(data_of(1, 5, run_of(1, 5, lsn, 1)))
        ends.hear_mark_of(lsn)
        if lsn == HALF // 4096:
            assert lib.mq_rail_cut(ends.rail, lsn) == 0
    assert ends.records() == list(range(HALF // 4096 + 1, records + 1))


def test_a_full_log_hands_over_what_has_no_room(ends: Ends) -> None:
    ends.arm()
    fits = 2 * HALF // 4096
    for lsn in range(1, fits + 2):
        ends.send(data_of(1, 5, run_of(1, 5, lsn, 1)))
        if lsn <= fits:
            ends.hear_mark_of(lsn)
    taken: list[Batch] = []
    while not taken or taken[-1].kind != RAW:
        taken += ends.take()
    assert [one.kind for one in taken] == [LOGGED] * fits + [STOPPED, RAW]
    assert ends.records() == list(range(1, fits + 1))


def test_what_is_not_taken_comes_as_it_was(ends: Ends) -> None:
    ends.arm()
    frames = run_of(1, 5, 2, 1)
    ends.send(data_of(1, 5, frames, stable=1))
    ends.send(data_of(2, 5, b"", stable=3))
    taken: list[Batch] = []
    while len(taken) < 3:
        taken += ends.take()
    assert [one.kind for one in taken] == [STOPPED, RAW, RAW]
    assert [(one.queue_id, one.stable, one.frames) for one in taken[1:]] == [
        (1, 1, frames),
        (2, 3, b""),
    ]


def test_what_is_no_message_of_the_rail_is_dropped(ends: Ends) -> None:
    ends.arm()
    good = data_of(1, 5, run_of(1, 5, 1, 1))
    for parts in ((b"",), (b"x" * 50,), (good, good), (good, b"", good), (good[:-1],)):
        ends.send(*parts)
    ends.send(good)
    ends.hear_mark_of(1)
    counts = ffi.new("mq_rail_counts *")
    lib.mq_rail_count(ends.rail, counts)
    assert (counts.garbage, counts.messages) == (8, 1)


def test_at_receipt_nothing_is_written(ends: Ends) -> None:
    ends.arm(at_receipt=1)
    for lsn in range(1, 21):
        ends.send(data_of(1, 5, run_of(1, 5, lsn, 1)))
        ends.hear_mark_of(lsn)
    taken: list[Batch] = []
    while len(taken) < 20:
        taken += ends.take()
    assert [one.kind for one in taken] == [RAW] * 20
    assert not any(ends.file.read_bytes())


def test_after_a_stop_nothing_is_marked(ends: Ends) -> None:
    """However a disarm falls between what is sent: what was marked is LOGGED before STOPPED."""
    chance = random.Random(3)
    after = 0
    for _ in range(100):
        ends.arm(after=after)
        count = chance.randrange(1, 5)
        for lsn in range(after + 1, after + 1 + count):
            ends.send(data_of(1, 5, frame_of(1, 5, lsn, 100)))
        if chance.random() < 0.5:
            ends.hear_mark()
        lib.mq_rail_disarm(ends.rail, 1)
        taken: list[Batch] = []
        while not any(one.kind == STOPPED for one in taken):
            taken += take_all(ends.rail)
        kinds = [one.kind for one in taken]
        stopped = kinds.index(STOPPED)
        assert set(kinds[:stopped]) <= {LOGGED}
        assert set(kinds[stopped + 1 :]) <= {RAW}
        logged = stopped
        # What is still on its way is handed over raw.
        raw = len(kinds) - stopped - 1
        while logged + raw < count:
            raw += len(take_all(ends.rail))
        while ends.router.poll(0):
            message = ends.router.recv_multipart()[1]
            if len(message) > 8:
                assert MARK.unpack(message)[4] <= after + logged
        after += logged
        lib.mq_rail_cut(ends.rail, lib.mq_rail_number(ends.rail))


def test_a_socket_that_was_removed_is_pythons_again(ends: Ends) -> None:
    assert lib.mq_rail_remove_socket(ends.rail, PEER) == 0
    assert lib.mq_rail_remove_socket(ends.rail, PEER) == -1
    ends.send(b"to python")
    assert ends.dealer.poll(WAIT_MS)
    assert ends.dealer.recv() == b"to python"
    assert lib.mq_rail_add_socket(ends.rail, PEER, socket_of(ends.dealer)) == 0
    assert lib.mq_rail_add_socket(ends.rail, PEER, socket_of(ends.dealer)) == -1
    ends.arm()
    ends.send(data_of(1, 5, run_of(1, 5, 1, 1)))
    ends.hear_mark_of(1)


def test_hello_is_said_when_a_connection_stands_at_last(tmp_path: Path) -> None:
    """libzmq takes nothing for a node's link before that."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.IMMEDIATE, 1)
    log = os.open(tmp_path, os.O_RDONLY)
    told, tell = os.pipe()
    rail = lib.mq_rail_new(SALT, 1, HALF, 64 << 10)
    try:
        assert lib.mq_rail_start(rail, log, tell, 10_000) == 0
        endpoint = f"ipc://{tmp_path / 'master'}"
        dealer.connect(endpoint)
        assert lib.mq_rail_add_socket(rail, PEER, socket_of(dealer)) == 0
        router.bind(endpoint)
        assert router.poll(WAIT_MS), "nothing came"
        assert router.recv_multipart()[1] == struct.pack("<II", MAGIC, 3)
    finally:
        lib.mq_rail_stop(rail)
        lib.mq_rail_free(rail)
        context.destroy(linger=0)
        for file in (log, told, tell):
            os.close(file)


def test_a_disk_that_fails_ends_it(tmp_path: Path) -> None:
    ends = Ends(tmp_path, flags=os.O_RDONLY)
    ends.arm()
    ends.arm(2)
    ends.send(data_of(1, 5, run_of(1, 5, 1, 1)))
    taken: list[Batch] = []
    while len(taken) < 3:
        taken += ends.take()
    assert [(one.kind, one.queue_id) for one in taken] == [(STOPPED, 1), (RAW, 1), (STOPPED, 2)]
    assert taken[0].stable == taken[2].stable == DISK
    assert lib.mq_rail_arm(ends.rail, 1, 5, 0, PEER, 0) == 1
    ends.close()


def test_libzmq_may_end_before_it(tmp_path: Path) -> None:
    ends = Ends(tmp_path)
    ends.arm()
    ends.dealer.close(linger=0)
    taken = ends.take()
    assert [(one.kind, one.stable) for one in taken] == [(STOPPED, DISK)]
    assert lib.mq_rail_remove_socket(ends.rail, PEER) == 0
    ends.close()


def test_it_leaves_no_thread_and_no_file_open(tmp_path: Path) -> None:
    def of_process() -> tuple[int, int]:
        return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

    Ends(tmp_path).close()
    before = of_process()
    for _ in range(20):
        ends = Ends(tmp_path)
        ends.arm()
        ends.send(data_of(1, 5, run_of(1, 5, 1, 1)))
        ends.hear_mark_of(1)
        ends.close()
    assert of_process() == before


def test_a_forked_child_has_no_thread_to_stop(ends: Ends) -> None:
    child = os.fork()
    if child == 0:
        lib.mq_rail_stop(ends.rail)
        os._exit(11 + lib.mq_rail_remove_socket(ends.rail, PEER))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 10
    ends.arm()
    ends.send(data_of(1, 5, run_of(1, 5, 1, 1)))
    ends.hear_mark_of(1)


def test_it_goes_on_while_python_computes(ends: Ends) -> None:
    """Threads of Python arm, take and cut while frames come."""
    is_over = threading.Event()
    numbers: list[int] = []

    def takes() -> None:
        while not is_over.is_set():
            for one in take_all(ends.rail):
                numbers.append(one.number)
                lib.mq_rail_cut(ends.rail, one.number)
            lib.mq_rail_is_urgent(ends.rail)
            if lib.mq_rail_arm(ends.rail, 99, 5, 0, PEER, 0) == 0:
                lib.mq_rail_disarm(ends.rail, 99)

    ends.arm()
    thread = threading.Thread(target=takes)
    thread.start()
    for lsn in range(1, 1001):
        ends.send(data_of(1, 5, run_of(1, 5, lsn, 1)))
        if lsn % 10 == 0:
            ends.hear_mark_of(lsn)
    is_over.set()
    thread.join()
    logged = [number for number in numbers if number]
    logged += [one.number for one in take_all(ends.rail) if one.number]
    assert logged == sorted(logged)


_CHILD = """
import os, sys, zmq, zmq.backend.cython._zmq as backend
from mirrorq._native._rail import ffi, lib
path, endpoint, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
assert lib.mq_rail_load_zmq(backend.__file__.encode()) == 0
context = zmq.Context()
dealer = context.socket(zmq.DEALER)
dealer.setsockopt(zmq.ROUTING_ID, b"mirror")
dealer.connect(endpoint)
log = os.open(path, os.O_RDWR | os.O_DSYNC)
told, tell = os.pipe()
rail = lib.mq_rail_new(4711, 1, size, 64 << 10)
assert lib.mq_rail_start(rail, log, tell, 10_000) == 0
assert lib.mq_rail_arm(rail, 1, 5, 0, 7, 0) == 0
assert lib.mq_rail_add_socket(rail, 7, ffi.cast("void *", int(dealer.underlying))) == 0
while os.read(told, 8):
    waiting = lib.mq_rail_waiting(rail)
    lib.mq_rail_take(rail, ffi.new("uint8_t[]", waiting + 1), waiting)
"""


@pytest.mark.parametrize("seed", range(5))
def test_what_was_marked_outlives_a_kill(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    file = tmp_path / "mirrorq.rail"
    file.write_bytes(bytes(2 * HALF))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = context.socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    arguments = [sys.executable, "-c", _CHILD, str(file), f"tcp://127.0.0.1:{port}", str(HALF)]
    child = subprocess.Popen(arguments)
    try:
        assert router.poll(WAIT_MS)
        router.recv_multipart()
        marked, sent, last = 0, 0, chance.randrange(1, 300)
        while marked < last:
            while sent < marked + 8:
                sent += 1
                router.send_multipart([MIRROR, data_of(1, 5, run_of(1, 5, sent, 1, 700))])
            assert router.poll(WAIT_MS)
            message = router.recv_multipart()[1]
            if len(message) > 8:
                marked = MARK.unpack(message)[4]
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        context.destroy(linger=0)
    data = file.read_bytes()
    lsns = in_half(data[:HALF]) + (in_half(data[HALF:]) if any(data[HALF:]) else [])
    assert lsns == list(range(1, len(lsns) + 1))
    assert len(lsns) >= marked


def test_a_library_without_libzmq_is_refused() -> None:
    import mirrorq._native._wire as wire

    assert lib.mq_rail_load_zmq(b"/nowhere") == -1
    assert lib.mq_rail_load_zmq(str(wire.__file__).encode()) == -1
    assert lib.mq_rail_load_zmq(backend.__file__.encode()) == 0
