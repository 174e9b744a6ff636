"""Disk space taken ahead: a reserve always, steps while there is plenty, and what a message waits
for where there is little."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from mirrorq import system
from mirrorq.store.extent import (
    LEFT_BYTES,
    PLENTY_BYTES,
    RESERVE_BYTES,
    RESERVE_MIN,
    STEP_MAX,
    STEP_MIN,
    Extent,
)

MIB = 1 << 20


class Disk:
    """What is said of the disk; what the file takes is taken off."""

    def __init__(self, file: Path, free: int, total: int) -> None:
        self.file, self.total = file, total
        self.given = free + self.size

    @property
    def size(self) -> int:
        return self.file.stat().st_size

    def statvfs(self, _: object) -> SimpleNamespace:
        free = self.given - self.size
        return SimpleNamespace(f_bavail=free, f_blocks=self.total, f_frsize=1)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data.mdb"
    path.write_bytes(b"x" * 100)
    return path


def disk_of(file: Path, monkeypatch: pytest.MonkeyPatch, free: int, total: int = 1 << 40) -> Disk:
    disk = Disk(file, free, total)
    monkeypatch.setattr(os, "statvfs", disk.statvfs)
    return disk


def test_the_reserve_is_there_from_the_start(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its blocks are taken, before anybody fills the disk, and what is written stays."""
    disk_of(file, monkeypatch, 2 * PLENTY_BYTES)
    Extent(file).cover(100)
    assert file.stat().st_blocks * 512 >= 100 + RESERVE_MIN
    assert file.read_bytes()[:101] == b"x" * 100 + b"\0"


def test_steps_double_the_file_and_are_bounded(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With plenty of space the file is asked for seldom."""
    disk = disk_of(file, monkeypatch, 4 * PLENTY_BYTES)
    extent = Extent(file)
    extent.cover(2 * MIB)
    assert disk.size == 2 * MIB + 2 * MIB + STEP_MIN
    extent.cover(3 * MIB)
    assert disk.size == 8 * MIB
    os.truncate(file, 1024 * MIB)
    Extent(file).cover(1024 * MIB)
    assert disk.size == 1024 * MIB + RESERVE_BYTES + STEP_MAX
    file.unlink()


def test_with_plenty_there_is_room_before_blocks_are_owned(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = disk_of(file, monkeypatch, 4 * PLENTY_BYTES)
    assert Extent(file).room(100, 0) > PLENTY_BYTES
    assert disk.size == 100


def test_with_little_left_room_is_what_is_owned_beside_the_reserve(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the disk is asked for what somebody waits for, as far as it goes."""
    disk = disk_of(file, monkeypatch, 100 * MIB, total=128 * MIB)
    extent = Extent(file)
    extent.cover(8 * MIB)
    assert disk.size == 8 * MIB + extent.reserve(8 * MIB) == 16 * MIB
    assert extent.room(8 * MIB, 0) == 8 * MIB
    assert disk.size == 24 * MIB
    assert extent.room(8 * MIB, 32 * MIB) == 32 * MIB
    left = disk.given - disk.size
    assert extent.room(8 * MIB, 90 * MIB) == 32 * MIB + left - LEFT_BYTES


def test_a_reserve_that_is_used_up_is_no_room(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk_of(file, monkeypatch, 3 * MIB, total=64 * MIB)
    extent = Extent(file)
    extent.cover(MIB)
    assert extent.room(3 * MIB, MIB) < 0


def test_a_file_that_may_not_grow_has_the_room_that_it_owns(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quota, or a limit on the size of files: what the disk says is free helps nobody. When it
    is lifted, the next try finds out."""
    disk = disk_of(file, monkeypatch, 4 * PLENTY_BYTES)
    real = system.take_blocks

    def refuse(*_: int) -> None:
        raise OSError("quota exceeded")

    monkeypatch.setattr(system, "take_blocks", refuse)
    extent = Extent(file)
    extent.cover(MIB)
    assert extent.room(MIB, MIB) < 0
    assert disk.size == 100
    monkeypatch.setattr(system, "take_blocks", real)
    assert extent.room(MIB, MIB) > MIB
    assert extent.is_plenty
    file.unlink()
