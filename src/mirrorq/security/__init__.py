"""Keys and what they allow, light enough for clients.

`settings.Security` is a secret key and those one goes by; `key_files` reads and writes them;
`roles` tells whether a key allows something. CURVE itself is in `transport`, each request's need in
`node.permissions`.

May import: transport, protocol. Begin with `settings`.
"""

from __future__ import annotations

import importlib

_PUBLIC = frozenset({"Security"})


def __getattr__(name: str) -> object:
    """Names that were at home here before there were rooms: pickles and users know them."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module("mirrorq.security.settings"), name)
    return value
