"""`Transport`: the transport for kombu, and the address to connect to.

`mirrorq.connect` reads the URL:

    mirrorq://host:7400,host2:7401//    nodes, any of which will do
    mirrorq:///var/lib/shop/node        this machine's node in a folder, as of `mirrorq.local`

Alternates (`;`) are tried here, in their order, at each connection. kombu would read alternates by
a parser of its own, which reads neither several hosts nor options behind `?`.

`transport_options`: `security` and `insecure` and `config` as for `mirrorq.connect`;
`confirm_timeout`, seconds that a publish waits for its confirmation (30); `eta`: "queue" (tasks
wait in their queue) or "worker" (in the worker that has them, as with other brokers); `confirm`:
"wait" or "later" (a publish to a queue returns when accepted, and later errors go to the log);
`unique`: "" or "message_id" (a queue stores one message of each id within its `unique-window`; not
for Celery's tasks, which are retried under their own ids).
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from amqp import exceptions as amqp
from kombu.transport import base

import mirrorq
from mirrorq.contrib.kombu.channel import Channel
from mirrorq.contrib.kombu.connection import Connection, translated

__all__ = ["Transport"]

DEFAULT_PORT = 7400
ETA = ("queue", "worker")
CONFIRM = ("wait", "later")
UNIQUE = ("", "message_id")


class Transport(base.Transport):  # type: ignore[misc]
    """mirrorq as a transport of kombu: native, with a loop, without heartbeats of its own."""

    can_parse_url = True  # several hosts in one URL
    default_port = DEFAULT_PORT
    driver_type = "mirrorq"
    driver_name = "mirrorq"

    connection_errors = (
        amqp.ConnectionError,
        OSError,
        mirrorq.NoQuorum,
        mirrorq.QueueDown,
        mirrorq.ShutDown,
        mirrorq.StoreLocked,
        mirrorq.Full,
        mirrorq.ConfirmUnknown,
    )
    recoverable_connection_errors = (
        amqp.RecoverableConnectionError,
        *connection_errors[1:],
    )
    channel_errors = (
        amqp.ChannelError,
        mirrorq.QueueNotFound,
        mirrorq.PreconditionFailed,
        mirrorq.NotConfirmed,
        mirrorq.AckRefused,
    )
    recoverable_channel_errors = (amqp.RecoverableChannelError,)

    implements = base.Transport.implements.extend(asynchronous=True, heartbeats=False)

    def driver_version(self) -> str:
        """Return the version of mirrorq."""
        try:
            return version("mirrorq")
        except PackageNotFoundError:
            return "N/A"

    def establish_connection(self) -> Connection:
        """Connect to the first node that answers.

        Raises:
            NoQuorum: no node answers within the connection's `connect_timeout`.
            AccessRefused: the node does not know this client's key.
        """
        told = self.client
        options = dict(told.transport_options or {})
        eta, confirm = options.get("eta", "queue"), options.get("confirm", "wait")
        unique = options.get("unique", "")
        given = (("eta", eta, ETA), ("confirm", confirm, CONFIRM), ("unique", unique, UNIQUE))
        for name, value, values in given:
            if value not in values:
                raise mirrorq.ConfigError(
                    f"transport option {name} is {value!r}: it must be one of {values}"
                )
        confirm_timeout = float(options.get("confirm_timeout", 30.0))
        connect = partial(
            mirrorq.connect,
            config=options.get("config"),
            insecure=bool(options.get("insecure", False)),
            security=options.get("security"),
            timeout=told.connect_timeout or None,
            # The next URL, or kombu's next try, comes soon: no wait for absent nodes.
            fail_fast=True,
        )
        return Connection(
            told,
            self._connected(connect),
            Channel,
            confirm_timeout=confirm_timeout,
            eta=eta,
            confirm=confirm,
            has_unique_ids=bool(unique),
        )

    def _connected(self, connect: Callable[[str], mirrorq.Client]) -> mirrorq.Client:
        """Connect by the first URL that answers; raise the last URL's error if none answers."""
        *others, last = self._urls()
        for url in others:
            with contextlib.suppress(*self.connection_errors), translated():
                return connect(url)
        with translated():
            return connect(last)

    def _urls(self) -> list[str]:
        """Return the URL, and kombu's alternates if all of them are mirrorq's."""
        first, alternates = self._url(), self.client.alt
        if not all(url.startswith(f"{self.driver_name}://") for url in alternates):
            return [first]
        self.client.cycle = None
        return [first, *(url for url in alternates if url != first)]

    def _url(self) -> str:
        """Return the address: the URL, or the parts that kombu has made of an alternate."""
        host = self.client.hostname or ""
        if "://" in host:
            url: str = host
            return url
        folder = (self.client.virtual_host or "").strip("/")
        if not host and folder:
            return f"mirrorq:///{folder}"
        return f"mirrorq://{host or '127.0.0.1'}:{self.client.port or DEFAULT_PORT}"

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """Return the URL unchanged: a secret never stands there."""
        return uri

    def verify_connection(self, connection: Connection) -> bool:
        """Return true if this process may still use the connection."""
        return connection.connected

    def close_connection(self, connection: Connection) -> None:
        """Close a connection with its channels."""
        connection.client = None
        connection.close()

    def create_channel(self, connection: Connection) -> Channel:
        """Open a channel."""
        channel: Channel = connection.channel()
        return channel

    def close_channel(self, channel: Channel) -> None:
        """Close a channel."""
        channel.close()

    def drain_events(self, connection: Connection, **options: Any) -> None:
        """Dispatch arrived messages."""
        connection.drain_events(**options)

    def register_with_event_loop(self, connection: Connection, loop: Any) -> None:
        """Have the loop drain when something arrives."""
        loop.add_reader(connection.fileno(), self.on_readable, connection, loop)

    def unregister_from_event_loop(self, connection: Connection, loop: Any) -> None:
        """Remove a connection from the loop."""
        loop.remove_reader(connection.fileno())

    def on_readable(self, connection: Connection, loop: Any) -> None:
        """Called by the loop."""
        try:
            connection.drain_events(timeout=0)
        except socket.timeout:  # noqa: UP041
            return
