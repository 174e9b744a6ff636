"""`SpoolClient`: what `connect(…, spool=PATH)` returns: producers that need no cluster to put."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from mirrorq.api.host import Host
from mirrorq.errors import ShutDown
from mirrorq.spool.queue import SpooledQueue
from mirrorq.spool.route import SpoolStatus
from mirrorq.spool.spools import Spools

if TYPE_CHECKING:
    from mirrorq.api.queue import MirroredQueue
    from mirrorq.config import Config

CONNECT_S = 10.0
"""One try to connect, of those that are made all the time."""


class Reached(Host, Protocol):
    """A client, as this module needs it."""

    def queue(
        self, name: str, *, durable: bool, auto_delete: bool, timeout: float | None
    ) -> MirroredQueue:
        """Declare a queue and return a handle on it."""
        ...

    def close(self) -> None:
        """Close it with all its handles."""
        ...


Client = TypeVar("Client", bound=Reached)


class SpoolClient(Generic[Client]):
    """A client whose queues are spooled: it is there whether or not a node answers.

    It connects by itself, as soon and as often as that can be done. Made by
    `connect(…, spool=PATH)`.

    *Threads*: every method may be called from any thread; not in a forked child.
    """

    def __init__(self, path: Path, config: Config, reach: Callable[[float | None], Client]) -> None:
        self._reach = reach
        self._client: Client | None = None
        self._nexts: dict[Client | None, Client] = {}
        """Former client, None at first -> the one that came after it."""
        self._is_closed = False
        self._spools = Spools(path, config, lambda: self.client(CONNECT_S), self._open_queue)
        self._spools.resume()

    def __enter__(self) -> SpoolClient[Client]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def queue(self, name: str, *, durable: bool = True, auto_delete: bool = False) -> SpooledQueue:
        """A handle that accepts puts at any time; see `SpooledQueue`. Returns at once."""
        return self._spools.queue(name, durable=durable, auto_delete=auto_delete)

    def client(self, timeout: float | None = 30) -> Client:
        """The client itself, for all that needs the cluster. This closes it.

        Raises:
            NoQuorum: no node answered within `timeout` seconds.
            ShutDown: this is closed.
        """
        if self._is_closed:
            raise ShutDown("the client is closed")
        client = self._client
        if client is None or client.closed():
            client = self._client = self._next(client, timeout)
            if self._is_closed:
                client.close()
                raise ShutDown("the client is closed")
        return client

    def _next(self, former: Client | None, timeout: float | None) -> Client:
        """The client after this one, which is closed: the same for all who want it at once. Others
        may have handles on what the first of them has made."""
        mine, found = self._reach(timeout), self._client
        if found is None or found.closed():
            found = self._nexts.setdefault(former, mine)
        if found is not mine:
            mine.close()
        for older in list(self._nexts):
            if older is not former:
                self._nexts.pop(older, None)
        return found

    def _open_queue(
        self, name: str, durable: bool, auto_delete: bool, timeout: float | None
    ) -> MirroredQueue:
        client = self.client(timeout)
        return client.queue(name, durable=durable, auto_delete=auto_delete, timeout=timeout)

    def spooled(self) -> dict[str, SpoolStatus]:
        """What is spooled, by the names of queues."""
        return self._spools.status()

    def close(self) -> None:
        """Have all that was put accepted, and close. What is left is sent when the spool is opened
        again. May be repeated."""
        self._is_closed = True
        self._spools.close()
        client, self._client = self._client, None
        if client is not None:
            client.close()
