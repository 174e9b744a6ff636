"""Rails in processes of all kinds: several in one, forked, interrupted, left, with keys, without
libzmq, beside an application."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.security.keys import KeyRing

from mirrorq import Node
from mirrorq.errors import StoreCorrupt
from mirrorq.node import rail
from mirrorq.node.spawned import SpawnedNode

from . import rail_process
from .cluster import until
from .rail_process import WAYS, Nodes

SCRIPT = Path(rail_process.__file__)
END_S = 180.0
"""A process that takes longer hangs."""


def run(way: str, path: Path) -> int:
    """A process with three nodes, until it ends. Returns how many puts were confirmed."""
    ended = subprocess.run(
        [sys.executable, str(SCRIPT), way, str(path)], capture_output=True, text=True, timeout=END_S
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return int(ended.stdout)


def bodies(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


@pytest.mark.parametrize("way", WAYS)
def test_a_process_with_rails_ends(tmp_path: Path, way: str) -> None:
    """By itself, with nothing to say; what was confirmed is there when its nodes begin again."""
    count = run(way, tmp_path)
    nodes = Nodes(tmp_path)
    try:
        found = nodes.found()
        assert found[:count] == bodies(count)
        # A put that was interrupted may be there, too.
        assert len(found) <= count + 1
    finally:
        nodes.close()


def test_a_node_whose_rail_has_lost_its_log_is_made_anew(tmp_path: Path) -> None:
    """It is refused; with an empty directory it takes all from the others."""
    count = run("leave", tmp_path)
    (tmp_path / "b" / "mirrorq.rail").unlink()
    with pytest.raises(StoreCorrupt, match="rail: it is missing"):
        Node("b", path=tmp_path / "b")
    shutil.rmtree(tmp_path / "b")
    nodes = Nodes(tmp_path)
    try:
        until(lambda: "b" in nodes.queue.status().synchronised_mirrors, nodes.queue.status)
        assert nodes.found() == bodies(count)
    finally:
        nodes.close()


@pytest.mark.smoke
def test_nodes_with_keys_have_rails(tmp_path: Path) -> None:
    """CURVE on all connections, also that of a rail."""
    ring = KeyRing(tmp_path / "keys")
    nodes = Nodes(tmp_path, ring.directory)
    try:
        nodes.put_until_used()
        nodes.put_until_used()
        assert nodes.found() == bodies(nodes.count)
    finally:
        nodes.close()


def test_without_libzmq_there_is_no_rail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a pyzmq that is made in another way: all goes by Python, and nothing is made."""
    monkeypatch.setattr(rail, "libzmq_user", lambda: "")
    monkeypatch.setattr(rail, "finds_libzmq", lambda library: bool(library))
    nodes = Nodes(tmp_path)
    try:
        for _ in range(100):
            nodes.put()
        assert nodes.found() == bodies(100)
        assert not [*tmp_path.rglob("mirrorq.rail")]
    finally:
        nodes.close()


def test_spawned_nodes_have_rails(tmp_path: Path) -> None:
    """One is killed while its rail is at work; what it had is there after its restart."""
    nodes = Nodes(tmp_path, spawn=True)
    try:
        for _ in range(2):
            nodes.put_until_used()
        (mirror,) = [one for one in nodes.nodes if one.name == "b"]
        assert isinstance(mirror, SpawnedNode)
        assert mirror.pid is not None
        os.kill(mirror.pid, signal.SIGKILL)
        for _ in range(20):
            nodes.put()
        until(lambda: "b" in nodes.queue.status().synchronised_mirrors, nodes.queue.status)
        nodes.put_until_used()
        assert nodes.found() == bodies(nodes.count)
    finally:
        nodes.close()
