"""A backup of an open store while its logs are written: what is in it has no gap."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mirrorq.protocol.effects import QueueWrite
from mirrorq.protocol.ops import Entry
from mirrorq.store import copies
from mirrorq.store.pathlock import DATA_FILE
from mirrorq.store.write_ahead import FILE_NAME as LOG_FILE
from mirrorq.store.write_ahead import contents

from .railed import Railed, loaded
from .writing import Writer, frames_of


class Played:
    """One queue, whose next op goes into the write-ahead log and the one behind it to the rail, in
    turn, at each read of a log's file: between any two reads both may have changed."""

    def __init__(self, path: Path, changes: int) -> None:
        self.path, self.left = path, changes
        self.writer = Writer()
        self.railed = Railed(path)
        self.ops: list[Entry] = []
        for body in (b"in LMDB", b"begins the log", b"in the log"):
            self.commit(body)

    def commit(self, body: bytes) -> None:
        entry = self.writer.publish([body])
        self.railed.store.commit([QueueWrite(self.writer.queue_id, append=(entry,))])
        self.ops.append(entry)

    def go_on(self) -> None:
        self.commit(b"in the log")
        self.railed.arm(self.writer)
        entry = self.writer.publish([b"railed"])
        self.railed.write(entry)
        assert self.railed.native.disarm(self.writer.queue_id)
        self.railed.take()
        self.ops.append(entry)

    def contents(self, path: Path, name: str = LOG_FILE) -> bytes | None:
        found = contents(path, name)
        if path == self.path and self.left:
            self.left -= 1
            self.go_on()
        return found

    def copy(self, path: Path, part: Path, _: object) -> None:
        """As LMDB copies: nothing writes to it meanwhile."""
        shutil.copy(path / DATA_FILE, part / DATA_FILE)


@pytest.mark.parametrize("changes", range(8))
def test_a_queue_that_goes_from_log_to_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: int
) -> None:
    path, part = tmp_path / "store", tmp_path / "backup"
    part.mkdir()
    played = Played(path, changes)
    had = len(played.ops)
    monkeypatch.setattr(copies, "is_open_here", lambda _: False)
    monkeypatch.setattr(copies, "contents", played.contents)
    monkeypatch.setattr(copies, "_copy", played.copy)
    copies.back_up(path, part)
    frames = frames_of(played.ops)
    found = loaded(part)
    assert len(found) >= had
    assert found == frames[: len(found)]
    played.railed.store.close()


def test_logs_that_change_all_the_time_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rather than a backup that may have a gap."""
    count = iter(range(10 * copies.LOOKS))
    monkeypatch.setattr(copies, "contents", lambda _path, _name: b"%d" % next(count))
    with pytest.raises(copies.StoreError, match="change too fast"):
        copies._logs_at_once(tmp_path)
