"""Bytes that change on a disk while nodes run: told, never served, mended from another member."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mirrorq.cli.stores import verified
from mirrorq.testing.chaos.flips import flip, places_of

from .cluster import Cluster, until

BODIES = [f"message {number:03} ".ljust(200, ".") for number in range(30)]


def filled(cluster: Cluster, names: str = "abc") -> None:
    """A queue on all of these, its master on the first, with a frame for each message."""
    cluster.found(names)
    cluster.open("jobs", names)
    cluster.wait_in_sync(len(names) - 1, names[0])
    for body in BODIES:
        cluster.ask(names[0], "put", body=body)


def taken(cluster: Cluster, node: str, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster.ask(node, "take", count=count)
    return found


def lines_about(cluster: Cluster, node: str) -> list[str]:
    return [line for line in cluster.log_text(node).splitlines() if "damaged" in line]


@pytest.mark.parametrize("reader", "ab")
def test_a_damaged_frame_of_the_master_is_fetched(
    cluster: Cluster, tmp_path: Path, reader: str
) -> None:
    """One byte changes on the master's disk: every message is delivered, in order and once, to
    a handle there and to one on a mirror; the frame on the disk is whole again, an alarm tells of
    it and is over, and the log has a few lines."""
    filled(cluster)
    body = BODIES[12].encode()
    assert flip(tmp_path / "a", body) == 1
    assert [one["body"] for one in taken(cluster, reader, len(BODIES))] == BODIES
    until(lambda: places_of(tmp_path / "a", body))
    until(lambda: "alarm damaged: " in cluster.log_text("a"))
    until(lambda: "alarm damaged is over" in cluster.log_text("a"))
    assert cluster.status("a")["warnings"] == []
    assert 1 <= len(lines_about(cluster, "a")) <= 5
    assert not lines_about(cluster, "b")
    cluster["a"].stop_cleanly()
    report = verified(tmp_path / "a")
    assert report.is_good, report.problems
