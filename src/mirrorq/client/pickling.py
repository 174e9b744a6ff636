"""Clients that unpickled handles bring with them: one for each cluster in a process, counted."""

from __future__ import annotations

import os
from functools import partial

from mirrorq.api.queue import MirroredQueue
from mirrorq.api.sharing import Sharing, Use
from mirrorq.client.client import Client, connect
from mirrorq.config import Config
from mirrorq.security.settings import Security

__all__ = ["reopen"]

_CLIENTS: Sharing[Client] = Sharing()


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

    def make() -> Client:
        return connect(
            endpoints, config=config, insecure=insecure, security=security, timeout=timeout
        )

    use = Use()
    try:
        key = (os.getpid(), endpoints, config, insecure, security)
        client = _CLIENTS.begin(use, key, None, make, lambda known, _: not known.closed())
        handle = client.queue(name, passive=True, timeout=timeout)
        handle._release = partial(_CLIENTS.end, use)
        return handle
    except BaseException:
        _CLIENTS.end(use)
        raise
