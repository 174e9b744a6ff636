"""A process that is no node: `connect()` and what it needs.

A `Client` is a host of handles, as a node is one: its `driver` owns the one socket to an entry
node, steps the handles on a thread of its own, and goes on to the next node when that one is
silent (`keepalive`). What the entry node does for it is `node.gateway`.

May import: api and what that may, transport. Begin with `client`.
"""

from __future__ import annotations

import importlib

_PUBLIC = frozenset({"Client", "_reconnect", "connect"})


def __getattr__(name: str) -> object:
    """Names that were at home here before there were rooms: pickles and users know them."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module("mirrorq.client.client"), name)
    return value
