"""Hostile and broken connections, while a good client works: it loses nothing by them.

What is counted is messages, connections and lines of log; never time.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
import zmq
from tests.kit import DEADLINE_S, until
from tests.security.keys import KeyRing

from mirrorq.api.publish_options import PLAIN
from mirrorq.api.queue import MirroredQueue
from mirrorq.api.waits import in_thread
from mirrorq.client.client import Client, connect
from mirrorq.config import Config
from mirrorq.errors import AckRefused, ConfirmUnknown
from mirrorq.node.authority import Authority
from mirrorq.node.gateway.gateway import Gateway
from mirrorq.node.node import Node
from mirrorq.protocol.clients import ClientBye, ClientHello, ClientPing
from mirrorq.security.settings import Security
from mirrorq.transport.curve import LinkKeys
from mirrorq.transport.door import Door, _ends_of, _received
from mirrorq.transport.inbound import DATA, ClientMessage, HandshakeRefused
from mirrorq.transport.packing import SendBuffer
from mirrorq.transport.transport import Transport
from mirrorq.wire.messages import encode

pytestmark = pytest.mark.real

CONNECTIONS_MAX = 40
GREETING = b"\xff" + bytes(7) + b"\x01\x7f\x03\x00CURVE" + bytes(15) + b"\0" + bytes(31)
"""Of ZMTP 3.0, as a client that will speak CURVE sends it."""
SMALL = Config(message_bytes_max=4096, frame_bytes_max=64 * 1024, connections_max=CONNECTIONS_MAX)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def evil(ring: KeyRing) -> Security:
    """A client's key that may write and read one queue."""
    return ring.client("evil", write=["good"], read=["good"])


@pytest.fixture
def small(tmp_path: Path, ring: KeyRing, evil: Security) -> Iterator[Node]:
    """A node that requires keys and takes few connections."""
    listen = "tcp://127.0.0.1:0"
    given = {"path": tmp_path / "small", "listen": listen, "config": SMALL}
    with Node("a", security=ring.of("a"), **given) as node:  # type: ignore[arg-type]
        node.wait_ready(30)
        yield node


@pytest.fixture
def good(small: Node, ring: KeyRing, stack: ExitStack) -> MirroredQueue:
    """A good client's handle."""
    client = stack.enter_context(
        connect(small.endpoint, security=ring.of("admin"), config=SMALL, timeout=DEADLINE_S)
    )
    return client.queue("good")


def check_works(queue: MirroredQueue) -> None:
    """Put and take: everything comes, once."""
    first = queue.put(b"first").result(DEADLINE_S)
    assert queue.put_many([b"x"] * 50).result(DEADLINE_S) == range(first + 1, first + 51)
    taken = []
    while len(taken) < 51:
        found = queue.get_many(51, timeout=DEADLINE_S)
        assert found, f"only {len(taken)} of 51 came"
        taken += found
    assert [message.sequence for message in taken] == list(range(first, first + 51))
    queue.ack_many(taken).result(DEADLINE_S)


def raw(node: Node, stack: ExitStack) -> socket.socket:
    host, port = node.endpoint.removeprefix("tcp://").split(":")
    return stack.enter_context(socket.create_connection((host, int(port)), DEADLINE_S))


class Dealer:
    """A socket with a valid key that says whatever it is told to."""

    def __init__(self, endpoint: str, security: Security, identity: bytes = b"") -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        LinkKeys(security.secret_key, security.node_keys()[0]).apply(self.socket)
        self.socket.setsockopt(zmq.ROUTING_ID, identity or b"C" + os.urandom(16))
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.SNDTIMEO, int(DEADLINE_S * 1000))
        self.monitor = self.socket.get_monitor_socket(int(zmq.EVENT_DISCONNECTED))
        self.socket.connect(endpoint)

    def say(self, *messages: object) -> None:
        box = SendBuffer()
        for message in messages:
            box.add(encode(message))  # type: ignore[arg-type]
        self.socket.send_multipart(box.take_parts())

    def is_ended(self) -> bool:
        """Whether the other end has ended the connection."""
        return bool(self.monitor.poll(0))

    def __enter__(self) -> Dealer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(0)
        self._context.term()


def connections(node: Node) -> int:
    assert node._transport is not None
    return len(node._transport._door)


# --- Without a key ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        os.urandom(4096),
        b"\xff" * 4096,
        GREETING[:10],
        GREETING[:40],
        GREETING,
        GREETING + b"\x04\x26\x05READY" + bytes(32),
        GREETING + b"\x06" + struct.pack(">Q", 2**63),
        GREETING + b"\x04\xc8\x05HELLO" + bytes(194),
        GREETING.replace(b"CURVE", b"NULL\0") + b"\x04\x05READY",
    ],
)
def test_bytes_that_are_no_handshake_harm_nobody(
    small: Node, good: MirroredQueue, stack: ExitStack, data: bytes
) -> None:
    """Each connection ends, and no message comes of it."""
    before = connections(small)
    others = [raw(small, stack) for _ in range(5)]
    for each in others:
        each.sendall(data)
    check_works(good)
    until(lambda: connections(small) == before)
    assert small._transport is not None
    assert small._transport.garbage_count == 0


def test_connections_are_bounded(small: Node, good: MirroredQueue, stack: ExitStack) -> None:
    """Ten times as many as allowed: those without a message go, the good client stays, and one
    more comes in."""
    crowd = []
    for _ in range(10 * CONNECTIONS_MAX):
        crowd.append(raw(small, stack))
        assert connections(small) <= 2 * CONNECTIONS_MAX
    check_works(good)
    until(lambda: connections(small) <= CONNECTIONS_MAX)
    client = stack.enter_context(
        connect(
            small.endpoint,
            security=good._handle.host._security,
            config=SMALL,
            timeout=DEADLINE_S,  # type: ignore[attr-defined]
        )
    )
    check_works(client.queue("another"))


def heard(connection: socket.socket, size: int) -> None:
    """Wait for so many bytes."""
    while size > 0:
        found = connection.recv(size)
        assert found, "the connection ended"
        size -= len(found)


class Bare:
    """A transport with keys whose handshakes may take for ever."""

    def __init__(self, ring: KeyRing) -> None:
        config = Config(
            message_bytes_max=4096, frame_bytes_max=64 * 1024, failure_ms=600_000, lease_ms=300
        )
        self.transport = Transport("a", 1, "tcp://127.0.0.1:0", config, Authority(ring.of("a")))
        self.inbound: list[object] = []

    def has_ended(self, text: str) -> bool:
        self.inbound += self.transport.poll(10)
        return any(isinstance(each, HandshakeRefused) and text in each.why for each in self.inbound)


@pytest.fixture
def bare(ring: KeyRing) -> Iterator[Bare]:
    bare = Bare(ring)
    yield bare
    bare.transport.close()


def test_bytes_before_a_handshake_are_few(bare: Bare, stack: ExitStack) -> None:
    """A frame of megabytes in the handshake is not waited for, though libzmq would."""
    host, port = bare.transport.endpoint.removeprefix("tcp://").split(":")
    pouring = stack.enter_context(socket.create_connection((host, int(port)), DEADLINE_S))
    pouring.sendall(GREETING + b"\x06" + struct.pack(">Q", 4_000_000))
    pouring.setblocking(False)
    poured = 0

    def pour() -> bool:
        nonlocal poured
        try:
            poured += pouring.send(bytes(2_000)) if poured < 3_000_000 else 0
        except BlockingIOError:
            pass
        except OSError:
            return bare.has_ended("before its first message")
        return bare.has_ended("before its first message")

    until(pour)
    until(lambda: bare.has_ended("") and len(bare.transport._door) == 0)
    assert bare.transport._door.ended_count == 1


def test_a_message_without_an_end_is_ended(stack: ExitStack) -> None:
    """Parts and no last one: libzmq would keep them all. It sends no such thing itself, so this
    is a plain socket, and what came is told to the door by hand."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    stack.callback(context.term)
    listener = stack.enter_context(context.socket(zmq.ROUTER))
    door = Door(context, listener, CONNECTIONS_MAX, 1_000_000)
    stack.callback(door.close)
    port = listener.bind_to_random_port("tcp://127.0.0.1")
    endless = stack.enter_context(socket.create_connection(("127.0.0.1", port), DEADLINE_S))
    plain = GREETING.replace(b"CURVE", b"NULL\0")
    endless.sendall(plain)
    heard(endless, 64)
    endless.sendall(b"\x04\x1c\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER")
    # As a client does: what follows the handshake at once may lie in libzmq until more comes.
    heard(endless, len(b"\x04\x1c\x05READY"))
    endless.sendall(b"\x00\x05whole")
    assert listener.poll(int(DEADLINE_S * 1000))
    first = listener.recv(copy=False)
    assert listener.recv() == b"whole"
    assert door.attend() == []
    door.took(int(str(first.get("__fd"))), b"it", [b"whole"], is_trusted=False)
    endless.setblocking(False)
    ended: list[str] = []

    def pour() -> bool:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            endless.send(b"\x03" + struct.pack(">Q", 50_000) + bytes(50_000))
        ended.extend(door.attend())
        return bool(ended)

    until(pour)
    assert "of no whole message" in ended[0]
    assert len(door) == 0


def test_what_is_another_connections_descriptor_is_left_alone(tmp_path: Path) -> None:
    """A number that now is a file's, or another socket's, is not shut down, and nothing leaks."""
    with (tmp_path / "file").open("wb") as file, socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        open_before = len(os.listdir("/proc/self/fd"))
        ends = (("127.0.0.1", 1), ("127.0.0.1", 2))
        for descriptor in (file.fileno(), other.fileno(), 2**20):
            assert _received(descriptor, ends) == 0
            assert _ends_of(descriptor) is None
        assert len(os.listdir("/proc/self/fd")) <= open_before
        assert other.getsockname()[1] > 0


def test_a_long_life_of_small_messages_is_no_flood(
    bare: Bare, ring: KeyRing, stack: ExitStack
) -> None:
    """What encryption adds is counted out to the byte: it never adds up to too much."""
    dealer = stack.enter_context(Dealer(bare.transport.endpoint, ring.of("admin")))
    for number in range(300):
        dealer.say(ClientPing(number))
        bare.has_ended("nothing")
    sizes = (300, 70_000, 0, 222, 223)
    index = msgspec.msgpack.encode([sizes])
    dealer.socket.send_multipart([index, *(bytes(size) for size in sizes)])

    def has_come() -> bool:
        bare.has_ended("nothing")
        return any(
            isinstance(each, ClientMessage) and tuple(map(len, each.parts)) == sizes
            for each in bare.inbound
        )

    until(has_come)
    (visitor,) = bare.transport._door._visitors.values()
    descriptor = next(iter(bare.transport._door._visitors))
    handshake = _received(descriptor, visitor.ends) - visitor.taken
    assert 300 < handshake < 1000
    assert not visitor.is_stranger


# --- With a valid key ---------------------------------------------------------------------


@pytest.fixture
def dealer(small: Node, evil: Security, stack: ExitStack) -> Dealer:
    return stack.enter_context(Dealer(small.endpoint, evil))


def test_garbage_under_a_valid_key_harms_nobody(
    small: Node, good: MirroredQueue, dealer: Dealer, caplog: pytest.LogCaptureFixture
) -> None:
    """It is dropped and counted; the log has some lines of it, not one for each."""
    caplog.set_level(logging.WARNING, "mirrorq")
    transport = small._transport
    assert transport is not None

    def flood() -> bool:
        # A connection may be ended over it, and what was on its way is gone.
        for number in range(50):
            dealer.socket.send(os.urandom(number))
            dealer.socket.send_multipart([msgspec.msgpack.encode([[b"?"]])])
            dealer.socket.send_multipart([msgspec.msgpack.encode([[2**40]]), b"short"])
            dealer.socket.send_multipart([b""] * 40)
            dealer.say(ClientHello(number, "evil\nWARNING forged"), ClientBye())
        return transport.garbage_count >= 1500

    until(flood)
    check_works(good)
    assert len([line for line in caplog.records if "garbage" in line.getMessage()]) < 100
    assert not [line for line in caplog.text.splitlines() if line.startswith("WARNING forged")]
    check_works(good)


def test_a_part_that_is_too_large_ends_the_connection(good: MirroredQueue, dealer: Dealer) -> None:
    """Before its bytes are taken."""
    dealer.socket.send(bytes(8_000_000))
    until(dealer.is_ended)
    check_works(good)


def test_replayed_messages_do_nothing_again(
    small: Node, good: MirroredQueue, evil: Security, stack: ExitStack
) -> None:
    """Each message that a client sends is sent three times: put and ack happen once."""
    client = stack.enter_context(
        connect(small.endpoint, security=evil, config=SMALL, timeout=DEADLINE_S)
    )
    handle = client.queue("good", passive=True)
    sending = client._driver._home.socket.send

    def thrice(*given: object) -> bool:
        sent = [sending(*given) for _ in range(3)]  # type: ignore[arg-type]
        return all(sent)

    client._driver._home.socket.send = thrice  # type: ignore[assignment]
    for number in range(20):
        assert handle.put(b"%d" % number).result(DEADLINE_S) == number + 1
    for number in range(10):
        message = handle.get(timeout=DEADLINE_S)
        assert message.body == b"%d" % number
        message.ack().result(DEADLINE_S)
    client.close()
    until(lambda: good.status().messages_ready == 10)
    assert [message.body for message in good.get_many(20, timeout=DEADLINE_S)] == [
        b"%d" % number for number in range(10, 20)
    ]


def stolen_settle(thief: MirroredQueue, message: object, kind: str) -> None:
    """Settle a delivery of somebody else's; refused."""
    with pytest.raises(AckRefused):
        thief._handle.settle(kind, (message,)).result(DEADLINE_S)  # type: ignore[arg-type]


def test_nobody_settles_what_another_holds(
    small: Node, good: MirroredQueue, evil: Security, stack: ExitStack
) -> None:
    """Acks and returns of another's delivery are refused; its own ack then counts."""
    client = stack.enter_context(
        connect(small.endpoint, security=evil, config=SMALL, timeout=DEADLINE_S)
    )
    thief = client.queue("good", passive=True)
    good.put_many([b"1", b"2", b"3"]).result(DEADLINE_S)
    held = [good.get(timeout=DEADLINE_S) for _ in range(2)]
    for kind in ("ack", "nack", "reject"):
        stolen_settle(thief, held[0], kind)
    held[0]._is_settled = False
    step = thief._handle.part_of(None).transact([b"in exchange"], [b""], PLAIN, [held[0]])
    exchange = in_thread(step)
    with pytest.raises(AckRefused):
        exchange.result(DEADLINE_S)
    for message in held:
        message.ack().result(DEADLINE_S)
    assert good.get(timeout=DEADLINE_S).body == b"3"
    stale = held[0]
    with pytest.raises(AckRefused):
        good._handle.settle("nack", (stale,)).result(DEADLINE_S)
    until(lambda: good.status().messages == 1)


def test_nobody_publishes_in_anothers_numbers(
    small: Node, good: MirroredQueue, evil: Security, stack: ExitStack
) -> None:
    """A producer's id is easily guessed: under another key it is refused, and no number of the
    victim's is used up."""
    client = stack.enter_context(
        connect(small.endpoint, security=evil, config=SMALL, timeout=DEADLINE_S)
    )
    thief = client.queue("good", passive=True)
    assert good.put(b"1").result(DEADLINE_S) == 1
    victims, thiefs = good._ring_for("this").session, thief._ring_for("this").session
    assert victims is not None
    assert thiefs is not None

    def steal() -> None:
        thiefs._producer, thiefs._next_number = victims._producer, victims._next_number
        thiefs._published_ms = 2**60

    thief._handle.on_host(steal)
    with pytest.raises(ConfirmUnknown):
        thief.put(b"forged").result(DEADLINE_S)
    assert good.put(b"2").result(DEADLINE_S) == 2
    assert [message.body for message in good.get_many(9, timeout=DEADLINE_S)] == [b"1", b"2"]
    assert thief.put(b"its own").result(DEADLINE_S) == 3


def test_nobody_speaks_for_another_client(small: Node, good: MirroredQueue, evil: Security) -> None:
    """Not even with its routing id, which is a secret: the key must be the client's."""
    victim = good._handle.host
    assert isinstance(victim, Client)
    identity = victim._driver._home.socket.identity
    entry = small._driver.gateway
    assert isinstance(entry, Gateway)
    parts = [bytes(part) for part in encode(ClientBye())]
    forged = ClientMessage(identity, parts, DATA, evil.public_key)
    small._calls.run(lambda: entry.on_message(forged), DEADLINE_S, None)
    assert entry.client_count == 1
    check_works(good)


def test_many_hellos_and_opens_are_bounded(
    small: Node, good: MirroredQueue, dealer: Dealer
) -> None:
    """A client that begins anew again and again is one client."""
    for number in range(1, 300):
        dealer.say(ClientHello(number, f"evil-{number}"))
    check_works(good)
    entry = small._driver.gateway
    until(lambda: entry is not None and entry.client_count == 2)  # type: ignore[attr-defined]
