"""Nodes and clients for asyncio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from mirrorq.aio.administration import Administration
from mirrorq.aio.exchange import Exchange
from mirrorq.aio.opening import Closing, Opening, opening
from mirrorq.aio.queue import MirroredQueue, wrap_hosts_with
from mirrorq.aio.spooled import SpooledQueue
from mirrorq.aio.threads import closed, in_thread, opened
from mirrorq.api.options import ClientOptions, DeclareOptions, NodeOptions, spelled_out

if TYPE_CHECKING:
    import os

    from mirrorq.client.client import Client as BlockingClient
    from mirrorq.client.spooled import SpoolClient as BlockingSpoolClient
    from mirrorq.node.node import Node as BlockingNode
    from mirrorq.spool.route import SpoolStatus


class LoopHost(Administration, Closing):
    """A node or a client, for one loop. Calls not listed here run in a thread, with the same
    arguments."""

    def __init__(self, host: BlockingNode | BlockingClient) -> None:
        self.host = host
        """The wrapped `mirrorq.Node` or `mirrorq.Client`."""

    @opening
    @spelled_out
    async def queue(self, name: str, **options: Unpack[DeclareOptions]) -> MirroredQueue:
        """Declare a queue, or find it, and return a handle for this loop.

        Arguments, result and errors as in `mirrorq.Client.queue`.
        """
        return MirroredQueue(await opened(partial(self.host.queue, name, **options)))

    @opening
    async def exchange(
        self,
        name: str,
        kind: str | None = None,
        *,
        alternate: str | None = None,
        passive: bool = False,
        timeout: float | None = 30,
    ) -> Exchange:
        """Declare an exchange, or find it, and return a handle for this loop.

        Arguments, result and errors as in `mirrorq.Client.exchange`.
        """
        exchange = partial(self.host.exchange, name, kind, alternate=alternate)
        return Exchange(await opened(partial(exchange, passive=passive, timeout=timeout)))

    async def close(self) -> None:
        """As the host's `close`."""
        await closed(self.host.close)

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        """Return a method of the node or client that is not listed here, to be awaited."""
        method = getattr(self.host, name)
        if name.startswith("_") or not callable(method):
            raise AttributeError(f"{name} is not a method: take it from .host")
        return lambda *values, **named: in_thread(partial(method, *values, **named))

    def __repr__(self) -> str:
        return f"<aio {self.host!r}>"


class Node(LoopHost):
    """`mirrorq.Node` for asyncio. Made by `await Node.open(name, path=…)`."""

    host: BlockingNode
    """The wrapped `mirrorq.Node`."""

    @classmethod
    @opening
    @spelled_out
    async def open(
        cls, name: str, *, path: str | os.PathLike[str], **options: Unpack[NodeOptions]
    ) -> Node:
        """Arguments and errors as of `mirrorq.Node`."""
        from mirrorq.node.node import Node as BlockingNode

        return cls(await opened(partial(BlockingNode, name, path=path, **options)))

    @overload
    def queue(
        self, name: str, *, spool: Literal[False] = False, **options: Unpack[DeclareOptions]
    ) -> Opening[MirroredQueue]: ...

    @overload
    def queue(
        self,
        name: str,
        *,
        durable: bool = True,
        auto_delete: bool = False,
        timeout: float | None = 30,
        spool: Literal[True],
    ) -> Opening[SpooledQueue]: ...

    @opening
    @spelled_out
    async def queue(
        self, name: str, *, spool: bool = False, **options: Unpack[DeclareOptions]
    ) -> MirroredQueue | SpooledQueue:
        """Declare a queue, or find it, and return a handle for this loop.

        Arguments, result and errors as in `mirrorq.Node.queue`.
        """
        handle: Any = await opened(partial(self.host.queue, name, spool=spool, **options))
        return SpooledQueue(handle) if spool else MirroredQueue(handle)


class Client(LoopHost):
    """`mirrorq.Client` for asyncio. Made by `connect`."""


class SpoolClient(Closing):
    """A client whose queues are spooled, for one loop. Made by `connect(…, spool=PATH)`.

    Usable with or without a node. Arguments, results and errors as in `mirrorq.SpoolClient`, which
    is in `host`.
    """

    def __init__(self, host: BlockingSpoolClient[Any]) -> None:
        self.host = host
        """The wrapped client."""

    @opening
    async def queue(
        self, name: str, *, durable: bool = True, auto_delete: bool = False
    ) -> SpooledQueue:
        """Return a handle that accepts puts at any time, without waiting; see `SpooledQueue`."""
        make = partial(self.host.queue, name, durable=durable, auto_delete=auto_delete)
        return SpooledQueue(await opened(make))

    async def client(self, timeout: float | None = 30) -> Client:
        """Return the client itself, for calls that need the cluster. `close` closes this client.

        Arguments, result and errors as in `mirrorq.SpoolClient.client`.
        """
        return Client(await in_thread(partial(self.host.client, timeout)))

    def spooled(self) -> dict[str, SpoolStatus]:
        """Return the status of each spooled queue, by name."""
        return self.host.spooled()

    async def close(self) -> None:
        """Wait until all puts are accepted, and close. The next opening of the spool sends the
        rest. May be repeated."""
        await closed(self.host.close)


def of_host(host: Any) -> LoopHost:
    """Wrap the host of a handle for asyncio."""
    from mirrorq.client.client import Client as BlockingClient

    return Client(host) if isinstance(host, BlockingClient) else Node(host)


wrap_hosts_with(of_host)


@overload
def connect(
    endpoints: str | Sequence[str] | Mapping[str, Any] | None = None,
    *,
    spool: None = None,
    **options: Unpack[ClientOptions],
) -> Opening[Client]: ...


@overload
def connect(
    endpoints: str | Sequence[str] | Mapping[str, Any] | None = None,
    *,
    spool: str | os.PathLike[str],
    **options: Unpack[ClientOptions],
) -> Opening[SpoolClient]: ...


@opening
@spelled_out
async def connect(
    endpoints: str | Sequence[str] | Mapping[str, Any] | None = None,
    *,
    spool: str | os.PathLike[str] | None = None,
    **options: Unpack[ClientOptions],
) -> Client | SpoolClient:
    """`mirrorq.connect`: the same queues from a process that is not a node.

    Arguments, result and errors as in `mirrorq.connect`. With `spool` a `SpoolClient`.
    """
    from mirrorq.client.client import connect as blocking_connect

    made: Any = await opened(partial(blocking_connect, endpoints, spool=spool, **options))
    return Client(made) if spool is None else SpoolClient(made)
