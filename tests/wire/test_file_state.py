"""`store.open_file`: a store sees that its file lost its name, or its descriptor."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mirrorq.store.open_file import has_name


class Opened:
    """A file that is open, and the directory with its name."""

    def __init__(self, place: Path) -> None:
        self.file = place / "data.mdb"
        self.file.write_bytes(b"x")
        self.descriptor = os.open(self.file, os.O_RDONLY)
        self.inode = os.fstat(self.descriptor).st_ino
        self.directory = os.open(place, os.O_RDONLY)

    def has_name(self) -> bool:
        return has_name(self.descriptor, self.inode, self.directory, self.file.name)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    place = tmp_path / "store"
    place.mkdir()
    made = Opened(place)
    yield made
    os.close(made.descriptor)
    os.close(made.directory)


def test_an_open_file_has_its_name(opened: Opened) -> None:
    assert opened.has_name()
    assert has_name(opened.descriptor, opened.inode)


def unlink(opened: Opened) -> None:
    opened.file.unlink()


def replace(opened: Opened) -> None:
    other = opened.file.with_name("other")
    other.write_bytes(b"y")
    other.replace(opened.file)


def rename(opened: Opened) -> None:
    opened.file.rename(opened.file.with_name("moved"))


@pytest.mark.parametrize("change", [unlink, replace, rename])
def test_a_file_that_lost_its_name_is_noticed(
    opened: Opened, change: Callable[[Opened], None]
) -> None:
    change(opened)
    assert not opened.has_name()


def test_a_second_link_is_name_enough_where_no_directory_is_given(opened: Opened) -> None:
    os.link(opened.file, opened.file.with_name("second"))
    opened.file.unlink()
    assert has_name(opened.descriptor, opened.inode)
    assert not opened.has_name()


def test_a_directory_that_moved_still_has_the_file(opened: Opened) -> None:
    place = opened.file.parent
    place.rename(place.with_name("elsewhere"))
    assert opened.has_name()


def test_a_closed_descriptor_is_an_error(opened: Opened) -> None:
    with pytest.raises(OSError, match="closed by other code"):
        has_name(1 << 20, opened.inode, opened.directory, opened.file.name)


def test_a_descriptor_of_another_file_is_an_error(opened: Opened) -> None:
    with pytest.raises(OSError, match="closed by other code"):
        has_name(opened.directory, opened.inode, opened.directory, opened.file.name)
