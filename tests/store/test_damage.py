"""A changed byte in any value that mirrorq wrote is found, named, and never served."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lmdb
import pytest

from mirrorq.errors import StoreCorrupt, StoreError
from mirrorq.protocol.effects import (
    COLUMNS,
    PRODUCERS,
    Page,
    QueueWrite,
    RaftEntry,
    RaftSnapshot,
    RaftState,
    RaftWrite,
    SnapshotPage,
)
from mirrorq.protocol.identities import StoreId
from mirrorq.replication.state.queue_state import QueueState, next_sequence_of
from mirrorq.store import queue_log
from mirrorq.store.environment import DATA_FILE, READERS_MAX
from mirrorq.store.extent import Extent
from mirrorq.store.node_store import Store

from .writing import PYTHON, QUEUE, SOURCES, Writer, bodies_of, frames_of, open_store

TABLES = ("meta", "queues", "messages", "ops", "garbage", "raft")


def filled(path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store that has something of every kind."""
    monkeypatch.setattr(queue_log, "DELETED_RUNS_MAX", 0)
    writer = Writer()
    store = open_store(path)
    first = (writer.publish([b"ab", b"c"]), writer.ack(1, 1), writer.publish([b"d"]))
    store.commit([QueueWrite(QUEUE, append=first)])
    store.commit([QueueWrite(QUEUE, state=b"state", state_lsn=1, release=((1, 2),), stable=1)])
    last = (writer.publish([b"e"]), writer.publish([b"f"] * 3), writer.ack(1, 1), writer.ack(2, 2))
    store.commit([QueueWrite(QUEUE, append=last)])
    snapshot = RaftSnapshot(3, 1, (StoreId("a", 5),), (b"catalog",))
    entries = (RaftEntry(4, 1, 1, b"command"), RaftEntry(5, 2, 0, b""))
    pages = (SnapshotPage(3, 0, b"catalog"),)
    store.commit([], RaftWrite(RaftState(2, StoreId("a", 5)), pages, snapshot, append=entries))
    store.put_meta("name", b"value")
    return store


def seen(store: Store) -> dict[str, Any]:
    """Everything that a node ever reads, each by itself: a value or StoreCorrupt."""
    spans = ((1, 10), (1, 1), (1, 3), (3, 4), (4, 4), (5, 7), (7, 20))
    return {
        "image": result_of(lambda: image_of(store)),
        "raft": result_of(store.raft_image),
        "meta": result_of(lambda: store.get_meta("name")),
        **{f"read {span}": result_of(partial(read, store, *span)) for span in spans},
    }


def read(store: Store, first: int, last: int) -> dict[int, bytes]:
    return bodies_of(store.read(QUEUE, first, last, 1 << 20))


def result_of(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except StoreCorrupt as error:
        return error


def is_right(result: Any, good: Any) -> bool:
    """Whether damage is told, or what is served is as it was written: messages up to it."""
    if isinstance(result, StoreCorrupt) or result == good:
        return True
    return (
        isinstance(good, dict)
        and bool(result)
        and result == dict(list(good.items())[: len(result)])
    )


def image_of(store: Store) -> Any:
    image = store.load(QUEUE)
    return (
        image.state,
        image.state_lsn,
        frames_of(image.entries),
        image.lacking,
        image.stable,
    )


def stored(store: Store) -> list[tuple[str, bytes, bytes]]:
    """Every (table, key, value)."""
    tables = store._environment.tables

    def work(txn: Any) -> list[tuple[str, bytes, bytes]]:
        return [
            (name, bytes(key), bytes(value))
            for name in TABLES
            for key, value in txn.cursor(getattr(tables, name))
        ]

    return store._environment.read(work)


def put(store: Store, table: str, key: bytes, value: bytes) -> None:
    database = getattr(store._environment.tables, table)
    store._environment.write(lambda txn: txn.put(key, value, db=database))


def test_each_flipped_byte_is_found_when_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For every byte of every value that is read while a node runs: whatever is served is
    right, and something that needs the value raises StoreCorrupt that names its table."""
    store = filled(path, monkeypatch)
    store.commit([QueueWrite(QUEUE, stable=3)])
    good = seen(store)
    assert not any(isinstance(result, StoreCorrupt) for result in good.values())
    flipped = 0
    for table, key, value in stored(store):
        if table in ("meta", "garbage") and not key.startswith(b"value"):
            continue
        for at in range(len(value)):
            put(store, table, key, value[:at] + bytes([value[at] ^ 1 << at % 8]) + value[at + 1 :])
            results = seen(store)
            errors = [result for result in results.values() if isinstance(result, StoreCorrupt)]
            assert errors, (table, key, at)
            assert all(f"database '{table}'" in str(error) for error in errors)
            assert all(is_right(result, good[name]) for name, result in results.items()), (
                table,
                key,
                at,
            )
            flipped += 1
        put(store, table, key, value)
    assert flipped > 900
    assert seen(store) == good
    store.close()


def test_errors_that_are_kept_leave_the_store_readable(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error keeps its frames alive, and they must not keep its read transaction."""
    store = filled(path, monkeypatch)
    good = store.get_meta("name")
    put(store, "meta", b"value name", b"damaged")
    kept = [result_of(lambda: store.get_meta("name")) for _ in range(2 * READERS_MAX)]
    assert all(isinstance(error, StoreCorrupt) for error in kept)
    store.put_meta("name", b"value")
    assert store.get_meta("name") == good
    store.close()


def test_a_cut_or_lengthened_value_is_found(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengths are covered too: no value may lose or gain bytes at its end."""
    store = filled(path, monkeypatch)
    good = seen(store)
    for table, key, value in stored(store):
        if table in ("meta", "garbage") and not key.startswith(b"value"):
            continue
        for changed in (value[:-1], value + b"\0", value[:3], b""):
            put(store, table, key, changed)
            results = seen(store)
            assert any(isinstance(result, StoreCorrupt) for result in results.values())
            assert all(is_right(result, good[name]) for name, result in results.items())
        put(store, table, key, value)
    store.close()


def test_each_flipped_byte_of_the_identity_is_found_at_the_start(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Format, versions, node, identity and incarnation are checked when the store is opened."""
    filled(path, monkeypatch).close()
    for key in (b"format", b"lmdb", b"node", b"store id", b"incarnation"):
        good = raw_value(path, key)
        for at in range(len(good)):
            raw_put(path, key, good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :])
            with pytest.raises(StoreCorrupt, match=f"database 'meta', key {key.hex()}"):
                open_store(path)
        raw_put(path, key, good)
    raw_delete(path, b"store id")
    with pytest.raises(StoreCorrupt, match="it is missing"):
        open_store(path)


def raw_value(path: Path, key: bytes) -> bytes:
    with lmdb.open(str(path), max_dbs=8) as environment:
        meta = environment.open_db(b"meta")
        with environment.begin() as txn:
            value = txn.get(key, db=meta)
            assert value is not None
            return value


def raw_put(path: Path, key: bytes, value: bytes) -> None:
    with lmdb.open(str(path), max_dbs=8) as environment:
        meta = environment.open_db(b"meta")
        with environment.begin(write=True) as txn:
            txn.put(key, value, db=meta)


def raw_delete(path: Path, key: bytes) -> None:
    with lmdb.open(str(path), max_dbs=8) as environment:
        meta = environment.open_db(b"meta")
        with environment.begin(write=True) as txn:
            txn.delete(key, db=meta)


def test_damage_in_a_commit_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that needs a value which is damaged raises, and the rest of it is not done."""
    store = filled(path, monkeypatch)
    table, key, value = next(item for item in stored(store) if item[1] == b"generation")
    put(store, table, key, value[:-1] + b"\xff")
    fresh = QueueWrite(QUEUE + 1, append=(Writer(QUEUE + 1).publish([b"x"]),))
    with pytest.raises(StoreCorrupt, match="database 'meta'"):
        store.commit([QueueWrite(QUEUE, reset=True), fresh])
    store.close()
    store = open_store(path)
    put(store, table, key, value)
    assert not any(isinstance(result, StoreCorrupt) for result in seen(store).values())
    store.close()


FRAMES = 6


def six(path: Path) -> tuple[Store, list[Any], tuple[str, bytes, bytes]]:
    """A run of six frames of two messages each, and where it lies."""
    writer = Writer()
    store = open_store(path)
    entries = [writer.publish([b"%d" % n * 40, b"x"]) for n in range(FRAMES)]
    store.commit([QueueWrite(QUEUE, append=tuple(entries))])
    return store, entries, next(item for item in stored(store) if item[0] == "messages")


def flipped(value: bytes, at: int) -> bytes:
    return value[:at] + bytes([value[at] ^ 0x20]) + value[at + 1 :]


def whole_of(store: Store, least: int = 1) -> tuple[dict[int, bytes], list[tuple[int, int]]]:
    """All that can be read from `least` on, and the spans that cannot."""
    found: dict[int, bytes] = {}
    spans: list[tuple[int, int]] = []
    while least <= 2 * FRAMES:
        got = result_of(partial(read, store, least, 2 * FRAMES))
        if isinstance(got, StoreCorrupt):
            assert got.span is not None
            assert got.span[0] <= least
            spans.append(got.span)
            least = got.span[1] + 1
        elif not got:
            break
        else:
            found.update(got)
            least = max(got) + 1
    return found, spans


def test_damage_is_told_with_its_messages_and_the_others_are_read(path: Path) -> None:
    """Of a run of six frames one byte is changed, anywhere: the frames before and behind are
    read, the error names the messages of the one. Where its length is what was changed, the rest
    of the run may be named with it, never less."""
    store, entries, (table, key, value) = six(path)
    good, _ = whole_of(store)
    size = len(entries[0].frame)
    exact = 0
    for at in range(0, len(value), 3):
        put(store, table, key, flipped(value, at))
        found, spans = whole_of(store)
        first = 2 * (at // size) + 1
        assert len(spans) == 1
        assert spans[0][0] == first
        assert spans[0][1] >= first + 1
        assert found == {n: good[n] for n in good if not spans[0][0] <= n <= spans[0][1]}
        exact += spans[0] == (first, first + 1)
    assert exact > len(value) // 3 - FRAMES * 4
    put(store, table, key, value)
    assert whole_of(store) == (good, [])
    store.close()


def test_a_fetched_frame_takes_the_place_of_a_damaged_one(path: Path) -> None:
    """Frames that come from another member replace what is damaged, wherever the damage is, and
    leave all else as it was: also when they come one by one."""
    store, entries, (table, key, value) = six(path)
    size = len(entries[0].frame)
    for at in (*range(0, len(value), 37), *range(44, len(value), size)):
        put(store, table, key, flipped(value, at))
        _, spans = whole_of(store)
        lost = [entry for entry in entries if entry.header.last_sequence >= spans[0][0]]
        lost = [entry for entry in lost if entry.header.first_sequence <= spans[0][1]]
        for entry in reversed(lost):
            store.commit([QueueWrite(QUEUE, fetched=(entry,))])
        assert whole_of(store) == (bodies_of([entry.frame for entry in entries]), [])
        assert frames_of(store.load(QUEUE).entries) == frames_of(entries)
        for other in [item for item in stored(store) if item[0] == table]:
            store._environment.write(
                lambda txn, key=other[1]: txn.delete(key, db=store._environment.tables.messages)
            )
        put(store, table, key, value)
    store.close()


def test_a_cut_leaves_what_may_be_before_it(path: Path) -> None:
    """A cut that meets a damaged frame takes what is certainly behind it, and nothing that may
    be before: the log does not end earlier without anybody knowing."""
    store, entries, (table, key, value) = six(path)
    size = len(entries[0].frame)
    for at, lsn in itertools.product(range(100, len(value), size), range(1, FRAMES + 1)):
        put(store, table, key, flipped(value, at))
        store.commit([QueueWrite(QUEUE, truncate_to=lsn)])
        found, spans = whole_of(store)
        damaged = at // size + 1
        kept = [n for n in range(1, lsn + 1) if n != damaged]
        assert list(found) == [s for n in kept for s in (2 * n - 1, 2 * n)]
        assert bool(spans) == (damaged <= lsn)
        for other in [item for item in stored(store) if item[0] == table]:
            store._environment.write(
                lambda txn, key=other[1]: txn.delete(key, db=store._environment.tables.messages)
            )
        put(store, table, key, value)
    store.close()


def test_damage_before_the_checkpoint_costs_no_start(path: Path, writer: Writer) -> None:
    """A node that starts reads its copy though a message below the checkpoint is damaged in the
    run in which the log ends: it is listed as lacking. Damage that may be of an op to be applied
    is told, for the copy would end earlier than the node has said."""
    store = open_store(path)
    entries = [writer.publish([b"body" * 20]) for _ in range(4)]
    state = QueueState()
    for entry in entries[:2]:
        state.apply(entry)
    store.commit([QueueWrite(QUEUE, append=tuple(entries))])
    store.commit([QueueWrite(QUEUE, state=state.encode(), state_lsn=2)])
    table, key, value = next(item for item in stored(store) if item[0] == "messages")
    size = len(entries[0].frame)
    put(store, table, key, flipped(value, size + 120))
    image = store.load(QUEUE, next_sequence_of)
    assert frames_of(image.entries) == frames_of(entries[2:])
    assert (image.lacking, image.damaged) == (((2, 2),), ((2, 2),))
    for place in (2 * size + 120, 3 * size + 120, 2 * size + 30, 3 * size + 25):
        put(store, table, key, flipped(value, place))
        with pytest.raises(StoreCorrupt, match="database 'messages'"):
            store.load(QUEUE, next_sequence_of)
    put(store, table, key, value)
    store.close()


def test_a_queue_with_a_damaged_record_can_begin_anew(path: Path) -> None:
    """A copy that is dropped goes though its own record cannot be read, with all that it had."""
    store, _, (table, key, _) = six(path)
    record = next(item for item in stored(store) if item[1].endswith(b"q"))
    store.close()
    store = open_store(path)
    put(store, record[0], record[1], flipped(record[2], 8))
    with pytest.raises(StoreCorrupt, match="database 'queues'"):
        store.load(QUEUE)
    writer = Writer()
    entry = writer.publish([b"new"])
    store.commit([QueueWrite(QUEUE, reset=True, append=(entry,))])
    while store.collect():
        pass
    assert frames_of(store.load(QUEUE).entries) == [entry.frame]
    assert [item[2] for item in stored(store) if item[0] == table] == [entry.frame]
    assert key not in [item[1] for item in stored(store)]
    store.close()


def test_the_error_says_what_to_do(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Path, table, key and the way out are in the message."""
    store = filled(path, monkeypatch)
    table, key, value = [item for item in stored(store) if item[0] == "ops"][-1]
    put(store, table, key, value[:-1] + b"\xff")
    with pytest.raises(StoreCorrupt) as caught:
        store.load(QUEUE)
    for part in (str(path), "'ops'", key.hex(), "move the directory away"):
        assert part in str(caught.value)
    store.close()


@pytest.mark.parametrize("content", [b"x", b"x" * 100, bytes(8192), b"\xde\xc0\xef\xbe" * 5000])
def test_a_data_file_of_garbage_is_told(path: Path, content: bytes) -> None:
    """No exception of LMDB comes out, and the file stays as it is."""
    open_store(path).close()
    (path / DATA_FILE).write_bytes(content)
    for _ in range(2):
        with pytest.raises(StoreError, match=DATA_FILE):
            open_store(path)
    assert (path / DATA_FILE).read_bytes() == content


TRUNCATE = """
import sys
from mirrorq.config import Config

from mirrorq.errors import StoreCorrupt

from mirrorq.store.node_store import Store


path, pristine, expected = sys.argv[1:]
content = open(pristine, "rb").read()
outcomes = []
for size in range(4096, len(content), 4096 * 5 + 1000):
    with open(path + "/data.mdb", "wb") as file:
        file.write(content[:size])
    try:
        store = Store(path, node="a", config=Config())
        try:
            assert len(store.load(7).entries) == int(expected)
            outcomes.append("whole")
        finally:
            store.close()
    except StoreCorrupt as error:
        assert path in str(error)
        outcomes.append("told")
print(*outcomes)
"""


@pytest.mark.real
def test_a_truncated_data_file_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file cut where anything is in use raises StoreCorrupt, also after a clean end. LMDB
    alone would end the process with SIGBUS: hence one of its own here."""
    # Nothing at the end that is only taken ahead, and that nobody would miss.
    monkeypatch.setattr(Extent, "cover", lambda *_: None)
    writer = Writer()
    store = open_store(path)
    for _ in range(20):
        store.commit([QueueWrite(QUEUE, append=(writer.publish([b"x" * 50_000]),))])
    store.close()
    pristine = path.parent / "pristine"
    pristine.write_bytes((path / DATA_FILE).read_bytes())
    done = subprocess.run(
        [PYTHON, "-c", TRUNCATE, str(path), str(pristine), "20"],
        env={"PYTHONPATH": SOURCES},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    outcomes = done.stdout.split()
    assert len(outcomes) > 20
    assert set(outcomes[:-3]) == {"told"}
    assert set(outcomes[-3:]) <= {"told", "whole"}


def test_damaged_pages_are_found_after_an_unclean_end(path: Path, writer: Writer) -> None:
    """The file is walked when the last process did not close it: a page that is not where it
    says raises StoreCorrupt, each time the store is opened."""
    store = open_store(path)
    for number in range(50):
        store.commit([QueueWrite(number, append=(writer.publish([b"x" * 1000]),))])
    store.close()
    (path / "mirrorq.lock").write_text("open 1")
    content = bytearray((path / DATA_FILE).read_bytes())
    for page in range(2, len(content) // 4096):
        content[page * 4096] ^= 0xFF
    (path / DATA_FILE).write_bytes(content)
    for _ in range(2):
        with pytest.raises(StoreCorrupt, match="is damaged"):
            open_store(path)


@pytest.mark.parametrize("kind", [PRODUCERS, COLUMNS])
def test_a_damaged_page_is_found_when_it_is_read(path: Path, kind: int) -> None:
    """Of pages that are read later those of producers are looked at in a start, too: an op rests on
    them, and a node that meets one ends."""
    store = open_store(path)
    pages = tuple(Page(one, 0, 5, b"page of %d" % one) for one in (PRODUCERS, COLUMNS))
    store.commit([QueueWrite(QUEUE, pages=pages, state=b"state", state_lsn=5, stable=5)])
    assert store.page(QUEUE, kind, 0, 5) == b"page of %d" % kind
    assert [page.data for page in store.load(QUEUE, whole=False).pages] == [None, None]
    (found,) = [
        (key, value)
        for table, key, value in stored(store)
        if table == "queues" and value.endswith(b"page of %d" % kind)
    ]
    put(store, "queues", found[0], flipped(found[1], len(found[1]) - 1))
    with pytest.raises(StoreCorrupt):
        store.page(QUEUE, kind, 0, 5)
    loaded = result_of(lambda: store.load(QUEUE, whole=False))
    assert isinstance(loaded, StoreCorrupt) == (kind == PRODUCERS)
    store.close()
