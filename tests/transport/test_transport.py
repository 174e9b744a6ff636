"""Two nodes over real sockets: order, loss, death, and what strangers send."""

from __future__ import annotations

import contextlib
import gc
import operator
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from loopback import Net

from mirrorq.config import Config
from mirrorq.errors import ConfigError, MirrorQError, ShutDown
from mirrorq.transport import libzmq, wake
from mirrorq.transport.door import address_of
from mirrorq.transport.inbound import (
    CONTROL,
    DATA,
    ClientMessage,
    Connected,
    Disconnected,
    Garbage,
    HandshakeRefused,
    Inbound,
    PeerMessage,
    ProbeResult,
    RailMark,
    ReplyLost,
    SendLost,
    TooLarge,
)
from mirrorq.transport.link import QUEUE_COUNT_MAX
from mirrorq.transport.parts import (
    discard,
    is_readable,
    receive_parts,
    receive_with_sender,
    send_parts,
)
from mirrorq.transport.transport import Transport
from mirrorq.transport.wake import Waker

pytestmark = pytest.mark.real

CHILD = """
import sys
from mirrorq.config import Config

from mirrorq.transport.transport import Transport

transport = Transport("child", 7, sys.argv[1], Config())
print(transport.endpoint, flush=True)
while True:
    transport.poll(1000)
"""


class Child:
    """A node in a process of its own."""

    def __init__(self, listen: str = "tcp://127.0.0.1:0") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, listen],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert self.process.stdout is not None
        self.endpoint = self.process.stdout.readline().strip()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def child() -> Iterator[Child]:
    child = Child()
    yield child
    child.kill()


@pytest.fixture
def foreign() -> Iterator[zmq.Socket[bytes]]:
    """A DEALER that is not of mirrorq."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    yield dealer
    dealer.close(linger=0)
    context.term()


# --- Messages -----------------------------------------------------------------------------


def test_a_message_names_its_sender(net: Net) -> None:
    """A peer's message comes with its node, incarnation and channel, parts as sent."""
    a, b = net.pair()
    large = os.urandom(1_000_000)
    assert a.send("b", DATA, [b"head", large, b"", memoryview(b"view")])
    assert a.send("b", CONTROL, [b"sign of life"])
    net.until_in(b, PeerMessage("a", 1, DATA, [b"head", large, b"", b"view"]))
    net.until_in(b, PeerMessage("a", 1, CONTROL, [b"sign of life"]))


def test_each_channel_is_fifo(net: Net) -> None:
    """Small and large messages of one channel arrive in the order of sending, complete."""
    a, b = net.pair()
    sent = {
        channel: [
            [b"%d" % number, bytes(200_000 if number % 37 == 0 else number)]
            for number in range(300)
        ]
        for channel in (CONTROL, DATA)
    }
    for number in range(300):
        for channel in (CONTROL, DATA):
            assert a.send("b", channel, sent[channel][number])
        if number % 11 == 0:
            a.flush()
    net.until(lambda: len(net.messages(b, PeerMessage)) == 600)
    for channel in (CONTROL, DATA):
        came = [item for item in net.of(b) if getattr(item, "channel", None) == channel]
        assert [item.parts for item in came] == sent[channel]  # type: ignore[attr-defined]


def test_peers_talk_both_ways(net: Net) -> None:
    """Each node has its own connections to the other."""
    a, b = net.pair()
    b.connect_peer("a", a.endpoint)
    net.until_in(b, Connected("a"))
    assert a.send("b", DATA, [b"to b"])
    assert b.send("a", DATA, [b"to a"])
    net.until_in(a, PeerMessage("b", 2, DATA, [b"to a"]))
    net.until_in(b, PeerMessage("a", 1, DATA, [b"to b"]))


def test_ipc_and_ipv6(net: Net, tmp_path: Path) -> None:
    """The other kinds of endpoint."""
    listens = [f"ipc://{tmp_path}/node"]
    if socket.has_ipv6:
        try:
            with socket.socket(socket.AF_INET6) as six:
                six.bind(("::1", 0))
            listens.append("tcp://[::1]:0")
        except OSError:
            pass  # no IPv6 on this machine
    a = net.transport("a")
    for number, listen in enumerate([*listens, "tcp://localhost:0"]):
        b = net.transport(f"b{number}", listen)
        a.connect_peer(f"b{number}", b.endpoint)
        net.until_in(a, Connected(f"b{number}"))
        assert a.send(f"b{number}", DATA, [b"x"])
        net.until_in(b, PeerMessage("a", 1, DATA, [b"x"]))


def test_a_peer_that_comes_later_is_found(net: Net) -> None:
    """Connecting needs no peer; nothing is queued for one that is not there."""
    a, b = net.transport("a"), net.transport("b")
    endpoint = b.endpoint
    net.close(b)
    a.connect_peer("b", endpoint)
    a.poll(0)
    assert not a.send("b", DATA, [b"early"])
    assert a.dropped_count == 1
    b = net.transport("b", endpoint)
    net.until_in(a, Connected("b"))
    assert a.send("b", DATA, [b"now"])
    net.until(lambda: net.messages(b, PeerMessage))
    assert net.messages(b, PeerMessage) == [[b"now"]]


def test_a_full_queue_drops_and_tells(net: Net) -> None:
    """A peer that reads nothing holds a bounded number of messages; the rest is told lost."""
    a, b = net.pair()
    net.sockets.remove(b)
    body = bytes(100_000)
    sent = 0
    while not any(isinstance(item, SendLost) for item in net.of(a)):
        assert sent < 10 * QUEUE_COUNT_MAX
        a.send("b", DATA, [body])
        sent += 1
        net.of(a).extend(a.poll(0))
    assert a.dropped_count == 1
    assert SendLost("b", DATA, 1) in net.of(a)
    net.sockets.append(b)
    net.until(lambda: len(net.messages(b, PeerMessage)) == sent - 1)


def test_what_a_lost_connection_drops_is_told_by_its_end_alone(net: Net) -> None:
    """Nothing can be sent again before the next connection: `SendLost` would only cause work."""
    a, b = net.pair()
    b.close()
    net.sockets.remove(b)
    told: list[Inbound] = []
    while not a.dropped_count:
        a.send("b", DATA, [b"one"])
        a.flush()
    while not told:
        told += a.poll(10)
    assert told == [Disconnected("b")]


def test_a_large_message_that_a_full_queue_drops_is_told(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that leaves by itself, at once: its sender hears of it as of any other."""
    monkeypatch.setattr("mirrorq.transport.packing.INDEX_BYTES_MAX", 50_000)
    a, b = net.pair()
    net.sockets.remove(b)
    sent = 0
    while a.dropped_count == 0:
        assert sent < 10 * QUEUE_COUNT_MAX
        a.send("b", DATA, [bytes(50_000)])
        sent += 1
    assert a.poll(0) == [SendLost("b", DATA, 1)]
    net.sockets.append(b)


def test_too_large_a_part_is_not_sent(net: Net) -> None:
    """A part that the peer would refuse by closing the connection never leaves."""
    net.config = Config(message_bytes_max=1, frame_bytes_max=8192)
    a, b = net.pair()
    assert not a.send("b", DATA, [bytes(8192 + 5 * 1024 * 1024)])
    assert not a.reply(b"anybody", [bytes(8192 + 5 * 1024 * 1024)])
    net.until_in(a, TooLarge(b"anybody", 8192 + 5 * 1024 * 1024))
    assert a.send("b", DATA, [bytes(8192)])
    net.until_in(b, PeerMessage("a", 1, DATA, [bytes(8192)]))


def test_many_small_parts_do_not_make_a_large_one(net: Net) -> None:
    """The index of one zmq message stays below what a peer accepts, however many parts."""
    net.config = Config(message_bytes_max=1, frame_bytes_max=8192)
    a, b = net.pair()
    parts = [bytes(8192)] * 1000
    assert a.send("b", DATA, parts)
    net.until_in(b, PeerMessage("a", 1, DATA, parts))


# --- Clients ------------------------------------------------------------------------------


def test_replies_reach_the_client_that_asked(net: Net, a: Transport) -> None:
    """A client's message names where to reply, and only that client gets the reply."""
    clients = [net.client(a.endpoint) for _ in range(2)]
    for number, client in enumerate(clients):
        net.until_in(client, Connected(a.endpoint))
        assert client.send([b"%d" % number])
    for number, client in enumerate(clients):
        net.until_in(a, ClientMessage(client.identity, [b"%d" % number]))
        assert a.reply(client.identity, [b"reply", b"%d" % number])
    for number, client in enumerate(clients):
        net.until(lambda client=client: len(net.of(client)) == 2)  # type: ignore[misc]
        assert net.of(client)[1].parts == [b"reply", b"%d" % number]  # type: ignore[attr-defined]


def test_a_reply_to_nobody_is_told(net: Net, a: Transport) -> None:
    """Replies to a client that is not connected come back as lost."""
    assert a.reply(b"Cnobody", [b"x"])
    assert a.reply(b"Cnobody", [b"y"])
    net.until_in(a, ReplyLost(b"Cnobody", 2, gone=True, size=2))
    assert a.dropped_count == 2


# --- Death --------------------------------------------------------------------------------


def test_a_killed_peer_is_down_and_refuses(net: Net, child: Child, a: Transport) -> None:
    """SIGKILL shows as Disconnected by itself, and a probe then says refused."""
    a.connect_peer("child", child.endpoint)
    net.until_in(a, Connected("child"))
    a.probe("child")
    net.until_in(a, ProbeResult("child", refused=False))
    child.signal(signal.SIGKILL)
    net.until_in(a, Disconnected("child"))
    assert not a.send("child", DATA, [b"x"])
    child.process.wait()  # a process that is dying may still listen
    a.probe("child")
    net.until_in(a, ProbeResult("child", refused=True))


def test_a_stopped_peer_is_up_and_does_not_refuse(net: Net, child: Child, a: Transport) -> None:
    """A process that hangs keeps its connections: a probe does not take it for dead."""
    a.connect_peer("child", child.endpoint)
    net.until_in(a, Connected("child"))
    child.signal(signal.SIGSTOP)
    a.probe("child")
    net.until(lambda: any(isinstance(item, ProbeResult) for item in net.of(a)))
    child.signal(signal.SIGCONT)
    assert net.of(a) == [Connected("child"), ProbeResult("child", refused=False)]


def test_a_restarted_peer_is_up_again(net: Net, child: Child, a: Transport) -> None:
    """A peer that comes back at its endpoint is connected to without being asked."""
    a.connect_peer("child", child.endpoint)
    net.until_in(a, Connected("child"))
    child.kill()
    net.until_in(a, Disconnected("child"))
    again = Child(child.endpoint)
    try:
        came, went = Connected("child"), Disconnected("child")
        net.until(lambda: net.of(a) == [came, went, came])
    finally:
        again.kill()


def test_a_probe_sees_through_a_dying_process(net: Net, a: Transport) -> None:
    """A connection that the kernel accepted and then ended is tried again, and refused."""
    with socket.create_server(("127.0.0.1", 0)) as dying:
        a.connect_peer("b", f"tcp://127.0.0.1:{dying.getsockname()[1]}")
        a.probe("b")
        assert net.of(a) == []
    net.until_in(a, ProbeResult("b", refused=True))


def test_a_probe_of_what_is_no_node(net: Net, a: Transport) -> None:
    """Something that accepts and closes for ever is alive, and the probe ends."""
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        stranger.setblocking(False)
        a.connect_peer("b", f"tcp://127.0.0.1:{stranger.getsockname()[1]}")
        a.probe("b")

        def is_answered() -> bool:
            with contextlib.suppress(BlockingIOError):
                stranger.accept()[0].close()
            return any(isinstance(each, ProbeResult) for each in net.of(a))

        net.until(is_answered)
    # The connection itself is reported too, once: it ends in the handshake each time.
    assert [each for each in net.of(a) if not isinstance(each, HandshakeRefused)] == [
        ProbeResult("b", refused=False)
    ]
    assert len(net.of(a)) <= 2


def closed_to_a(net: Net) -> tuple[Transport, Transport]:
    """A node whose port refuses who looks for it, though its own connections stand."""
    a, b = net.transport("a"), net.transport("b", incarnation=2)
    b.connect_peer("a", a.endpoint)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        a.connect_peer("b", f"tcp://127.0.0.1:{closed.getsockname()[1]}")
    net.until_in(b, Connected("a"))
    assert b.send("a", CONTROL, [b"hello"])
    net.until_in(a, PeerMessage("b", 2, CONTROL, [b"hello"]))
    return a, b


def test_a_refusal_while_the_peers_own_connections_stand_is_none(net: Net) -> None:
    """Something else has closed its port: a firewall, a proxy. At the end of the probe's time it is
    no death."""
    net.config = Config(failure_ms=300, lease_ms=100)
    a, _ = closed_to_a(net)
    a.probe("b")
    net.until(lambda: any(isinstance(each, ProbeResult) for each in net.of(a)))
    assert ProbeResult("b", refused=False) in net.of(a)


def test_a_refusal_counts_when_the_peers_own_connections_end(net: Net) -> None:
    """They may be seen to end a moment later: nothing is asked again for that."""
    net.config = Config(failure_ms=600_000)
    a, b = closed_to_a(net)
    a.probe("b")
    net.until(lambda: "b" in a._doubted)
    assert not any(isinstance(each, ProbeResult) for each in net.of(a))
    net.close(b)
    net.until_in(a, ProbeResult("b", refused=True))


def test_probe_by_name_and_by_path(net: Net, tmp_path: Path, a: Transport) -> None:
    """Host names are looked up beside the node's thread; an ipc path is probed too."""
    b, c = net.transport("b", "tcp://localhost:0"), net.transport("c", f"ipc://{tmp_path}/c")
    peers = {"b": f"tcp://localhost:{b.endpoint.rpartition(':')[2]}", "c": c.endpoint}
    for peer, endpoint in peers.items():
        a.connect_peer(peer, endpoint)
        a.probe(peer)
        net.until_in(a, ProbeResult(peer, refused=False))
    net.close(b)
    net.close(c)
    for peer in peers:
        a.probe(peer)
        net.until_in(a, ProbeResult(peer, refused=True))


def test_probe_of_a_name_without_address(net: Net, a: Transport) -> None:
    """A name that leads nowhere is no proof of death."""
    a.connect_peer("b", "tcp://no-such-host.invalid:7400")
    a.probe("b")
    a.probe("unknown")
    net.until(lambda: net.of(a))
    assert [each for each in net.of(a) if not isinstance(each, HandshakeRefused)] == [
        ProbeResult("b", refused=False)
    ]


def test_a_forgotten_peer_is_silent(net: Net) -> None:
    """No event comes of a peer that was forgotten, and it can be connected again."""
    a, b = net.pair()
    a.probe("b")
    a.forget_peer("b")
    a.forget_peer("b")
    assert not a.send("b", DATA, [b"x"])
    c = net.transport("c")
    a.connect_peer("b", b.endpoint)
    a.connect_peer("b", c.endpoint)
    a.connect_peer("b", c.endpoint)
    net.until(lambda: net.of(a) == [Connected("b")] * 2)
    assert a.send("b", DATA, [b"x"])
    net.until_in(c, PeerMessage("a", 1, DATA, [b"x"]))
    assert net.of(b) == []


def test_two_nodes_of_one_name_both_get_through(net: Net) -> None:
    """A second node under the same name and incarnation does not cut the first one off."""
    b = net.transport("b")
    twins = [net.transport("a"), net.transport("a")]
    for number, twin in enumerate(twins):
        twin.connect_peer("b", b.endpoint)
        net.until_in(twin, Connected("b"))
        assert twin.send("b", DATA, [b"%d" % number])
        net.until_in(b, PeerMessage("a", 1, DATA, [b"%d" % number]))
    assert twins[0].send("b", DATA, [b"still here"])
    net.until_in(b, PeerMessage("a", 1, DATA, [b"still here"]))
    assert net.of(twins[0]) == [Connected("b")]


# --- Strangers ----------------------------------------------------------------------------


def test_garbage_over_tcp_is_ignored(net: Net) -> None:
    """Bytes that are not even ZMTP end that connection, and at most show as Garbage."""
    a, b = net.pair()
    port = int(b.endpoint.rpartition(":")[2])
    for garbage in (b"GET / HTTP/1.1\r\n\r\n" * 10, os.urandom(5000), b"\xff" * 64, b""):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(garbage)
    assert a.send("b", DATA, [b"x"])
    net.until_in(b, PeerMessage("a", 1, DATA, [b"x"]))
    # Some of it may pass for version 1 of ZMTP, which has next to no form.
    assert [item for item in net.of(b) if not isinstance(item, Garbage)] == [
        PeerMessage("a", 1, DATA, [b"x"])
    ]


@pytest.mark.parametrize(
    "parts",
    [
        [b""],
        [b"garbage"],
        [b"\x91\x91\x05"],
        [b"\x91\x91\x05", b"four"],
        [b"\x91\x90", b"extra"],
        [b"\xdd\xff\xff\xff\xff"],
        [b"\x91\x91\x05"] + [b"x"] * 100,
    ],
)
def test_garbage_over_zmq_is_told(net: Net, foreign: zmq.Socket[bytes], parts: list[bytes]) -> None:
    """What is no message of mirrorq comes out as Garbage, and ends the connection; others go on."""
    a, b = net.pair()
    foreign.connect(b.endpoint)
    foreign.send_multipart(parts)
    net.until(lambda: len(net.of(b)) >= 2)
    assert [type(item) for item in net.of(b)] == [Garbage, HandshakeRefused]
    assert b.garbage_count == 1
    assert b._door.ended_count == 1
    assert a.send("b", DATA, [b"ok"])
    net.until_in(b, PeerMessage("a", 1, DATA, [b"ok"]))


@pytest.mark.parametrize("identity", [b"N", b"Nxyz", b"N\x05" + bytes(16) + b"a", b"N" + bytes(17)])
def test_a_false_routing_id(net: Net, foreign: zmq.Socket[bytes], identity: bytes) -> None:
    """A routing id that only begins like a node's is no peer's."""
    a = net.transport("a")
    foreign.setsockopt(zmq.ROUTING_ID, identity)
    foreign.connect(a.endpoint)
    foreign.send_multipart([b"\x91\x91\xc4\x02ok"])
    net.until(lambda: len(net.of(a)) >= 2)
    assert [type(item) for item in net.of(a)] == [Garbage, HandshakeRefused]


def test_too_large_a_message_ends_the_connection(net: Net, foreign: zmq.Socket[bytes]) -> None:
    """A stranger cannot make a node take more memory than a frame needs."""
    net.config = Config(message_bytes_max=1, frame_bytes_max=8192)
    _, b = net.pair()
    foreign.connect(b.endpoint)
    foreign.send(bytes(8192 + 5 * 1024 * 1024))
    foreign.send(b"\x91\x91\xc4\x05after")
    net.until(lambda: net.messages(b, ClientMessage) == [[b"after"]])
    assert len(net.of(b)) == 1


# --- Threads and processes ------------------------------------------------------------------


def test_wake_ends_a_poll(net: Net) -> None:
    """A wake from another thread ends a poll that would last for an hour."""
    a = net.transport("a")
    for _ in range(100):
        thread = threading.Thread(target=a.wake)
        thread.start()
        assert a.poll(3_600_000) == []
        thread.join()


@contextlib.contextmanager
def keeping_the_interpreter() -> Iterator[None]:
    """Fails when the interpreter is given away meanwhile: another thread waits for it, and gets it
    in no other way for as long as this lasts."""
    before = sys.getswitchinterval()
    came: list[int] = []
    door = threading.Lock()
    door.acquire()
    thread = threading.Thread(target=lambda: door.acquire() and came.append(1))
    gc.disable()  # what it finds may give it away
    sys.setswitchinterval(1e6)
    try:
        thread.start()  # returns when it waits at the door: there it gives the interpreter away
        door.release()
        yield
        assert not came
    finally:
        sys.setswitchinterval(before)
        gc.enable()
        thread.join()


Ends = tuple[zmq.Socket[bytes], zmq.Socket[bytes]]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """A DEALER and the ROUTER that it is connected to; both hold as much as there is."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context, context.socket(zmq.DEALER) as dealer, context.socket(zmq.ROUTER) as router:
        for each in (dealer, router):
            each.setsockopt(zmq.SNDHWM, 0)
            each.setsockopt(zmq.RCVHWM, 0)
        dealer.setsockopt(zmq.ROUTING_ID, b"d")
        port = router.bind_to_random_port("tcp://127.0.0.1")
        dealer.connect(f"tcp://127.0.0.1:{port}")
        yield dealer, router


def test_what_leaves_and_comes_keeps_the_interpreter(ends: Ends) -> None:
    dealer, router = ends
    count = 5_000
    with keeping_the_interpreter():
        for _ in range(count):
            send_parts(dealer, [b"two", b"parts"])
    came = 0
    while came < count:
        assert router.poll(60_000)
        with keeping_the_interpreter():
            while is_readable(router):
                sender, parts, is_more = receive_with_sender(router, 100)
                assert (sender.identity, parts, is_more) == (b"d", [b"two", b"parts"], False)
                came += 1


@pytest.mark.parametrize("is_found", [True, False])
def test_parts_with_and_without_libzmqs_own_calls(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, is_found: bool
) -> None:
    assert libzmq.IS_FOUND
    monkeypatch.setattr(libzmq, "IS_FOUND", is_found)
    dealer, router = ends
    sent = [b"", b"\0small\0", b"l" * 100_000, bytearray(b"array"), memoryview(b"view")]
    for _ in range(2):
        send_parts(dealer, sent)
        assert router.poll(60_000)
        sender, parts, is_more = receive_with_sender(router, 1_000_000)
        assert (sender.identity, sender.key, parts, is_more) == (b"d", "", sent, False)
        assert router.getsockopt(zmq.FD) != sender.descriptor > 0
        assert address_of(sender.descriptor).startswith("127.0.0.1:")
    send_parts(router, [b"d", b"back", b""])
    assert dealer.poll(60_000)
    assert receive_parts(dealer) == [b"back", b""]
    send_parts(dealer, [b"first", b"second", b"third"])
    assert router.poll(60_000)
    assert receive_with_sender(router, 5)[1:] == ([b"first", b"second"], True)
    assert discard(router, 10) == (1, False)
    with pytest.raises(zmq.ZMQError) as refused:
        receive_parts(router)
    assert refused.value.errno == zmq.EAGAIN
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    with pytest.raises(zmq.ZMQError) as refused:
        send_parts(router, [b"nobody", b"x"])
    assert refused.value.errno == zmq.EHOSTUNREACH
    dealer.close()
    with pytest.raises(zmq.ZMQError) as refused:
        send_parts(dealer, [b"x"])
    assert refused.value.errno == zmq.ENOTSOCK


def test_waking_keeps_the_interpreter() -> None:
    waker = Waker()
    with keeping_the_interpreter():
        for _ in range(5_000):
            waker.fall_asleep()
            waker.wake()
            waker.awake(is_readable=True)
    waker.close()


def test_a_wake_that_a_close_overtakes_writes_into_no_other_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The node ends between two bytecodes of a user's wake, and the program opens a connection."""
    waker = Waker()
    pairs: list[socket.socket] = []
    send = wake._send

    def overtaken(number: int, *rest: object) -> int:
        waker.close()
        for _ in range(4):
            pairs.extend(socket.socketpair())
        return int(send(number, *rest))

    monkeypatch.setattr(wake, "_send", overtaken)
    waker.fall_asleep()
    waker.wake()
    readable = select.select(pairs, [], [], 0)[0]
    for one in pairs:
        one.close()
    assert pairs
    assert not readable


def test_wakes_are_not_lost_under_load(net: Net, a: Transport) -> None:
    """Whatever is put down before a wake is seen after some poll, however they interleave."""
    inbox: list[int] = []
    count = 2000

    def user() -> None:
        for number in range(count):
            inbox.append(number)
            a.wake()

    threads = [threading.Thread(target=user) for _ in range(3)]
    for thread in threads:
        thread.start()
    seen = 0
    while seen < 3 * count:
        a.poll(3_600_000)
        while inbox:
            inbox.pop()
            seen += 1
    for thread in threads:
        thread.join()


def test_close_leaves_nothing(net: Net) -> None:
    """No thread and no descriptor stays, with peers, clients and probes open."""

    def life() -> None:
        local = Net()
        a, b = local.pair()
        client = local.client(a.endpoint)
        local.until_in(client, Connected(a.endpoint))
        a.send("b", DATA, [bytes(1_000_000)])
        a.probe("b")
        local.until(lambda: local.of(b))
        for used in (client, a, b):
            used.close()
            used.close()

    def open_now() -> tuple[int, int]:
        gc.collect()
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    life()  # pyzmq starts one thread for the whole process at the first large message
    before = open_now()
    for _ in range(3):
        life()
    # Fewer when something of an earlier test has ended meanwhile.
    net.until(lambda: all(map(operator.le, open_now(), before)))


def test_a_closed_transport_says_so(net: Net, a: Transport) -> None:
    """After close every call but wake and close raises ShutDown."""
    a.close(linger_ms=10)
    a.wake()
    for call in (lambda: a.poll(0), a.flush, lambda: a.connect_peer("b", "tcp://127.0.0.1:1")):
        with pytest.raises(ShutDown):
            call()


def test_what_was_sent_lingers(net: Net) -> None:
    """Close with a linger lets the last messages leave."""
    a, b = net.pair()
    body = bytes(3_000_000)
    assert a.send("b", DATA, [body])
    net.sockets.remove(a)
    a.close(linger_ms=10_000)
    net.until_in(b, PeerMessage("a", 1, DATA, [body]))


def test_use_after_fork_is_refused(net: Net) -> None:
    """A forked child gets an error that names both processes, and the parent goes on."""
    a, b = net.pair()
    pid = os.fork()
    if pid == 0:
        try:
            a.poll(0)
        except MirrorQError as error:
            a.close()
            os._exit(0 if str(os.getpid()) in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert a.send("b", DATA, [b"x"])
    net.until_in(b, PeerMessage("a", 1, DATA, [b"x"]))


# --- Bad settings ---------------------------------------------------------------------------


def test_an_endpoint_in_use(net: Net, tmp_path: Path) -> None:
    """Both kinds of endpoint: the second node is told, the first one goes on."""
    for listen in ("tcp://127.0.0.1:0", f"ipc://{tmp_path}/node"):
        first = net.transport("a", listen)
        with pytest.raises(ConfigError, match="another process listens there"):
            net.transport("b", first.endpoint)
        first.connect_peer("self", first.endpoint)
        net.until_in(first, Connected("self"))


def test_endpoints_that_cannot_be_bound(net: Net, tmp_path: Path) -> None:
    """An address of another machine, an unknown name, a file in the way, no directory."""
    (tmp_path / "file").write_text("precious")
    for listen, why in {
        "tcp://192.0.2.1:7400": "not an address of this machine",
        "tcp://no-such-host.invalid:7400": "has no address",
        f"ipc://{tmp_path}/file": "not a socket",
        f"ipc://{tmp_path}/none/node": "cannot listen",
    }.items():
        with pytest.raises(ConfigError, match=why):
            net.transport("a", listen)
    assert (tmp_path / "file").read_text() == "precious"


def test_a_path_left_behind_is_reused(net: Net, tmp_path: Path) -> None:
    """A killed node leaves its ipc path; the next one takes it."""
    left = Child(f"ipc://{tmp_path}/node")
    left.kill()
    assert (tmp_path / "node").exists()
    net.transport("a", f"ipc://{tmp_path}/node")


@pytest.mark.parametrize("name", ["", "x" * 201])
def test_a_node_name_has_bounds(name: str) -> None:
    """A name must fit a routing id."""
    with pytest.raises(ConfigError, match="node name"):
        Transport(name, 1, "tcp://127.0.0.1:0", Config())


def test_two_links_to_one_endpoint_do_not_end_each_other(net: Net) -> None:
    """A node that is reached under its name and, for a while, under another."""
    a, b = net.transport("a"), net.transport("b")
    a.connect_peer("b", b.endpoint)
    net.until_in(a, Connected("b"))
    a.connect_peer("?b", b.endpoint)
    net.until_in(a, Connected("?b"))
    a.send("b", DATA, [b"first"])
    net.until_in(b, PeerMessage("a", 1, DATA, [b"first"]))
    a.send("?b", DATA, [b"second"])
    net.until_in(b, PeerMessage("a", 1, DATA, [b"second"]))
    a.forget_peer("?b")
    a.send("b", DATA, [b"third"])
    net.until_in(b, PeerMessage("a", 1, DATA, [b"third"]))


# --- The rail's channel ------------------------------------------------------------------------


class Sockets:
    """The sockets that a rail's thread would use."""

    def __init__(self) -> None:
        self.notify_fd, self.tell = os.pipe()
        self.used: dict[str, zmq.Socket[bytes]] = {}
        self.let_go: list[str] = []

    def add(self, peer: str, address: int) -> None:
        self.used[peer] = zmq.Socket.shadow(address)

    def remove(self, peer: str) -> None:
        self.let_go.append(peer)
        del self.used[peer]

    def close(self) -> None:
        for descriptor in (self.notify_fd, self.tell):
            os.close(descriptor)


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    sockets = Sockets()
    try:
        yield sockets
    finally:
        sockets.close()


HELLO = b"mqr1\3\0\0\0"


def test_a_rail_says_hello_and_is_sent_ops(net: Net, sockets: Sockets) -> None:
    a, b = net.transport("a"), net.transport("b", incarnation=2)
    a.carry_rail(sockets)
    a.connect_peer("b", b.endpoint)
    b.connect_peer("a", a.endpoint)
    net.until_in(b, Connected("a"))
    net.until_in(a, Connected("b"))
    assert not sockets.used, "it may be of a version that knows no rail"
    assert not b.send_rail("a", b"early"), "it has not said hello"
    a.open_rail("b")
    a.open_rail("b")
    rail = sockets.used["b"]

    def is_heard() -> bool:
        with contextlib.suppress(zmq.Again):
            rail.send(HELLO, zmq.NOBLOCK)
        return b.send_rail("a", b"ops")

    net.until(is_heard)
    assert rail.poll(10_000)
    assert rail.recv() == b"ops"
    mark = b"mqr1\2\0\0\0" + b"".join(number.to_bytes(8, "little") for number in (7, 5, 9))
    rail.send(mark)
    net.until_in(b, RailMark("a", 1, 7, 5, 9))
    rail.send_multipart([mark, mark])
    rail.send(mark[:-1])
    net.until(lambda: len([one for one in net.of(b) if isinstance(one, Garbage)]) == 2)


def test_a_rail_lets_go_of_its_socket_first(net: Net, sockets: Sockets) -> None:
    a, b = net.transport("a"), net.transport("b", incarnation=2)
    a.carry_rail(sockets)
    a.connect_peer("b", b.endpoint)
    net.until_in(a, Connected("b"))
    a.open_rail("b")
    a.forget_peer("b")
    assert sockets.let_go == ["b"]
    a.connect_peer("b", b.endpoint)
    net.until(lambda: net.of(a).count(Connected("b")) == 2)
    a.open_rail("b")
    net.close(a)
    assert sockets.let_go == ["b", "b"]


def test_a_rail_is_not_connected_to_who_comes_back(net: Net, sockets: Sockets) -> None:
    """It may be of another version now."""
    a, b = net.transport("a"), net.transport("b", incarnation=2)
    a.carry_rail(sockets)
    a.connect_peer("b", b.endpoint)
    net.until_in(a, Connected("b"))
    a.open_rail("b")
    net.close(b)
    net.until_in(a, Disconnected("b"))
    assert sockets.let_go == ["b"]
    a.open_rail("b")
    assert not sockets.used


def test_a_rail_that_is_gone_is_sent_nothing(net: Net, sockets: Sockets) -> None:
    a, b = net.transport("a"), net.transport("b", incarnation=2)
    a.carry_rail(sockets)
    a.connect_peer("b", b.endpoint)
    b.connect_peer("a", a.endpoint)
    net.until_in(a, Connected("b"))
    a.open_rail("b")
    rail = sockets.used["b"]

    def is_heard() -> bool:
        with contextlib.suppress(zmq.Again):
            rail.send(HELLO, zmq.NOBLOCK)
        return b.send_rail("a", b"ops")

    net.until(is_heard)
    net.close(a)
    net.until(lambda: not b.send_rail("a", b"ops"))


def test_the_rail_ends_a_poll(net: Net, sockets: Sockets, a: Transport) -> None:
    a.carry_rail(sockets)
    os.write(sockets.tell, bytes(8))
    assert a.poll(60_000) == []


def test_no_file_is_left_for_a_context_of_libzmq() -> None:
    """It would end the process: a node and a client say so instead, and work when there are."""
    script = (
        "import os, resource, sys\n"
        "from mirrorq import system\n"
        "from mirrorq.errors import ConfigError\n"
        "from mirrorq.transport.link import new_context\n"
        "limits = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "used = os.dup(0)\n"
        "for left in range(24):\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (used + left, limits[1]))\n"
        "    try:\n"
        "        new_context()\n"
        "    except ConfigError as error:\n"
        "        assert 'ulimit -n' in str(error)\n"
        "    else:\n"
        "        sys.exit(f'{left} files were enough')\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, limits)\n"
        "new_context().term()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], stdin=subprocess.DEVNULL, timeout=60)
    assert done.returncode == 0
