"""A changed byte in any value that mirrorq wrote is found, named, and never served."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lmdb
import pytest

from mirrorq.effects import QueueWrite, RaftEntry, RaftSnapshot, RaftState, RaftWrite
from mirrorq.errors import StoreCorrupt, StoreError
from mirrorq.messages import StoreId
from mirrorq.store import Store, queue_log
from mirrorq.store.environment import DATA_FILE, READERS_MAX
from mirrorq.store.extent import Extent

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
    snapshot = RaftSnapshot(3, 1, (StoreId("a", 5),), b"catalog")
    entries = (RaftEntry(4, 1, 1, b"command"), RaftEntry(5, 2, 0, b""))
    store.commit([], RaftWrite(RaftState(2, StoreId("a", 5)), snapshot, append=entries))
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
            assert all(
                isinstance(result, StoreCorrupt) or result == good[name]
                for name, result in results.items()
            ), (table, key, at)
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
            assert all(
                isinstance(result, StoreCorrupt) or result == good[name]
                for name, result in results.items()
            )
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
    """A truncation that meets a damaged run raises, and the rest of its commit is not done."""
    store = filled(path, monkeypatch)
    table, key, value = [item for item in stored(store) if item[0] == "messages"][-1]
    put(store, table, key, value[:-1] + b"\xff")
    with pytest.raises(StoreCorrupt, match="database 'messages'"):
        store.commit(
            [QueueWrite(QUEUE, truncate_to=3)], RaftWrite(append=(RaftEntry(6, 2, 0, b""),))
        )
    assert len(store.raft_image().entries) == 2
    put(store, table, key, value)
    assert not any(isinstance(result, StoreCorrupt) for result in seen(store).values())
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
from mirrorq.store import Store

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


def test_damaged_pages_are_found_after_an_unclean_end(path: Path) -> None:
    """The file is walked when the last process did not close it: a page that is not where it
    says raises StoreCorrupt, each time the store is opened."""
    writer = Writer()
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
