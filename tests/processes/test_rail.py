"""The rail with real processes, sockets and disks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from tests.kit import mount_tmpfs, resize_tmpfs

from .cluster import Cluster, until
from .oracle import Traffic

pytest.importorskip("mirrorq._native._rail", reason="this system has no rail")
RAIL = {"star": True, "rail": True}
LOG = "mirrorq.rail"
PLENTY_BYTES = 4 << 30


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path, RAIL)
    try:
        yield made
    finally:
        made.end()


@pytest.fixture
def elastic_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs that a test gives another size."""
    with ExitStack() as ending:
        yield mount_tmpfs(ending, tmp_path / "elastic", PLENTY_BYTES)


def is_used(cluster: Cluster, node: str) -> bool:
    """Whether anything was ever written to the log of a node's rail."""
    log = cluster.path / node / LOG
    with suppress(FileNotFoundError), log.open("rb") as file:
        # The first record begins here.
        return any(file.read(4))
    return False


def use_rails(cluster: Cluster, mirrors: str) -> None:
    """Put one by one, each confirmed, until the rails of these have taken something. (Of messages
    that overlap for as long as they come, as on a slow machine, all goes along the row.)"""

    def is_done() -> bool:
        cluster.ask("a", "put", body="before")
        return all(is_used(cluster, mirror) for mirror in mirrors)

    until(is_done, "the rails take something")
    cluster.ask("a", "purge")


def test_mirror_and_master_are_killed_under_traffic(cluster: Cluster) -> None:
    cluster.serve("abc")
    use_rails(cluster, "bc")
    traffic = Traffic(cluster["b"], cluster["b"], 100_000, pause_s=0.002)
    traffic.wait_confirmed(300)
    cluster.kill("c")
    traffic.wait_more_confirmed(200)
    cluster.start("c")
    cluster.open("orders", "c", passive=True)
    cluster.wait_in_sync(2, on="b")
    traffic.wait_more_confirmed(200)
    cluster.kill("a")
    traffic.wait_more_confirmed(200)
    traffic.stop()
    traffic.check()
    assert cluster.wait_master("bc", on="b")


@pytest.mark.smoke
def test_all_are_killed_at_once_and_have_what_was_confirmed(cluster: Cluster) -> None:
    cluster.serve("abc")
    count = 0
    while count < 400 or not (is_used(cluster, "b") and is_used(cluster, "c")):
        assert cluster.ask("a", "put", body=f"m{count}") == count + 1
        count += 1
        assert count < 20_000, "rails are used after a second or two"
    cluster.kill("a", "b", "c")
    cluster.start("bc")
    cluster.open("orders", "bc", passive=True)
    cluster.wait_master("bc", on="b")
    found = cluster.ask("b", "browse")
    assert found == [[number + 1, f"m{number}"] for number in range(count)]


@pytest.mark.soak
@pytest.mark.parametrize("setting", RAIL)
@pytest.mark.parametrize("name", ["a", "c"], ids=["master", "mirror"])
def test_nodes_have_different_settings(cluster: Cluster, name: str, setting: str) -> None:
    """As while a cluster is given them, node by node. A node without the star takes it from the
    queue; one without the rail only from itself."""
    cluster.name_all("abc")
    for node in "abc":
        cluster.launch(node, config={**cluster.config, setting: node != name})
    for node in "abc":
        cluster[node].wait_started()
        cluster[node].ask("wait_ready")
    cluster.open("orders", "abc")
    assert cluster.wait_in_sync(2, on="b")["master"] == "a"
    cluster.wait_in_sync(2, on="a")
    if setting == "rail":
        use_rails(cluster, "b")
    traffic = Traffic(cluster["b"], cluster["b"], 100_000, pause_s=0.002)
    traffic.wait_more_confirmed(300)
    assert is_used(cluster, "b") == (setting == "rail")
    cluster.kill(name)
    traffic.wait_more_confirmed(200)
    cluster.start(name)
    cluster.open("orders", name, passive=True)
    cluster.wait_in_sync(2, on="b")
    traffic.wait_more_confirmed(200)
    traffic.stop()
    traffic.check()


def _is_blocked(cluster: Cluster, node: str) -> bool:
    return bool(cluster.status(node)["blocked_by"])


def test_the_disk_of_a_mirror_fills_while_its_rail_has_the_queue(
    cluster: Cluster, elastic_disk: Path
) -> None:
    """Its copy judges each message by the room that there is from then on. What was confirmed is
    there after a kill with the disk still full, and with space again it goes on."""
    (cluster.path / "c").symlink_to(elastic_disk)
    cluster.serve("abc")
    count = 0
    while not is_used(cluster, "c"):
        assert cluster.ask("a", "put", body=f"m{count}") == count + 1
        count += 1
        assert count < 20_000, "rails are used after a second or two"
    disk = os.statvfs(elastic_disk)
    resize_tmpfs(elastic_disk, (disk.f_blocks - disk.f_bfree) * disk.f_frsize + (64 << 10))
    bodies: list[str] = []
    numbers: list[int] = []

    def is_done() -> bool:
        return bool(cluster["a"].ask("is_done", number=numbers[-1])) or _is_blocked(cluster, "c")

    while not _is_blocked(cluster, "c"):
        bodies.append(f"n{len(bodies)}")
        numbers += cluster.ask("a", "put_open", bodies=bodies[-1:], size=20_000)
        until(is_done, lambda: cluster.status("c"))
        assert len(bodies) < 2000, "40 MB are more than its disk has"
    cluster.kill("c")
    cluster.start("c")
    cluster.open("orders", "c", passive=True)
    resize_tmpfs(elastic_disk, PLENTY_BYTES)
    for number in numbers:
        cluster["a"].ask("outcome", number=number)
    cluster.wait_in_sync(2, on="c")
    found = [body for _, body in cluster.ask("c", "browse")]
    assert found == [*(f"m{number}" for number in range(count)), *bodies]
