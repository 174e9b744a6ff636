"""What listeners and the log are told of a node or a client."""

from __future__ import annotations

from msgspec import Struct

__all__ = ["Notice"]


class Notice(Struct, frozen=True, gc=False):
    """Something that listeners and the log are told."""

    kind: str
    text: str
    queue_id: int = 0
