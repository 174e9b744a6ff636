"""The link to one client: the identity of the client, and the messages on the way to it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mirrorq.errors import ProtocolError
from mirrorq.protocol.clients import ClientAnswer, ClientClosed, ClientPong
from mirrorq.protocol.identities import SessionId, connection_of
from mirrorq.protocol.sessions import SessionReply
from mirrorq.transport.flow_control import Window
from mirrorq.transport.inbound import CONTROL, DATA
from mirrorq.wire.messages import Part, WireMessage, encode

if TYPE_CHECKING:
    from mirrorq.node.permissions import Permits
    from mirrorq.transport.transport import Transport

log = logging.getLogger("mirrorq")


def send(transport: Transport, identity: bytes, message: WireMessage) -> None:
    """Send a message to a process that is not a client, or will not be."""
    parts = _encoded(message)
    if parts is not None:
        transport.reply(identity, parts)


class ClientLink:
    """State that the parts of one client share."""

    def __init__(
        self,
        transport: Transport,
        identity: bytes,
        name: str,
        window: Window,
        key: str = "",
        permits: Permits | None = None,
    ) -> None:
        self.identity = identity
        """Identity of the connection."""
        self.name = name
        self.key = key
        """The client's public key, "" without security."""
        self.permits = permits
        """Rights of the key; None: everything is allowed."""
        self.window = window
        self.channel = DATA
        """Channel on which the client sends its pings."""
        self._transport = transport
        self._is_lossy = False
        """True if messages to the client were dropped; its next pong reports the loss."""

    @property
    def connection(self) -> str:
        """Connection to which the client's handles belong."""
        return connection_of(SessionId(self.name, 0, 0), self.key)

    def send(self, message: WireMessage) -> None:
        """Send a message to the client, unless the client does not read."""
        parts = _encoded(message)
        if parts is None:
            return
        if not self._transport.takes(parts):
            # The client would repeat the request and never get an answer.
            self._refuse(message, max(map(len, parts)))
            return
        if self.window.is_overrun or not self._transport.reply(self.identity, parts):
            self._is_lossy = True
        else:
            self.window.on_sent(sum(map(len, parts)))

    def _refuse(self, message: WireMessage, size: int) -> None:
        """Tell the client why an answer cannot be sent."""
        limit = self._transport.part_bytes_max
        text = f"the answer has {size} bytes, more than the {limit} that a message may have"
        log.error("cannot send to client %s: %s", self.name, text)
        if isinstance(message, SessionReply):
            self.send(ClientClosed(message.session.number, text))
        elif isinstance(message, ClientAnswer):
            self.send(ClientAnswer(message.number, 0, "MirrorQError", text, b""))

    def pong(self, paused: bool, patience: int, waits: str, lineage: int) -> None:
        """Answer a ping, and report the received bytes.

        Args:
            paused: whether the node has no contact with a majority, or cannot write.
            patience: in percent, see `ClientPong`.
            waits: why the node does not take part in a cluster, or cannot write.
            lineage: lineage of the node's cluster.
        """
        lost, self._is_lossy = self._is_lossy, False
        pong = ClientPong(paused, lost, self.window.report(), patience, waits, lineage)
        if self.channel == CONTROL:
            self._transport.reply(self.identity, encode(pong), CONTROL)
        else:
            self.send(pong)

    def on_lost(self, size: int) -> None:
        """Note dropped replies of a size in bytes; the connection continues."""
        self.window.on_lost(size)
        self._is_lossy = True


def _encoded(message: WireMessage) -> Sequence[Part] | None:
    try:
        return encode(message)
    except ProtocolError as error:
        log.error("cannot answer a client: %s", error)
        return None
