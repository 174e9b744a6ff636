"""When the state of a queue that has become quiet is written. Pure."""

from __future__ import annotations

__all__ = ["CHEAP_BYTES", "QUIET_MS", "quiet_ms"]

QUIET_MS = 1000
"""A queue that has been quiet for this long is checkpointed, so that its store is drained; a large
one after longer, none after less."""
CHEAP_BYTES = 256 * 1024
"""A state of this size is written without a thought."""
QUIET_MS_MAX = 60_000


def quiet_ms(state_bytes: int) -> int:
    """How long a queue whose state takes about so many bytes has to be quiet.

    A deep queue whose messages differ in size or age has a state of megabytes. One that is put
    into now and then would have all of it written after each message.
    """
    return min(QUIET_MS * max(1, state_bytes // CHEAP_BYTES), QUIET_MS_MAX)
