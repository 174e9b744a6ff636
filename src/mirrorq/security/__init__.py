"""Keys and their rights, light enough for clients.

`settings.Security` is a secret key and the known public keys; `key_files` reads and writes them;
`roles` decides if a key allows an action. CURVE itself is in `transport`, the rights that a request
needs in `node.permissions`.

May import: transport, protocol. Begin with `settings`.
"""

from __future__ import annotations

import importlib

_PUBLIC = frozenset({"Security"})


def __getattr__(name: str) -> object:
    """Return names that were here before there were rooms: pickles and users know the names."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module("mirrorq.security.settings"), name)
    return value
