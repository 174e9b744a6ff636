"""`verify`: whatever in a store is not as it was written is named, and nothing else is."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest

import mirrorq
from mirrorq.errors import StoreError
from mirrorq.node.verification import Report, verify
from mirrorq.store.environment import DATA_FILE
from mirrorq.store.offline import OfflineStore

pytestmark = pytest.mark.real

TABLES = ("meta", "queues", "messages", "ops", "garbage", "raft")
FLIPS = 90
META_TRANSACTION_AT = 16 + 128
"""In a meta page: which of the two counts. LMDB has no checksum there, see docs/operations.md."""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of a node that has done something of everything, and was closed."""
    path = tmp_path_factory.mktemp("verified") / "a"
    config = mirrorq.Config(checkpoint_ops=8)
    with mirrorq.Node("a", path=path, config=config) as node:
        node.set_policy("dead", "^orders$", {"dead-letter-queue": "letters"})
        letters, orders = node.queue("letters"), node.queue("orders")
        for number in range(12):
            body = b"body %d " % number * (1 + number % 7 * 30)
            orders.put(body, priority=number % 3, headers={"n": number}).result(30)
        orders.put_many([b"m%d" % n for n in range(300)]).result(30)
        orders.put(b"L" * 20_000).result(30)
        for message in orders.get_many(10, 30):
            message.ack().result(30)
        for message in orders.get_many(5, 30):
            message.nack(requeue=False).result(30)
        orders.get(timeout=30).nack().result(30)
        assert letters.get(timeout=30).body
        node.queue("deleted").delete()
    return path


@pytest.fixture
def path(original: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(original, tmp_path / "a")
    return tmp_path / "a"


def report_of(path: Path) -> Report:
    with OfflineStore(path) as store:
        return verify(store)


def content_of(path: Path) -> list[tuple[str, bytes, bytes]]:
    """Every (table, key, value)."""
    with OfflineStore(path) as store:

        def work(txn: Any) -> list[tuple[str, bytes, bytes]]:
            return [
                (name, bytes(key), bytes(value))
                for name in TABLES
                for key, value in txn.cursor(getattr(store.tables, name))
            ]

        return store.read(work)


def files_of(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def put(path: Path, name: str, key: bytes, value: bytes | None) -> Report:
    """What is said after LMDB itself has put a value, or deleted it."""
    with (
        lmdb.open(str(path), max_dbs=8, lib_version=0, sync=False) as environment,
        environment.begin(write=True) as txn,
    ):
        table = environment.open_db(name.encode(), txn=txn)
        if value is None:
            txn.delete(key, db=table)
        else:
            txn.put(key, value, db=table)
    return report_of(path)


def test_a_good_store_is_called_good_and_stays_as_it_is(path: Path) -> None:
    """The figures are those of the store, and no byte of any file has changed."""
    before = files_of(path)
    seen: list[tuple[int, int]] = []
    with OfflineStore(path) as store:
        report = verify(store, lambda done, total: seen.append((done, total)))
    assert report.problems == []
    assert (report.node, report.queues, report.messages) == ("a", 2, 313 - 15 + 5)
    assert report.raft_entries > 5
    assert seen[-1] == (len(seen), len(seen)) == (len(content_of(path)),) * 2
    assert files_of(path) == before


def test_a_flipped_byte_is_found_or_changes_nothing(path: Path) -> None:
    """At random places of the file: either something is called damaged, or LMDB reads the very
    same keys and values back, so that the byte was in no use. Only which of LMDB's two meta pages
    counts is not covered by anything."""
    good = content_of(path)
    file = path / DATA_FILE
    data = file.read_bytes()
    used = [place for key, value in ((k, v) for _, k, v in good) for place in spans(data, value)]
    pages = [page * 4096 + at for page in (0, 1) for at in range(16, 160)]
    dice = random.Random(20)
    places = [dice.randrange(len(data)) for _ in range(FLIPS)]
    places += [dice.choice(used) for _ in range(FLIPS)] + dice.sample(pages, 20)
    silent = found = 0
    for at in places:
        if at // 4096 < 2 and 0 <= at % 4096 - META_TRANSACTION_AT < 8:
            continue
        with file.open("r+b") as opened:
            opened.seek(at)
            opened.write(bytes([data[at] ^ 1 << dice.randrange(8)]))
        try:
            if report_of(path).problems:
                found += 1
            else:
                silent += 1
                assert content_of(path) == good, at
        except StoreError:
            found += 1
        with file.open("r+b") as opened:
            opened.seek(at)
            opened.write(data[at : at + 1])
    assert found >= FLIPS
    assert silent > 0
    assert report_of(path).problems == []


def spans(data: bytes, value: bytes) -> Iterator[int]:
    """Where the bytes of a value lie that is there once; the newest of pages not reused."""
    if len(value) > 64 and data.count(value) == 1:
        at = data.index(value)
        yield from range(at, at + len(value))


def test_every_flip_within_a_live_value_is_found(path: Path) -> None:
    """One bit of each value, put there by LMDB itself, so that only mirrorq's checks can tell."""
    for name, key, value in content_of(path):
        at = len(value) // 2
        wrong = value[:at] + bytes([value[at] ^ 4]) + value[at + 1 :]
        report = put(path, name, key, wrong)
        assert any(f"'{name}'" in problem for problem in report.problems), (name, key)
        put(path, name, key, value)
    assert report_of(path).problems == []


def test_every_lost_value_is_missed(path: Path) -> None:
    """Each value deleted by itself: something says that it should be there, but for
    the newest op of a queue and the newest entry of Raft: without them the store is a whole one."""
    untold = []
    for name, key, value in content_of(path):
        report = put(path, name, key, None)
        if not report.problems:
            untold.append((name, key))
        put(path, name, key, value)
    raft = [key for name, key, _ in content_of(path) if name == "raft"]
    for name, key in untold:
        same = [k for n, k, _ in content_of(path) if n == name and k[:16] == key[:16]]
        is_end = name == "ops" and key == same[-1]
        is_end = is_end or (name == "raft" and key == max(k for k in raft if k[:1] == b"e"))
        is_spare = name == "meta" and (key == b"generation" or key.startswith(b"value "))
        assert is_end or is_spare, (name, key)
