"""What a `put` says of its messages beside their bodies: one for all messages of a frame.

The packer begins a new frame where terms differ, so that neither the state of a queue nor C ever
holds an object a message.
"""

from __future__ import annotations

import math
from datetime import timedelta

from attrs import frozen

from mirrorq.api.arguments import check_flags
from mirrorq.errors import ConfigError
from mirrorq.protocol.durations import milliseconds_in
from mirrorq.protocol.ops import (
    FLAG_TRANSIENT,
    FLAG_UNIQUE,
    PRIORITY_MAX,
    PRIORITY_SHIFT,
    UNIQUE_COUNT_MAX,
)
from mirrorq.wire.properties import digest_of

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
    is_unique: bool = False
    """Their properties have unique keys."""

    @property
    def flags(self) -> int:
        """Their bits in a frame's header."""
        transient = 0 if self.persistent else FLAG_TRANSIENT
        unique = FLAG_UNIQUE if self.is_unique else 0
        return transient | unique | self.priority << PRIORITY_SHIFT

    @property
    def count_max(self) -> int:
        """Most single puts of one frame."""
        return UNIQUE_COUNT_MAX if self.is_unique else PACK_COUNT


PACK_COUNT = 4096
PLAIN = Terms()
"""Those of most messages."""
UNIQUE = Terms(is_unique=True)
"""Those of most messages with unique keys."""


def terms_of(
    persistent: bool, priority: int, delay: Seconds | None, ttl: Seconds | None = None
) -> Terms:
    """The terms that a user has named.

    Raises:
        ConfigError: one is of the wrong type or out of its range.
    """
    if persistent is True and priority == 0 and delay is None and ttl is None:
        return PLAIN
    check_flags(persistent=persistent)
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


def unique_of(unique: str | bytes | None, unique_for: Seconds | None) -> tuple[bytes, int] | None:
    """What properties say of a unique key that a user has given.

    Raises:
        ConfigError: the key is empty, or the time is none, or there is no key for it.
        TypeError: the key is no str or bytes.
    """
    if unique is None:
        if unique_for is not None:
            raise ConfigError(f"unique_for is {unique_for!r}, and there is no unique key")
        return None
    if not isinstance(unique, str | bytes):
        raise TypeError(f"unique is of type {type(unique).__name__}: give a str or bytes")
    if not unique:
        raise ConfigError("unique is empty: give a key that names the message, or None")
    if unique_for is None:
        return digest_of(unique), 0
    window_ms = milliseconds("unique_for", unique_for)
    if not window_ms:
        raise ConfigError(f"unique_for is {unique_for!r}: it must be above 0")
    return digest_of(unique), window_ms


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
