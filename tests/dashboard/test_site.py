"""The dashboard's server: what it gives, to whom, and who cannot harm it."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kit import DEADLINE_S, until

import mirrorq.dashboard
from mirrorq import ConfigError, Node
from mirrorq.api.queue import MirroredQueue
from mirrorq.dashboard import Dashboard
from mirrorq.demo.ports import free_ports

pytestmark = pytest.mark.real

KEY = "0123456789abcdef"
PAGE = Path(mirrorq.dashboard.__file__).parent / "page"
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def ask(url: str, body: bytes | None = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """(status, headers, body) of the answer."""
    request = urllib.request.Request(
        url, body, {k.replace("_", "-"): v for k, v in headers.items()}
    )
    try:
        with OPENER.open(request, timeout=DEADLINE_S) as answer:
            return answer.status, dict(answer.headers.items()), answer.read()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers.items()), error.read()


def state(url: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(ask(url + "api/state")[2])
    return found


@pytest.fixture
def dashboard(node: Node) -> Iterator[Dashboard]:
    with Dashboard(node, "127.0.0.1:0", admin_key=KEY) as dashboard:
        yield dashboard


def test_it_shows_the_cluster(node: Node, dashboard: Dashboard) -> None:
    """Nodes, queues with their points, policies; the past has the same number of the last look."""
    orders = node.queue("orders")
    orders.put_many([b"1", b"2"]).result(DEADLINE_S)
    node.set_policy("p", "^orders$", {"max-length": 5})

    def shown() -> bool:
        queues = state(dashboard.url).get("queues", [])
        return [(queue["name"], queue["point"][:2]) for queue in queues] == [("orders", [2, 0])]

    until(shown)
    until(lambda: state(dashboard.url)["policies"])
    found = state(dashboard.url)
    assert (found["error"], found["queue_count"]) == ("", 1)
    assert [node["name"] for node in found["nodes"]] == ["a"]
    past = json.loads(ask(dashboard.url + "api/past")[2])
    assert past["number"] >= found["number"]
    assert len(past["points"]["orders"]) <= len(past["times_ms"])
    assert past["points"]["orders"][-1][0] == 2
    orders.close()


def test_each_shard_is_a_ring_of_its_own(node: Node, dashboard: Dashboard) -> None:
    """A sharded queue's shards are shown, and its messages counted once."""
    many = node.queue("many", shards=2)
    many.put_many([b"1", b"2", b"3"]).result(DEADLINE_S)

    def shown() -> bool:
        queues = state(dashboard.url).get("queues", [])
        names = [queue["name"] for queue in queues]
        ready = sum(queue["messages_ready"] for queue in queues)
        return (names, ready) == (["many#shard0", "many#shard1"], 3)

    until(shown)
    many.close()


def test_nothing_but_its_own_files_and_no_markup() -> None:
    """The page asks nobody else, and puts nothing in as markup."""
    for path in PAGE.iterdir():
        text = path.read_text("utf-8")
        found = set(re.findall(r"(?:https?:)?//[\w.]+/", text))
        assert found <= {"http://www.w3.org/"}
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
        assert not re.search(r"<script(?![^>]*src=)|\son\w+=|<style", text)


@pytest.mark.parametrize("path", ["", "dashboard.js", "api/state", "api/nothing"])
def test_every_answer_keeps_the_browser_in(dashboard: Dashboard, path: str) -> None:
    """Scripts of this server only, no frame around it, no guessing of types."""
    _, headers, _ = ask(dashboard.url + path)
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:7480", 200),
        ("127.0.0.1", 200),
        ("[::1]:7480", 200),
        ("evil.example:7480", 421),
        ("evil.example", 421),
        ("", 421),
    ],
)
def test_a_page_of_somebody_else_gets_nothing(dashboard: Dashboard, host: str, status: int) -> None:
    """A name that has been made to lead here is not the name of this server."""
    assert ask(dashboard.url + "api/state", Host=host)[0] == status


def test_only_the_admin_key_changes_anything(node: Node, dashboard: Dashboard) -> None:
    """Without it, or with another one, nothing; with it what there is, and clear refusals."""
    node.queue("orders").close()
    url = dashboard.url + "api/act"
    body = json.dumps({"what": "sync", "queue": "orders"}).encode()
    assert ask(url, body)[0] == 403
    assert ask(url, body, Authorization="Bearer 0123456789abcdeX")[0] == 403
    assert ask(url, body, Authorization="Bearer ")[0] == 403
    assert ask(url)[0] == 405
    right = {"Authorization": f"Bearer {KEY}"}
    assert ask(url, body, **right)[0] == 200
    for wrong in (
        b"",
        b"[1]",
        b"{",
        b'{"what": "drop"}',
        b'{"what": "sync"}',
        b'{"what": 1, "queue": "orders"}',
        b'{"what": "nothing", "queue": "orders"}',
        b"[" * 4000,
        b"x" * 5000,
    ):
        assert ask(url, wrong, **right)[0] == 400
    gone = json.dumps({"what": "transfer", "queue": "orders", "node": "nobody"}).encode()
    status, _, told = ask(url, gone, **right)
    assert status == 409
    assert "nobody" in json.loads(told)["error"]
    rights = json.loads(ask(dashboard.url + "api/rights", **right)[2])
    assert rights == {"possible": True, "admin": True}


def test_an_admin_looks_at_messages_and_acts_on_them(node: Node, dashboard: Dashboard) -> None:
    """Messages are shown to nobody else; deletes, pauses, purges and redrives say how many."""
    orders, dead = node.queue("orders", dead_letter_queue="dead"), node.queue("dead")
    orders.put(b"\xff bad", headers={"n": 1}, key="k").result(DEADLINE_S)
    orders.get(timeout=DEADLINE_S).nack(requeue=False).result(DEADLINE_S)
    until(lambda: dead.qsize() == 1)
    url, right = dashboard.url + "api/browse?queue=dead", {"Authorization": f"Bearer {KEY}"}
    assert ask(url)[0] == 403
    (shown,) = json.loads(ask(url, **right)[2])["messages"]
    assert (shown["body"], shown["size"], shown["key"]) == ("\\xff bad", 5, "k")
    assert (shown["headers"], shown["death"]["queue"]) == ({"n": "1"}, "orders")
    for wrong, code in (("?queue=dead&from=x", 400), ("?from=1", 400), ("?queue=no", 409)):
        assert ask(dashboard.url + "api/browse" + wrong, **right)[0] == code

    def act(**asked: object) -> tuple[int, object]:
        status, _, told = ask(dashboard.url + "api/act", json.dumps(asked).encode(), **right)
        return status, json.loads(told).get("count")

    assert act(what="redrive", queue="dead") == (200, 1)
    until(lambda: orders.qsize() == 1)
    orders.put_many([b"1", b"2", b"3"]).result(DEADLINE_S)
    assert act(what="delete", queue="orders", sequence=3) == (200, 1)
    assert act(what="delete", queue="orders", sequence="3")[0] == 400
    assert act(what="pause", queue="orders") == (200, None)
    assert orders.status().deliveries_paused
    assert act(what="resume", queue="orders") == (200, None)
    assert act(what="purge", queue="orders") == (200, 3)
    assert act(what="purge", queue="nowhere")[0] == 409
    orders.close()
    dead.close()


def test_one_shard_is_looked_at_and_acted_on(node: Node, dashboard: Dashboard) -> None:
    many = node.queue("many", shards=2)
    many.shard(1).put(b"x").result(DEADLINE_S)
    right = {"Authorization": f"Bearer {KEY}"}
    url = dashboard.url + "api/browse?queue=many%23shard1"
    assert [one["body"] for one in json.loads(ask(url, **right)[2])["messages"]] == ["x"]
    body = json.dumps({"what": "delete", "queue": "many#shard1", "sequence": 1}).encode()
    assert json.loads(ask(dashboard.url + "api/act", body, **right)[2])["count"] == 1
    many.close()


def test_without_an_admin_key_nobody_is_admin(node: Node) -> None:
    with Dashboard(node, "127.0.0.1:0") as dashboard:
        rights = json.loads(ask(dashboard.url + "api/rights", Authorization="Bearer None")[2])
        assert rights == {"possible": False, "admin": False}
        assert ask(dashboard.url + "api/act", b"{}", Authorization="Bearer ")[0] == 403


def test_a_browser_that_stalls_harms_nobody(node: Node) -> None:
    """One that reads nothing and one that never ends its request: others are served, the queue
    goes on, and the end of the dashboard waits for neither."""
    orders = node.queue("orders")
    dashboard = Dashboard(node, "127.0.0.1:0")
    port = int(dashboard.url.rstrip("/").rpartition(":")[2])
    stalled = [socket.create_connection(("127.0.0.1", port)) for _ in range(2)]
    try:
        stalled[0].sendall(b"GET /dashboard.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50)
        stalled[1].sendall(b"GET / HTTP/1.1\r\nHost: local")
        for _ in range(20):
            assert ask(dashboard.url + "api/state")[0] == 200
            orders.put(b"x").result(DEADLINE_S)
        dashboard.close()
        until(lambda: not dashboard._thread.is_alive())
    finally:
        for each in stalled:
            each.close()
        orders.close()


def test_a_cluster_that_fails_is_shown_as_such(tmp_path: Path) -> None:
    """The page stays, says why nothing is new, and goes on when there is something."""
    node = Node("a", path=tmp_path / "a")
    with Dashboard(node, "127.0.0.1:0") as dashboard:

        def names() -> list[str]:
            return [each["name"] for each in state(dashboard.url)["nodes"]]

        until(lambda: names() == ["a"])
        node.close()
        until(lambda: "closed" in str(state(dashboard.url)["error"]))
        assert names() == ["a"]


def test_a_node_brings_its_dashboard(tmp_path: Path) -> None:
    """Read-only, at the address given, for as long as the node lives; also by MirroredQueue."""
    port = free_ports(1)[0]
    address, url = f"127.0.0.1:{port}", f"http://127.0.0.1:{port}/"
    with MirroredQueue("orders", path=tmp_path / "a", dashboard=address):
        assert ask(url)[0] == 200
        with pytest.raises(ConfigError, match="cannot serve a dashboard"):
            Node("b", path=tmp_path / "b", dashboard=address)
        # Its store is free again.
        Node("b", path=tmp_path / "b").close()
    with pytest.raises(urllib.error.URLError):
        ask(url)


@pytest.mark.parametrize(
    ("address", "key", "text"),
    [
        ("0.0.0.0:0", None, "could be read by other machines"),
        ("example.org:0", None, "could be read by other machines"),
        ("127.0.0.1", None, "give host:port"),
        ("127.0.0.1:70000", None, "give host:port"),
        ("127.0.0.1:0", "short", "can be guessed"),
    ],
)
def test_what_is_refused(node: Node, address: str, key: str | None, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Dashboard(node, address, admin_key=key)


def test_where_somebody_listens_already(node: Node) -> None:
    """Said as that, with what to do; so for an address of another machine."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"{port}: something listens there already: stop"):
            Dashboard(node, f"127.0.0.1:{port}")
    with pytest.raises(ConfigError, match=r"this machine has no such address: give one of its own"):
        Dashboard(node, "192.0.2.1:0", insecure=True)


def test_the_command(tmp_path: Path) -> None:
    """`mirrorq dashboard` says where the page is, shows a cluster through a client, ends well."""
    with Node("a", path=tmp_path / "a", listen="tcp://127.0.0.1:0") as node:
        node.queue("orders").close()
        command = [sys.executable, "-m", "mirrorq", "dashboard", "--connect", node.listening]
        running = subprocess.Popen(
            [*command, "--listen", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            assert running.stdout is not None
            line = running.stdout.readline()
            found = re.fullmatch(r"dashboard at (http://127\.0\.0\.1:\d+/)\n", line)
            assert found, line
            until(lambda: [q["name"] for q in state(found[1]).get("queues", [])] == ["orders"])
            running.send_signal(signal.SIGTERM)
            _, told = running.communicate(timeout=DEADLINE_S)
            assert (running.returncode, told) == (0, "")
        finally:
            running.kill()
            running.communicate()
