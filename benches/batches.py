"""What several benches do with a queue: put and take many messages at a time."""

from __future__ import annotations

from mirrorq import MirroredQueue

__all__ = ["put_batches", "take_batches"]


def put_batches(handle: MirroredQueue, bodies: list[bytes], batches: int, within_s: float) -> None:
    """Put these so many times; return when all is confirmed."""
    confirmations = [handle.put_many(bodies) for _ in range(batches)]
    for confirmation in confirmations:
        confirmation.result(within_s)


def take_batches(handle: MirroredQueue, count: int, batch: int, within_s: float) -> None:
    """Take and ack so many; return when every ack is resolved.

    Raises:
        TimeoutError: nothing came for so long.
    """
    settlements = []
    while count > 0:
        messages = handle.get_many(min(batch, count), timeout=within_s)
        if not messages:
            raise TimeoutError(f"{count} messages did not come within {within_s:.0f} s")
        settlements.append(handle.ack_many(messages))
        count -= len(messages)
    for settlement in settlements:
        settlement.result(within_s)
