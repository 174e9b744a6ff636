"""The client: queues from a process that is no node."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.client.conftest import Connecting
from tests.kit import is_empty, until

import mirrorq
from mirrorq.client.client import Client
from mirrorq.config import Config
from mirrorq.errors import (
    AckRefused,
    NoQuorum,
    QueueNotFound,
)
from mirrorq.node.node import Node


@pytest.fixture
def client(node: Node, connecting: Connecting) -> Client:
    return connecting(node.listening)


def test_it_is_picklable(client: Client) -> None:
    """A pickled client is a client of its own on the same cluster."""
    client.queue("orders").put(b"one").result(60)
    with pickle.loads(pickle.dumps(client)) as copy:
        assert copy.name != client.name
        assert copy.queue("orders").get(timeout=60).body == b"one"


def test_a_pickled_handle_connects_where_it_is_loaded(client: Client) -> None:
    """Handles of one cluster share one client there, which ends with the last of them."""
    queue = client.queue("orders")
    data = pickle.dumps((queue, queue))
    assert len(data) < 2000
    with pickle.loads(data)[0] as one, pickle.loads(data)[1] as two:
        assert one.node is two.node
        assert one.node is not client
        assert one.put(b"from afar").result(60) == 1
        with two.get(timeout=60) as message:
            assert message.body == b"from afar"
        shared = one.node
    assert shared.is_closed
    queue.delete()
    with pytest.raises(QueueNotFound):
        pickle.loads(data)


def test_what_a_process_does_with_a_handle_is_not_picklable(client: Client) -> None:
    queue = client.queue("orders")
    with queue.consume(lambda _: None) as consumer:
        for one, said in (
            (consumer, "<Consumer of 'orders'> belongs"),
            (queue.transaction(), "<Transaction on 'orders'> belongs"),
        ):
            with pytest.raises(TypeError, match=f"{said} to this process and cannot be pickled"):
                pickle.dumps(one)
    assert repr(client) == f"<Client {client.name} of {client.endpoints[0]}>"


def test_a_handle_of_a_node_is_not_picklable(tmp_path: Path) -> None:
    queue = mirrorq.MirroredQueue("orders", path=tmp_path)
    with queue, pytest.raises(TypeError, match=r"mirrorq\.connect"):
        pickle.dumps(queue)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_a_connection_of_its_own(client: Client) -> None:
    """Client, handles and exchanges go on in both processes; what is held stays the parent's."""
    orders, done = client.queue("orders"), client.queue("done")
    events = client.exchange("events", "fanout")
    events.bind(done)
    orders.put_many([b"0", b"1"]).result(60)
    held = orders.get(timeout=60)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            ok = orders.put(b"child").result(60) == 3
            ok = ok and events.publish("", b"child").result(60) == {"done": 1}
            ok = ok and client.queue("orders").qsize() >= 1
            with pytest.raises(AckRefused):
                held.ack().result(60)
            orders.close()
            events.close()
            client.close()
            status = 0 if ok else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    held.ack().result(60)
    rest = []
    while len(rest) < 2:
        rest += orders.get_many(5, timeout=60)
    assert [(m.body, m.redelivered) for m in rest] == [(b"1", False), (b"child", False)]
    assert events.publish("", b"parent").result(60) == {"done": 2}


def test_it_loads_no_store() -> None:
    """A client is light: neither LMDB nor a node's logic is imported for it."""
    rooms = "store node engine replication cluster"
    assert all((Path(mirrorq.__file__).parent / room).is_dir() for room in rooms.split())
    code = (
        "import sys, mirrorq, mirrorq.client.client, mirrorq.api.queue, mirrorq.api.exchange\n"
        f"wrong = {{'lmdb', *('mirrorq.' + room for room in {rooms.split()})}}\n"
        "sys.exit(str(sorted(wrong & set(sys.modules))) if wrong & set(sys.modules) else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


class Slow:
    """An endpoint that is asked something, and does not answer before the test is over."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.over = threading.Event()
        self.answered = 0

    def __call__(self, endpoint: object, timeout: float) -> str:
        self.asked.set()
        self.over.wait(60)
        self.answered += 1
        return "late"


def test_the_reason_why_nobody_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A timeout is what it takes: why an endpoint serves nobody is asked beside the wait, and what
    is not known at its end is left out."""
    slow = Slow()
    monkeypatch.setattr("mirrorq.client.client.silence_of", slow)
    monkeypatch.setattr("mirrorq.client.connect_errors.mechanism_of", slow)
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        endpoint = f"tcp://127.0.0.1:{foreign.getsockname()[1]}"
        with pytest.raises(NoQuorum, match=r"within 0\.3 s.*no answer within \d\.\d s"):
            mirrorq.connect(endpoint, timeout=0.3)
        assert slow.asked.wait(60)
        assert slow.answered == 0
        slow.over.set()


def test_a_small_window_slows_down_and_loses_nothing(
    tmp_path: Path, connecting: Connecting
) -> None:
    """Handles that put and take much more than may be on the way: each in order, all of it, and
    the connection lasts."""
    config = Config(client_window_bytes=64 * 1024)
    with Node("a", path=tmp_path / "a", listen="tcp://127.0.0.1:0", config=config) as node:
        client = connecting(node.listening, config=config)
        events: list[str] = []
        client.add_listener(lambda notice: events.append(notice.kind))
        waited: list[int] = []
        flow = client._driver._home.outflow
        offer = flow.offer
        flow.offer = lambda *given: (offer(*given), waited.append(flow.count))[0]  # type: ignore[method-assign]
        queues = [client.queue(name) for name in ("one", "two", "three")]
        body = bytes(30_000)
        puts = [q.put(b"%3d" % i + body) for i in range(50) for q in queues]
        assert sorted(put.result(60) for put in puts) == sorted([*range(1, 51)] * 3)
        assert any(waited), "nothing had to wait"
        waited.clear()
        taken: dict[str, list[int]] = {}
        consumers = []
        for queue in queues:
            seen = taken[queue.name] = []
            if queue.name == "one":
                continue

            def take(message: mirrorq.Message, seen: list[int] = seen) -> None:
                seen.append(int(message.body[:3]))
                message.ack()

            consumers.append(queue.consume(take))
        while len(taken["one"]) < 50:
            messages = queues[0].get_many(50, timeout=30)
            taken["one"] += [int(message.body[:3]) for message in messages]
            queues[0].ack_many(messages).result(30)
        until(lambda: all(len(seen) == 50 for seen in taken.values()))
        assert all(seen == list(range(50)) for seen in taken.values())
        until(lambda: all(map(is_empty, queues)))
        assert "disconnected" not in events
