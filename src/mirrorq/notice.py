"""What listeners and the log are told of a node or a client."""

from __future__ import annotations

from attrs import frozen

__all__ = ["Notice"]


@frozen
class Notice:
    """Something that listeners and the log are told."""

    kind: str
    text: str
    queue_id: int = 0
