"""Exceptions that somebody else has named: a node that answers, the catalog's leader."""

from __future__ import annotations

from typing import Any

from mirrorq import errors

__all__ = ["named_error"]


def named_error(name: str, text: str) -> errors.MirrorQError:
    """Make an exception of mirrorq by the name of its class; of no other class is one made."""
    kind: Any = getattr(errors, name) if name in errors.__all__ else errors.MirrorQError
    made: errors.MirrorQError = kind(text)
    return made
