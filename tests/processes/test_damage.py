"""Bytes that change on a disk while nodes run: told, never served, mended from another member."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harness.chaos.flips import flip, places_of
from mirrorq.cli import main
from mirrorq.cli.stores import verified

from .cluster import Cluster, until

pytestmark = pytest.mark.soak

BODIES = [f"message {number:03} ".ljust(200, ".") for number in range(30)]


def filled(cluster: Cluster, names: str = "abc") -> None:
    """A queue on all of these, its master on the first, with a frame for each message."""
    cluster.found(names)
    cluster.open("jobs", names)
    cluster.wait_in_sync(len(names) - 1, names[0])
    for body in BODIES:
        cluster.ask(names[0], "put", body=body)


def filled_in_lmdb(cluster: Cluster) -> None:
    """The same, and all of it is in LMDB on each node while it runs: a queue that is quiet is
    checkpointed, and what was in the write-ahead log goes there, too."""
    filled(cluster)
    for name in "abc":
        until(lambda name=name: places_of(cluster.path / name, BODIES[-1].encode()))


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
    filled_in_lmdb(cluster)
    body = BODIES[12].encode()
    assert flip(tmp_path / "a", body)
    assert [one["body"] for one in taken(cluster, reader, len(BODIES))] == BODIES
    until(lambda: places_of(tmp_path / "a", body))
    until(lambda: "alarm damaged: " in cluster.log_text("a"))
    until(lambda: "alarm damaged is over" in cluster.log_text("a"))
    until(lambda: cluster.status("a")["warnings"] == [], lambda: cluster.status("a"))
    assert 1 <= len(lines_about(cluster, "a")) <= 5
    assert not lines_about(cluster, "b")
    cluster["a"].stop_cleanly()
    report = verified(tmp_path / "a")
    assert report.is_good, report.problems


def repaired(cluster: Cluster, *options: str) -> tuple[int, dict[str, Any]]:
    """What `mirrorq store repair` comes to: its exit status, and what it says."""
    endpoints = ",".join(cluster.endpoints.values())
    done = CliRunner().invoke(main, ["store", "repair", "--connect", endpoints, "--json", *options])
    return done.exit_code, json.loads(done.stdout)


def test_repair_finds_what_nobody_has_read(cluster: Cluster, tmp_path: Path) -> None:
    """Bytes changed on two disks, and nobody reads there: `mirrorq store repair` does, on every
    node, and all is whole then. What nobody has whole it names, and drops when it is told to."""
    filled_in_lmdb(cluster)
    assert flip(tmp_path / "b", BODIES[5].encode())
    assert flip(tmp_path / "c", BODIES[20].encode())
    status, found = repaired(cluster)
    assert (status, found["ok"]) == (0, True), found
    assert [one["messages"] for one in found["copies"]] == 3 * [len(BODIES)]
    until(lambda: places_of(tmp_path / "b", BODIES[5].encode()))
    until(lambda: places_of(tmp_path / "c", BODIES[20].encode()))
    for name in "abc":
        assert flip(tmp_path / name, BODIES[9].encode())
    status, found = repaired(cluster)
    assert (status, found["ok"]) == (1, False)
    assert [one["damaged"] for one in found["copies"]] == 3 * [[[10, 10]]]
    status, found = repaired(cluster, "--discard")
    assert (status, found["discarded"]) == (0, {"jobs": 1}), found
    rest = [body for body in BODIES if body != BODIES[9]]
    assert [one["body"] for one in taken(cluster, "a", len(rest))] == rest
