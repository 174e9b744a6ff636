"""When a message comes again that a callback has failed on. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from mirrorq.api.publish_options import Seconds, milliseconds
from mirrorq.errors import ConfigError

if TYPE_CHECKING:
    from mirrorq.api.message import Message

RETRY_S = 0.1
RETRY_MAX_S = 60.0
SPREAD = 0.25
"""A delay is up to so much of it shorter or longer: what has failed together comes back apart."""


@frozen
class Retries:
    """Delays that double with each delivery of a message. A value."""

    first_s: float = RETRY_S
    longest_s: float = RETRY_MAX_S

    @classmethod
    def of(cls, first: Seconds, longest: Seconds) -> Retries:
        """Return what a user has said.

        Raises:
            ConfigError: one of them is no time, or the longest is the shorter one.
        """
        first_ms = milliseconds("retry_delay", first)
        longest_ms = milliseconds("retry_delay_max", longest)
        if longest_ms < first_ms:
            raise ConfigError(
                f"retry_delay_max is {longest!r}: it must be at least retry_delay, {first!r}"
            )
        return cls(first_ms / 1000, longest_ms / 1000)

    def delay_s(self, message: Message) -> float:
        """Return after how many seconds this message is to come again."""
        doubled = min(self.first_s * 2.0 ** min(message.delivery_count - 1, 30), self.longest_s)
        # By its sequence, which is as good as by chance and the same in each run.
        share = message.sequence * 0x9E3779B97F4A7C15 % 2**64 / 2**64
        return doubled * (1 - SPREAD + 2 * SPREAD * share)
