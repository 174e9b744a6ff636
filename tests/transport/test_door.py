"""What strangers can make a node hold that has no keys, and how it gets rid of them.

What is counted is bytes, parts and connections; never time.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import zmq
from loopback import DEADLINE_S, Net

from mirrorq.config import Config
from mirrorq.transport import transport as transport_module
from mirrorq.transport.door import PLAIN_BYTES, STRANGER_BYTES_MAX, Door, _received
from mirrorq.transport.inbound import DATA, Disconnected, Garbage, HandshakeRefused, PeerMessage
from mirrorq.transport.packing import SendBuffer
from mirrorq.transport.transport import Transport

pytestmark = pytest.mark.real

GREETING = b"\xff" + bytes(7) + b"\x01\x7f\x03\x00NULL" + bytes(16) + b"\0" + bytes(31)
"""Of ZMTP 3.0 without security."""
READY = b"\x04\x1c\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
MORE = b"\x03"
"""Flags of a long part that others follow."""
EMPTY = bytes(SendBuffer().take_parts()[0])
"""A message of ours that holds none: whoever sends it is no stranger any more."""
SMALL = Config(message_bytes_max=1, frame_bytes_max=8192)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def heard(connection: socket.socket, size: int) -> None:
    """Wait for so many bytes."""
    while size > 0:
        found = connection.recv(size)
        assert found, "the connection ended"
        size -= len(found)


class Raw:
    """A connection that has shaken hands, and says whatever it is told to."""

    def __init__(self, endpoint: str, stack: ExitStack) -> None:
        port = int(endpoint.rpartition(":")[2])
        self._socket = stack.enter_context(socket.create_connection(("127.0.0.1", port), 60))
        self._socket.sendall(GREETING)
        heard(self._socket, len(GREETING))
        self._socket.sendall(READY)
        heard(self._socket, len(b"\x04\x1c\x05READY"))
        self.poured = 0
        self._left = b""

    def say(self, data: bytes) -> None:
        self._socket.setblocking(True)
        self._socket.sendall(data)

    def pour(self, data: bytes) -> None:
        """Send what the other end takes of it now, and go on with the rest the next time."""
        self._socket.setblocking(False)
        self._left = self._left or data
        with contextlib.suppress(BlockingIOError, ConnectionError):
            sent = self._socket.send(self._left)
            self.poured += sent
            self._left = self._left[sent:]


def refused(net: Net, transport: Transport) -> str:
    """Why connections were ended, in one text."""
    return "\n".join(item.why for item in net.of(transport) if isinstance(item, HandshakeRefused))


def until(pouring: Callable[[], None], is_over: Callable[[], object]) -> None:
    """Pour until it is over."""
    end = time.monotonic() + DEADLINE_S
    while not is_over():
        assert time.monotonic() < end, "never over"
        pouring()


def part(size: int, flags: bytes = MORE) -> bytes:
    return flags + struct.pack(">Q", size) + bytes(size)


@pytest.mark.parametrize(
    "data",
    [part(50_000), b"\x01\x01x" * 20_000, b"\x02" + struct.pack(">Q", 4_000_000) + bytes(60_000)],
    ids=["endless parts", "endless tiny parts", "a large frame"],
)
def test_a_stranger_without_a_whole_message_is_ended(
    net: Net, stack: ExitStack, data: bytes
) -> None:
    """libzmq would keep all that comes; a node that pours the same at the same time goes on."""
    net.config = SMALL
    a, b = net.pair()
    stranger = Raw(b.endpoint, stack)

    def pour() -> None:
        stranger.pour(data)
        a.send("b", DATA, [bytes(1_000_000)])
        net.poll()

    until(pour, lambda: "before its first message" in refused(net, b))
    assert stranger.poured > STRANGER_BYTES_MAX
    net.until(lambda: len(b._door) == 2)
    assert a.send("b", DATA, [b"ok"])
    net.until_in(b, PeerMessage("a", 1, DATA, [b"ok"]))
    assert Disconnected("b") not in net.of(a)
    assert b.garbage_count == 0


def test_who_has_given_a_message_is_bounded_too(net: Net, stack: ExitStack) -> None:
    """Anybody can learn what a message of ours looks like: after it there is more room, and an
    end of it."""
    net.config = SMALL
    a = net.transport("a")
    known = Raw(a.endpoint, stack)
    known.say(bytes((0, len(EMPTY))) + EMPTY)
    net.until(lambda: any(not each.is_stranger for each in a._door._visitors.values()))

    def pour() -> None:
        known.pour(part(500_000))
        a.poll(0)
        net.of(a).extend(a.poll(0))

    until(pour, lambda: len(a._door) == 0)
    assert known.poured > 4 * a._part_bytes_max


def test_all_together_are_bounded(stack: ExitStack) -> None:
    """None of them has more under way than one may, but all of them have: those with most are
    ended until it is half, and who has little stays."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    stack.callback(context.term)
    listener = stack.enter_context(context.socket(zmq.ROUTER))
    door = Door(context, listener, 100, 1_000_000, sum_max=2_000_000, part_bytes=PLAIN_BYTES)
    stack.callback(door.close)
    port = listener.bind_to_random_port("tcp://127.0.0.1")
    sizes = (700_000, 600_000, 500_000, 400_000, 300, 200)
    for size in sizes:
        each = Raw(f"tcp://127.0.0.1:{port}", stack)
        each.say(bytes((0, len(EMPTY))) + EMPTY)
        assert listener.poll(60_000)
        first = listener.recv(copy=False)
        door.took(int(str(first.get("__fd"))), first.bytes, [listener.recv()], is_trusted=False)
        each.say(part(size))

    def under_way() -> list[int]:
        """As the kernel has it now."""
        found = door._visitors.items()
        return sorted(_received(fd, visitor.ends) - visitor.taken for fd, visitor in found)

    until(lambda: None, lambda: sum(under_way()) > sum(sizes))
    ended: list[str] = []

    def attend() -> None:
        listener.poll(10)
        ended.extend(door.attend())

    until(attend, lambda: ended)
    assert [text.split()[0][:1] for text in ended] == ["7", "6"]
    assert [size // 100_000 for size in under_way()] == [0, 0, 4, 5]


def test_a_message_of_very_many_parts_takes_no_round_for_itself(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is garbage, told once; the rest of it is thrown away over many rounds, between which the
    node does its work."""
    taken: list[int] = []
    discard = transport_module.discard

    def counted(*given: object) -> tuple[int, bool]:
        found: tuple[int, bool] = discard(*given)  # type: ignore[arg-type]
        taken.append(found[0])
        return found

    monkeypatch.setattr(transport_module, "discard", counted)
    a = net.transport("a")
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.connect(a.endpoint)
    dealer.send(EMPTY)
    net.until(lambda: any(not each.is_stranger for each in a._door._visitors.values()))
    dealer.send_multipart([b"x"] * 200_000)
    most = 0

    def poll() -> None:
        nonlocal most
        before = sum(taken)
        net.of(a).extend(a.poll(20))
        most = max(most, sum(taken) - before)

    until(poll, lambda: sum(taken) > 0 and not a._has_rest)
    dealer.close(0)
    context.term()
    assert sum(taken) == 200_000 - 65_536
    assert most <= transport_module.ROUND_PARTS_MAX
    assert sum(isinstance(item, Garbage) for item in net.of(a)) == a.garbage_count == 1


def test_garbage_of_an_ended_connection_ends_no_other(stack: ExitStack) -> None:
    """libzmq gives what it has of it when its descriptor is somebody else's by now."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    stack.callback(context.term)
    listener = stack.enter_context(context.socket(zmq.ROUTER))
    door = Door(context, listener, 100, 1_000_000, part_bytes=PLAIN_BYTES)
    stack.callback(door.close)
    port = listener.bind_to_random_port("tcp://127.0.0.1")
    Raw(f"tcp://127.0.0.1:{port}", stack)
    until(door.attend, lambda: len(door))
    (descriptor,) = door._visitors
    door.took(descriptor, b"good", [b"whole"], is_trusted=False)
    door.end_for_garbage(descriptor, b"bad")
    assert len(door) == 1
    door.end_for_garbage(descriptor, b"good")
    assert len(door) == 0
    Raw(f"tcp://127.0.0.1:{port}", stack)
    ended: list[str] = []
    until(lambda: ended.extend(door.attend()), lambda: len(door))
    (again,) = door._visitors
    door._condemned[again] = b"good"
    door.end_for_garbage(again, b"good")
    assert len(door) == 1
    assert len(ended) == door.ended_count == 1


def test_what_a_plain_connection_has_given_is_counted_to_the_byte(
    net: Net, stack: ExitStack, a: Transport
) -> None:
    """However long it lives, its messages never add up to too much; only its handshake stays."""
    raw = Raw(a.endpoint, stack)
    for size in (1, 100, 255, 256, 70_000):
        box = SendBuffer()
        box.add([bytes(size)])
        parts = box.take_parts()
        for number, each in enumerate(parts):
            is_last = number == len(parts) - 1
            if len(each) < 256:
                raw.say(bytes((0 if is_last else 1, len(each))) + bytes(each))
            else:
                flags = b"\x02" if is_last else b"\x03"
                raw.say(flags + struct.pack(">Q", len(each)) + bytes(each))
    net.until(lambda: len(net.of(a)) == 5)
    ((descriptor, visitor),) = a._door._visitors.items()
    assert _received(descriptor, visitor.ends) - visitor.taken == len(GREETING + READY)
