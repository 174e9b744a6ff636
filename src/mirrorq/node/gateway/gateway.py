"""All clients of one node: takes in new clients, ends old clients, and passes their messages on."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from mirrorq import clock
from mirrorq.config import Config
from mirrorq.engine.engine import Engine
from mirrorq.errors import ProtocolError
from mirrorq.monitoring.presence import Served
from mirrorq.node.bans import Bans, expulsion_text
from mirrorq.node.gateway.calls import Calls
from mirrorq.node.gateway.client import ServedClient
from mirrorq.node.gateway.idle_timeouts import IdleTimeouts
from mirrorq.node.gateway.link import ClientLink, send
from mirrorq.node.gateway.request_handler import RequestHandler
from mirrorq.node.gateway.sessions import ClientSessions
from mirrorq.protocol import clients
from mirrorq.protocol.identities import lineage
from mirrorq.protocol.sessions import SessionRequest
from mirrorq.protocol.validation import NAME_CHARS_MAX
from mirrorq.transport.flow_control import Window
from mirrorq.transport.inbound import CONTROL, DATA
from mirrorq.wire.frames import check_publish
from mirrorq.wire.messages import WireMessage, decode

if TYPE_CHECKING:
    from mirrorq.node.authority import Authority
    from mirrorq.node.driver import Driver
    from mirrorq.transport.inbound import ClientMessage
    from mirrorq.transport.transport import Transport

log = logging.getLogger("mirrorq")

CLIENTS_MAX = 4096
"""Limit on clients of one node. Each client costs a connection and some KB."""
EXPIRY_MS_MAX = 60_000
"""Longest expiry that a client may ask for: its messages stay held meanwhile."""
WAITS_CHARS = 1000
"""Limit on the text that explains to a client why its node waits."""


class Gateway:
    """All clients of one node, by their connections. The driver owns the gateway. Node thread only.

    Args:
        driver: takes requests, and steps the sessions' ports.
        transport: carries replies.
        config: bounds and times.
        handler: serves clients' calls.
        authority: the keys of clients; None: no security, every client may do everything.
    """

    def __init__(
        self,
        driver: Driver,
        transport: Transport,
        config: Config,
        handler: RequestHandler,
        authority: Authority | None = None,
    ) -> None:
        self.wake_ms: int | None = None
        """When `end_stale_clients` has something to do."""
        self._driver = driver
        self._transport = transport
        self._config = config
        self._authority = authority
        self._keys_version = 0 if authority is None else authority.version
        self._warn = driver.complaints.warn
        self._clients: dict[bytes, ServedClient] = {}
        self._unplaced: dict[bytes, int] = {}
        """Lineages of clients, by connection, that came before the node knew its own cluster."""
        self.left_ms = clock.now_ms()
        """When a client left most recently, or the gateway began. Any thread may read the value."""
        self._idle_timeouts = IdleTimeouts(config.heartbeat_ms)
        self._bans = Bans()
        self._handler = handler

    @property
    def client_count(self) -> int:
        return len(self._clients)

    @property
    def _engine(self) -> Engine:
        return self._driver.engine

    # --- Input --------------------------------------------------------------------------

    def on_message(self, inbound: ClientMessage) -> None:
        """Take one message of a client."""
        identity = inbound.identity
        client = self._clients.get(identity)
        if client is None:
            self._idle_timeouts.on_stranger(identity)
        if self._authority is not None and not self._is_admitted(self._authority, inbound, client):
            return
        try:
            message = decode(inbound.parts)
            check_publish(message)
        except ProtocolError as error:
            self._warn("dropped a message of %s: %s", _label(identity, client), error)
            if client is None:
                send(self._transport, identity, clients.ClientRefused(str(error)))
            return
        if isinstance(message, clients.ClientHello):
            self._on_hello(inbound, message)
        elif client is None:
            if not isinstance(message, clients.ClientBye):
                send(self._transport, identity, clients.ClientUnknown())
        elif not self._unplaced or self._is_ours(client):
            self._idle_timeouts.on_heard(identity)
            if inbound.channel == DATA:
                client.link.window.on_received(sum(map(len, inbound.parts)))
                self._on_known(client, message)
                if client.link.window.is_report_due and identity in self._clients:
                    self._pong(client)
            elif isinstance(message, clients.ClientPing):
                client.link.channel = CONTROL
                self._on_ping(client, message)
            else:
                kind = type(message).__name__
                self._warn("dropped a %s of client %s: it is data", kind, client.name)

    def _on_known(self, client: ServedClient, message: WireMessage) -> None:
        match message:
            case SessionRequest():
                client.sessions.on_request(message)
            case clients.ClientOpen():
                client.sessions.open(message)
            case clients.ClientClose():
                client.sessions.close(message.session, goes_on=message.goes_on)
            case clients.ClientCall():
                if client.calls.admit(message):
                    self._handler.serve(client.calls, message)
            case clients.ClientForget():
                client.calls.forget(message.number)
            case clients.ClientPing():
                self._on_ping(client, message)
            case clients.ClientBye():
                self._end(client, "said goodbye")
            case _:
                kind = type(message).__name__
                self._warn("dropped a %s of client %s: not from clients", kind, client.name)

    def _on_ping(self, client: ServedClient, ping: clients.ClientPing) -> None:
        client.link.window.on_told(ping.received)
        self._pong(client)
        client.sessions.pass_credits()

    def _pong(self, client: ServedClient) -> None:
        now_ms = clock.now_ms()
        patience = self._idle_timeouts.promise(client.link.identity, now_ms)
        engine = self._engine
        # For a client a node that cannot write is as useless as a node that is cut off.
        stuck = self._driver.stuck_text
        waits = engine.waiting_text() or stuck
        is_paused = engine.is_paused(now_ms) or bool(stuck)
        client.link.pong(is_paused, patience, waits[:WAITS_CHARS], self._lineage)

    def on_reply_lost(self, identity: bytes, gone: bool, size: int) -> None:
        """Handle dropped replies: end the client, or note the loss."""
        client = self._clients.get(identity)
        if client is None:
            return
        if gone:
            self._end(client, "its connection ended", is_lost=True)
        else:
            client.link.on_lost(size)

    # --- Coming and going ---------------------------------------------------------------

    def _on_hello(self, inbound: ClientMessage, hello: clients.ClientHello) -> None:
        identity = inbound.identity
        known = self._clients.get(identity)
        if known is not None:
            self._end(known, "connected again", is_lost=True)
        if len(self._clients) >= CLIENTS_MAX:
            why = f"node {self._engine.me.node} has {CLIENTS_MAX} clients already"
            self._warn("refused a client: %s", why)
            send(self._transport, identity, clients.ClientRefused(why))
            return
        # The name stands in logs: it must not contain line breaks.
        name = "".join(c if c.isprintable() else "?" for c in hello.name[:NAME_CHARS_MAX])
        why = self._bans.why(name)
        if why:
            send(self._transport, identity, clients.ClientRefused(why, final=True))
            return
        own = self._lineage
        if own and hello.lineage not in (0, own):
            self._warn("refused client %s: it is another cluster's", name)
            self._refuse_stray(identity)
            return
        own_ms = self._config.session_expiry_ms
        expiry_ms = max(own_ms, min(hello.expiry_ms, EXPIRY_MS_MAX))
        welcome = clients.ClientWelcome(hello.number, self._engine.me.node, expiry_ms, own)
        send(self._transport, identity, welcome)
        self._clients[identity] = self._client(inbound, name)
        if hello.lineage and not own:
            self._unplaced[identity] = hello.lineage
        self._idle_timeouts.watch(identity, expiry_ms)
        log.info("client %s came", name)

    @property
    def _lineage(self) -> int:
        """Lineage of the node's cluster, 0 while not known."""
        return lineage(self._engine.catalog.cluster)

    def _refuse_stray(self, identity: bytes) -> None:
        why = (
            f"node {self._engine.me.node} belongs to another cluster than the one to which this "
            "client connected: that address is another cluster's now, or its stores were wiped. "
            "To use this one, connect again"
        )
        send(self._transport, identity, clients.ClientRefused(why))

    def _is_ours(self, client: ServedClient) -> bool:
        """Return true if a client belongs to the node's cluster, once the cluster is known. The
        same queue id means another queue in another cluster."""
        identity, own = client.link.identity, self._lineage
        if not own or self._unplaced.pop(identity, own) == own:
            return True
        self._end(client, "it is another cluster's")
        self._refuse_stray(identity)
        return False

    def _client(self, inbound: ClientMessage, name: str) -> ServedClient:
        authority, driver = self._authority, self._driver
        window = Window(self._config.client_window_bytes)
        link = ClientLink(self._transport, inbound.identity, name, window, inbound.key)
        if authority is not None:
            link.permits = authority.permits(inbound.key, self._engine.catalog)
        sessions = ClientSessions(link, driver)
        calls = Calls(link, driver, sessions.owner)
        address = self._transport.address_of(inbound)
        return ServedClient(link, sessions, calls, address, clock.wall_us())

    def _end(self, client: ServedClient, why: str, *, is_lost: bool = False) -> None:
        log.info("client %s is gone: %s", client.name, why)
        identity = client.link.identity
        self.left_ms = clock.now_ms()
        del self._clients[identity]
        self._unplaced.pop(identity, None)
        self._idle_timeouts.forget(identity)
        client.calls.drop_all()
        client.sessions.end_all(is_lost=is_lost)

    def served(self) -> tuple[Served, ...]:
        """Return the entries of all clients for lists of clients."""
        authority, catalog = self._authority, self._engine.catalog
        return tuple(
            client.served(catalog, None if authority is None else authority.key(client.link.key))
            for client in self._clients.values()
        )

    def disconnect(self, name: str, why: str) -> int:
        """Disconnect the clients with a name and refuse the name. Return the number of clients."""
        text = expulsion_text(self._engine.me.node, why)
        self._bans.ban(name, text)
        found = [client for client in self._clients.values() if client.name == name]
        for client in found:
            self._warn("client %s is %s", client.name, text)
            self._end(client, "an administrator disconnected it")
            send(self._transport, client.link.identity, clients.ClientRefused(text, final=True))
        return len(found)

    # --- Keys ---------------------------------------------------------------------------

    def _is_admitted(
        self, authority: Authority, inbound: ClientMessage, client: ServedClient | None
    ) -> bool:
        """Return true if the sender's key may speak, and may speak for the client."""
        if authority.key(inbound.key) is None:
            why = f"node {self._engine.me.node} does not list the key {inbound.key} any more"
            if client is not None:
                self._end(client, why)
            send(self._transport, inbound.identity, clients.ClientRefused(why))
            return False
        return client is None or client.link.key == inbound.key

    def _follow_keys(self, authority: Authority) -> None:
        """Apply a change of the keys: clients lose rights that were withdrawn."""
        self._keys_version = authority.version
        for client in list(self._clients.values()):
            link = client.link
            if authority.key(link.key) is None:
                self._end(client, "its key is no longer listed")
                refusal = clients.ClientRefused("its key is no longer listed")
                send(self._transport, link.identity, refusal)
            else:
                client.sessions.permit(authority.permits(link.key, self._engine.catalog))

    # --- Time ---------------------------------------------------------------------------

    def end_stale_clients(self, now_ms: int) -> None:
        """End clients that are silent, or have lost their keys."""
        if self._authority is not None and self._authority.version != self._keys_version:
            self._follow_keys(self._authority)
        if not self._clients:
            self.wake_ms = None
            return
        if self._transport.takes_turns(len(self._clients)):
            for identity, silence_ms in self._idle_timeouts.overdue(now_ms):
                why = f"silent for {silence_ms} ms"
                self._end(self._clients[identity], why, is_lost=True)
        self.wake_ms = now_ms + self._config.heartbeat_ms if self._clients else None


def _label(identity: bytes, client: ServedClient | None) -> str:
    return f"connection {identity.hex()}" if client is None else f"client {client.name}"
