"""Disk space taken ahead in steps: where it is taken, and where it is left alone."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from mirrorq.store.extent import FIRST_BYTES, STEP_MAX, STEP_MIN, Extent

MIB = 1 << 20


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data.mdb"
    path.write_bytes(b"x" * 100)
    return path


def taken(file: Path) -> int:
    return file.stat().st_blocks * 512


def test_a_small_file_takes_what_it_uses(file: Path) -> None:
    extent = Extent(file, 0)
    extent.cover(FIRST_BYTES)
    assert file.stat().st_size == 100


def test_a_step_is_taken_once_and_keeps_what_is_written(file: Path) -> None:
    extent = Extent(file, 0)
    extent.cover(FIRST_BYTES + 1)
    assert file.stat().st_size == STEP_MIN
    assert taken(file) >= STEP_MIN
    assert file.read_bytes()[:101] == b"x" * 100 + b"\0"
    file.write_bytes(b"")
    extent.cover(STEP_MIN)
    assert file.stat().st_size == 0
    extent.cover(STEP_MIN + 1)
    assert file.stat().st_size == 2 * STEP_MIN


def test_a_file_that_is_opened_again_goes_on_from_its_size(file: Path) -> None:
    Extent(file, 30 * MIB).cover(30 * MIB)
    assert file.stat().st_size == 100


def test_steps_are_bounded(file: Path) -> None:
    os.truncate(file, 1024 * MIB)
    Extent(file, 0).cover(1024 * MIB)
    assert file.stat().st_size == 1024 * MIB + STEP_MAX
    file.unlink()


def test_a_disk_with_little_left_is_not_asked(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    little = SimpleNamespace(f_bavail=10 * STEP_MIN // 4096, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda _: little)
    Extent(file, 0).cover(FIRST_BYTES + 1)
    assert file.stat().st_size == 100


def test_a_file_that_cannot_be_made_longer_stays(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise OSError("not supported")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    Extent(file, 0).cover(FIRST_BYTES + 1)
    assert file.stat().st_size == 100
