"""How long a call waits: the time-out that a user gives, and the moment at which it is over."""

from __future__ import annotations

import time

__all__ = ["check_timeout", "deadline_of", "left_until"]


def check_timeout(timeout: float) -> None:
    """Refuse a time-out that is none.

    Args:
        timeout: in seconds.

    Raises:
        ValueError: it is below 0, or no number (nan).
        TypeError: it is not of a number's type.
    """
    try:
        is_one = timeout >= 0
    except TypeError:
        raise TypeError(f"the timeout is {timeout!r}: it is a number of seconds") from None
    if not is_one:
        raise ValueError(f"the timeout is {timeout}: it is 0 or more seconds")


def deadline_of(timeout: float | None) -> float | None:
    """Return when a call with this time-out gives up, as `time.monotonic` tells it; None: never.

    Raises:
        ValueError: it is below 0.
    """
    if timeout is None:
        return None
    check_timeout(timeout)
    return time.monotonic() + timeout


def left_until(deadline: float | None) -> float | None:
    """Return how many seconds are left, 0 or more; None without a deadline."""
    return None if deadline is None else max(deadline - time.monotonic(), 0)
