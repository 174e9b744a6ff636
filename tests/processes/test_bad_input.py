"""Bad input: each has its exception or log line, and the rest goes on."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import zmq

import mirrorq
from mirrorq.demo.ports import free_ports

from .cluster import DEADLINE_S, Cluster, PeerError, until


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[mirrorq.MirroredQueue]:
    config = mirrorq.Config(message_bytes_max=10_000)
    with mirrorq.MirroredQueue("jobs", path=tmp_path / "jobs", config=config) as queue:
        yield queue


@pytest.mark.smoke
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_use_after_fork(jobs: mirrorq.MirroredQueue) -> None:
    """In a forked child every call says to open the queue there; the parent is unharmed."""
    jobs.put(b"m1").result(30)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        said = []
        for call in (lambda: jobs.put(b"m"), lambda: jobs.get(timeout=1), lambda: jobs.qsize()):
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
    assert len(said) == 3
    for text in said:
        assert "forked from it" in text
        assert "in the child" in text
    assert jobs.put(b"m2").result(30) == 2
    assert jobs.get(timeout=30).body == b"m1"


def alone(cluster: Cluster, name: str = "a", store: str = "store") -> dict[str, object]:
    return {"name": name, "path": str(cluster.path / store)}


def test_a_path_that_another_process_has_open(cluster: Cluster) -> None:
    """StoreLocked names the path and the process; the first goes on; after its death, even by
    SIGKILL, the path is free."""
    first = cluster.run(alone(cluster), "first")
    first.wait_started()
    queue = first.ask("queue", name="jobs")
    with pytest.raises(mirrorq.StoreLocked, match=f"{cluster.path}.*{first.process.pid}"):
        mirrorq.Node("a", path=cluster.path / "store")
    assert first.ask("put", queue=queue, body="m1") == 1
    first.kill()
    with mirrorq.MirroredQueue("jobs", path=cluster.path / "store", node="a") as jobs:
        assert jobs.get(timeout=30).body == b"m1"


def test_a_store_of_another_node(tmp_path: Path) -> None:
    """A store opened under another name is refused, with both names."""
    mirrorq.Node("a", path=tmp_path / "store").close()
    with pytest.raises(mirrorq.StoreError, match=r"(?s)'?a'?.*'?b'?|'?b'?.*'?a'?"):
        mirrorq.Node("b", path=tmp_path / "store")
    mirrorq.Node("a", path=tmp_path / "store").close()


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


def test_a_corrupt_store(tmp_path: Path) -> None:
    """Bytes of the store were changed on disk: StoreCorrupt says so, or what is damaged is named
    and never served as if it were whole."""
    path = tmp_path / "store"
    bodies = [f"message {number}".encode() * 50 for number in range(100)]
    with mirrorq.MirroredQueue("jobs", path=path) as jobs:
        jobs.put_many(bodies).result(30)
    data = next(path.rglob("data.mdb"))
    content = bytearray(data.read_bytes())
    place = content.index(b"message 50" * 3)
    content[place : place + 7] = b"massage"
    data.write_bytes(content)
    found: list[bytes] = []
    with suppress(mirrorq.StoreCorrupt), mirrorq.MirroredQueue("jobs", path=path) as jobs:
        found = [message.body for message in jobs.get_many(100, timeout=2)]
    assert found == []
    for page in range(0, len(content), 4096):
        content[page : page + 64] = os.urandom(64)
    data.write_bytes(content)
    with pytest.raises(mirrorq.StoreCorrupt):
        mirrorq.MirroredQueue("jobs", path=path)


def test_an_endpoint_in_use(tmp_path: Path) -> None:
    """ConfigError names the endpoint; the store is free again at once."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(mirrorq.ConfigError, match=f"{endpoint}.*another process listens"):
            mirrorq.Node("a", path=tmp_path / "a", peers={"a": endpoint})
    mirrorq.Node("a", path=tmp_path / "a").close()


def test_unreachable_peers(tmp_path: Path) -> None:
    """A node starts without its peers; opening a queue raises NoQuorum at its timeout and names
    the nodes to start; close() does not hang."""
    ports = free_ports(3)
    peers = {n: f"tcp://127.0.0.1:{port}" for n, port in zip("abc", ports, strict=True)}
    with mirrorq.Node("a", path=tmp_path / "a", peers=peers) as node:

        def said() -> str:
            with pytest.raises(mirrorq.NoQuorum, match="Start more of b, c") as raised:
                node.queue("orders", timeout=0.3)
            return str(raised.value)

        until(lambda: said().count("nothing listens there") == 2, said)
        with pytest.raises(mirrorq.NoQuorum):
            node.wait_ready(0.1)


def test_two_nodes_with_one_name(cluster: Cluster) -> None:
    """A second node under a running one's name, elsewhere: the mistake is named in a log, and
    the cluster goes on serving."""
    cluster.found("abc")
    cluster.open("orders", "abc")
    cluster.wait_in_sync(2, on="a")
    endpoint = f"tcp://127.0.0.1:{free_ports(1)[0]}"
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


GARBAGE = [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x00" * 1000,
    bytes(range(256)) * 40,
    b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f" + b"\x03\x00" + b"NULL" + bytes(16) + bytes(32),
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=["http", "zeros", "ramp", "half a handshake"])
def test_raw_garbage_on_the_endpoint(cluster: Cluster, garbage: bytes) -> None:
    """Bytes that are no ZMTP at all: the node goes on serving its peers."""
    cluster.found("abc")
    cluster.open("orders", "abc")
    cluster.wait_in_sync(2, on="a")
    host, port = cluster.endpoints["a"].removeprefix("tcp://").split(":")
    for _ in range(20):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(garbage)
    assert cluster.ask("b", "put", body="m1") == 1
    assert cluster.status("b")["master"] == "a"


IDENTITIES = (b"", b"client", b"N", b"N" + bytes(17) + b"b", b"N\x01" + bytes(16) + b"z")
NONSENSE = ([b""], [b"garbage"], [b"\x00" * 50] * 5, [bytes(range(256))], [b"\xff"] * 99)


def test_garbage_messages(cluster: Cluster) -> None:
    """Well-formed ZeroMQ with nonsense in it, as a client and under a peer's routing id: it is
    logged as garbage, and the node goes on."""
    cluster.found("abc")
    cluster.open("orders", "abc")
    cluster.wait_in_sync(2, on="a")
    context = zmq.Context()
    try:
        for identity in IDENTITIES:
            dealer = context.socket(zmq.DEALER)
            dealer.linger = 1000 * int(DEADLINE_S)
            if identity:
                dealer.routing_id = identity
            dealer.connect(cluster.endpoints["a"])
            for parts in NONSENSE:
                dealer.send_multipart(parts)
            dealer.close()
        until(lambda: "garbage" in cluster.log_text("a") or "dropped" in cluster.log_text("a"))
    finally:
        context.term()
    assert cluster.ask("a", "put", body="m1") == 1
    assert cluster.ask("b", "put", body="m2") == 2
    assert cluster["a"].ask("is_alive")
    assert cluster.wait_in_sync(2, on="b")["synchronised_mirrors"] == ["b", "c"]
