"""`Transport`: what kombu asks of a transport, and where it connects to.

    mirrorq://host:7400,host2:7401//    nodes, any of which will do
    mirrorq:///var/lib/shop/node        this machine's node in a folder, as of `mirrorq.local`

`transport_options`: `security` and `insecure` and `config` as for `mirrorq.connect`;
`confirm_timeout`, seconds that a publish waits for its confirmation (30); `eta`: "queue" (tasks
wait in their queue) or "worker" (in the worker that they were delivered to, as with other brokers).
"""

from __future__ import annotations

import errno
import socket
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from urllib.parse import urlsplit

from amqp import exceptions as amqp
from kombu.transport import base

import mirrorq
from mirrorq.contrib.kombu.channel import Channel
from mirrorq.contrib.kombu.connection import Connection, translated

__all__ = ["Transport", "endpoints_of"]

DEFAULT_PORT = 7400
SOCKET_NAME = "node.sock"
"""In the folder of a spawned node."""
PROBE_S = 1.0
"""A host that answers at all has refused by then."""
ETA = ("queue", "worker")


def endpoints_of(url: str) -> list[str]:
    """The endpoints that a URL names.

    Raises:
        ConfigError: it has a user, or its path is not absolute.
    """
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise mirrorq.ConfigError(
            f"{parts.scheme}://…@… has a user or a password, and mirrorq has keys: give "
            "transport_options={'security': mirrorq.Security.load(…)}"
        )
    if not parts.netloc and parts.path.strip("/"):
        return [f"ipc://{parts.path.rstrip('/')}/{SOCKET_NAME}"]
    return [_endpoint(host) for host in (parts.netloc or "127.0.0.1").split(",") if host]


def _endpoint(host: str, port: int | None = None) -> str:
    name, colon, digits = host.rpartition(":")
    if not colon or (host.startswith("[") and host.endswith("]")):
        name, digits = host, str(port or DEFAULT_PORT)
    return f"tcp://{'127.0.0.1' if name == 'localhost' else name}:{digits}"


def is_refused(endpoint: str) -> bool:
    """Whether it is certain that nobody listens there."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), PROBE_S):
            pass
    except ConnectionRefusedError:
        return True
    except (OSError, ValueError):
        return False  # mirrorq.connect will say what is wrong
    return False


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
        """Of mirrorq."""
        try:
            return version("mirrorq")
        except PackageNotFoundError:
            return "N/A"

    def establish_connection(self) -> Connection:
        """Connect to the first node that answers.

        Raises:
            NoQuorum: none does within the connection's `connect_timeout`.
            AccessRefused: it does not know this client's key.
        """
        told = self.client
        options = dict(told.transport_options or {})
        eta = options.get("eta", "queue")
        if eta not in ETA:
            raise mirrorq.ConfigError(f"transport option eta is {eta!r}: it is one of {ETA}")
        endpoints = self._endpoints()
        confirm_timeout = float(options.get("confirm_timeout", 30.0))
        with translated():
            client = self._client(endpoints, options, told.connect_timeout or None)
        return Connection(told, client, Channel, confirm_timeout=confirm_timeout, eta=eta)

    def _client(
        self, endpoints: list[str], options: dict[str, Any], timeout: float | None
    ) -> mirrorq.Client:
        folder = endpoints[0].removeprefix("ipc://").removesuffix(f"/{SOCKET_NAME}")
        if folder != endpoints[0]:
            return mirrorq.local(folder, config=options.get("config"), timeout=timeout)
        if all(is_refused(endpoint) for endpoint in endpoints):
            # Whose next URL or next try is to come soon need not wait until nobody has answered.
            raise ConnectionRefusedError(
                errno.ECONNREFUSED, f"no node listens on {', '.join(endpoints)}"
            )
        return mirrorq.connect(
            endpoints,
            config=options.get("config"),
            insecure=bool(options.get("insecure", False)),
            security=options.get("security"),
            timeout=timeout,
        )

    def _endpoints(self) -> list[str]:
        """Where to connect to: by the URL, or by what kombu has made of an alternate one."""
        host = self.client.hostname or ""
        if "://" in host:
            return endpoints_of(host)
        if not host and self.client.virtual_host not in (None, "", "/"):
            return endpoints_of(f"mirrorq:///{self.client.virtual_host.lstrip('/')}")
        return [_endpoint(host or "127.0.0.1", self.client.port)]

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """The URL as it was given: it holds no secret."""
        return uri

    def verify_connection(self, connection: Connection) -> bool:
        """Whether it may still be used, by this process."""
        return connection.connected

    def close_connection(self, connection: Connection) -> None:
        """Close it, with its channels."""
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
        """Dispatch what has arrived."""
        connection.drain_events(**options)

    def register_with_event_loop(self, connection: Connection, loop: Any) -> None:
        """Have the loop drain when something arrives."""
        loop.add_reader(connection.fileno(), self.on_readable, connection, loop)

    def unregister_from_event_loop(self, connection: Connection, loop: Any) -> None:
        """Have the loop look at it no more."""
        loop.remove_reader(connection.fileno())

    def on_readable(self, connection: Connection, loop: Any) -> None:
        """Called by the loop."""
        try:
            connection.drain_events(timeout=0)
        except socket.timeout:  # noqa: UP041
            return
