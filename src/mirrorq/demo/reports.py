"""Reports of the demo's processes about their roles and about the queue."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define


@define
class Produced:
    """Counts of the producer, in rows."""

    published: int = 0
    confirmed: int = 0
    refused: int = 0
    """Rows that were not confirmed, or with unknown outcome."""
    started_ms: int = 0
    is_done: bool = False


@define
class Consumed:
    """Counts of the consumer, in messages."""

    taken: int = 0
    """Deliveries, repeats included."""
    distinct: int = 0
    """Rows delivered at least once."""
    acked: int = 0
    refused: int = 0
    """Refused acks: the messages had gone back to the queue and come again."""
    last_ms: int = 0
    """Time of the last settled ack."""


@define
class QueueState:
    """State of the queue, as a peer sees it."""

    state: str = "starting"
    master: str | None = None
    epoch: int = 0
    in_sync: Sequence[str] = ()
    messages: int = 0
