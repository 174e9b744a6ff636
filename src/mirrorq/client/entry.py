"""One connection of a client to a node that serves it, an *entry node*, with the connection's own
counts: signs of life, and data on the way. For the client's thread."""

from __future__ import annotations

from mirrorq import clock
from mirrorq.client.keepalive import Keepalive
from mirrorq.config import Config
from mirrorq.containers.timers import FOREVER_MS
from mirrorq.protocol.clients import ClientHello, ClientPing
from mirrorq.transport.client import ClientSocket
from mirrorq.transport.flow_control import Outflow, Parts, Window
from mirrorq.transport.inbound import CONTROL
from mirrorq.wire.messages import WireMessage, encode


class Entry:
    """See the module.

    Args:
        socket: of the connection.
        config: bounds and times.
        spread: see `Keepalive`.
        until_ms: the client gives the connection up if no node serves it here by then.
    """

    def __init__(
        self, socket: ClientSocket, config: Config, spread: float, until_ms: int = FOREVER_MS
    ) -> None:
        self.socket = socket
        self.until_ms = until_ms
        self.is_ended = False
        """True once the client has given up the connection for good."""
        self.node = ""
        """Name of the last node that served the client here."""
        self.is_welcomed = False
        """True while a node serves the client here."""
        self.hello = 0
        """Number of the last hello on the present connection, 0 without a connection."""
        self.window = Window(config.client_window_bytes)
        self.outflow = Outflow(self.window, self.send_data)
        self.keepalive = Keepalive(config, spread)

    def say_hello(self, hello: ClientHello) -> None:
        """Ask the node to serve the client."""
        self.hello = hello.number
        self.keepalive.on_connected(clock.now_ms())
        self.send(hello)
        self.window.reset()

    def on_welcome(self, node: str, expiry_ms: int) -> None:
        """Note that a node serves the client. The node drops a client silent for `expiry_ms`."""
        self.node = node
        self.is_welcomed = True
        self.window.reset()
        self.keepalive.on_welcome(clock.now_ms(), expiry_ms)

    def on_left(self) -> None:
        """Note that no node serves the client here now."""
        self.hello = 0
        self.is_welcomed = False
        self.keepalive.on_left()
        self.outflow.clear()

    def send(self, message: WireMessage) -> None:
        """Send a small message, not behind waiting requests."""
        self.send_data(encode(message))

    def send_data(self, parts: Parts) -> None:
        """Send parts. Parts that do not reach the node cause SendLost or Disconnected."""
        if self.socket.send(parts):
            self.window.on_sent(sum(map(len, parts)))

    def ping(self) -> None:
        """Give a sign of life, and report the received bytes."""
        self.keepalive.on_given(clock.now_ms())
        self.socket.send(encode(ClientPing(self.window.report())), CONTROL)

    def give_sign(self, now_ms: int) -> None:
        """Give a sign of life if due, before all arrived messages are handled."""
        if self.keepalive.is_due(now_ms):
            self.ping()
            self.socket.flush()
