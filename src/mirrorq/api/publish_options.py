"""What a `put` says of its messages beside their bodies: one for all messages of a frame.

The packer begins a new frame where terms differ, so that neither the state of a queue nor C ever
holds an object a message.
"""

from __future__ import annotations

import math
from datetime import timedelta

from attrs import frozen

from mirrorq.api.arguments import check_flag
from mirrorq.errors import ConfigError
from mirrorq.protocol.durations import milliseconds_in
from mirrorq.protocol.ops import FLAG_TRANSIENT, PRIORITY_MAX, PRIORITY_SHIFT

Seconds = float | str | timedelta
"""A time as users give it: seconds, a text with a unit as "5m", or a timedelta."""

SECONDS_MAX = 100 * 366 * 24 * 3600
"""Longest time that a message may wait: a hundred years."""


@frozen
class Terms:
    """Priority, delay, time to live and persistence of the messages of one frame. A value."""

    persistent: bool = True
    priority: int = 0
    delay_ms: int = 0
    ttl_ms: int = 0
    """0 = for ever."""

    @property
    def flags(self) -> int:
        """Their bits in a frame's header."""
        transient = 0 if self.persistent else FLAG_TRANSIENT
        return transient | self.priority << PRIORITY_SHIFT


PLAIN = Terms()
"""Those of most messages."""


def terms_of(
    persistent: bool, priority: int, delay: Seconds | None, ttl: Seconds | None = None
) -> Terms:
    """The terms that a user has named.

    Raises:
        ConfigError: one is of the wrong type or out of its range.
    """
    if persistent is True and priority == 0 and delay is None and ttl is None:
        return PLAIN
    check_flag("persistent", persistent)
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise ConfigError(f"priority is {priority!r}: it must be an int from 0 to {PRIORITY_MAX}")
    if not 0 <= priority <= PRIORITY_MAX:
        raise ConfigError(
            f"priority is {priority}: it must be from 0 to {PRIORITY_MAX}, the higher the sooner"
        )
    delay_ms = 0 if delay is None else milliseconds("delay", delay)
    # A ttl of 0 ends at once; in a frame 0 is none.
    ttl_ms = 0 if ttl is None else max(milliseconds("ttl", ttl), 1)
    return Terms(persistent, priority, delay_ms, ttl_ms)


def milliseconds(name: str, seconds: Seconds) -> int:
    """A time that a user gave, rounded up to milliseconds.

    Raises:
        ConfigError: it is none, below 0, or longer than a hundred years.
    """
    given = seconds
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()
    elif isinstance(seconds, str) and (found := milliseconds_in(seconds)) is not None:
        seconds = found / 1000
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise ConfigError(
            f"{name} is {given!r}: it must be a number of seconds, a text with a unit, as '30s', "
            "'5m' or '250ms', or a timedelta"
        )
    if not 0 <= seconds <= SECONDS_MAX:
        raise ConfigError(f"{name} is {seconds}: it must be from 0 to {SECONDS_MAX} seconds")
    return math.ceil(seconds * 1000)
