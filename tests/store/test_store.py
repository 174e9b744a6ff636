"""What is committed is read back; who may open a store, and which."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lmdb
import pytest

from mirrorq.errors import StoreCorrupt, StoreError
from mirrorq.protocol.effects import QueueImage, QueueWrite
from mirrorq.protocol.identities import first_incarnation, is_set_back
from mirrorq.protocol.ops import Entry
from mirrorq.store import queue_log, runs, write_ahead
from mirrorq.store.node_store import Store
from mirrorq.store.records import seal

from .writing import (
    NEIGHBOUR,
    PYTHON,
    QUEUE,
    SOURCES,
    Writer,
    bodies_of,
    frames_of,
    open_store,
    starts_before,
)


def test_a_new_store_is_empty_and_has_an_identity(path: Path) -> None:
    """A path that is absent is made; the identity is a random 63-bit number."""
    store = open_store(path / "deeper")
    assert 0 < store.store_id < 1 << 63
    assert (store.node, store.queue_ids()) == ("a", [])
    assert store.incarnation == first_incarnation(store.store_id)
    image = store.load(QUEUE)
    assert (image.state, image.state_lsn, image.entries) == (None, 0, ())
    assert store.read(QUEUE, 1, 100, 1000) == []
    assert store.raft_image().entries == ()
    assert store.queue_bytes(QUEUE) == 0
    store.close()


def test_identity_stays_and_incarnation_grows(path: Path) -> None:
    """Each start is a new incarnation of the same store."""
    identities = []
    for starts in range(3):
        store = open_store(path)
        assert starts_before(store) == starts
        identities.append(store.store_id)
        store.close()
    assert len(set(identities)) == 1


def test_an_earlier_copy_of_a_store_goes_on_with_another_incarnation(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the one that the store had after the copy was made only by a chance of 1 to 1,000."""
    chances = iter((500_000, 400_000, 600_000, 0))
    monkeypatch.setattr(secrets, "randbits", lambda _bits: next(chances))
    open_store(path).close()
    copies = [shutil.copytree(path, path.with_name(f"copy {number}")) for number in range(2)]
    store = open_store(path)
    known = store.incarnation
    store.close()
    for copy in copies:
        earlier = open_store(copy)
        assert is_set_back(earlier.incarnation, known)
        earlier.close()
    store = open_store(path)
    assert not is_set_back(store.incarnation, known)
    store.close()


def test_an_earlier_copy_is_known_as_one_however_often_it_is_started(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No cluster takes it in, so it goes on in steps of one; what is taken in again does not."""
    chances = iter((500_000, 400_000, 1, 1, 1, 1, 0, 7))
    monkeypatch.setattr(secrets, "randbits", lambda _bits: next(chances))
    store = open_store(path)
    store.note_known()
    store.close()
    copy = shutil.copytree(path, path.with_name("copy"))
    store = open_store(path)
    known = store.incarnation
    store.note_known()
    store.close()
    for _ in range(5):
        earlier = open_store(copy)
        assert is_set_back(earlier.incarnation, known)
        earlier.close()
    for _ in range(2):
        store = open_store(path)
        assert not is_set_back(store.incarnation, known)
        known = store.incarnation
        store.note_known()
        store.close()


def test_close_twice_and_use_after_close(path: Path) -> None:
    """A closed store says so."""
    store = open_store(path)
    store.close()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.queue_ids()
    with pytest.raises(StoreError, match="closed"):
        store.commit([QueueWrite(QUEUE, stable=1)])


def test_entries_come_back_merged_in_order(path: Path, writer: Writer) -> None:
    """Publishes and other ops lie in two tables; `load` gives the one log."""
    first = (writer.publish([b"a", b"b"]), writer.ack(1, 1), writer.publish([b"c"]))
    second = (writer.ack(2, 2), writer.publish([b"d"]), writer.ack(3, 3))
    store = open_store(path)
    store.commit([QueueWrite(QUEUE, append=first)])
    store.commit([QueueWrite(QUEUE, append=second)])
    store.close()
    store = open_store(path)
    entries = store.load(QUEUE).entries
    assert frames_of(entries) == frames_of(first + second)
    assert entries[1].payload == first[1].payload
    assert store.queue_ids() == [QUEUE]
    store.close()


def test_queues_do_not_see_each_other(path: Path) -> None:
    """Neighbouring queue ids, one commit: each has its own messages, also at the edges."""
    writers = [Writer(queue_id) for queue_id in (1, 2, 3)]
    store = open_store(path)
    store.commit(
        [QueueWrite(w.queue_id, append=(w.publish([b"%d" % w.queue_id]),)) for w in writers]
    )
    for writer in writers:
        assert bodies_of(store.read(writer.queue_id, 1, 10, 1000)) == {1: b"%d" % writer.queue_id}
        assert len(store.load(writer.queue_id).entries) == 1
    store.commit([QueueWrite(2, truncate_to=0)])
    assert [len(store.load(queue_id).entries) for queue_id in (1, 2, 3)] == [1, 0, 1]
    store.close()


def test_a_checkpoint_ends_replay_and_deletes_ops(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ops at or below the checkpoint are not loaded, and their bytes are given back."""
    monkeypatch.setattr(write_ahead, "GROUP_BYTES_MAX", 0)  # each commit is a run
    writer = Writer()
    entries = [writer.publish([b"x" * 10])] + [writer.ack(1, 1) for _ in range(20)]
    store = open_store(path)
    for entry in entries:
        store.commit([QueueWrite(QUEUE, append=(entry,))])
    before = store.queue_bytes(QUEUE)
    store.commit([QueueWrite(QUEUE, state=b"applied", state_lsn=15, stable=17)])
    assert before - store.queue_bytes(QUEUE) == 14 * len(entries[1].frame)
    image = store.load(QUEUE)
    assert (image.state, image.state_lsn, image.stable) == (b"applied", 15, 17)
    assert frames_of(image.entries) == frames_of(entries[15:])
    store.close()


def test_truncation_rewrites_the_run_that_it_cuts(path: Path, writer: Writer) -> None:
    """A cut in the middle of a commit's run keeps what is before it, in both tables."""
    entries = []
    for number in range(6):
        entries += [writer.publish([b"m%d" % number] * 3), writer.ack(1, 1)]
    store = open_store(path)
    store.commit([QueueWrite(QUEUE, append=tuple(entries[:2]))])
    store.commit([QueueWrite(QUEUE, append=tuple(entries[2:]))])
    other = Writer(epoch=2)
    other.lsn, other.sequence = 7, entries[6].header.last_sequence
    new = other.publish([b"new"])
    store.commit([QueueWrite(QUEUE, truncate_to=7, append=(new,))])
    assert frames_of(store.load(QUEUE).entries) == frames_of([*entries[:7], new])
    found = bodies_of(store.read(QUEUE, 1, 1000, 1 << 20))
    assert list(found) == list(range(1, 14))
    assert found[13] == b"new"
    store.close()


def test_read_gives_whole_frames_and_stops_at_the_bound(path: Path, writer: Writer) -> None:
    """Frames that touch the range, in order; at least one however small the bound."""
    entries = [writer.publish([b"%d" % n, b"x" * 100]) for n in range(10)]
    store = open_store(path)
    store.commit([QueueWrite(QUEUE, append=tuple(entries[:4]))])
    store.commit([QueueWrite(QUEUE, append=tuple(entries[4:]))])
    assert frames_of_read(store, 2, 3) == frames_of(entries[:2])
    assert frames_of_read(store, 6, 11) == frames_of(entries[2:6])
    assert frames_of_read(store, 20, 25) == frames_of(entries[9:])
    assert frames_of_read(store, 21, 25) == []
    assert frames_of_read(store, 1, 20, 0) == frames_of(entries[:1])
    size = len(entries[0].frame)
    assert frames_of_read(store, 1, 20, size) == frames_of(entries[:1])
    assert frames_of_read(store, 1, 20, size + 1) == frames_of(entries[:2])
    store.close()


def frames_of_read(store: Store, first: int, last: int, bytes_max: int = 1 << 20) -> list[bytes]:
    return [bytes(frame) for frame in store.read(QUEUE, first, last, bytes_max)]


def test_reading_on_after_the_run_was_rewritten(path: Path, writer: Writer) -> None:
    """What the store remembers of the last read does no harm when the run has changed."""
    entries = tuple(writer.publish([b"%d" % n * 50]) for n in range(10))
    store = open_store(path)
    store.commit([QueueWrite(QUEUE, append=entries)])
    assert list(bodies_of(store.read(QUEUE, 1, 6, 1 << 20))) == [1, 2, 3, 4, 5, 6]
    other = Writer(epoch=2)
    other.lsn, other.sequence = 2, 2
    new = tuple(other.publish([b"n"]) for _ in range(8))
    store.commit([QueueWrite(QUEUE, truncate_to=2, append=new)])
    found = bodies_of(store.read(QUEUE, 7, 10, 1 << 20))
    assert found == dict.fromkeys((7, 8, 9, 10), b"n")
    assert list(bodies_of(store.read(QUEUE, 2, 4, 1 << 20))) == [2, 3, 4]
    store.close()


def test_release_deletes_only_runs_wholly_inside(path: Path, writer: Writer) -> None:
    """A run with one message outside of the range stays."""
    store = open_store(path)
    for _ in range(4):
        store.commit([QueueWrite(QUEUE, append=(writer.publish([b"x"] * 5),))])
    store.commit([QueueWrite(QUEUE, state=b"", state_lsn=4, release=((2, 14),))])
    assert list(bodies_of(store.read(QUEUE, 1, 20, 1 << 20))) == [1, 2, 3, 4, 5, *range(11, 21)]
    store.commit([QueueWrite(QUEUE, state=b"", state_lsn=4, release=((1, 20),))])
    assert store.read(QUEUE, 1, 20, 1 << 20) == []
    assert store.queue_bytes(QUEUE) == 0
    store.close()


def test_a_large_release_goes_on_in_later_commits(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One transaction deletes a bounded number of runs, the next ones the rest, also after a
    restart; runs outside are left alone."""
    monkeypatch.setattr(queue_log, "DELETED_RUNS_MAX", 10)
    monkeypatch.setattr(write_ahead, "GROUP_BYTES_MAX", 0)  # each commit is a run
    writer = Writer()
    store = open_store(path)
    for _ in range(50):
        store.commit([QueueWrite(QUEUE, append=(writer.publish([b"x"]), writer.ack(1, 1)))])
    store.commit([QueueWrite(QUEUE, state=b"", state_lsn=100, release=((1, 45),))])
    assert store.load(QUEUE).entries == ()
    store.close()
    store = open_store(path)
    while store.collect():
        pass
    assert list(bodies_of(store.read(QUEUE, 1, 50, 1 << 20))) == list(range(46, 51))
    run = len(writer.publish([b"x"]).frame)
    assert store.queue_bytes(QUEUE) == 5 * run
    assert not store.collect()
    store.close()


def test_a_reset_queue_begins_anew_at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of before the reset is seen, though most of it is deleted later."""
    monkeypatch.setattr(queue_log, "DELETED_RUNS_MAX", 2)
    old, new = Writer(), Writer(epoch=2)
    store = open_store(path)
    for _ in range(20):
        store.commit([QueueWrite(QUEUE, append=(old.publish([b"old"] * 2), old.ack(1, 1)))])
    fetched = tuple(new.publish([b"new"]) for _ in range(3))
    new.lsn = 50
    store.commit(
        [
            QueueWrite(
                QUEUE, reset=True, state=b"s", state_lsn=50, fetched=fetched, lacking=((4, 9),)
            )
        ]
    )
    assert bodies_of(store.read(QUEUE, 1, 100, 1 << 20)) == {1: b"new", 2: b"new", 3: b"new"}
    image = store.load(QUEUE)
    assert (image.state, image.state_lsn, image.lacking) == (b"s", 50, ((4, 9),))
    assert image.entries == ()
    while store.collect():
        pass
    assert store.queue_bytes(QUEUE) == sum(len(entry.frame) for entry in fetched)
    store.commit([QueueWrite(QUEUE, reset=True)])
    assert store.queue_ids() == []
    assert store.load(QUEUE).state is None
    assert store.load(QUEUE).lacking == ()
    store.close()


def test_deleted_queues_give_their_pages_back(path: Path) -> None:
    """Declaring, filling and deleting for ever needs no more room than once."""
    store = open_store(path)
    empty = store.store_bytes()
    for queue_id in range(1, 101):
        writer = Writer(queue_id)
        store.commit([QueueWrite(queue_id, append=(writer.publish([b"x" * 100_000]),))])
        store.commit([QueueWrite(queue_id, reset=True)])
    while store.collect():
        pass
    assert store.store_bytes() <= empty + 4096 * 4
    assert (path / "data.mdb").stat().st_size < 2 << 20
    store.close()


def test_fetched_frames_fill_holes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames of a transfer go between, into and over runs that are there, in any pieces, and
    no message comes twice."""
    monkeypatch.setattr(runs, "RUN_BYTES_MAX", 1000)
    writer = Writer()
    entries = [writer.publish([b"%d" % (n * 10 + k) for k in range(10)]) for n in range(12)]
    store = open_store(path)
    write_state(store, 12)

    def fetch(*fetched: Entry) -> None:
        store.commit([QueueWrite(QUEUE, fetched=fetched)])

    fetch(entries[1], entries[5])
    fetch(entries[8])
    fetch(runs.piece(entries[3], 33, 36))
    fetch(entries[2], entries[3], entries[3], entries[9], entries[0])
    fetch(*reversed(entries))
    fetch(*entries)
    expected = {n + 1: b"%d" % n for n in range(120)}
    assert bodies_of(store.read(QUEUE, 1, 1000, 1 << 20)) == expected
    for sequence, body in expected.items():
        assert bodies_of(store.read(QUEUE, sequence, sequence, 1))[sequence] == body
    store.close()


def write_state(store: Store, lsn: int) -> None:
    store.commit([QueueWrite(QUEUE, reset=True, state=b"", state_lsn=lsn, lacking=((1, 120),))])


def test_appending_again_what_is_there_makes_no_second_copy(path: Path, writer: Writer) -> None:
    """Messages that are there already, in whatever runs, are not stored twice."""
    entries = tuple(writer.publish([b"x"] * 3) for _ in range(5))
    store = open_store(path)
    store.commit([QueueWrite(QUEUE, append=entries[:3])])
    store.commit([QueueWrite(QUEUE, append=entries[:2])])
    store.commit([QueueWrite(QUEUE, append=entries[1:])])
    assert frames_of(store.load(QUEUE).entries) == frames_of(entries)
    assert frames_of_read(store, 1, 15) == frames_of(entries)
    store.close()


def test_a_frame_larger_than_a_run_is_a_run_of_its_own(path: Path, writer: Writer) -> None:
    """Frames of any size are kept; runs are cut between frames."""
    entries = tuple(writer.publish([b"x" * size]) for size in (10, 5 << 20, 10, 900_000, 900_000))
    store = open_store(path, store_bytes_max=1 << 30)
    store.commit([QueueWrite(QUEUE, append=entries)])
    assert frames_of(store.load(QUEUE).entries) == frames_of(entries)
    assert store.queue_bytes(QUEUE) == sum(len(entry.frame) for entry in entries)
    store.close()


@pytest.mark.real
def test_the_map_grows_while_others_read(path: Path, writer: Writer) -> None:
    """Threads read, load and ask for sizes while commits make the map grow twice; what was read
    before stays as it was."""
    store = open_store(path, store_bytes_max=1 << 30)
    first = writer.publish([b"first"])
    store.commit([QueueWrite(QUEUE, append=(first,), state=b"", state_lsn=1)])
    held = store.read(QUEUE, 1, 1, 1)
    done = threading.Event()
    rounds = [0, 0]

    def reader(index: int) -> None:
        while not done.is_set():
            assert bodies_of(store.read(QUEUE, 1, 1, 1)) == {1: b"first"}
            assert store.load(NEIGHBOUR).entries == ()
            assert store.store_bytes() > 0
            rounds[index] += 1

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(reader, index) for index in (0, 1)]
        try:
            for _ in range(10):
                before = list(rounds)
                store.commit([QueueWrite(QUEUE, append=(writer.publish([b"x" * (15 << 20)]),))])
                deadline = time.monotonic() + 30
                while rounds[0] == before[0] or rounds[1] == before[1]:
                    assert time.monotonic() < deadline
                    assert not any(future.done() for future in readers)
        finally:
            done.set()
        for future in readers:
            future.result()
    assert bytes(held[0]) == first.frame
    store.close()


def test_a_missing_op_is_told(path: Path, writer: Writer) -> None:
    """A gap after the checkpoint is damage, not a shorter log."""
    entries = [writer.ack(1, 1) for _ in range(3)]
    store = open_store(path)
    store.commit([QueueWrite(QUEUE, append=(entries[0], entries[2]))])
    with pytest.raises(StoreCorrupt, match="op 2 of queue 7 is missing"):
        store.load(QUEUE)
    store.close()


def test_small_values_of_the_node(path: Path) -> None:
    """`put_meta` keeps bytes by name, over a restart too."""
    store = open_store(path)
    assert store.get_meta("generation") is None
    store.put_meta("generation", b"\x00\x01")
    store.put_meta("node", b"")
    store.close()
    store = open_store(path)
    assert store.get_meta("generation") == b"\x00\x01"
    assert store.get_meta("node") == b""
    assert store.node == "a"
    store.close()


def test_the_store_of_another_node_is_refused(path: Path) -> None:
    """The error names both nodes; the store and its incarnation stay untouched."""
    open_store(path, node="b").close()
    with pytest.raises(StoreError, match="belongs to node 'b', not to 'a'"):
        open_store(path, node="a")
    store = open_store(path, node="b")
    assert starts_before(store) == 1
    store.close()


@pytest.mark.parametrize(
    ("key", "data", "text"),
    [
        (b"format", (4).to_bytes(8, "little"), "has format 4, this mirrorq reads 2"),
        (b"lmdb", b"1.0", "made by LMDB 1.0, this is 0.9"),
    ],
)
def test_another_version_is_refused(path: Path, key: bytes, data: bytes, text: str) -> None:
    """A store of a later mirrorq, or of another LMDB, is not touched."""
    open_store(path).close()
    with lmdb.open(str(path), max_dbs=8) as environment:
        meta = environment.open_db(b"meta")
        with environment.begin(write=True) as txn:
            txn.put(key, seal(key, data), db=meta)
    with pytest.raises(StoreError, match=text):
        open_store(path)


def test_an_environment_of_somebody_else_is_refused(path: Path) -> None:
    """mirrorq adds nothing to an LMDB environment that it did not make."""
    path.mkdir()
    with lmdb.open(str(path)) as environment, environment.begin(write=True) as txn:
        txn.put(b"theirs", b"x")
    with pytest.raises(StoreError, match="mirrorq did not make"):
        open_store(path)


def test_a_path_that_is_no_directory_is_refused(path: Path) -> None:
    """The error is mirrorq's, and says what to give."""
    path.write_bytes(b"")
    with pytest.raises(StoreError, match="give a directory"):
        open_store(path)


def test_an_image_of_an_unknown_queue_names_it(path: Path) -> None:
    """Callers can tell whose empty image it is."""
    store = open_store(path)
    image = store.load(99)
    assert isinstance(image, QueueImage)
    assert image.queue_id == 99
    store.close()


def test_a_store_that_is_deleted_while_it_is_open_takes_nothing_more(path: Path) -> None:
    """What is written to its files would be gone with the process."""
    writer = Writer()
    store = open_store(path)
    store.commit([QueueWrite(QUEUE, append=(writer.publish([b"a"]),))])
    moved = path.rename(path.with_name("moved"))
    store.commit([QueueWrite(QUEUE, append=(writer.publish([b"b"]),))])
    shutil.rmtree(moved)
    for body in (b"small", bytes(100_000)):
        with pytest.raises(StoreError, match="was deleted while it was open"):
            store.commit([QueueWrite(QUEUE, append=(writer.publish([body]),))])
    store.close()


@pytest.mark.real
def test_a_process_that_has_closed_all_files(path: Path) -> None:
    """Programs that become daemons do: what comes next may have the store's numbers."""
    script = (
        "import os, sys\n"
        "from mirrorq.config import Config\n"
        "from mirrorq.errors import StoreError\n"
        "from mirrorq.protocol.effects import QueueWrite\n"
        "from mirrorq.store.node_store import Store\n"
        "store = Store(sys.argv[1], node='a', config=Config())\n"
        "os.closerange(3, 256)\n"
        "for again in range(2):\n"
        "    try:\n"
        "        store.commit([QueueWrite(1, reset=True)])\n"
        "    except StoreError as error:\n"
        "        assert 'has closed its files' in str(error), error\n"
        "    else:\n"
        "        sys.exit('it was taken')\n"
        "    others = [os.open(os.devnull, os.O_RDWR) for _ in range(60)]\n"
        "os._exit(0)\n"
    )
    done = subprocess.run([PYTHON, "-c", script, path], timeout=60, env={"PYTHONPATH": SOURCES})
    assert done.returncode == 0
