"""Sizes in a store, for status and metrics."""

from __future__ import annotations

from collections.abc import Callable

from mirrorq.errors import MirrorQError


def known_bytes(read: Callable[[], int]) -> int:
    """Return a size that the store tells; 0 if the store cannot be read."""
    try:
        return read()
    except MirrorQError:
        return 0
