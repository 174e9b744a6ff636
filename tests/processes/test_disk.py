"""A full disk in the middle of commits: puts wait and say why, and go on when there is room."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.kit import mount_tmpfs

from .cluster import Cluster, until

SMALL_MIB = 8


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A small tmpfs."""
    with ExitStack() as ending:
        yield mount_tmpfs(ending, tmp_path / "small", SMALL_MIB << 20)


def fill_the_rest(path: Path) -> Path:
    """Take all the space that is left; the file that holds it."""
    ballast = path / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            pass
    return ballast


@pytest.mark.parametrize("full", ["a", "b"])
def test_a_full_disk_in_a_cluster(cluster: Cluster, small_disk: Path, full: str) -> None:
    """The master's or a mirror's disk is full: its status says so, nothing is lost, and when
    space is freed it goes on."""
    (cluster.path / full).symlink_to(small_disk)
    cluster.serve("abc")
    cluster.ask("a", "fill", count=100, size=1000, batch=1)
    ballast = fill_the_rest(small_disk)
    numbers = cluster.ask("c", "put_open", bodies=[f"m{n}" for n in range(40)], size=100_000)
    until(lambda: "full" in cluster.status(full)["blocked_by"], lambda: cluster.status(full))
    until(lambda: "alarm disk_low" in cluster.log_text(full))
    ballast.unlink()
    until(lambda: not cluster.status(full)["blocked_by"], lambda: cluster.status(full))
    for number in numbers:
        cluster["c"].ask("outcome", number=number)
    cluster.wait_in_sync(2, on=full)
    assert cluster["a"].ask("is_alive")
    found = [body for _, body in cluster.ask("c", "browse")]
    assert found == [*map(str, range(100)), *(f"m{n}" for n in range(40))]


@pytest.mark.smoke
def test_a_file_size_limit_is_a_full_disk(cluster: Cluster) -> None:
    """Where no tmpfs can be mounted too: the process may not make its files larger, and then
    may again."""
    peer = cluster.run({"name": "a", "path": str(cluster.path / "store")}, "alone")
    peer.wait_started()
    queue = peer.ask("queue", name="jobs")
    peer.ask("fill", queue=queue, count=100, size=1000, batch=1)
    peer.ask("limit_files", size=1 << 20)
    opened = peer.ask("put_open", queue=queue, bodies=["late"] * 40, size=100_000)
    until(lambda: peer.ask("status", queue=queue)["blocked_by"])
    peer.ask("limit_files", size=None)
    for number in opened:
        peer.ask("outcome", number=number)
    assert peer.ask("qsize", queue=queue) == 140


def test_a_queue_at_store_bytes_max_can_be_drained(cluster: Cluster) -> None:
    """The map is full: puts wait, status names the knob, and taking and acking makes room."""
    settings = {
        "name": "a",
        "path": str(cluster.path / "store"),
        "config": {"store_bytes_max": 4 << 20},
    }
    peer = cluster.run(settings, "alone")
    peer.wait_started()
    queue = peer.ask("queue", name="jobs")
    opened = peer.ask("put_open", queue=queue, bodies=[f"m{n}" for n in range(60)], size=100_000)
    until(lambda: "store_bytes_max" in peer.ask("status", queue=queue)["blocked_by"])
    for number in range(60):
        message = peer.ask("get", queue=queue)
        assert message["body"] == f"m{number}"
        peer.ask("ack", message=message["number"])
    for number in opened:
        peer.ask("outcome", number=number)


def test_a_node_that_its_disk_has_stopped_is_noticed_at_once(cluster: Cluster) -> None:
    """Its process runs on; its connections end and its port is closed, so that others take over
    though silence alone would be noticed in ten minutes. Its clients go to another node."""
    cluster.config |= {"failure_ms": 600_000, "lag_ms_max": 600_000}
    cluster.serve("abc")
    client = cluster.client(endpoints=[cluster.endpoints[name] for name in "abc"])
    queue = client.ask("queue", name="orders")
    assert client.ask("entry_node") == "a"
    assert client.ask("put", queue=queue, body="m1") == 1
    cluster["a"].ask("fail_disk")
    (number,) = client.ask("put_open", queue=queue, bodies=["m2"])
    cluster.wait_master("bc", on="b")
    assert client.ask("outcome", number=number) == 2
    assert client.ask("entry_node") != "a"
    assert not cluster["a"].ask("is_alive")
    assert "node a has stopped" in cluster.log_text("a")

    def lines_on_a() -> list[str]:
        lines = cluster.log_text("b").splitlines()
        return [line for line in lines if "node a is silent" in line]

    gone = until(lines_on_a)
    assert all(" WARNING " in line for line in gone)
    assert cluster.ask("c", "browse") == [[1, "m1"], [2, "m2"]]
