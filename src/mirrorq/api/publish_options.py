"""The options of a `put` beside the bodies: the same for all messages of a frame.

The packer begins a new frame when terms differ. So neither a queue's state nor the C code holds an
object per message.
"""

from __future__ import annotations

import math
from datetime import timedelta

from attrs import frozen

from mirrorq.api.arguments import check_flags, check_text
from mirrorq.errors import ConfigError
from mirrorq.protocol import ops
from mirrorq.protocol.durations import milliseconds_in
from mirrorq.wire.properties import digest_of

Seconds = float | str | timedelta
"""A time as users give it: seconds, a text with a unit as "5m", or a timedelta."""

RETRY_S = 0.1
RETRY_MAX_S = 60.0
"""Least and longest delay before a failed message comes again to its callback."""

SECONDS_MAX = 100 * 366 * 24 * 3600
"""Longest time that a message may wait, in seconds: a hundred years."""


@frozen
class Terms:
    """Priority, delay, time to live and persistence of the messages of one frame. Immutable."""

    persistent: bool = True
    priority: int = 0
    delay_ms: int = 0
    ttl_ms: int = 0
    """0 = for ever."""
    is_unique: bool = False
    """True: the properties have unique keys."""

    @property
    def flags(self) -> int:
        """Bits of the terms in a frame's header."""
        transient = 0 if self.persistent else ops.FLAG_TRANSIENT
        unique = ops.FLAG_UNIQUE if self.is_unique else 0
        return transient | unique | self.priority << ops.PRIORITY_SHIFT

    @property
    def count_max(self) -> int:
        """Limit on single puts in one frame."""
        return ops.UNIQUE_COUNT_MAX if self.is_unique else PACK_COUNT


PACK_COUNT = 4096
PLAIN = Terms()
"""Terms of most messages."""
UNIQUE = Terms(is_unique=True)
"""Terms of most messages with unique keys."""


def terms_of(
    persistent: bool, priority: int, delay: Seconds | None, ttl: Seconds | None = None
) -> Terms:
    """Return the terms for a user's options.

    Raises:
        ConfigError: an option has a wrong type or is out of range.
    """
    if persistent is True and priority == 0 and delay is None and ttl is None:
        return PLAIN
    check_flags(persistent=persistent)
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise ConfigError(
            f"priority is {priority!r}: it must be an int from 0 to {ops.PRIORITY_MAX}"
        )
    if not 0 <= priority <= ops.PRIORITY_MAX:
        raise ConfigError(
            f"priority is {priority}: it must be from 0 to {ops.PRIORITY_MAX}, the higher the "
            "sooner"
        )
    delay_ms = 0 if delay is None else milliseconds("delay", delay)
    # A ttl of 0 ends at once; in a frame 0 means no ttl.
    ttl_ms = 0 if ttl is None else max(milliseconds("ttl", ttl), 1)
    return Terms(persistent, int(priority), delay_ms, ttl_ms)


def unique_of(unique: str | bytes | None, unique_for: Seconds | None) -> tuple[bytes, int] | None:
    """Return a unique key's digest and window in ms for the properties; 0: the queue's window.

    Raises:
        ConfigError: the key is empty, the time is invalid, or a time has no key.
        TypeError: the key is not a str or bytes.
    """
    if unique is None:
        if unique_for is not None:
            raise ConfigError(f"unique_for is {unique_for!r}, and there is no unique key")
        return None
    if not isinstance(unique, str | bytes):
        raise TypeError(f"unique is of type {type(unique).__name__}: give a str or bytes")
    if isinstance(unique, str):
        check_text("unique", unique)
    if not unique:
        raise ConfigError("unique is empty: give a key that names the message, or None")
    if unique_for is None:
        return digest_of(unique), 0
    window_ms = milliseconds("unique_for", unique_for)
    if not window_ms:
        raise ConfigError(f"unique_for is {unique_for!r}: it must be above 0")
    return digest_of(unique), window_ms


def milliseconds(name: str, seconds: Seconds) -> int:
    """Return a user's time in milliseconds, rounded up.

    Raises:
        ConfigError: it is not a time, below 0, or longer than a hundred years.
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
