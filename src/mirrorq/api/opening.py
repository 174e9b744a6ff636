"""How a handle comes about: by whom its host is made, and whether its queue is sharded.

Nothing in this room knows a node: the root of the package says here, before anybody can ask, how a
`MirroredQueue` that is given a path has one, and a client that is given a folder. Which kind of
handle a queue has is chosen here and nowhere else.
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
"""What has a host for one `Use`, given that and the arguments of `Node`; and what ends the use."""

_find: Callable[[], Embedding] | None = None


def embed_with(find: Callable[[], Embedding]) -> None:
    """Have `find` tell how queues that are opened by a path get their hosts."""
    global _find
    _find = find


def embedding() -> Embedding:
    """Return what has hosts for handles that bring their own, and what ends that."""
    assert _find is not None, "importing mirrorq sets it"
    return _find()


_local: Callable[[], Callable[..., Any]] | None = None


def open_local_with(find: Callable[[], Callable[..., Any]]) -> None:
    """Have `find` tell how `mirrorq:///folder` is opened."""
    global _local
    _local = find


def local_opening() -> Callable[..., Any]:
    """Return what opens it: `mirrorq.local`."""
    assert _local is not None, "importing mirrorq sets it"
    return _local()


def handle_on(host: Host, declared: Declared, name: str) -> Handle | ShardedHandle:
    """The handle for a queue, which is not open yet."""
    if declared.shards:
        from mirrorq.api.sharded.handle import ShardedHandle

        return ShardedHandle(host, declared, name)
    from mirrorq.api.handle import Handle

    return Handle(host, declared, name)
