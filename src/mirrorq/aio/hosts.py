"""Nodes and clients for asyncio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from mirrorq.aio.administration import Administration
from mirrorq.aio.exchange import Exchange
from mirrorq.aio.opening import opening
from mirrorq.aio.queue import MirroredQueue, wrap_hosts_with
from mirrorq.aio.threads import in_thread, opened
from mirrorq.api.options import ClientOptions, DeclareOptions, NodeOptions, spelled_out

if TYPE_CHECKING:
    import os

    from mirrorq.client.client import Client as BlockingClient
    from mirrorq.node.node import Node as BlockingNode


class Host(Administration):
    """A node or a client, for one loop. Calls that are not here run in a thread, with the same
    arguments."""

    def __init__(self, host: BlockingNode | BlockingClient) -> None:
        self.host = host
        """The `mirrorq.Node` or `mirrorq.Client` that this one wraps."""

    @opening
    @spelled_out
    async def queue(self, name: str, **options: Unpack[DeclareOptions]) -> MirroredQueue:
        """Declare a queue, or find it, and return a handle for this loop.

        Arguments, result and errors are those of `mirrorq.Client.queue`.
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

        Arguments, result and errors are those of `mirrorq.Client.exchange`.
        """
        exchange = partial(self.host.exchange, name, kind, alternate=alternate)
        return Exchange(await opened(partial(exchange, passive=passive, timeout=timeout)))

    async def close(self) -> None:
        """As the host's `close`."""
        await in_thread(self.host.close)

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        """What a node or a client has besides, awaited."""
        method = getattr(self.host, name)
        if name.startswith("_") or not callable(method):
            raise AttributeError(f"{name} is not a method: take it from .host")
        return lambda *values, **named: in_thread(partial(method, *values, **named))

    def __repr__(self) -> str:
        return f"<aio {self.host!r}>"


class Node(Host):
    """`mirrorq.Node` for asyncio. Made by `await Node.open(name, path=…)`."""

    @classmethod
    @opening
    @spelled_out
    async def open(
        cls, name: str, *, path: str | os.PathLike[str], **options: Unpack[NodeOptions]
    ) -> Node:
        """Arguments and errors as of `mirrorq.Node`."""
        from mirrorq.node.node import Node as BlockingNode

        return cls(await opened(partial(BlockingNode, name, path=path, **options)))

    async def __aenter__(self) -> Node:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Client(Host):
    """`mirrorq.Client` for asyncio. Made by `connect`."""

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def of_host(host: Any) -> Host:
    """The same for what a handle lives on."""
    from mirrorq.client.client import Client as BlockingClient

    return Client(host) if isinstance(host, BlockingClient) else Node(host)


wrap_hosts_with(of_host)


@opening
@spelled_out
async def connect(
    endpoints: str | Sequence[str] | Mapping[str, Any] | None = None,
    **options: Unpack[ClientOptions],
) -> Client:
    """`mirrorq.connect`: the same queues from a process that is no node."""
    from mirrorq.client.client import connect as blocking_connect

    return Client(await opened(partial(blocking_connect, endpoints, **options)))
