"""A node begins again with a snapshot of the catalog, and entries of the catalog behind it."""

from __future__ import annotations

from pathlib import Path

import pytest

import mirrorq
from mirrorq.engine import follower

pytestmark = pytest.mark.real

WAIT_S = 30


def test_queues_that_are_newer_than_the_snapshot_keep_their_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "COMPACT_ENTRIES", 5)
    names = [f"q{number}" for number in range(14)]
    with mirrorq.Node("n", path=tmp_path / "n") as node:
        for name in names:
            node.queue(name).put(b"kept").result(WAIT_S)
        node.queue("q3").delete()
        names.remove("q3")
    monkeypatch.undo()
    with mirrorq.Node("n", path=tmp_path / "n") as node:
        for name in names:
            assert node.queue(name).get(timeout=WAIT_S).body == b"kept"
        assert sorted(status.name for status in node.queues()) == sorted(names)
