"""Creation of handles: the source of a handle's host, and the kind of handle for a queue.

No module of `api` knows a node. At import the root of the package registers here how a
`MirroredQueue` with a path gets a node, and how a client gets a local node. The kind of a queue's
handle is chosen here only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mirrorq.api.handle import Handle
    from mirrorq.api.host import Declared, Host
    from mirrorq.api.sharded.handle import ShardedHandle
    from mirrorq.api.sharing import Use

Embedding = tuple[Callable[..., "Host"], Callable[["Use"], None]]
"""Two functions: get a host for a `Use` from the arguments of `Node`; end a use."""

_find: Callable[[], Embedding] | None = None


def embed_with(find: Callable[[], Embedding]) -> None:
    """Register `find`, which returns the functions for queues that are opened by a path."""
    global _find
    _find = find


def embedding() -> Embedding:
    """Return the functions for handles that bring their own host."""
    assert _find is not None, "importing mirrorq sets it"
    return _find()


_local: Callable[[], Callable[..., Any]] | None = None


def open_local_with(find: Callable[[], Callable[..., Any]]) -> None:
    """Register `find`, which returns the function that opens `mirrorq:///folder`."""
    global _local
    _local = find


def local_opening() -> Callable[..., Any]:
    """Return the function that opens a local node: `mirrorq.local`."""
    assert _local is not None, "importing mirrorq sets it"
    return _local()


def handle_on(host: Host, declared: Declared, name: str) -> Handle | ShardedHandle:
    """Return a handle for a queue, not open yet."""
    if declared.shards:
        from mirrorq.api.sharded.handle import ShardedHandle

        return ShardedHandle(host, declared, name)
    from mirrorq.api.handle import Handle

    return Handle(host, declared, name)
