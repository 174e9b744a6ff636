"""Spools on real nodes and real disks, in this process."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from tests.kit import DEADLINE_S, peers_of, until

import mirrorq
from mirrorq.api.channel import FIRST_S
from mirrorq.client.spooled import SpoolClient
from mirrorq.config import Config
from mirrorq.spool.queue import SpooledQueue
from mirrorq.spool.spool import PLACES, Spool

pytestmark = pytest.mark.real

NOBODY = "tcp://127.0.0.1:9"
"""No node listens there."""


class Place:
    """A spool whose cluster is there when a test says so."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = Config()
        self.node: mirrorq.Node | None = None
        self.spool: Spool | None = None

    def _host(self) -> mirrorq.Node:
        if self.node is None:
            raise mirrorq.NoQuorum("there is no cluster yet")
        return self.node

    def open(self, **settings: object) -> SpooledQueue:
        """The spooled queue "orders"; a former one is closed."""
        if self.spool is not None:
            self.spool.close()
        config = evolve(self.config, **settings)  # type: ignore[arg-type]
        self.spool = Spool(self.path / "spool", config, self._host)
        route = self.spool.route("orders", durable=True, auto_delete=False)
        return SpooledQueue(self.spool, route, lambda _: self._host().queue("orders"))

    def found(self) -> mirrorq.MirroredQueue:
        """The cluster is there; a handle on the queue."""
        if self.node is None:
            self.node = mirrorq.Node("n", path=self.path / "n")
        return self.node.queue("orders")

    def close(self) -> None:
        if self.spool is not None:
            self.spool.close()
        if self.node is not None:
            self.node.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.close()


def taken(queue: mirrorq.MirroredQueue, count: int) -> list[bytes]:
    found = []
    while len(found) < count:
        message = queue.get(timeout=DEADLINE_S)
        assert not message.redelivered
        found.append(message.body)
        message.ack()
    return found


def test_accepted_without_a_cluster_and_confirmed_with_one(place: Place) -> None:
    orders = place.open()
    heard: list[str] = []
    first = orders.put(b"1", on_accept=lambda _: heard.append("accepted"))
    first.accepted(DEADLINE_S)
    assert first.is_accepted
    assert not first.done()
    with pytest.raises(TimeoutError, match="it stays spooled"):
        first.result(0.01)
    status = orders.status()
    assert (status.messages, status.connected) == (1, False)
    assert status.why
    with place.found() as queue:
        second = orders.put(b"2", on_confirm=lambda c: heard.append(f"confirmed {c.result()}"))
        assert (first.result(DEADLINE_S), second.result(DEADLINE_S)) == (1, 2)
        assert taken(queue, 2) == [b"1", b"2"]
    orders.wait_for_confirms(DEADLINE_S)
    assert orders.status().messages == 0
    place.close()
    assert heard == ["accepted", "confirmed 2"]


def test_a_restart_sends_what_is_there(place: Place) -> None:
    for begin in range(0, 300, 100):
        orders = place.open()
        for number in range(begin, begin + 50):
            orders.put(b"%d" % number)
        orders.put_many([b"%d" % number for number in range(begin + 50, begin + 100)])
        orders.flush(DEADLINE_S)
    with place.found() as queue:
        orders.wait_for_confirms(DEADLINE_S)
        assert taken(queue, 300) == [b"%d" % number for number in range(300)]
        assert queue.empty()


def test_properties_and_terms_travel_with_it(place: Place) -> None:
    orders = place.open()
    texts = {"reply_to": "r", "correlation_id": "c", "content_type": "t/p"}
    orders.put(b"low", headers={"a": [1, None]}, message_id="m", key="k", **texts)
    orders.put(b"high", priority=3)
    orders.put(b"short", ttl=0.001)
    orders.put(b"late", delay=0.05).accepted(DEADLINE_S)
    with place.found() as queue:
        orders.wait_for_confirms(DEADLINE_S)
        found = {}
        for _ in range(3):
            message = queue.get(timeout=DEADLINE_S)
            found[message.body] = message
            message.ack()
        assert set(found) == {b"high", b"low", b"late"}
        low = found[b"low"]
        assert (low.headers, low.message_id, low.key) == ({"a": [1, None]}, "m", "k")
        assert {name: getattr(low, name) for name in texts} == texts
    assert orders.status().dropped == 1


def fill(orders: SpooledQueue, body: bytes, *, block: bool) -> None:
    for _ in range(4):
        orders.put(body, block=block)
        orders.flush(DEADLINE_S)


def test_the_queue_looks_at_unique_keys_and_the_spool_does_not(place: Place) -> None:
    """Each is accepted; a repeat ends with the sequence of the first, which may be older."""
    queue = place.found()
    queue.put(b"0", unique="known").result(DEADLINE_S)
    spooled = place.open()
    puts = [spooled.put(b"%d" % n, unique=key) for n, key in enumerate(("a", "a", "b", "known"))]
    assert [put.result(DEADLINE_S) for put in puts[:2]] == [puts[0].result()] * 2
    assert puts[3].result(DEADLINE_S) == 1
    assert [message.body for message in queue.browse()] == [b"0", b"0", b"2"]


def test_a_get_without_a_wait_opens_the_queue(place: Place) -> None:
    """Where the cluster is reached; where it is away, the call does not wait."""
    given: list[float | None] = []

    def opened(timeout: float | None) -> mirrorq.MirroredQueue:
        given.append(timeout)
        if not timeout:
            raise TimeoutError("no node has answered")
        return place.found()

    orders = place.open()
    spooled = SpooledQueue(orders._spool, orders._route, opened)
    put = orders.put(b"1")
    until(lambda: bool(orders.status().why))
    with pytest.raises(mirrorq.NoQuorum, match="no node has answered"):
        spooled.get(block=False)
    with place.found():
        put.result(DEADLINE_S)
        assert spooled.get(block=False).body == b"1"
    assert given == [0, FIRST_S]


def test_a_full_spool(place: Place) -> None:
    bound = 1 << 20
    orders = place.open(spool_bytes_max=bound)
    body = b"x" * 100_000
    for _ in range(9):
        orders.put(body).accepted(DEADLINE_S)
    with pytest.raises(mirrorq.Full, match="spool_bytes_max is 1048576"):
        fill(orders, body, block=False)
    with pytest.raises(mirrorq.Full):
        orders.put(body, timeout=0.01)
    orders = place.open(spool_bytes_max=bound, spool_overflow="reject-publish")
    with pytest.raises(mirrorq.Full):
        fill(orders, body, block=True)
    orders = place.open(spool_bytes_max=bound, spool_overflow="drop-head")
    for number in range(20):
        orders.put(b"%d" % number + body).accepted(DEADLINE_S)
    until(lambda: orders.status().dropped > 0 and orders.status().bytes <= bound)
    with place.found() as queue:
        orders.wait_for_confirms(DEADLINE_S)
        left = queue.qsize()
        bodies = taken(queue, left)
    assert bodies == [b"%d" % number + body for number in range(20 - left, 20)]


def test_what_is_dropped_after_it_was_sent_ends_unknown(place: Place) -> None:
    """The queue may have it: its answer had not come when the connection was lost."""
    place.found().close()
    assert place.node is not None
    place.node.set_policy("short", "orders", {"max-length": 1, "overflow": "block"})
    orders = place.open(spool_bytes_max=1 << 20, spool_overflow="drop-head")
    assert place.spool is not None
    orders.put(b"stored").result(DEADLINE_S)
    sent = orders.put(b"sent")
    line = place.spool.routes["orders"].line
    until(lambda: line.read_to == 2)
    place.node.close()
    until(lambda: not line.flights)
    never_sent = orders.put(b"never sent")
    for _ in range(20):
        orders.put(b"x" * 100_000).accepted(DEADLINE_S)
    with pytest.raises(mirrorq.ConfirmUnknown, match="spool_bytes_max"):
        sent.result(DEADLINE_S)
    with pytest.raises(mirrorq.NotConfirmed, match="spool_bytes_max"):
        never_sent.result(DEADLINE_S)


def test_what_is_too_old_is_dropped(place: Place) -> None:
    orders = place.open(spool_age_ms_max=1)
    old = orders.put(b"old")
    with pytest.raises(mirrorq.NotConfirmed, match="spool_age_ms_max 1"):
        old.result(DEADLINE_S)
    assert orders.status().messages == 0


def test_what_the_queue_refuses_is_told_or_set_aside(place: Place) -> None:
    place.found().close()
    assert place.node is not None
    place.node.set_policy("short", "orders", {"max-length": 1, "overflow": "reject-publish"})
    orders = place.open()
    told = [orders.put(b"a"), orders.put(b"b")]
    assert told[0].result(DEADLINE_S) == 1
    with pytest.raises(mirrorq.NotConfirmed):
        told[1].result(DEADLINE_S)
    orders.put(b"c")
    orders.wait_for_confirms(DEADLINE_S)
    (aside,) = orders.set_aside()
    assert aside.body == b"c"
    assert orders.status().set_aside == 1
    assert orders.drop_set_aside() == 1
    assert orders.set_aside() == []


def test_a_damaged_message_is_set_aside_and_the_rest_is_sent(place: Place) -> None:
    """Those that were put together with it are set aside as well."""
    orders = place.open(checkpoint_ops=1)
    orders.put(b"first" + bytes(70_000)).accepted(DEADLINE_S)
    orders.put_many([b"second" + bytes(70_000), b"third"]).accepted(DEADLINE_S)
    orders.put(b"fourth").accepted(DEADLINE_S)
    assert place.spool is not None
    place.spool.close()
    data = place.path / "spool" / "data.mdb"
    content = data.read_bytes()
    assert content.count(b"second") == 1
    data.write_bytes(content.replace(b"second", b"secund"))
    orders = place.open()
    with place.found() as queue:
        orders.wait_for_confirms(DEADLINE_S)
        assert [body[:6] for body in taken(queue, 2)] == [b"first\0", b"fourth"]
    assert [aside.body for aside in orders.set_aside()] == [b"", b""]
    assert all("is damaged" in aside.reason for aside in orders.set_aside())
    assert orders.status().messages == 0


TAIL = {
    "first": (b"first", False),
    "before others": (b"third", False),
    "last": (b"fourth", False),
    "in the log of a process that was killed": (b"third", True),
    "a target's record": (b"\x95\xa6orders", False),
}
"""What is damaged -> its bytes, and whether the process was killed."""


@pytest.mark.parametrize("where", TAIL)
def test_damage_in_the_newest_messages_keeps_no_other_from_being_sent(
    where: str, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """No checkpoint covers them: ops are missing in the only copy."""
    wanted, is_killed = TAIL[where]
    path = place.path / "spool"
    orders = place.open()
    bodies = [b"first", b"second" + bytes(70_000), b"third", b"fourth"]
    for body in bodies:
        orders.put(body).accepted(DEADLINE_S)
    shutil.copytree(path, place.path / "killed")
    assert place.spool is not None
    place.spool.close()
    if is_killed:
        shutil.rmtree(path)
        (place.path / "killed").rename(path)
    for name in ("data.mdb", "mirrorq.wal"):
        content = (path / name).read_bytes()
        (path / name).write_bytes(content.replace(wanted, wanted[:-1] + b"?"))
    orders = place.open()
    assert f"store {path}" in caplog.text
    assert "`mirrorq store verify` names all damage" in caplog.text
    late = orders.put(b"late")
    with place.found() as queue:
        orders.wait_for_confirms(DEADLINE_S)
        whole = [body for body in bodies if body != wanted]
        assert late.result(DEADLINE_S) == len(whole) + 1
        assert taken(queue, len(whole) + 1) == [*whole, b"late"]
    assert len(orders.set_aside()) == 4 - len(whole)
    orders = place.open()
    assert orders.status().messages == 0


def test_two_never_share_a_spool(place: Place) -> None:
    place.open()
    with pytest.raises(mirrorq.StoreLocked, match="two processes never share one"):
        Spool(place.path / "spool", Config(), place._host)


def test_a_spool_in_use_is_refused_until_it_is_free(tmp_path: Path, endpoint: str) -> None:
    """Each call says so; the next one after the other's end succeeds."""
    with mirrorq.connect(endpoint, spool=tmp_path / "s") as first:
        first.queue("orders").put(b"1").accepted(DEADLINE_S)
        with mirrorq.connect(endpoint, spool=tmp_path / "s") as second:
            for _ in range(2):
                with pytest.raises(mirrorq.StoreLocked, match="two processes never share one"):
                    second.queue("orders")
            first.close()
            second.queue("orders").put(b"2").accepted(DEADLINE_S)
            assert second.spooled()["orders"].messages == 2


def test_a_queue_that_is_deleted_is_declared_again(place: Place) -> None:
    orders = place.open()
    place.found().close()
    assert orders.put(b"1").result(DEADLINE_S) == 1
    assert place.node is not None
    place.node.queue("orders").delete()
    orders.put(b"2").result(DEADLINE_S)
    with place.found() as queue:
        assert taken(queue, 1) == [b"2"]


def test_many_threads(place: Place) -> None:
    orders = place.open()
    place.found().close()

    def put(name: int) -> None:
        for number in range(500):
            orders.put(b"%d/%d" % (name, number))

    threads = [threading.Thread(target=put, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    orders.wait_for_confirms(DEADLINE_S)
    with place.found() as queue:
        found = taken(queue, 2000)
    for name in range(4):
        mine = [body for body in found if body.startswith(b"%d/" % name)]
        assert mine == [b"%d/%d" % (name, number) for number in range(500)]


def test_of_a_node_and_of_asyncio(tmp_path: Path) -> None:
    with mirrorq.Node("n", path=tmp_path / "n") as node:
        orders = node.queue("orders", spool=True)

        async def put() -> int:
            return int(await orders.put(b"1"))

        assert asyncio.run(put()) == 1
        assert node.spooled()["orders"].messages == 0
        with orders.get(timeout=DEADLINE_S) as message:
            assert message.body == b"1"
        with pytest.raises(mirrorq.ConfigError, match="exclusive=True does not go with a spool"):
            node.queue("other", exclusive=True, spool=True)  # type: ignore[call-overload]
        orders.put(b"2").result(DEADLINE_S)
        orders.close()
    assert os.path.exists(tmp_path / "n-spool" / "data.mdb")


def test_who_waits_is_told_that_the_disk_has_failed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for ever; what was accepted is sent when it is opened again."""
    orders = place.open()
    spool = place.spool
    assert spool is not None
    kept = orders.put(b"kept")
    kept.accepted(DEADLINE_S)
    heard: list[str] = []

    def fail(*_: object) -> None:
        raise mirrorq.StoreError("the disk is gone")

    node = spool.store.node
    assert isinstance(node, mirrorq.Node)
    monkeypatch.setattr(node._store, "commit", fail)
    lost = orders.put(b"lost", on_confirm=lambda c: heard.append(str(c.exception(0))))
    for confirmation in (lost, kept):
        with pytest.raises(mirrorq.ConfirmUnknown):
            confirmation.result(DEADLINE_S)
    with pytest.raises(mirrorq.ConfirmUnknown):
        lost.accepted(DEADLINE_S)
    kept.accepted(0)
    with pytest.raises(mirrorq.ShutDown):
        orders.put(b"late")
    with pytest.raises(mirrorq.ShutDown):
        orders.flush(DEADLINE_S)
    monkeypatch.undo()
    spool.close()
    assert len(heard) == 1
    orders = place.open()
    with place.found() as queue:
        orders.wait_for_confirms(DEADLINE_S)
        assert taken(queue, 1) == [b"kept"]


def test_who_waits_is_told_that_the_spool_was_closed(place: Place) -> None:
    orders = place.open()
    heard: list[object] = []
    one = orders.put(b"1")
    many = orders.put_many([b"2", b"3"], on_confirm=lambda c: heard.append(c.exception(0)))
    place.close()
    for confirmation in (one, many):
        assert confirmation.is_accepted
        with pytest.raises(mirrorq.ConfirmUnknown, match="was closed"):
            confirmation.result(DEADLINE_S)
    assert [type(error) for error in heard] == [mirrorq.ConfirmUnknown]


def test_other_nodes_tell_what_a_node_has_spooled(tmp_path: Path) -> None:
    peers = peers_of("ab")
    a, b = (mirrorq.Node(name, path=tmp_path / name, peers=peers) for name in peers)

    def told() -> int:
        return next(node.messages_spooled for node in b.nodes() if node.name == "a")

    with a, b:
        a.set_policy("short", "orders", {"max-length": 1, "overflow": "block"})
        orders = a.queue("orders", spool=True)
        for body in (b"1", b"2", b"3"):
            orders.put(body)
        until(lambda: told() > 0)
        with b.queue("orders") as queue:
            assert taken(queue, 3) == [b"1", b"2", b"3"]
        orders.wait_for_confirms(DEADLINE_S)
        until(lambda: told() == 0)


@pytest.mark.parametrize("is_opened", [True, False])
def test_a_closed_client_or_node_spools_nothing(tmp_path: Path, is_opened: bool) -> None:
    client = mirrorq.connect(NOBODY, spool=tmp_path / "spool")
    node = mirrorq.Node("n", path=tmp_path / "n")
    if is_opened:
        client.queue("orders")
        node.queue("orders", spool=True)
    client.close()
    node.close()
    with pytest.raises(mirrorq.ShutDown, match="is closed"):
        client.queue("orders")
    with pytest.raises(mirrorq.ShutDown, match="is closed"):
        node.queue("orders", spool=True)


@pytest.mark.parametrize("name", [None, 5, "", "x" * 300])
def test_a_name_that_no_queue_can_have_leaves_nothing(tmp_path: Path, name: Any) -> None:
    with mirrorq.connect(NOBODY, spool=tmp_path / "spool") as client:
        with pytest.raises(mirrorq.ConfigError, match="a queue's name"):
            client.queue(name)
        client.queue("good")
        assert list(client.spooled()) == ["good"]


def test_a_client_that_nobody_answers(tmp_path: Path) -> None:
    free = mirrorq.Node("x", path=tmp_path / "x", peers={"x": "tcp://127.0.0.1:0"})
    endpoint = free.listening
    free.close()
    with mirrorq.connect(endpoint, spool=tmp_path / "spool") as client:
        client.queue("orders").put(b"1").accepted(DEADLINE_S)
    with mirrorq.connect(endpoint, spool=tmp_path / "spool") as client:
        assert client.spooled()["orders"].messages == 1
        with mirrorq.Node("x", path=tmp_path / "x", peers={"x": endpoint}) as node:
            client.queue("orders").wait_for_confirms(DEADLINE_S)
            with node.queue("orders") as queue:
                assert taken(queue, 1) == [b"1"]


def test_size_and_age_of_all_are_known_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of more targets than are sent to at once, while nobody answers."""
    monkeypatch.setattr("mirrorq.client.spooled.CONNECT_S", 0.1)
    with mirrorq.connect(NOBODY, spool=tmp_path / "spool") as client:
        for number in range(2 * PLACES):
            client.queue(f"q{number}").put(b"12345").accepted(DEADLINE_S)
    with mirrorq.connect(NOBODY, spool=tmp_path / "spool") as client:
        until(lambda: all(one.bytes and one.oldest_s for one in client.spooled().values()))
        assert [one.bytes for one in client.spooled().values()] == [5] * 2 * PLACES


class FakeClient:
    """A client that no node ever answers."""

    def __init__(self) -> None:
        self.is_waited_for = threading.Event()
        self.is_over = threading.Event()

    def close(self) -> None:
        self.is_over.set()

    @property
    def is_closed(self) -> bool:
        return self.is_over.is_set()

    def _wait_connected(self, timeout: float | None) -> None:
        self.is_waited_for.set()
        self.is_over.wait(DEADLINE_S)
        raise mirrorq.ShutDown("the client is closed")


def test_a_spool_that_closes_ends_the_forwarders_wait_for_a_node(tmp_path: Path) -> None:
    made = FakeClient()
    client = SpoolClient(tmp_path, Config(), lambda: made)  # type: ignore[type-var]
    client.queue("orders").put(b"1").accepted(DEADLINE_S)
    made.is_waited_for.wait(DEADLINE_S)
    client.close()
    spool = client._spools._spool
    assert spool is not None
    assert made.is_closed
    assert spool._ended.is_set()


def test_threads_that_ask_for_the_client_at_once_have_the_same(tmp_path: Path) -> None:
    """One of them is the forwarder: it closes no client on which a user has handles."""
    made: list[FakeClient] = []
    both_ask = threading.Barrier(2, timeout=DEADLINE_S)

    def begin() -> FakeClient:
        made.append(FakeClient())
        made[-1]._wait_connected = lambda _: None  # type: ignore[method-assign]
        return made[-1]

    spooled = SpoolClient(tmp_path, Config(), begin)  # type: ignore[type-var]

    def ask() -> None:
        both_ask.wait()
        found.append(spooled.client())

    for number in (1, 2):
        found: list[FakeClient] = []
        threads = [threading.Thread(target=ask) for _ in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(made) == number
        assert found == [made[-1], made[-1]]
        made[-1].close()
    spooled.close()
