"""Delays before a failed message comes again to its callback. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from mirrorq.api.publish_options import RETRY_MAX_S, RETRY_S, Seconds, milliseconds
from mirrorq.errors import ConfigError

if TYPE_CHECKING:
    from mirrorq.api.message import Message

SPREAD = 0.25
"""Random share of a delay, shorter or longer: messages that failed together come back apart."""


@frozen
class Retries:
    """Delays that double with each delivery of a message. Immutable."""

    first_s: float = RETRY_S
    longest_s: float = RETRY_MAX_S

    @classmethod
    def of(cls, first: Seconds, longest: Seconds) -> Retries:
        """Return the delays for a user's values.

        Raises:
            ConfigError: a value is not a time, or the longest is shorter than the first.
        """
        first_ms = milliseconds("retry_delay", first)
        longest_ms = milliseconds("retry_delay_max", longest)
        if longest_ms < first_ms:
            raise ConfigError(
                f"retry_delay_max is {longest!r}: it must be at least retry_delay, {first!r}"
            )
        return cls(first_ms / 1000, longest_ms / 1000)

    def delay_s(self, message: Message) -> float:
        """Return the seconds after which the message comes again."""
        doubled = min(self.first_s * 2.0 ** min(message.delivery_count - 1, 30), self.longest_s)
        # Derived from the sequence: as good as random, and the same in each run.
        share = message.sequence * 0x9E3779B97F4A7C15 % 2**64 / 2**64
        return doubled * (1 - SPREAD + 2 * SPREAD * share)
