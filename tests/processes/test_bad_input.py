"""Bad input: each has its exception or log line, and the rest goes on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kit import free_endpoint

import mirrorq

from .cluster import Cluster, PeerError, until


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[mirrorq.MirroredQueue]:
    config = mirrorq.Config(message_bytes_max=10_000)
    with mirrorq.MirroredQueue("jobs", path=tmp_path / "jobs", config=config) as queue:
        yield queue


@pytest.mark.smoke
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_use_after_fork(jobs: mirrorq.MirroredQueue) -> None:
    """In a forked child every call says to open the queue there; the parent is unharmed."""
    jobs.put_many([b"m0", b"m1"]).result(30)
    held = jobs.get(timeout=30)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        said = []
        for call in (lambda: jobs.put(b"m"), lambda: jobs.get(timeout=1), jobs.qsize, held.ack):
            try:
                call()
                said.append("no error")
            except mirrorq.MirrorQError as error:
                said.append(str(error))
        jobs.close()
        os.write(write, "\n".join(said).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answers:
        said = answers.read().split("\n")
    assert os.waitpid(child, 0)[1] == 0
    assert len(said) == 4
    for text in said:
        assert "forked from it" in text
        assert "in the child" in text
    held.ack().result(30)
    assert jobs.put(b"m2").result(30) == 3
    assert jobs.get(timeout=30).body == b"m1"


def test_a_store_of_another_cluster(cluster: Cluster) -> None:
    """A node with the store of another cluster is not let in, says why, and harms nobody."""
    cluster.found("abc")
    cluster.open("orders", "ab")
    cluster.wait_in_sync(2, on="a")
    cluster.kill("c")
    cluster.wait_in_sync(1, on="a")
    other = Cluster(cluster.path / "other")
    other.path.mkdir()
    try:
        other.found("cde")
    finally:
        other.end()
    shutil.rmtree(cluster.path / "c")
    shutil.copytree(other.path / "c", cluster.path / "c")
    stranger = cluster.launch("c")
    stranger.wait_started()
    assert cluster.ask("a", "put", body="m1") == 1
    with pytest.raises(PeerError, match="NoQuorum"):
        stranger.ask("wait_ready", timeout=3.0)
    text = "does not belong to this cluster: it is ignored"
    until(lambda: text in cluster.log_text("a") + cluster.log_text("b"))
    assert cluster.status("a")["mirrors"] == ["b"]
    assert cluster.ask("b", "put", body="m2") == 2


def test_two_nodes_with_one_name(cluster: Cluster) -> None:
    """A second node under a running one's name, elsewhere: the mistake is named in a log, and
    the cluster goes on serving."""
    cluster.serve("abc")
    endpoint = free_endpoint()
    settings = {
        "name": "b",
        "path": str(cluster.path / "second"),
        "peers": {**cluster.endpoints, "b": endpoint},
    }
    second = cluster.run(settings, "second")
    second.wait_started()

    def texts() -> str:
        return "".join(cluster.log_text(name) for name in "abc")

    until(lambda: "two nodes call themselves b: stop one" in texts(), texts)
    lines = [line for line in texts().splitlines() if "two nodes call themselves b" in line]
    assert all(" ERROR " in line for line in lines)
    for number in range(1, 21):
        assert cluster.ask("a", "put", body=f"m{number}") == number
    second.kill()
    cluster.wait_in_sync(2, on="a")
    assert len(cluster.ask("c", "browse")) == 20
