"""Which free pages the next commit can use: as LMDB has it, and as the bytes of its file say."""

from __future__ import annotations

import os
import random
from array import array
from pathlib import Path

import lmdb
import pytest

from mirrorq.store.free_pages import Stretch, _merged, _stretches, usable_stretches

MIB = 1 << 20
EVERYTHING = 1 << 30


def opened(path: Path, map_mib: int = 8) -> lmdb.Environment:
    return lmdb.open(str(path), map_size=map_mib * MIB, max_dbs=4, lib_version=0)


def usable(path: Path, environment: lmdb.Environment) -> list[Stretch]:
    descriptor = os.open(path / "data.mdb", os.O_RDONLY)
    try:
        before = environment.info()["last_txnid"]
        return usable_stretches(descriptor, 4096, before, EVERYTHING)
    finally:
        os.close(descriptor)


def put(environment: lmdb.Environment, key: str, size: int) -> None:
    with environment.begin(write=True) as txn:
        txn.put(key.encode(), bytes(size))


def test_what_a_commit_has_freed_is_usable_one_commit_later(tmp_path: Path) -> None:
    """LMDB agrees: a value of that size does not go into a full map before, and does after."""
    with opened(tmp_path, map_mib=2) as environment:
        put(environment, "a", MIB)
        put(environment, "b", MIB // 2)
        with environment.begin(write=True) as txn:
            txn.delete(b"a")
        assert sum(count for _, count in usable(tmp_path, environment)) < 20
        with pytest.raises(lmdb.MapFullError):
            put(environment, "c", MIB)
        put(environment, "turn", 1)
        assert max(count for _, count in usable(tmp_path, environment)) >= MIB // 4096
        put(environment, "c", MIB)


@pytest.mark.parametrize("seed", range(6))
def test_a_value_fits_where_a_stretch_is_long_enough(tmp_path: Path, seed: int) -> None:
    """Whatever was put and deleted before: with a map that cannot grow LMDB takes a value into
    the longest stretch, and none that is longer than all of them."""
    choose = random.Random(seed)
    sizes = (100, 1500, 5000, 60_000, 300_000)
    with opened(tmp_path) as environment:
        held: list[str] = []
        for number in range(300):
            if held and choose.random() < 0.45:
                with environment.begin(write=True) as txn:
                    for _ in range(choose.randint(1, 3)):
                        if held:
                            txn.delete(held.pop(choose.randrange(len(held))).encode())
            try:
                put(environment, f"{number}", choose.choice(sizes))
                held.append(f"{number}")
            except lmdb.MapFullError:
                pass
        put(environment, "turn", 1)
        found = usable(tmp_path, environment)
        tail = environment.info()["map_size"] // 4096 - environment.info()["last_pgno"] - 1
        longest = max([tail, *(count for _, count in found)])
        # The tree takes some pages for itself, of the lowest that are free.
        with pytest.raises(lmdb.MapFullError):
            put(environment, "more", longest * 4096)
        put(environment, "fits", (longest - 8) * 4096)


def test_a_table_of_several_levels(tmp_path: Path) -> None:
    """Hundreds of commits that each freed something of its own, in order and each once."""
    with opened(tmp_path, map_mib=256) as environment:
        for number in range(3000):
            put(environment, f"{number:05}", 5000)
        reader = environment.begin()
        for number in range(3000):
            with environment.begin(write=True) as txn:
                txn.delete(f"{number:05}".encode())
        # An open reader: nothing is used again, so there is a record of each commit.
        assert usable(tmp_path, environment)
        descriptor = os.open(tmp_path / "data.mdb", os.O_RDONLY)
        before = reader.id()
        held = usable_stretches(descriptor, 4096, before, EVERYTHING)
        free = usable_stretches(descriptor, 4096, environment.info()["last_txnid"], EVERYTHING)
        reader.abort()
        os.close(descriptor)
        assert sum(count for _, count in held) < 50
        assert sum(count for _, count in free) >= 2 * 2990
        ends = [first + count for first, count in free]
        assert all(end < first for end, (first, _) in zip(ends, free[1:], strict=False))


@pytest.mark.parametrize("seed", range(20))
def test_stretches_are_found_in_any_row(seed: int) -> None:
    """Against the plain definition."""
    choose = random.Random(seed)
    pages = sorted(choose.sample(range(2, 60), choose.randint(1, 50)), reverse=True)
    found = _merged(list(_stretches(array("Q", pages))))
    assert [page for first, count in found for page in range(first, first + count)] == pages[::-1]
    assert all(first + count not in pages for first, count in found)
