"""The rail's log in a store: what it holds outlives a crash, once, and goes into LMDB."""

from __future__ import annotations

import os
import select
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import lmdb
import pytest

from mirrorq.config import Config
from mirrorq.engine.events import ToCopy
from mirrorq.errors import StoreCorrupt, StoreError
from mirrorq.node.verification import verify
from mirrorq.protocol.effects import QueueWrite, RailArm, RailDisarm
from mirrorq.protocol.identities import MemberId
from mirrorq.protocol.ops import Entry
from mirrorq.protocol.ring import STAR, Data
from mirrorq.replication import events
from mirrorq.store.copies import back_up, put_back
from mirrorq.store.environment import Environment
from mirrorq.store.log_mark import FORMAT, MARK, RAIL_MARK
from mirrorq.store.node_store import Store
from mirrorq.store.offline import OfflineStore
from mirrorq.store.rail_log import HALF_BYTES, RAIL_FILE
from mirrorq.transport.transport import Transport
from mirrorq.wire.rail import pack_data

from .crash_points import SECTOR_BYTES
from .log_bugs import READING
from .railed import Railed, begun, ffi, lib, loaded
from .writing import NEIGHBOUR, QUEUE, Writer, bodies_of, frames_of, open_store

if TYPE_CHECKING:
    from mirrorq.node.rail import NodeRail

LET_GO = ToCopy(QUEUE, events.RailStopped())
"""A rail that has not taken the queue, or has given it back, says so to the copy."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_what_python_has_not_taken_outlives_a_crash(path: Path, tmp_path: Path) -> None:
    writer, neighbour = Writer(), Writer(NEIGHBOUR)
    railed = begun(path, writer, neighbour)
    before = railed.store.load(QUEUE).entries
    more = [writer.publish([b"%d" % number]) for number in range(20)]
    other = neighbour.publish([b"other"])
    for entry in more[:10]:
        railed.write(entry)
    railed.write(other)
    for entry in more[10:]:
        railed.write(entry)
    crashed = railed.crash(path, tmp_path / "crashed")
    with OfflineStore(crashed) as offline:
        report = verify(offline)
    assert (report.problems, report.logged) == ([], 21)
    assert loaded(crashed) == frames_of([*before, *more])
    assert loaded(crashed, NEIGHBOUR)[-1:] == frames_of([other])
    assert loaded(crashed) == frames_of([*before, *more]), "once"


def test_what_was_taken_is_read_and_written_only_once(path: Path, tmp_path: Path) -> None:
    writer = Writer()
    railed = begun(path, writer)
    before = railed.store.load(QUEUE).entries
    more = tuple(writer.publish([b"%d" % number]) for number in range(5))
    for entry in more:
        railed.write(entry)
    assert frames_of(railed.take()) == frames_of(more)
    assert bodies_of(railed.store.read(QUEUE, 2, 9, 1 << 20)) == {
        number + 2: b"%d" % number for number in range(5)
    }
    files = {file.name: file.read_bytes() for file in path.iterdir()}
    railed.store.commit([QueueWrite(QUEUE, append=more, stable=4)])
    assert {file.name: file.read_bytes() for file in path.iterdir()} == files
    assert frames_of(railed.store.load(QUEUE).entries) == frames_of([*before, *more])
    assert railed.store.load(QUEUE).stable == 4
    assert loaded(railed.crash(path, tmp_path / "crashed")) == frames_of([*before, *more])


def test_both_logs_hold_parts_of_a_queue(path: Path, tmp_path: Path, writer: Writer) -> None:
    """The rail lets go, and its queue goes on in the write-ahead log; then the rail again."""
    railed = begun(path, writer)
    entries = list(railed.store.load(QUEUE).entries)
    for number in range(6):
        first, second = writer.publish([b"r%d" % number]), writer.publish([b"w%d" % number])
        railed.write(first)
        assert railed.native.disarm(QUEUE)
        assert frames_of(railed.take()) == [first.frame]
        railed.store.commit([QueueWrite(QUEUE, append=(first, second))])
        railed.arm(writer)
        entries += [first, second]
    last = writer.publish([b"last"])
    railed.write(last)
    assert loaded(railed.crash(path, tmp_path / "crashed")) == frames_of([*entries, last])
    railed.take()
    railed.store.close()
    assert loaded(path) == frames_of([*entries, last])


def test_what_was_cut_does_not_come_back(path: Path, tmp_path: Path, writer: Writer) -> None:
    railed = begun(path, writer)
    before = list(railed.store.load(QUEUE).entries)
    wrong = [writer.publish([b"wrong"]) for _ in range(3)]
    for entry in wrong:
        railed.write(entry)
    assert railed.native.disarm(QUEUE)
    railed.take()
    writer.lsn, writer.sequence, writer.epoch = 1, 1, 2
    right = tuple(writer.publish([b"right"]) for _ in range(2))
    cut = QueueWrite(QUEUE, truncate_to=1, append=right)
    railed.store.commit([cut])
    assert loaded(railed.crash(path, tmp_path / "crashed")) == frames_of([*before, *right])
    assert frames_of(railed.store.load(QUEUE).entries) == frames_of([*before, *right])


def test_a_queue_that_was_deleted_does_not_come_back(path: Path, tmp_path: Path) -> None:
    writer, neighbour = Writer(), Writer(NEIGHBOUR)
    railed = begun(path, writer, neighbour)
    railed.write(writer.publish([b"late"]))
    railed.store.commit([QueueWrite(QUEUE, reset=True)])
    kept = neighbour.publish([b"kept"])
    railed.write(kept)
    crashed = railed.crash(path, tmp_path / "crashed")
    assert loaded(crashed) == []
    assert loaded(crashed, NEIGHBOUR)[-1:] == [kept.frame]
    railed.take()
    railed.store.close()
    assert loaded(path) == []
    assert loaded(path, NEIGHBOUR)[-1:] == [kept.frame]


def test_lmdb_is_given_what_the_log_holds_before_it_is_full(path: Path, tmp_path: Path) -> None:
    """Both halves are used again and again, and a crash at any time loses nothing."""
    writer = Writer()
    railed = begun(path, writer)
    entries = list(railed.store.load(QUEUE).entries)
    records = 3 * 2 * HALF_BYTES // 4096
    for number in range(records):
        entry = writer.publish([b"%d" % number])
        railed.write(entry)
        entries.append(entry)
        if number % 50 == 0:
            railed.take()
            railed.native.cut(railed.log.lmdb_has)
        if number % 331 == 0:
            crashed = railed.crash(path, tmp_path / f"crashed{number}")
            assert loaded(crashed) == frames_of(entries)
    assert railed.log.lmdb_has > HALF_BYTES // 4096


def _spoil(path: Path, record: int) -> None:
    with (path / RAIL_FILE).open("r+b") as file:
        file.seek(record * 4096 + 100)
        file.write(b"\xff" * 8)


@pytest.mark.parametrize("record", [0, 4])
def test_a_record_that_was_damaged_is_seen(path: Path, tmp_path: Path, record: int) -> None:
    writer = Writer()
    railed = begun(path, writer)
    for number in range(10):
        railed.write(writer.publish([b"%d" % number]))
    crashed = railed.crash(path, tmp_path / "crashed")
    _spoil(crashed, record)
    with pytest.raises(StoreCorrupt, match=r"mirrorq\.rail"):
        open_store(crashed)


def test_a_torn_tail_is_none(path: Path, tmp_path: Path, writer: Writer) -> None:
    railed = begun(path, writer)
    entries = [writer.publish([b"%d" % number]) for number in range(10)]
    for entry in entries:
        railed.write(entry)
    crashed = railed.crash(path, tmp_path / "crashed")
    _spoil(crashed, 9)
    assert loaded(crashed)[1:] == frames_of(entries[:9])


def test_a_log_that_is_missing_is_seen(path: Path, tmp_path: Path) -> None:
    railed = begun(path, Writer())
    crashed = railed.crash(path, tmp_path / "crashed")
    (crashed / RAIL_FILE).unlink()
    with pytest.raises(StoreCorrupt, match="is missing"):
        open_store(crashed)


def test_it_is_in_backups(path: Path, tmp_path: Path, writer: Writer) -> None:
    railed = begun(path, writer)
    entries = list(railed.store.load(QUEUE).entries)
    for number in range(HALF_BYTES // 4096 + 5):
        entries.append(writer.publish([b"%d" % number]))
        railed.write(entries[-1])
    crashed = railed.crash(path, tmp_path / "crashed")
    for name in ("backup", "restored"):
        (tmp_path / name).mkdir()
    back_up(crashed, tmp_path / "backup")
    put_back(tmp_path / "backup", tmp_path / "restored")
    assert loaded(tmp_path / "restored") == frames_of(entries)


def _meta(path: Path) -> Sequence[bytes | None]:
    with lmdb.open(str(path), max_dbs=8, readonly=True, lock=False) as environment:
        meta = environment.open_db(b"meta", create=False)
        with environment.begin() as txn:
            return [txn.get(key, db=meta) for key in (FORMAT, MARK, RAIL_MARK)]


def test_a_store_that_was_closed_is_as_without(path: Path, tmp_path: Path) -> None:
    plain = open_store(tmp_path / "plain")
    plain.close()
    railed = begun(path, Writer())
    crashed = railed.crash(path, tmp_path / "crashed")
    assert _meta(crashed) != _meta(tmp_path / "plain")
    railed.store.close()
    assert _meta(path) == _meta(tmp_path / "plain")


def test_the_rail_may_have_only_what_a_commit_of_this_life_has_ended(path: Path) -> None:
    writer = Writer()
    railed = Railed(path)
    assert not railed.store.may_rail(QUEUE, 0)
    railed.store.commit([QueueWrite(QUEUE, append=(writer.publish([b"first"]),))])
    assert railed.store.may_rail(QUEUE, 1)
    assert not railed.store.may_rail(QUEUE, 2)
    railed.store.commit([QueueWrite(QUEUE, reset=True)])
    assert not railed.store.may_rail(QUEUE, 1)
    railed.store.close()


def test_a_disk_without_room_has_no_rail(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store: Store = open_store(path)

    def refused(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mirrorq.store.node_store.LogFile", refused)
    assert store.begin_rail() is None
    store.close()


@pytest.mark.real
def test_a_disk_with_little_room_is_not_asked_for_a_log(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rail would be given no queue there."""
    from mirrorq.node.rail import begun_rail

    store, transport = open_store(path), Transport("a", 1, "tcp://127.0.0.1:0", Config())
    monkeypatch.setattr(Environment, "has_plenty", property(lambda _: False))
    assert begun_rail(store, transport) is None
    assert not (path / RAIL_FILE).exists()
    transport.close()
    store.close()


def torn(before: bytes, after: bytes, chance: Random) -> bytes:
    """The file as a crash may leave it in the middle of the write between these two: any of the
    sectors that it changed are there."""
    left = bytearray(before.ljust(len(after), b"\0"))
    for at in range(0, len(after), SECTOR_BYTES):
        if left[at : at + SECTOR_BYTES] != after[at : at + SECTOR_BYTES] and chance.random() < 0.5:
            left[at : at + SECTOR_BYTES] = after[at : at + SECTOR_BYTES]
    return bytes(left)


def wrong_after_torn_writes(path: Path, copy: Path) -> list[str]:
    """What stores tell that a crash left in the middle of a record: the record is there, whole, or
    it is not, and those before it are."""
    writer, chance = Writer(), Random(1)
    railed, wrong = begun(path, writer), []
    told = frames_of(railed.store.load(QUEUE).entries)
    for _ in range(5):
        before = (path / RAIL_FILE).read_bytes()
        entry = writer.publish([chance.randbytes(2000)])
        railed.write(entry)
        after = (path / RAIL_FILE).read_bytes()
        for _ in range(6):
            shutil.copytree(path, copy)
            (copy / RAIL_FILE).write_bytes(torn(before, after, chance))
            try:
                found = loaded(copy)
                if found not in (told, [*told, entry.frame]):
                    wrong.append(f"{len(found)} ops, not {len(told)} or one more")
            except StoreError as error:
                wrong.append(str(error))
            shutil.rmtree(copy)
        told.append(entry.frame)
    railed.store.close()
    return wrong


def test_a_record_that_is_torn_is_whole_or_is_not_there(path: Path, tmp_path: Path) -> None:
    """The power fails in the middle of the rail's write: nothing that was durable is lost, and no
    start refuses the store for it."""
    assert wrong_after_torn_writes(path, tmp_path / "crashed") == []


def test_a_torn_record_that_is_believed_is_found(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check can fail: at a start that takes a record's sum for right."""
    monkeypatch.setattr(*READING["torn_end_believed"])
    assert wrong_after_torn_writes(path, tmp_path / "crashed")


@pytest.fixture
def node_rail(path: Path) -> Iterator[tuple[Store, NodeRail]]:
    from mirrorq.node.rail import begun_rail

    store, transport = open_store(path), Transport("a", 1, "tcp://127.0.0.1:0", Config())
    rail = begun_rail(store, transport)
    assert rail is not None
    try:
        yield store, rail
    finally:
        rail.stop()
        transport.close()
        rail.free()
        store.close()


def given(store: Store, rail: NodeRail, *, at_receipt: bool) -> tuple[Writer, RailArm]:
    """Have the rail take a queue with one op in LMDB."""
    writer = Writer()
    store.commit([QueueWrite(QUEUE, append=(writer.publish([b"first"]),))])
    arm = RailArm(writer.epoch, writer.lsn, MemberId("b", 1, 1), at_receipt)
    rail.carry_out(QUEUE, arm)
    assert rail.take_events() == []
    return writer, arm


@pytest.mark.real
@pytest.mark.parametrize("at_receipt", [False, True])
def test_a_rail_lets_go_of_its_queues_when_the_disk_has_little_left(
    node_rail: tuple[Store, NodeRail], monkeypatch: pytest.MonkeyPatch, at_receipt: bool
) -> None:
    """Of one for which nothing comes, too: it would take messages for which there is no room."""
    store, rail = node_rail
    _, arm = given(store, rail, at_receipt=at_receipt)
    monkeypatch.setattr(Environment, "has_plenty", property(lambda _: False))
    assert rail.take_events() == [LET_GO], "nothing would wake the node to take it later"
    rail.carry_out(QUEUE, arm)
    assert rail.is_due
    assert rail.take_events() == [LET_GO]


@pytest.mark.real
@pytest.mark.parametrize("at_receipt", [False, True])
def test_a_rail_that_is_asked_lets_go_of_a_queue_at_once(
    node_rail: tuple[Store, NodeRail], at_receipt: bool
) -> None:
    """Else the copy waits with all that comes along the row until anything wakes its node, as a
    rule the next heartbeat."""
    store, rail = node_rail
    given(store, rail, at_receipt=at_receipt)
    for _ in ("it lets go", "it had it no more"):
        rail.carry_out(QUEUE, RailDisarm())
        assert rail.is_due, "nothing else wakes the node"
        assert rail.take_events() == [LET_GO]
        assert not rail.is_due


@pytest.fixture
def no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the rail's thread does is done by the test."""
    from mirrorq.wire.native_rail import NativeRail

    monkeypatch.setattr(NativeRail, "start", lambda *_: True)


@pytest.mark.real
@pytest.mark.usefixtures("no_thread")
def test_what_a_rail_writes_while_it_is_asked_comes_behind_what_it_has_written(
    node_rail: tuple[Store, NodeRail],
) -> None:
    """A copy takes ops in their order only: the other way its node failed."""
    store, rail = node_rail
    native, out, offset = rail._native._rail, ffi.new("uint8_t[]", 1 << 18), ffi.new("uint64_t *")

    def begin_write(entry: Entry) -> None:
        message = pack_data(Data(QUEUE, 1, 0, (entry,), 0, STAR))
        assert lib.mq_rail_on_message(native, rail._number_of("b"), message, len(message)) == 0
        assert lib.mq_rail_begin_write(native, out, 1 << 18, offset) > 0

    writer, _ = given(store, rail, at_receipt=False)
    entries = [writer.publish([b"second"]), writer.publish([b"third"])]
    begin_write(entries[0])
    assert lib.mq_rail_end_write(native, 1) == 0
    begin_write(entries[1])
    rail.carry_out(QUEUE, RailDisarm())
    assert lib.mq_rail_end_write(native, 1) == 0
    *railed, last = rail.take_events()
    told: list[list[bytes]] = []
    for one in railed:
        assert isinstance(one, ToCopy)
        assert isinstance(one.event, events.Railed)
        told.append(frames_of(one.event.message.entries))
    assert told == [frames_of((entry,)) for entry in entries]
    assert last == LET_GO


@pytest.mark.real
@pytest.mark.usefixtures("no_thread")
def test_a_record_of_which_nobody_knows_does_not_come_back(
    node_rail: tuple[Store, NodeRail], path: Path, tmp_path: Path
) -> None:
    """The disk says that it has failed, and has written it all the same. Its ops are cut, and
    others are committed in their place."""
    store, rail = node_rail
    native, out, offset = rail._native._rail, ffi.new("uint8_t[]", 1 << 18), ffi.new("uint64_t *")
    writer, _ = given(store, rail, at_receipt=False)
    left = list(store.load(QUEUE).entries)
    unknown = tuple(writer.publish([b"unknown"]) for _ in range(3))
    message = pack_data(Data(QUEUE, 1, 0, unknown, 0, STAR))
    assert lib.mq_rail_on_message(native, rail._number_of("b"), message, len(message)) == 0
    size = lib.mq_rail_begin_write(native, out, 1 << 18, offset)
    rail._log.file.write(offset[0], [bytes(ffi.buffer(out, size))])
    assert lib.mq_rail_end_write(native, 0) == 0
    assert rail.take_events() == [LET_GO]
    store.commit([QueueWrite(QUEUE, append=unknown)])
    store.commit([QueueWrite(QUEUE, truncate_to=1)])
    writer.lsn, writer.sequence, writer.epoch = 1, 1, 2
    for number in range(3):
        left.append(writer.publish([b"right %d" % number]))
        store.commit([QueueWrite(QUEUE, append=(left[-1],))])
        shutil.copytree(path, tmp_path / f"crashed{number}")
        assert loaded(tmp_path / f"crashed{number}") == frames_of(left)


@pytest.mark.real
@pytest.mark.usefixtures("no_thread")
def test_a_rail_to_which_more_and_more_comes_does_not_keep_its_node(
    node_rail: tuple[Store, NodeRail], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node's thread takes a part of it and is woken for the rest."""
    from mirrorq.wire import native_rail

    _, rail = node_rail
    native, peer, sizes = rail._native._rail, rail._number_of("b"), list[int]()
    message = pack_data(Data(QUEUE, 1, 0, (), 0, STAR))

    class Busy:
        """The C part, while a message comes during each look."""

        def __getattr__(self, name: str) -> Any:
            return getattr(lib, name)

        def mq_rail_waiting(self, of: Any) -> int:
            assert len(sizes) < 1000, "it takes without end"
            assert lib.mq_rail_on_message(native, peer, message, len(message)) == 0
            sizes.append(lib.mq_rail_waiting(of))
            return sizes[-1]

    monkeypatch.setattr(native_rail, "lib", Busy())
    rail.take_events()
    monkeypatch.setattr(native_rail, "lib", lib)
    assert select.select([rail.notify_fd], [], [], 0)[0] == [rail.notify_fd]
    assert os.read(rail.notify_fd, 64)
    rail.take_events()
    assert select.select([rail.notify_fd], [], [], 0)[0] == [], "nothing is left"
    assert lib.mq_rail_waiting(native) == 0
