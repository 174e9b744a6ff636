"""Where a store is made: in a directory of its own, and nowhere else."""

from __future__ import annotations

import os
from pathlib import Path

import lmdb
import pytest

from mirrorq import MirroredQueue, Node
from mirrorq.errors import StoreError
from mirrorq.store.copies import back_up

from .writing import open_store


def contents(path: Path) -> dict[str, tuple[int, int]]:
    """What lies there, and when each was changed last."""
    found = {one.name: one.lstat() for one in path.iterdir()}
    return {name: (status.st_size, status.st_mtime_ns) for name, status in found.items()}


@pytest.mark.parametrize(
    "names", [("passwd", "hosts", "fstab", "group"), (".config",), ("data.mdb",), ("lock.mdb",)]
)
def test_other_peoples_files_are_left_alone(tmp_path: Path, names: tuple[str, ...]) -> None:
    """A directory that holds something and no store is refused: which, what it holds, what to do.
    Nothing is written there."""
    for name in names:
        (tmp_path / name).write_text("somebody's")
    before = contents(tmp_path)
    with pytest.raises(StoreError) as caught:
        Node("a", path=tmp_path)
    text = str(caught.value)
    assert f"directory {tmp_path} holds no store" in text
    assert all(name in text for name in sorted(names)[:3])
    assert ("and 1 more" in text) == (len(names) > 3)
    assert "of its own" in text
    assert contents(tmp_path) == before


@pytest.mark.real
def test_a_subdirectory_counts_too(tmp_path: Path) -> None:
    """The parent of several nodes' directories is no place for another one's files."""
    with MirroredQueue("q", path=tmp_path / "a") as queue:
        queue.put(b"x").result(30)
    with pytest.raises(StoreError, match=r"is not empty: a\. Nothing was written"):
        MirroredQueue("q", path=tmp_path)
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("name", ["lost+found", ".gitignore", ".gitkeep", ".DS_Store"])
def test_what_an_empty_directory_holds_is_overlooked(tmp_path: Path, name: str) -> None:
    """The root of a new file system, a directory that is in a repository."""
    (tmp_path / name).mkdir()
    open_store(tmp_path).close()


@pytest.mark.parametrize("made", [("mirrorq.lock",), ("mirrorq.lock", "data.mdb", "lock.mdb")])
def test_a_store_that_was_being_made_is_made(tmp_path: Path, made: tuple[str, ...]) -> None:
    """A process that died in the middle of making it leaves empty files: it goes on there, whatever
    else has been put beside it since."""
    for name in made:
        (tmp_path / name).touch()
    (tmp_path / "notes.txt").touch()
    open_store(tmp_path).close()


def test_a_store_that_another_process_begins_this_moment_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes start the same node, and one of them has just looked: the lock decides."""

    def begun(path: Path) -> bool:
        (path / "mirrorq.lock").touch()
        return False

    monkeypatch.setattr("mirrorq.store.environment.is_store", begun)
    open_store(tmp_path).close()


def test_a_store_is_known_by_its_pages_too(tmp_path: Path) -> None:
    """A backup has no lock file; put in a store's place by hand, with a note, it is one."""
    first = open_store(tmp_path / "a")
    first.close()
    target = tmp_path / "b"
    target.mkdir()
    back_up(first.path, target)
    (target / "README").write_text("of Monday")
    again = open_store(target)
    assert again.store_id == first.store_id
    again.close()


def test_another_programs_lmdb_files_are_left_alone(tmp_path: Path) -> None:
    """Nothing is added to them, no lock file beside them."""
    with lmdb.open(str(tmp_path)) as environment, environment.begin(write=True) as txn:
        txn.put(b"key", b"theirs")
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(StoreError, match="that mirrorq did not make"):
        open_store(tmp_path)
    assert sorted(os.listdir(tmp_path)) == before


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    """Said as that, of the path itself and of one below a file."""
    file = tmp_path / "data"
    file.write_text("somebody's")
    with pytest.raises(StoreError, match=f"store {file} is a file"):
        open_store(file)
    with pytest.raises(StoreError, match=f"store {file / 'a'} cannot be used"):
        open_store(file / "a")
    assert file.read_text() == "somebody's"
