"""Waiting in a loop for the outcome of a put, a publish or an ack."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from mirrorq.api.arguments import left_until
from mirrorq.api.confirmation import Confirmation, Settlement
from mirrorq.api.waits import Waits


async def outcome_of(
    run: Callable[[Waits[bool]], Awaitable[bool]],
    outcome: Confirmation | Settlement,
    until: float | None,
) -> Any:
    """Wait for an outcome, and return its value or raise its error.

    Args:
        run: runs a waiting call in the loop (`Bells.run`).
        outcome: a confirmation or a settlement.
        until: when to give up, on the monotonic clock; None: never.

    Raises:
        TimeoutError: there is no outcome by then. The outcome stays open.
    """
    if until is None:
        return await outcome
    await run(outcome._ending(left_until(until)))
    return outcome.result(0)
