"""A process that is not a node: `connect()` and its parts.

A `Client` hosts handles, as a node does: its `driver` owns the connections to entry nodes
(`entry`), steps the handles on a thread of its own, and goes on to the next node when an entry node
is silent (`keepalive`). `node.gateway` is the entry node's side.

May import: api and what that may, transport. Begin with `client`.
"""

from __future__ import annotations

import importlib

_PUBLIC = frozenset({"Client", "_reconnect", "connect"})


def __getattr__(name: str) -> object:
    """Load names of this module's past: pickles and users refer to them here."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module("mirrorq.client.client"), name)
    return value
