"""Values of users, as msgspec packs them."""

from __future__ import annotations

from typing import Any


def plain(value: object) -> Any:
    """Return a value of a subclass of a plain type as that type, for msgspec, which packs none:
    numpy.str_, a template's safe text.

    Raises:
        TypeError: it is of another type.
    """
    match value:
        case str():
            return str.__str__(value)
        case bytes():
            return bytes(memoryview(value))
        case int():
            return int.__int__(value)
        case float():
            return float.__float__(value)
    raise TypeError(f"a value of type {type(value).__name__} cannot be sent")
