"""`SpoolClient`: result of `connect(…, spool=PATH)`: producers that need no cluster to put."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from mirrorq.api.closing import Closing
from mirrorq.api.host import Host
from mirrorq.errors import ShutDown
from mirrorq.spool.queue import SpooledQueue
from mirrorq.spool.route import SpoolStatus
from mirrorq.spool.spools import Spools

if TYPE_CHECKING:
    from mirrorq.api.queue import MirroredQueue
    from mirrorq.config import Config

CONNECT_S = 10.0
"""The forwarder waits this long for a node before reporting why no node answers."""


class Reached(Host, Protocol):
    """A client, as this module needs it."""

    def queue(
        self, name: str, *, durable: bool, auto_delete: bool, timeout: float | None
    ) -> MirroredQueue:
        """Declare a queue and return a handle on it."""
        ...

    def _wait_connected(self, timeout: float | None) -> None:
        """Wait until a node serves the client. Raises NoQuorum: no node did in time."""
        ...

    def close(self) -> None:
        """Close the client with all its handles."""
        ...


Client = TypeVar("Client", bound=Reached)


class SpoolClient(Closing, Generic[Client]):
    """A client whose queues are spooled: usable with or without a node.

    The client connects by itself, as soon and as often as possible. Made by `connect(…,
    spool=PATH)`.

    *Threads*: every method may be called from any thread; not in a forked child.
    """

    def __init__(self, path: Path, config: Config, begin: Callable[[], Client]) -> None:
        self._begin = begin
        """Makes a client, and does not wait for a node."""
        self._client: Client | None = None
        self._lock = threading.RLock()
        self._is_closed = False
        self._spools = Spools(path, config, lambda: self.client(CONNECT_S), self._open_queue)
        self._spools.resume()

    def queue(self, name: str, *, durable: bool = True, auto_delete: bool = False) -> SpooledQueue:
        """Return a handle that accepts puts at any time; see `SpooledQueue`. Returns at once."""
        return self._spools.queue(name, durable=durable, auto_delete=auto_delete)

    def client(self, timeout: float | None = 30) -> Client:
        """Return the client itself, for calls that need the cluster. `close` closes this client.

        Raises:
            NoQuorum: no node answered within `timeout` seconds.
            ShutDown: this `SpoolClient` is closed.
        """
        with self._lock:
            if self._is_closed:
                raise ShutDown("the client is closed")
            client = self._client
            if client is None or client.is_closed:
                client = self._client = self._begin()
        client._wait_connected(timeout)
        return client

    def _open_queue(
        self, name: str, durable: bool, auto_delete: bool, timeout: float | None
    ) -> MirroredQueue:
        client = self.client(timeout)
        return client.queue(name, durable=durable, auto_delete=auto_delete, timeout=timeout)

    def spooled(self) -> dict[str, SpoolStatus]:
        """Return the status of each spool by the name of its queue."""
        return self._spools.status()

    def close(self) -> None:
        """Wait until all puts are accepted, and close. The next opening of the spool sends the
        rest. May be repeated."""
        self._spools.begin_closing()
        with self._lock:
            self._is_closed = True
            client, self._client = self._client, None
        if client is not None:
            # The forwarder may wait for a node: with its client the wait ends.
            client.close()
        self._spools.close()
