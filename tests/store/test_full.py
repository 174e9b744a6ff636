"""A full store and a failing disk: nothing half done, and the store goes on."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import lmdb
import pytest
from tests.kit import DEADLINE_S

from mirrorq.errors import StoreError, StoreFull
from mirrorq.node.verification import verify
from mirrorq.protocol.effects import QueueWrite, RaftEntry, RaftWrite
from mirrorq.protocol.ops import Entry
from mirrorq.replication.disk_budget import Room
from mirrorq.store.extent import RESERVE_BYTES
from mirrorq.store.node_store import Store
from mirrorq.store.offline import OfflineStore

from .writing import QUEUE, Writer, bodies_of, frames_of, open_store

MIB = 1 << 20


TOO_LARGE = b"x" * (70 * MIB)
"""More than the map of a store of 1 MiB may ever hold."""


def has_room(store: Store, size: int) -> bool:
    """What the driver asks before a message of this size gets into a commit."""
    room = Room()
    for _ in range(2):
        space = store.room(room.wanted)
        room.set(space.bytes_left, space.largest, space.advice)
        if room.has(size):
            return True
        store.make_room()
    return False


def fill(store: Store, writer: Writer, body_bytes: int = 10_000) -> int:
    """Publish until there is no room; return how many messages it took."""
    count = 0
    while has_room(store, body_bytes + 200):
        store.commit([QueueWrite(QUEUE, append=(writer.publish([b"x" * body_bytes]),))])
        count += 1
    return count


def test_a_full_store_stays_as_it_was(path: Path, writer: Writer) -> None:
    """There is room up to the bound, and StoreFull takes nothing of a commit to disk, neither
    messages nor the rest. Verification finds no fault."""
    store = open_store(path, store_bytes_max=MIB)
    count = fill(store, writer)
    assert 0.7 * MIB < count * 10_000 < MIB
    assert store.store_bytes() <= MIB
    held = frames_of(store.load(QUEUE).entries)
    assert len(held) == count
    with pytest.raises(StoreFull, match="raise store_bytes_max"):
        store.commit(
            [QueueWrite(QUEUE, append=(writer.publish([TOO_LARGE]),), stable=99)],
            RaftWrite(append=(RaftEntry(1, 1, 0, b""),)),
        )
    assert frames_of(store.load(QUEUE).entries) == held
    assert store.raft_image().entries == ()
    store.close()
    with OfflineStore(path) as offline:
        assert verify(offline).problems == []


def test_a_full_store_can_be_drained(path: Path, writer: Writer) -> None:
    """Acks, checkpoints, Raft and small values go on in a full store for as long as it takes,
    while publishers keep trying; after the release there is room again."""
    store = open_store(path, store_bytes_max=MIB)
    count = fill(store, writer)
    for round_number in range(300):
        store.commit(
            [QueueWrite(QUEUE, append=(writer.ack(1, 1),))],
            RaftWrite(append=(RaftEntry(round_number + 1, 1, 1, b"x" * 100),)),
        )
        if round_number % 10 == 9:
            state = b"s" * 20_000
            store.commit([QueueWrite(QUEUE, state=state, state_lsn=writer.lsn)])
            store.put_meta("round", b"%d" % round_number)
            assert fill(store, writer) <= 4
    store.commit(
        [QueueWrite(QUEUE, state=b"", state_lsn=writer.lsn, release=((1, writer.sequence),))]
    )
    assert fill(store, writer) >= count - 10
    store.close()


def test_a_store_that_stays_nearly_full_does_not_grow(path: Path, writer: Writer) -> None:
    """Freed pages are used again: the file is bounded however much passes through it."""
    store = open_store(path, store_bytes_max=4 * MIB)
    for _ in range(400):
        entry = writer.publish([b"x" * 100_000])
        released = ((1, writer.sequence - 20),) if writer.sequence > 20 else ()
        store.commit(
            [QueueWrite(QUEUE, append=(entry,), state=b"s", state_lsn=writer.lsn, release=released)]
        )
    assert store.store_bytes() < 3 * MIB
    assert (path / "data.mdb").stat().st_size < 6 * MIB + RESERVE_BYTES
    store.close()


def test_a_bound_below_what_is_held_refuses_messages_only(path: Path, writer: Writer) -> None:
    """A store that is opened with a smaller bound is full, and can still be read and drained."""
    store = open_store(path, store_bytes_max=16 * MIB)
    fill(store, writer, 500_000)
    store.close()
    store = open_store(path, store_bytes_max=MIB)
    assert fill(store, writer) == 0
    assert len(bodies_of(store.read(QUEUE, 1, 3, 1 << 30))) == 3
    store.commit(
        [QueueWrite(QUEUE, state=b"", state_lsn=writer.lsn, release=((1, writer.sequence),))]
    )
    assert fill(store, writer) > 50
    store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 3 MiB, where this user may mount one."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(tmp_path)]
    try:
        done = subprocess.run(mount, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if done.returncode != 0:
        pytest.skip("this user may not mount a tmpfs")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


@pytest.mark.real
def test_a_full_disk(small_disk: Path) -> None:
    """ENOSPC in a commit: StoreFull, nothing is lost or half there, and the store goes on when
    there is space again."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(MIB))
    writer = Writer()
    store = open_store(small_disk / "store")
    kept: list[Entry] = []

    def publish_for_ever() -> None:
        while True:
            entry = writer.publish([b"x" * 50_000])
            store.commit([QueueWrite(QUEUE, append=(entry,))])
            kept.append(entry)

    with pytest.raises(StoreFull, match="bytes free on the disk"):
        publish_for_ever()
    assert frames_of(store.load(QUEUE).entries) == frames_of(kept)
    ballast.unlink()
    writer.lsn, writer.sequence = kept[-1].lsn, kept[-1].header.last_sequence
    entry = writer.publish([b"y" * 50_000])
    for _ in range(3):
        store.commit([QueueWrite(QUEUE, append=(entry,))])
    assert frames_of(store.load(QUEUE).entries) == frames_of([*kept, entry])
    store.close()
    store = open_store(small_disk / "store")
    assert frames_of(store.load(QUEUE).entries) == frames_of([*kept, entry])
    store.close()


NEW = """
import sys
from pathlib import Path
from tests.store.writing import open_store
from mirrorq.errors import StoreFull
try:
    open_store(Path(sys.argv[1]))
except StoreFull as error:
    print(error)
"""


@pytest.mark.real
def test_a_new_store_on_a_full_disk(small_disk: Path) -> None:
    """Also LMDB's lock file, which is written through a map, is an error and no signal."""
    (small_disk / "store").mkdir()
    with (small_disk / "ballast").open("wb", buffering=0) as ballast, suppress(OSError):
        while True:
            ballast.write(bytes(4096))
    command = [sys.executable, "-c", NEW, str(small_disk / "store")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert "0 bytes free on the disk" in done.stdout


def test_a_file_that_may_not_grow(path: Path) -> None:
    """A limit on file size fails like a full disk (the first write is cut short, which LMDB
    calls an I/O error); without the limit the store goes on."""
    writer = Writer()
    store = open_store(path)
    first, second = writer.publish([b"x" * 1000]), writer.publish([b"x" * MIB])
    store.commit([QueueWrite(QUEUE, append=(first,))])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
    try:
        with pytest.raises(StoreFull):
            store.commit([QueueWrite(QUEUE, append=(second,))])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert frames_of(store.load(QUEUE).entries) == [first.frame]
    store.commit([QueueWrite(QUEUE, append=(second,))])
    assert frames_of(store.load(QUEUE).entries) == [first.frame, second.frame]
    store.close()


class Failing:
    """LMDB's environment with a disk that fails: `commits` are the codes of the next commits.

    `panic`: after a failure LMDB refuses everything until it is opened again. `lands`: what
    failed is on disk all the same.
    """

    def __init__(self, real: Any, commits: list[int], panic: bool, lands: bool) -> None:
        self.real, self.commits, self.panic, self.lands = real, commits, panic, lands
        self.has_failed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def begin(self, *args: Any, **options: Any) -> Any:
        if self.has_failed and self.panic:
            raise lmdb.PanicError("mdb_txn_begin", 0)
        txn = self.real.begin(*args, **options)
        return FailingTransaction(txn, self) if options.get("write") else txn


class FailingTransaction:
    def __init__(self, txn: Any, owner: Failing) -> None:
        self.txn, self.owner = txn, owner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.txn, name)

    def commit(self) -> None:
        if not self.owner.commits:
            self.txn.commit()
            return
        if self.owner.lands:
            self.txn.commit()
        self.owner.has_failed = True
        code = self.owner.commits.pop(0)
        error = lmdb.Error(f"mdb_txn_commit: {os.strerror(code)}")
        error.code = code  # type: ignore[misc]
        raise error


def failing(store: Store, *commits: int, panic: bool = False, lands: bool = False) -> None:
    environment = store._environment
    environment._lmdb = Failing(environment._lmdb, list(commits), panic, lands)  # type: ignore[assignment]


def test_a_disk_error(path: Path, writer: Writer) -> None:
    """StoreError when the disk fails, and the store takes nothing more: one that fails once and
    then works says nothing of what it has."""
    store = open_store(path)
    entry = writer.publish([b"x"])
    failing(store, errno.EIO)
    with pytest.raises(StoreError, match="Input/output error") as caught:
        store.commit([QueueWrite(QUEUE, append=(entry,))])
    assert not isinstance(caught.value, StoreFull)
    writes = (
        lambda: store.commit([QueueWrite(QUEUE, append=(entry,))]),
        lambda: store.put_meta("name", b"value"),
        store.make_room,
    )
    for write in writes:
        with pytest.raises(StoreError, match=r"takes nothing more.*Input/output error") as caught:
            write()
        assert not isinstance(caught.value, StoreFull)
    assert store.queue_ids() == [], "it is read all the same"
    store.close()


@pytest.mark.parametrize("panic", [False, True])
def test_a_full_disk_is_no_disk_error(path: Path, panic: bool, writer: Writer) -> None:
    """StoreFull, and the same writes are taken when there is space. After a failed write of its
    meta page LMDB refuses everything: the store opens it anew."""
    store = open_store(path)
    entry = writer.publish([b"x"])
    failing(store, errno.ENOSPC, panic=panic)
    with pytest.raises(StoreFull):
        store.commit([QueueWrite(QUEUE, append=(entry,))])
    assert store.queue_ids() == []
    assert store.load(QUEUE).entries == ()
    store.commit([QueueWrite(QUEUE, append=(entry,))])
    assert frames_of(store.load(QUEUE).entries) == [entry.frame]
    store.close()


def test_a_commit_of_unknown_outcome_is_told(path: Path) -> None:
    """When the failed commit is in the file after all, nobody is told that it is not."""
    store = open_store(path)
    failing(store, errno.EIO, lands=True)
    with pytest.raises(StoreError, match="may be on disk or not"):
        store.commit([QueueWrite(QUEUE, append=(Writer().publish([b"x"]),))])
    store.close()
