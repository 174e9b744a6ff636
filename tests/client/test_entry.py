"""The entry node's side, spoken to by hand: bounds, silence and garbage."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
from tests.client.conftest import Connecting
from tests.kit import until

from mirrorq.config import Config
from mirrorq.node.gateway.gateway import Gateway
from mirrorq.node.node import Node
from mirrorq.protocol.clients import (
    ClientAnswer,
    ClientBye,
    ClientCall,
    ClientClose,
    ClientClosed,
    ClientForget,
    ClientHello,
    ClientLook,
    ClientMaster,
    ClientOpen,
    ClientPing,
    ClientPong,
    ClientRefused,
    ClientUnknown,
    ClientWelcome,
)
from mirrorq.protocol.control import Hello
from mirrorq.protocol.identities import SessionId
from mirrorq.protocol.sessions import (
    Attach,
    Attached,
    Browse,
    Counts,
    Credit,
    Deliver,
    Detached,
    Inquire,
    OpenProducer,
    Ping,
    Pong,
    ProducerOpened,
    Publish,
    SessionReply,
    SessionRequest,
    Subscribe,
)
from mirrorq.transport import patience
from mirrorq.transport.client import ClientSocket
from mirrorq.transport.flow_control import LOST_WINDOWS
from mirrorq.transport.inbound import CONTROL, ServerMessage
from mirrorq.wire import frames
from mirrorq.wire.messages import WireMessage, decode, encode

Kind = TypeVar("Kind")


class RawClient:
    """A client that says what it is told to."""

    def __init__(self, endpoint: str) -> None:
        self.socket = ClientSocket([endpoint], Config())
        self.heard: list[WireMessage] = []
        until(lambda: self.poll() or self.socket.is_up)

    def live(self) -> None:
        """Give a sign of life, and look what has come."""
        self.sign_of_life()
        self.poll()

    def poll(self) -> None:
        for inbound in self.socket.poll(10):
            if isinstance(inbound, ServerMessage):
                self.heard.append(decode(inbound.parts))

    def say(self, message: WireMessage) -> None:
        self.socket.send(encode(message))
        self.socket.flush()

    def hear(self, kind: type[Kind]) -> Kind:
        """The next message of a class; what came before it is dropped."""
        until(lambda: self.poll() or any(isinstance(heard, kind) for heard in self.heard))
        while True:
            heard = self.heard.pop(0)
            if isinstance(heard, kind):
                return heard

    def hello(self) -> RawClient:
        self.say(ClientHello(1, "raw"))
        assert self.hear(ClientWelcome).number == 1
        return self

    def ping(self) -> ClientPong:
        """Everything said before has been taken when this returns."""
        self.say(ClientPing())
        return self.hear(ClientPong)

    def sign_of_life(self, received: int = 0) -> None:
        """A ping on the control connection."""
        self.socket.send(encode(ClientPing(received)), CONTROL)


@contextmanager
def listening(path: Path, **limits: int) -> Iterator[Node]:
    """A cluster of one that listens on loopback."""
    with Node("a", path=path, listen="tcp://127.0.0.1:0", config=Config(**limits)) as node:
        node.wait_ready(60)
        yield node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """It takes nobody for gone who gives no sign of life while a test does something else."""
    with listening(tmp_path / "a", session_expiry_ms=60_000) as node:
        yield node


@pytest.fixture
def usual(tmp_path: Path) -> Iterator[Node]:
    """A node with the usual times."""
    with listening(tmp_path / "usual") as node:
        yield node


@pytest.fixture
def raw(node: Node) -> Iterator[RawClient]:
    client = RawClient(node.listening)
    yield client
    client.socket.close()


def clients_of(node: Node) -> int:
    side = node._driver.gateway
    assert isinstance(side, Gateway)
    return side.client_count


def request(body: object, *, queue_id: int = 1, epoch: int = 1, number: int = 1) -> SessionRequest:
    return SessionRequest(queue_id, epoch, SessionId("raw", 0, 7), 1, number, body)  # type: ignore[arg-type]


def test_a_session_by_hand(node: Node, raw: RawClient) -> None:
    """Requests go in under the node's session and replies come out under the client's own."""
    node.queue("orders")
    raw.hello().say(ClientOpen(7, 1))
    master = raw.hear(ClientMaster)
    assert master == ClientMaster(7, 1, True)
    raw.say(request(Attach((), 0)))
    reply = raw.hear(SessionReply)
    assert (reply.session.number, reply.attachment, reply.reply) == (7, 1, Attached())


def test_hello_comes_first(raw: RawClient) -> None:
    """Who has not said hello is told to; a goodbye is no reason to answer."""
    raw.say(ClientBye())
    raw.say(ClientOpen(7, 1))
    assert raw.hear(ClientUnknown) == ClientUnknown()
    assert raw.heard == []
    raw.hello()


def test_a_silent_client_is_gone(usual: Node) -> None:
    """Silence ends a client, and its next word is answered with ClientUnknown."""
    raw = RawClient(usual.listening)
    raw.hello()
    until(lambda: clients_of(usual) == 0)
    raw.say(ClientPing())
    raw.hear(ClientUnknown)
    raw.socket.close()


def test_signs_of_life(usual: Node, connecting: Connecting) -> None:
    """A client whose user does nothing stays, and one that was forgotten is back by itself."""
    node = usual
    config = Config(session_expiry_ms=1000)
    client = connecting(node.listening, config=config)
    orders = client.queue("orders")
    side = node._driver.gateway
    assert isinstance(side, Gateway)
    node._driver.call(lambda: [side._end(each, "test") for each in list(side._clients.values())])
    until(lambda: clients_of(node) == 1 and client.entry_node)
    assert orders.put(b"one").result(10) == 1
    assert orders.get(timeout=10).body == b"one"


def test_a_node_with_many_clients_hears_less_of_each(
    usual: Node, connecting: Connecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their signs of life come less often, and both sides wait longer; it falls with the crowd."""
    node = usual
    monkeypatch.setattr(patience, "CROWD", 1)
    clients = [connecting(node.listening) for _ in range(3)]
    until(lambda: all(client._driver._home.keepalive.patience >= 300 for client in clients))
    side = node._driver.gateway
    assert isinstance(side, Gateway)
    assert all(side._idle_timeouts._signs[each].patience >= 300 for each in list(side._clients))
    keepalive = clients[0]._driver._home.keepalive
    assert keepalive.pause_ms >= 3 * keepalive._ping_ms
    assert keepalive.patience_ms >= 3 * node.config.failure_ms
    clients.pop().close()
    until(lambda: all(client._driver._home.keepalive.patience < 300 for client in clients))
    orders = clients[0].queue("orders")
    assert orders.put(b"one").result(60) == 1
    assert orders.get(timeout=60).body == b"one"


def test_a_goodbye(node: Node, raw: RawClient) -> None:
    """A goodbye ends the client at once."""
    raw.hello().say(ClientBye())
    until(lambda: clients_of(node) == 0)


def test_a_second_hello_begins_anew(node: Node, raw: RawClient) -> None:
    """What was open before the hello is closed: the same number can be opened again."""
    node.queue("orders")
    raw.hello().say(ClientOpen(7, 1))
    raw.hear(ClientMaster)
    raw.hello().say(ClientOpen(7, 1))
    assert raw.hear(ClientMaster).session == 7
    assert clients_of(node) == 1


def test_garbage(node: Node, raw: RawClient, caplog: pytest.LogCaptureFixture) -> None:
    """Bytes, messages for nodes, wrong numbers and bad frames are dropped; the rest goes on."""
    node.queue("orders")
    raw.hello().say(ClientOpen(7, 1))
    raw.socket.send([b"\xff\xfe"])
    raw.socket.send([b"\x92\x63\x90"])
    raw.socket.send([encode(ClientPing())[0], b"a part too many"])
    raw.say(Hello("evil", 1, 1, True))
    raw.say(ClientWelcome(1, "evil", 1))
    raw.say(ClientOpen(7, 1))
    raw.say(ClientClose(99))
    raw.say(ClientForget(99))
    raw.say(request(Attach((), 0), queue_id=99))
    raw.say(request(Publish(b"no frame", False)))
    raw.say(SessionRequest(1, 1, SessionId("a", 1, 99), 1, 1, Attach((), 0)))
    pong = raw.ping()
    assert (pong.paused, pong.lost) == (False, False)
    raw.say(request(Attach((), 0)))
    assert raw.hear(SessionReply).reply == Attached()
    for text in ("cannot be read", "version 99", "Hello", "opened session 7 twice", "queue 99"):
        assert text in caplog.text
    assert node.queue("orders").put(b"one").result(10) == 1


def test_a_damaged_frame(node: Node, raw: RawClient) -> None:
    """A publish frame with one changed byte is not stored; the sound one is."""
    orders = node.queue("orders")
    raw.hello().say(ClientOpen(7, 1))
    raw.hear(ClientMaster)
    raw.say(request(Attach((), 0)))
    raw.say(request(OpenProducer(), number=2))
    until(lambda: raw.poll() or any("ProducerOpened" in repr(heard) for heard in raw.heard))
    raw.hear(SessionReply)
    opened = raw.hear(SessionReply).reply
    assert isinstance(opened, ProducerOpened)
    sound = frames.pack_publish([b"sound"], producer=opened.producer, first_number=1)
    damaged = sound.replace(b"sound", b"Sound")
    raw.say(request(Publish(damaged, False), number=3))
    raw.say(request(Publish(sound, False), number=3))
    assert orders.get(timeout=10).body == b"sound"


def test_a_gap_in_its_requests(node: Node, raw: RawClient) -> None:
    """A client whose request was dropped is told to attach again; repetitions are not passed on."""
    node.queue("orders")
    raw.hello().say(ClientOpen(7, 1))
    raw.say(request(Attach((), 0)))
    assert raw.hear(SessionReply).reply == Attached()
    raw.say(request(Ping(), number=3))
    assert raw.hear(SessionReply).reply == Detached()
    raw.say(request(Ping(), number=1))
    raw.say(request(Ping(), number=2))
    assert raw.hear(SessionReply).reply == Pong()
    assert raw.ping()
    assert raw.heard == []


def test_another_version(raw: RawClient) -> None:
    """A stranger of another version is told why it is not served."""
    raw.socket.send([msgspec.msgpack.encode((99, [110, 1, "raw"]))])
    assert "version 99" in raw.hear(ClientRefused).why


def test_more_clients_than_there_is_room_for(
    node: Node, raw: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One more client is refused by name; the others go on."""
    monkeypatch.setattr("mirrorq.node.gateway.gateway.CLIENTS_MAX", 1)
    raw.hello()
    other = RawClient(node.listening)
    other.say(ClientHello(1, "other"))
    assert "1 clients already" in other.hear(ClientRefused).why
    other.socket.close()
    raw.ping()


def test_more_sessions_and_calls_than_there_is_room_for(
    node: Node, raw: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session or call too many is answered as such."""
    monkeypatch.setattr("mirrorq.node.gateway.sessions.SESSIONS_MAX", 1)
    monkeypatch.setattr("mirrorq.node.gateway.calls.CALLS_MAX", 0)
    raw.hello().say(ClientOpen(1, 1))
    raw.say(ClientOpen(2, 1))
    closed = raw.hear(ClientClosed)
    assert (closed.session, "at most 1 handles" in closed.reason) == (2, True)
    raw.say(ClientCall(5, ClientLook("nodes")))
    answer = raw.hear(ClientAnswer)
    assert (answer.number, "more than 0 calls" in answer.text) == (5, True)


def test_questions_by_hand(node: Node, raw: RawClient) -> None:
    """What nobody can look at is said; a queue that is unknown has an unknown status."""
    raw.hello().say(ClientCall(1, ClientLook("weather")))
    assert raw.hear(ClientAnswer).error == "ProtocolError"
    raw.say(ClientCall(2, ClientLook("status", 99)))
    assert b'"down"' in raw.hear(ClientAnswer).data


def test_a_queue_that_is_still_to_come(node: Node, raw: RawClient) -> None:
    """A session on an id that this node has not heard of waits; on a deleted one it is closed."""
    raw.hello().say(ClientOpen(7, 1))
    raw.ping()
    orders = node.queue("orders")
    assert raw.hear(ClientMaster).session == 7
    orders.delete()
    assert raw.hear(ClientClosed).session == 7
    raw.say(ClientOpen(8, 1))
    assert raw.hear(ClientClosed) == ClientClosed(8, "the queue was deleted")


def test_who_reads_slowly_is_sent_a_window_and_no_more(node: Node, raw: RawClient) -> None:
    """Whatever credit it asks for, what its entry node sends before it has read is bounded; what
    it does not get stays ready for others, and comes when it has read."""
    orders = node.queue("orders")
    size, count = 1 << 20, 60
    for _ in range(count):
        orders.put(bytes(size)).result(30)
    raw.hello().say(ClientOpen(7, 1))
    master = raw.hear(ClientMaster)
    raw.say(request(Attach((), 0)))
    raw.say(request(Subscribe(0, 256, False), number=2))
    raw.say(request(Credit(0, 10**9), number=3))
    taken = 0
    window = Config().client_window_bytes
    for number in range(4, 40):
        # Signs of life that say that nothing has come.
        raw.say(request(Inquire(number), number=number))
        raw.sign_of_life()
        until(lambda: raw.poll() or any(map(_is_answer, raw.heard)))
        taken += sum(map(_handed, raw.heard))
        raw.heard.clear()
    assert 0 < taken * size <= window + (8 << 20) + size
    assert master.available
    assert orders.status().messages_ready == count - taken
    other = orders.get_many(count, timeout=30)
    assert {message.redelivered for message in other} == {False}
    orders.ack_many(other).result(30)
    left = count - taken - len(other)
    came = 0
    while came < left:
        raw.sign_of_life(2**40)
        until(lambda: raw.poll() or any(map(_handed, raw.heard)))
        came += sum(map(_handed, raw.heard))
        raw.heard.clear()


def test_a_credit_of_0_ends_credit(node: Node, raw: RawClient) -> None:
    """Behind the Pong nothing comes until the client asks anew."""
    orders = node.queue("orders")
    raw.hello().say(ClientOpen(7, 1))
    raw.hear(ClientMaster)
    raw.say(request(Attach((), 0)))
    raw.say(request(Subscribe(0, 256, False), number=2))
    raw.say(request(Credit(0, 100), number=3))
    raw.say(request(Credit(0, 0), number=4))
    raw.say(request(Ping(), number=5))
    until(lambda: raw.live() or any(getattr(m, "reply", None) == Pong() for m in raw.heard))
    put = orders.put(b"one")
    until(lambda: raw.live() or put.done())
    raw.say(request(Inquire(1), number=6))
    until(lambda: raw.live() or any(map(_is_answer, raw.heard)))
    assert not any(map(_handed, raw.heard))
    raw.say(request(Credit(0, 1), number=7))
    until(lambda: raw.live() or any(map(_handed, raw.heard)))


def test_who_asks_without_reading_is_answered_so_far(tmp_path: Path) -> None:
    """Answers that nobody reads pile up to a bound; what comes then is dropped, and said."""
    with listening(tmp_path, client_window_bytes=1 << 16, session_expiry_ms=60_000) as node:
        node.queue("orders").put_many([bytes(10_000)] * 10).result(30)
        raw = RawClient(node.listening)
        raw.hello().say(ClientOpen(7, 1))
        raw.hear(ClientMaster)
        raw.say(request(Attach((), 0)))
        for number in range(2, 42):
            raw.say(request(Browse(number, 1, 10), number=number))
        lost: list[bool] = []
        sizes: list[int] = []

        def look() -> bool:
            raw.sign_of_life()
            raw.poll()
            lost.extend(heard.lost for heard in raw.heard if isinstance(heard, ClientPong))
            sizes.extend(sum(map(len, encode(heard))) for heard in raw.heard)
            raw.heard.clear()
            return any(lost)

        until(look)
        numbers = itertools.count(42)

        def is_all_here() -> bool:
            # A sign of life overtakes answers; one that is sent after them does not.
            raw.sign_of_life(2**40)
            raw.say(request(Inquire(1), number=next(numbers)))
            raw.poll()
            return any(map(_is_answer, raw.heard))

        until(is_all_here)
        sizes.extend(sum(map(len, encode(heard))) for heard in raw.heard)
        assert 100_000 < sum(sizes) < LOST_WINDOWS * 64 * 1024 + 3 * 100_000
        raw.socket.close()


def _handed(heard: object) -> int:
    """Messages in a Deliver."""
    if not isinstance(heard, SessionReply) or not isinstance(heard.reply, Deliver):
        return 0
    return sum(piece.last - piece.first + 1 for piece in heard.reply.deliveries)


def _is_answer(heard: object) -> bool:
    return isinstance(heard, SessionReply) and isinstance(heard.reply, Counts)


def test_signs_of_life_have_a_connection_of_their_own(node: Node, raw: RawClient) -> None:
    """What is asked on it is answered on it, with how much data has come; data is not taken."""
    raw.hello().say(ClientOpen(7, 1))
    raw.ping()
    raw.socket.send(encode(ClientOpen(8, 1)), CONTROL)
    raw.sign_of_life()
    channels: list[int] = []

    def pong() -> ClientPong | None:
        for inbound in raw.socket.poll(10):
            if isinstance(inbound, ServerMessage):
                channels.append(inbound.channel)
                message = decode(inbound.parts)
                assert isinstance(message, ClientPong)
                return message
        return None

    found: list[ClientPong] = []
    until(lambda: found.append(heard) is None if (heard := pong()) else False)
    assert channels == [CONTROL]
    sent = sum(sum(map(len, encode(message))) for message in (ClientOpen(7, 1), ClientPing()))
    assert found[0].received == sent
    side = node._driver.gateway
    assert isinstance(side, Gateway)
    assert [[one.number for one in client.sessions] for client in side._clients.values()] == [[7]]


def test_credit_of_no_consumer_and_of_too_many(
    node: Node, raw: RawClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither costs the entry node anything."""
    monkeypatch.setattr("mirrorq.node.gateway.sessions.SUBSCRIPTIONS_MAX", 2)
    node.queue("orders")
    raw.hello().say(ClientOpen(7, 1))
    raw.hear(ClientMaster)
    raw.say(request(Attach((), 0)))
    for number in range(2, 12):
        raw.say(request(Subscribe(number, 1, False), number=number))
    for number in range(12, 22):
        raw.say(request(Credit(number * 1000, 5), number=number))
    raw.ping()
    side = node._driver.gateway
    assert isinstance(side, Gateway)
    (client,) = side._clients.values()
    (session,) = client.sessions
    assert list(session.subscriptions) == [2, 3]
    assert "dropped consumer 4 of client raw" in caplog.text
