"""The write-ahead log: the file against its twin, and what a store does with it."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import lmdb
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import fields

from mirrorq import system
from mirrorq.errors import StoreCorrupt, StoreError
from mirrorq.node.verification import verify
from mirrorq.protocol.effects import QueueWrite, RaftState, RaftWrite
from mirrorq.store import write_ahead
from mirrorq.store.copies import back_up, put_back
from mirrorq.store.log_mark import FORMAT, MARK
from mirrorq.store.node_store import Store
from mirrorq.store.offline import OfflineStore
from mirrorq.store.records import pack_u64, seal
from mirrorq.store.renewal import renew
from mirrorq.store.write_ahead import (
    FILE_NAME,
    GROUP_BYTES_MAX,
    PAGE_BYTES,
    LogDamaged,
    LogFile,
    LogMark,
    Tail,
    is_append,
    pieces_of,
    size_of,
    surviving,
    whole_prefix,
)

from .writing import PYTHON, QUEUE, SOURCES, Writer, bodies_of, frames_of, open_store

PAGES = 6
SECTOR_BYTES = 512


class LogMachine(RuleBasedStateMachine):
    """The file as bytes, against a twin that is a list: what was durable and is not in LMDB.

    The twin knows no bytes: records are appended, LMDB takes them in, the file begins anew, a
    crash leaves any sectors of a write that was under way, a start makes another use of the file.
    """

    def __init__(self) -> None:
        super().__init__()
        self.file = bytearray(PAGES * PAGE_BYTES)
        self.count = 0

    @initialize(salt=st.integers(0, 3))
    def begin(self, salt: int) -> None:
        self.start(salt)

    def start(self, salt: int) -> None:
        """Another use of the same file. Salts are random numbers; here each is another one."""
        self.count += 1
        self.tail = Tail(self.count * 4 + salt, len(self.file))
        self.lmdb = self.tail.mark
        self.twin: list[bytes] = []

    def write(self, offset: int, data: bytes) -> None:
        self.file[offset : offset + len(data)] = data

    @rule(size=st.integers(0, 9000), letter=st.integers(0, 255))
    def append(self, size: int, letter: int) -> None:
        """Durable when it returns; a file that has no room for it says so before."""
        payload = bytes([letter]) * size
        fits = self.tail.end + size_of(size) <= len(self.file)
        assert self.tail.takes(size) == fits
        if fits:
            record = b"".join(pieces_of(self.tail.next(), payload))
            assert len(record) == size_of(size)
            self.write(self.tail.end, record)
            self.tail.appended(size)
            self.twin.append(payload)

    @rule()
    def lmdb_takes_all(self) -> None:
        """Its transaction is synced: now, and not before, the file begins anew."""
        self.lmdb = self.tail.mark
        self.twin.clear()
        self.tail.cut()

    @rule()
    def lmdb_has_all_and_the_crash_comes_first(self) -> None:
        """What is in the file is in LMDB, too: it is not carried out twice."""
        assert surviving(bytes(self.file), self.tail.mark) == []

    @rule(size=st.integers(1, 9000), seed=st.integers(0, 1 << 30), share=st.floats(0, 1))
    def tear(self, size: int, seed: int, share: float) -> None:
        """Power fails in an append: any sectors of it are there. Whole it may count, torn not.
        The next use of the file begins with what survived in LMDB."""
        if not self.tail.takes(size):
            return
        chance = random.Random(seed)
        payload = chance.randbytes(size)
        record = b"".join(pieces_of(self.tail.next(), payload))
        at = self.tail.end
        for place in range(0, len(record), SECTOR_BYTES):
            if chance.random() < share:
                self.write(at + place, record[place : place + SECTOR_BYTES])
        found = surviving(bytes(self.file), self.lmdb)
        is_whole = bytes(self.file[at : at + 32 + size]) == record[: 32 + size]
        assert found == self.twin + [payload] * is_whole
        self.start(chance.randint(0, 3))

    @precondition(lambda self: len(self.twin) > 1)
    @rule(which=st.floats(0, 0.999), where=st.floats(0, 0.999))
    def spoil(self, which: float, where: float) -> None:
        """A durable record with others behind it is damaged: that is no torn end, and is said."""
        index = int(which * (len(self.twin) - 1))
        at = self.tail.end - sum(size_of(len(payload)) for payload in self.twin[index:])
        at += int(where * (32 + len(self.twin[index])))
        damaged = bytearray(self.file)
        damaged[at] ^= 1
        with pytest.raises(LogDamaged):
            surviving(bytes(damaged), self.lmdb)

    @rule(pages=st.integers(0, PAGES))
    def copy_while_it_is_written(self, pages: int) -> None:
        """A reader that gets the first pages late has whole records in order, or none."""
        later = bytearray(self.file)
        if self.tail.takes(100):
            record = b"".join(pieces_of(LogMark(self.tail.salt, self.tail.number + 1), b"x" * 100))
            later[self.tail.end : self.tail.end + len(record)] = record
        mixed = bytes(self.file[: pages * PAGE_BYTES] + later[pages * PAGE_BYTES :])
        found = surviving(whole_prefix(mixed), self.lmdb)
        assert found[: len(self.twin)] == self.twin

    @invariant()
    def survives(self) -> None:
        """A crash now: exactly what LMDB has not."""
        if self.count:
            assert surviving(bytes(self.file), self.lmdb) == self.twin


LogMachine.TestCase.settings = settings(
    max_examples=100, stateful_step_count=30, deadline=None, print_blob=True
)
TestLogAgainstTwin = LogMachine.TestCase


# --- The store ------------------------------------------------------------------------------------


@pytest.fixture
def writer() -> Writer:
    return Writer()


@pytest.fixture
def store(path: Path, writer: Writer) -> Any:
    """A store whose log is in use: LMDB knows the queue, and was told of the log."""
    opened = open_store(path)
    for _ in range(2):
        opened.commit([QueueWrite(QUEUE, append=(writer.publish([b"first"]),))])
    assert opened._tail is not None
    yield opened
    opened.close()


def killed(path: Path) -> Path:
    """The store as it would be if its process had been killed now."""
    left = path.with_name("killed")
    shutil.copytree(path, left)
    return left


def put(store: Store, writer: Writer, body: bytes = b"small") -> None:
    store.commit([QueueWrite(QUEUE, append=(writer.publish([body]),), stable=writer.lsn - 1)])


def in_lmdb(path: Path, key: bytes) -> bytes | None:
    with (
        lmdb.open(str(path), readonly=True, lock=False, max_dbs=8) as environment,
        environment.begin() as txn,
    ):
        value = txn.get(key, db=environment.open_db(b"meta", txn, create=False))
    return None if value is None else bytes(value)[4:]


def test_a_small_commit_is_one_record_and_lmdb_is_left_alone(
    path: Path, store: Store, writer: Writer
) -> None:
    """It is read, loaded and counted as if it were in LMDB, and it is there after a kill."""
    transaction = store._environment._lmdb.info()["last_txnid"]
    put(store, writer, b"a")
    put(store, writer, b"b")
    assert store._environment._lmdb.info()["last_txnid"] == transaction
    bodies = {1: b"first", 2: b"first", 3: b"a", 4: b"b"}
    assert bodies_of(store.read(QUEUE, 1, 9, 1 << 20)) == bodies
    assert bodies_of(store.read(QUEUE, 4, 4, 1)) == {4: b"b"}
    assert bodies_of(store.read(QUEUE, 2, 4, 1)) == {2: b"first"}
    assert store.read(QUEUE, 5, 9, 1) == []
    image = store.load(QUEUE)
    assert (len(image.entries), image.stable) == (4, 3)
    assert store.queue_bytes(QUEUE) == sum(len(entry.frame) for entry in image.entries)
    again = open_store(killed(path))
    assert frames_of(again.load(QUEUE).entries) == frames_of(image.entries)
    assert bodies_of(again.read(QUEUE, 1, 9, 1 << 20)) == bodies
    again.close()


def test_what_is_no_append_goes_to_lmdb_with_all_that_waits(
    path: Path, store: Store, writer: Writer
) -> None:
    """A cut of the queue's log comes after what was in the write-ahead log, also after a kill
    between the two: nothing is carried out again behind it."""
    put(store, writer, b"to be cut")
    store.commit([QueueWrite(QUEUE, truncate_to=2)])
    assert not store._pending
    left = killed(path)
    assert (left / FILE_NAME).read_bytes()[:4] == b"mqw1"
    again = open_store(left)
    assert bodies_of(again.read(QUEUE, 1, 9, 1 << 20)) == {1: b"first", 2: b"first"}
    again.close()


def test_a_large_commit_goes_to_lmdb_alone(store: Store, writer: Writer) -> None:
    """Written twice it would cost more than it saves."""
    put(store, writer, b"x" * (GROUP_BYTES_MAX - 500))
    assert store._pending
    put(store, writer, b"x" * GROUP_BYTES_MAX)
    assert not store._pending


def test_what_does_not_follow_goes_to_lmdb(store: Store, writer: Writer) -> None:
    """Ops that are there already, and those of a queue that LMDB does not know."""
    again = writer.publish([b"once"])
    store.commit([QueueWrite(QUEUE, append=(again,))])
    store.commit([QueueWrite(QUEUE, append=(again, writer.publish([b"next"])))])
    assert not store._pending
    assert len(store.load(QUEUE).entries) == 4
    other = Writer(QUEUE + 1)
    store.commit([QueueWrite(QUEUE + 1, append=(other.publish([b"x"]),))])
    assert not store._pending


def test_only_appends_go_into_the_log(writer: Writer) -> None:
    """Each other thing that a write may ask for keeps it out, those to come with them."""
    append = (writer.publish([b"x"]),)
    assert is_append([QueueWrite(QUEUE, append=append, stable=1, state_lsn=1)])
    other = {"reset": True, "truncate_to": 0, "state": b"", "time_ahead_us": 0, "lacking": ()}
    names = {one.name for one in fields(QueueWrite)} - {"queue_id", "append", "stable", "state_lsn"}
    assert len(names) >= 8
    for name in names:
        write = QueueWrite(QUEUE, append=append, **{name: other.get(name, (1,))})
        assert not is_append([write]), name


def test_a_full_log_is_taken_in_and_begins_anew(
    path: Path, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any number of commits goes through a file of four pages, each there after a kill."""
    monkeypatch.setattr(write_ahead, "FILE_BYTES", 4 * PAGE_BYTES)
    store = open_store(path)
    for number in range(23):
        put(store, writer, b"%d" % number)
        left = killed(path)
        again = open_store(left)
        found = bodies_of(again.read(QUEUE, 1, 99, 1 << 20))
        assert list(found.values()) == [b"%d" % each for each in range(number + 1)]
        again.close()
        shutil.rmtree(left)
    assert (path / FILE_NAME).stat().st_size == 4 * PAGE_BYTES
    store.close()


def test_the_mark_says_whether_a_log_is_in_use(path: Path, store: Store, writer: Writer) -> None:
    """A close in good order, also of the next life, leaves LMDB as the whole store."""
    put(store, writer)
    left = killed(path)
    assert in_lmdb(left, MARK) is not None
    open_store(left).close()
    assert in_lmdb(left, MARK) is None
    store.close()
    assert in_lmdb(path, MARK) is None


def test_records_of_an_earlier_life_count_for_nothing(
    path: Path, writer: Writer, store: Store
) -> None:
    """The file is used again; what stands in it behind the new records is old, whole and of the
    right numbers, and is not believed."""
    for _ in range(5):
        put(store, writer, b"old")
    store.close()
    store = open_store(path)
    put(store, writer, b"begins")
    put(store, writer, b"begins the log again")
    put(store, writer, b"new")
    again = open_store(killed(path))
    assert len(again.load(QUEUE).entries) == len(store.load(QUEUE).entries) == writer.lsn
    again.close()
    store.close()


@pytest.mark.parametrize("damage", ["missing", "damaged", "cut"])
def test_a_store_without_its_log_is_refused(
    path: Path, store: Store, writer: Writer, damage: str
) -> None:
    """What may have been confirmed is not forgotten in silence, by a start or by `verify`."""
    put(store, writer)
    put(store, writer)
    left = killed(path)
    file = left / FILE_NAME
    if damage == "missing":
        file.unlink()
    elif damage == "cut":
        data = file.read_bytes()
        file.write_bytes(data[PAGE_BYTES:])
    else:
        data = bytearray(file.read_bytes())
        data[100] ^= 1
        file.write_bytes(data)
    with pytest.raises(StoreCorrupt, match=FILE_NAME):
        open_store(left)
    with OfflineStore(left) as looked_at:
        assert any(FILE_NAME in problem for problem in verify(looked_at).problems)


def test_a_store_that_was_closed_needs_no_log(path: Path, store: Store, writer: Writer) -> None:
    """LMDB has everything then: a copy of its file alone is the whole store."""
    put(store, writer)
    store.close()
    (path / FILE_NAME).unlink()
    again = open_store(path)
    assert len(again.load(QUEUE).entries) == 3
    again.close()


def test_a_disk_that_has_no_room_for_a_log_is_used_without(
    path: Path, writer: Writer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Everything goes to LMDB, as without this version, and somebody is told once."""

    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mirrorq.store.node_store.LogFile", full)
    store = open_store(path)
    for _ in range(4):
        put(store, writer)
    assert caplog.text.count("No space left") == 1
    again = open_store(killed(path))
    assert len(again.load(QUEUE).entries) == 4
    again.close()
    store.close()
    assert in_lmdb(path, MARK) is None


def test_a_record_that_fails_goes_to_lmdb(
    path: Path, store: Store, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows whether it is in the file: it is, here, and is not carried out twice."""
    put(store, writer, b"before")
    write = write_ahead.LogFile.write

    def failing(self: Any, offset: int, pieces: Any) -> None:
        write(self, offset, pieces)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(write_ahead.LogFile, "write", failing)
    put(store, writer, b"failed")
    assert not store._pending
    monkeypatch.undo()
    put(store, writer, b"after")
    again = open_store(killed(path))
    expected = [b"first", b"first", b"before", b"failed", b"after"]
    assert list(bodies_of(again.read(QUEUE, 1, 9, 1 << 20)).values()) == expected
    again.close()


def test_records_go_past_the_cache_where_the_file_system_can(
    tmp_path: Path, writer: Writer
) -> None:
    """Whether it can is asked of another file there. They are durable when they are written."""
    tmp_path.joinpath("other").touch()
    other = os.open(tmp_path / "other", os.O_RDWR)
    can = system.go_past_cache(other)
    os.close(other)
    store = open_store(tmp_path / "store")
    for _ in range(3):
        put(store, writer)
    assert store._file is not None
    flags = fcntl.fcntl(store._file.descriptor, fcntl.F_GETFL)
    assert bool(flags & os.O_DIRECT) == can
    assert bool(flags & os.O_DSYNC) == bool(system.synced_writes())
    again = open_store(killed(tmp_path / "store"))
    assert len(again.load(QUEUE).entries) == 3
    again.close()
    store.close()


def test_what_a_disk_refuses_past_the_cache_it_gets_through_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One with larger blocks, say: it is asked once, not for each record."""
    monkeypatch.setattr(system, "synced_writes", lambda: os.O_DSYNC)
    monkeypatch.setattr(system, "go_past_cache", lambda _: True)
    whole, given = os.pwritev, []

    def refusing(file: int, pieces: Any, offset: int) -> int:
        given.append(type(pieces[0]))
        if given == [memoryview]:
            raise OSError(errno.EINVAL, "Invalid argument")
        return whole(file, pieces, offset)

    log = LogFile(tmp_path)
    log.go_past_cache()
    monkeypatch.setattr(os, "pwritev", refusing)
    for number in range(2):
        log.write(number * PAGE_BYTES, [b"%d" % number * 8, bytes(PAGE_BYTES - 8)])
    log.close()
    assert given == [memoryview, bytes, bytes]
    data = (tmp_path / FILE_NAME).read_bytes()
    assert (data[:8], data[PAGE_BYTES:][:8]) == (b"0" * 8, b"1" * 8)


def test_a_write_that_is_cut_short_goes_on(
    path: Path, store: Store, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may take less than it was given."""
    whole = os.pwritev

    def short(file: int, pieces: Any, offset: int) -> int:
        return whole(file, [b"".join(pieces)[:100]], offset)

    monkeypatch.setattr(os, "pwritev", short)
    put(store, writer, b"x" * 1000)
    again = open_store(killed(path))
    assert bodies_of(again.read(QUEUE, 3, 3, 1))[3] == b"x" * 1000
    again.close()


@pytest.mark.real
def test_a_backup_of_an_open_store_has_its_log(path: Path, store: Store, writer: Writer) -> None:
    """What was committed before is in it, the same after it is put back, and `verify` counts it."""
    put(store, writer, b"in the log")
    backup, restored = path.with_name("backup"), path.with_name("restored")
    backup.mkdir()
    restored.mkdir()
    script = "import sys; from pathlib import Path; from mirrorq.store.copies import back_up; "
    script += "back_up(Path(sys.argv[1]), Path(sys.argv[2]))"
    subprocess.run(
        [PYTHON, "-c", script, str(path), str(backup)], env={"PYTHONPATH": SOURCES}, check=True
    )
    with OfflineStore(backup) as looked_at:
        report = verify(looked_at)
    assert (report.problems, report.frames, report.logged, report.messages) == ([], 3, 1, 3)
    put_back(backup, restored)
    again = open_store(restored)
    assert list(bodies_of(again.read(QUEUE, 1, 9, 1 << 20)).values())[2] == b"in the log"
    again.close()
    with pytest.raises(StoreError):
        back_up(path, backup)


def test_another_identity_takes_the_log_in(path: Path, store: Store, writer: Writer) -> None:
    """force-boot and restore write to a store without starting it: nothing is left behind."""
    put(store, writer, b"in the log")
    left = killed(path)
    renew(left, lambda inventory, _: RaftWrite(RaftState(term=len(inventory.queues))))
    again = open_store(left)
    assert len(again.load(QUEUE).entries) == 3
    assert again.raft_image().state.term == 1
    again.close()


def test_another_format_is_refused(path: Path, store: Store) -> None:
    """Also by what only looks."""
    store.close()
    with lmdb.open(str(path), max_dbs=8) as environment:
        meta = environment.open_db(b"meta")
        with environment.begin(write=True) as txn:
            txn.put(FORMAT, seal(FORMAT, pack_u64(3)), db=meta)
    with pytest.raises(StoreError, match="has format 3, this mirrorq reads 2"):
        open_store(path)
