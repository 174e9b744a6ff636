"""Clients that unpickled handles bring with them: one for each cluster in a process, counted."""

from __future__ import annotations

import os
import threading
from functools import partial

from attrs import define

from mirrorq.client import Client, connect
from mirrorq.config import Config
from mirrorq.queue import MirroredQueue
from mirrorq.security import Security

__all__ = ["reopen"]

_Key = tuple[int, tuple[str, ...], Config, bool, Security | None]


@define
class _Shared:
    client: Client
    users: int = 0


_LOCK = threading.Lock()
_CLIENTS: dict[_Key, _Shared] = {}


def reopen(
    endpoints: tuple[str, ...],
    config: Config,
    insecure: bool,
    timeout: float | None,
    name: str,
    security: Security | None = None,
) -> MirroredQueue:
    """What a pickled handle becomes: a handle on the same queue, on this process's client.

    Raises:
        NoQuorum: no node answered in time.
        QueueNotFound: the queue has been deleted meanwhile.
    """
    key = (os.getpid(), endpoints, config, insecure, security)
    with _LOCK:
        shared = _CLIENTS.get(key)
        if shared is None or shared.client.closed():
            client = connect(
                endpoints, config=config, insecure=insecure, security=security, timeout=timeout
            )
            shared = _CLIENTS[key] = _Shared(client)
        shared.users += 1
    try:
        handle = shared.client.queue(name, passive=True, timeout=timeout)
    except BaseException:
        _release(key, shared)
        raise
    handle._release = partial(_release, key, shared)
    return handle


def _release(key: _Key, shared: _Shared) -> None:
    """A handle no longer needs it; the last one closes it."""
    with _LOCK:
        shared.users -= 1
        is_last = shared.users == 0
        if is_last and _CLIENTS.get(key) is shared:
            del _CLIENTS[key]
    if is_last:
        shared.client.close()
