"""The socket of a process that is no node."""

from __future__ import annotations

import os
import threading
import time

import pytest
from loopback import POLL_MS, Net

from mirrorq.config import Config
from mirrorq.errors import ConfigError, MirrorQError, ShutDown
from mirrorq.transport import transport
from mirrorq.transport.client import ClientSocket
from mirrorq.transport.inbound import ClientMessage, Connected, Disconnected, ServerMessage
from mirrorq.transport.transport import Transport

pytestmark = pytest.mark.real


def dead_endpoint(net: Net) -> str:
    """An endpoint where nothing listens."""
    transport = net.transport("gone")
    net.close(transport)
    return transport.endpoint


def test_it_takes_the_first_that_answers(net: Net, a: Transport) -> None:
    """Dead endpoints are passed over, and nothing is queued for them."""
    client = net.client(dead_endpoint(net), a.endpoint)
    assert not client.send([b"early"])
    net.until_in(client, Connected(a.endpoint))
    assert client.endpoint == a.endpoint
    assert client.send([b"now"])
    net.until(lambda: net.of(a))
    assert net.of(a) == [ClientMessage(client.identity, [b"now"])]


def test_it_goes_to_the_next_when_one_is_gone(net: Net) -> None:
    """The node's end shows as Disconnected, then the next endpoint is up; round and round."""
    a, b = net.transport("a"), net.transport("b")
    client = net.client(a.endpoint, b.endpoint)
    net.until_in(client, Connected(a.endpoint))
    net.close(a)
    net.until_in(client, Connected(b.endpoint))
    net.transport("a", a.endpoint)
    net.close(b)
    net.until(lambda: len(net.of(client)) == 5)
    assert net.of(client) == [
        Connected(a.endpoint),
        Disconnected(a.endpoint),
        Connected(b.endpoint),
        Disconnected(b.endpoint),
        Connected(a.endpoint),
    ]


def test_it_leaves_when_asked(net: Net) -> None:
    """A node that cannot serve is left for the next one."""
    a, b = net.transport("a"), net.transport("b")
    client = net.client(a.endpoint, b.endpoint)
    net.until_in(client, Connected(a.endpoint))
    client.leave()
    net.until_in(client, Connected(b.endpoint))
    assert net.of(client)[1] == Disconnected(a.endpoint)


def test_one_endpoint_is_tried_again(net: Net, a: Transport) -> None:
    """With a single endpoint a restarted node is found by itself."""
    client = net.client(a.endpoint)
    net.until_in(client, Connected(a.endpoint))
    net.close(a)
    net.until_in(client, Disconnected(a.endpoint))
    again = net.transport("a", a.endpoint)
    net.until(lambda: client.is_up)
    assert client.send([b"x"])
    net.until_in(again, ClientMessage(client.identity, [b"x"]))


def test_order_of_requests_and_replies(net: Net, a: Transport) -> None:
    """Both ways are FIFO, small and large messages mixed."""
    client = net.client(a.endpoint)
    net.until_in(client, Connected(a.endpoint))
    sent = [[b"%d" % number, bytes(100_000 * (number % 2))] for number in range(100)]
    for parts in sent:
        assert client.send(parts)
        client.flush()
    net.until(lambda: len(net.messages(a, ClientMessage)) == 100)
    assert net.messages(a, ClientMessage) == sent
    for parts in sent:
        assert a.reply(client.identity, parts)
    net.until(lambda: len(net.messages(client, ServerMessage)) == 100)
    assert net.messages(client, ServerMessage) == sent


def test_a_round_that_does_not_read_all_says_so(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until each connection has had its turn, or nothing is left to read."""
    monkeypatch.setattr(transport, "ROUND_COUNT_MAX", 2)
    a = net.transport("a")
    client = net.client(a.endpoint)
    net.until_in(client, Connected(a.endpoint))

    def turns() -> list[bool]:
        """Of six rounds, while more lies there than they read. With 3 clients there are 6
        connections: three rounds of 2 messages are a turn of each."""
        while a.poll(POLL_MS):
            assert a.takes_turns(1)
        for _ in range(20):
            client.send([b"more"])
            client.flush()
        time.sleep(POLL_MS / 1000)
        found = []
        for _ in range(6):
            a.poll(0)
            found.append(a.takes_turns(3))
        return found

    net.until(lambda: turns() == [False, False, True] * 2)
    net.until(lambda: a.poll(POLL_MS) == [])
    assert a.takes_turns(3)


def test_wake_ends_a_poll(net: Net) -> None:
    """A wake from another thread ends a long poll, of a connected client too."""
    a = net.transport("a")
    client = net.client(a.endpoint)
    net.until_in(client, Connected(a.endpoint))
    for _ in range(100):
        thread = threading.Thread(target=client.wake)
        thread.start()
        assert client.poll(3_600_000) == []
        thread.join()


def test_bad_endpoints() -> None:
    """None at all, and one that is malformed, before anything is opened."""
    with pytest.raises(ConfigError, match="at least one"):
        ClientSocket([], Config())
    with pytest.raises(ConfigError, match="'nonsense'"):
        ClientSocket(["tcp://127.0.0.1:7400", "nonsense"], Config())


def test_closed_and_forked(net: Net) -> None:
    """A closed client says so; a forked child is told whose it is."""
    a: Transport = net.transport("a")
    client = net.client(a.endpoint)
    pid = os.fork()
    if pid == 0:
        try:
            client.poll(0)
        except MirrorQError as error:
            client.close()
            os._exit(0 if "fork" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    client.close()
    client.wake()
    with pytest.raises(ShutDown):
        client.poll(0)
