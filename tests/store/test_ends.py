"""How a store ends: what the rail has written, and its node has not taken, is there at the next
start, whether the node was closed, has failed and is closed then, or was killed."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mirrorq.config import Config
from mirrorq.errors import StoreCorrupt, StoreError
from mirrorq.node import node as node_module
from mirrorq.node.ending import Ending, endings
from mirrorq.node.node import Node
from mirrorq.node.verification import verify
from mirrorq.protocol.effects import QueueWrite, RailArm
from mirrorq.protocol.identities import MemberId
from mirrorq.protocol.ops import Entry
from mirrorq.protocol.ring import STAR, Data
from mirrorq.store.copies import back_up, put_back
from mirrorq.store.offline import OfflineStore
from mirrorq.store.pathlock import FILE_NAME
from mirrorq.store.queue_log import QueueLog
from mirrorq.store.rail_log import RAIL_FILE
from mirrorq.wire.rail import pack_data

from .railed import Railed, begun, ffi, lib, loaded
from .test_full import failing
from .writing import NEIGHBOUR, QUEUE, Writer, frames_of, open_store


def railed_ops(railed: Railed, writer: Writer, *, taken: int, left: int) -> list[bytes]:
    """Frames of all ops of a queue: one in LMDB, some that were taken, some that were not."""
    ops = list(railed.store.load(writer.queue_id).entries)
    for number in range(taken + left):
        ops.append(writer.publish([b"op %d" % number]))
        railed.write(ops[-1])
        if number == taken - 1:
            railed.take()
    return frames_of(ops)


def eio(railed: Railed) -> None:
    """One commit fails, and the disk works again."""
    failing(railed.store, errno.EIO)
    with pytest.raises(StoreError, match="Input/output error"):
        railed.store.commit([QueueWrite(QUEUE, stable=1)])


def damaged_page(railed: Railed, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has to be read is damaged, in the commit that the rail's records cause."""

    def apply(*_: object) -> None:
        raise StoreCorrupt("a page is damaged")

    railed.log.bytes_behind = 1 << 30
    with monkeypatch.context() as patched:
        patched.setattr(QueueLog, "apply", apply)
        with pytest.raises(StoreCorrupt):
            railed.take()


@pytest.mark.parametrize("taken", [0, 3])
@pytest.mark.parametrize("end", ["close", "failure, close", "failure, abandon", "abandon"])
def test_what_a_rail_has_written_is_there_after_each_end(path: Path, end: str, taken: int) -> None:
    writer, neighbour = Writer(), Writer(NEIGHBOUR)
    railed = begun(path, writer, neighbour)
    others = railed_ops(railed, neighbour, taken=0, left=2)
    ops = railed_ops(railed, writer, taken=taken, left=5)
    if "failure" in end:
        eio(railed)
    (railed.store.abandon if "abandon" in end else railed.store.close)()
    assert loaded(path) == ops
    assert loaded(path, NEIGHBOUR) == others


@pytest.mark.parametrize("end", ["close", "abandon"])
def test_a_log_that_was_deleted_is_put_back_at_the_end(path: Path, end: str) -> None:
    """The process has its content still, and the next start needs it."""
    writer = Writer()
    railed = begun(path, writer)
    ops = railed_ops(railed, writer, taken=3, left=5)
    (path / RAIL_FILE).unlink()
    getattr(railed.store, end)()
    assert (path / RAIL_FILE).stat().st_mode & 0o777 == 0o600
    assert loaded(path) == ops


def test_a_log_is_not_put_back_into_another_store(path: Path) -> None:
    """Which lies at the path by now."""
    railed = begun(path, Writer())
    path.rename(path.with_name("moved"))
    shutil.rmtree(path.with_name("moved"))
    path.mkdir()
    railed.store.abandon()
    assert list(path.iterdir()) == []


def test_what_a_rail_has_written_is_there_when_taking_it_has_failed(
    path: Path, monkeypatch: pytest.MonkeyPatch, writer: Writer
) -> None:
    railed = begun(path, writer)
    ops = railed_ops(railed, writer, taken=0, left=5)
    damaged_page(railed, monkeypatch)
    railed.store.close()
    assert loaded(path) == ops


@pytest.mark.parametrize("is_failed", [False, True])
def test_a_failed_store_is_left_as_by_a_kill(path: Path, is_failed: bool, writer: Writer) -> None:
    """Its logs are in use, and the next start walks its pages."""
    railed = begun(path, writer)
    railed_ops(railed, writer, taken=2, left=3)
    if is_failed:
        eio(railed)
    railed.store.close()
    assert (path / FILE_NAME).read_text().split()[0] == ("open" if is_failed else "closed")
    with OfflineStore(path) as offline:
        report = verify(offline)
    assert (report.problems, report.logged) == ([], 5 if is_failed else 0)


def test_a_failed_store_is_backed_up_with_its_logs(path: Path, tmp_path: Path) -> None:
    writer = Writer()
    railed = begun(path, writer)
    ops = railed_ops(railed, writer, taken=2, left=3)
    eio(railed)
    railed.store.close()
    for name in ("backup", "restored"):
        (tmp_path / name).mkdir()
    back_up(path, tmp_path / "backup")
    put_back(tmp_path / "backup", tmp_path / "restored")
    assert loaded(tmp_path / "restored") == ops


def test_a_queue_that_was_deleted_does_not_come_back_at_a_close(path: Path, writer: Writer) -> None:
    railed = begun(path, writer)
    railed_ops(railed, writer, taken=0, left=3)
    railed.store.commit([QueueWrite(QUEUE, reset=True)])
    railed.store.close()
    assert loaded(path) == []


@pytest.mark.parametrize("lmdb_fails", [False, True])
def test_a_log_that_fails_is_no_end_of_what_it_holds(
    path: Path, monkeypatch: pytest.MonkeyPatch, lmdb_fails: bool, writer: Writer
) -> None:
    """The disk refuses a record of the write-ahead log once. LMDB takes it, or fails as well."""
    store = open_store(path)
    ops = [writer.publish([b"%d" % number]) for number in range(4)]
    for entry in ops[:3]:
        store.commit([QueueWrite(QUEUE, append=(entry,))])
    assert store._pending, "some of it is in the log only"

    def refused(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    if lmdb_fails:
        failing(store, errno.EIO)
    with monkeypatch.context() as patched, suppress(StoreError):
        patched.setattr("mirrorq.store.write_ahead.LogFile.write", refused)
        store.commit([QueueWrite(QUEUE, append=(ops[3],))])
    store.close()
    assert loaded(path) == frames_of(ops[: 3 if lmdb_fails else 4])


# --- The node's thread -------------------------------------------------------------------------


class Began:
    """A node with a rail, whose threads the test plays."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.node = Node("a", path=path, peers={"a": "tcp://127.0.0.1:0"}, config=Config())
        self.store, rail = self.node._store, self.node._rail
        assert rail is not None
        self.rail = rail
        self.writer = Writer()
        self.ops: list[Entry] = [self.writer.publish([b"first"])]
        self.store.commit([QueueWrite(QUEUE, append=tuple(self.ops))])
        rail.carry_out(QUEUE, RailArm(1, 1, MemberId("b", 1, 1)))
        assert rail.take_events() == []

    def write(self) -> None:
        """The rail writes an op, and tells the master of it."""
        self.ops.append(self.writer.publish([b"promised"]))
        native, out, offset = (
            self.rail._native._rail,
            ffi.new("uint8_t[]", 1 << 18),
            ffi.new("uint64_t *"),
        )
        message = pack_data(Data(QUEUE, 1, 0, (self.ops[-1],), 0, STAR))
        peer = self.rail._number_of("b")
        assert lib.mq_rail_on_message(native, peer, message, len(message)) == 0
        size = lib.mq_rail_begin_write(native, out, 1 << 18, offset)
        self.rail._log.file.write(offset[0], [bytes(ffi.buffer(out, size))])
        assert lib.mq_rail_end_write(native, 1) == 0

    def run(self) -> None:
        """What the node's thread does, to its end."""
        self.node._driver._take_turn()


@pytest.fixture
def began(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Began]:
    from mirrorq.wire.native_rail import NativeRail

    monkeypatch.setattr(NativeRail, "start", lambda *_: True)
    monkeypatch.setattr(node_module, "begin_thread", lambda _: None)
    made = Began(path)
    yield made
    made.node.close()


@pytest.mark.real
@pytest.mark.parametrize("when", ["in a round", "in the last round"])
def test_a_node_that_fails_and_is_closed_keeps_what_its_rail_has_promised(
    began: Began, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """What fails is none of the store's matters, as a handler of the host's log that raises."""

    def failing_round() -> None:
        began.write()
        raise RuntimeError("a handler of the log raises")

    monkeypatch.setattr(began.node._driver, "_round", failing_round)
    if when == "in a round":
        began.run()
        assert began.node.is_closed
    began.node.close()
    assert loaded(began.path) == frames_of(began.ops)


@pytest.mark.real
def test_a_node_whose_log_handler_always_raises_ends(
    began: Began, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rail stops, its lock is given up: nothing of it goes on by itself."""

    class Raising(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise KeyboardInterrupt

    def failing_round() -> None:
        began.write()
        raise RuntimeError

    handler = Raising()
    logging.getLogger("mirrorq").addHandler(handler)
    try:
        monkeypatch.setattr(began.node._driver, "_round", failing_round)
        began.run()
    finally:
        logging.getLogger("mirrorq").removeHandler(handler)
    assert not began.node._driver.is_running
    assert loaded(began.path) == frames_of(began.ops)


@pytest.mark.real
def test_a_node_that_is_closed_takes_what_its_rail_has_written(began: Began) -> None:
    for _ in range(3):
        began.write()
    began.node.close()
    assert loaded(began.path) == frames_of(began.ops)


@pytest.mark.real
def test_a_rail_that_was_freed_refuses_each_call(began: Began) -> None:
    began.node.close()
    native: Any = began.rail._native
    for call in (native.take_items, native.is_left, native.stop, native.number, native.free):
        with pytest.raises(RuntimeError, match="was freed"):
            call()


@pytest.mark.parametrize("failed_at", [None, *Ending])
def test_a_store_is_closed_in_order_only_when_nothing_has_failed(
    failed_at: Ending | None,
) -> None:
    done: list[Ending] = []
    for step in endings(lambda: failed_at in done):
        done.append(step)
    last_two = (Ending.ABANDON_STORE, Ending.CLOSE_STORE)
    is_sound = failed_at is None or failed_at not in done[:-1]
    assert done[-1] == last_two[is_sound]
    assert done[0] == Ending.STOP_RAIL
    assert done[-2] == Ending.FREE_RAIL
    assert done[-3] in (Ending.ABANDON_TRANSPORT, Ending.CLOSE_TRANSPORT)
