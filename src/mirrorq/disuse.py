"""Whether a queue with `expires` has been unused for so long: a master's judgement. Pure.

A use is what it is in RabbitMQ: a consumer, a get, a declaration (which is a handle that is
opened: it attaches to the master). A message that a handle holds is one too. Publishing is
none. Nothing of it is replicated: a new master counts from the start of its reign.

The deletion names the reign, so that it fails when another master has taken over. Once it is
asked for it may be done at any moment and is not taken back: a consumer that comes after that
is not seated, as with `vacancy`.
"""

from __future__ import annotations

from attrs import define

from mirrorq.messages import DeleteQueue

__all__ = ["Disuse"]


@define
class Disuse:
    """One reign over one queue; of no effect while no policy says `expires`."""

    queue_id: int
    reign: int
    expires_ms: int | None = None
    is_ending: bool = False
    """The deletion is asked for: nobody is seated any more."""
    _used_ms: int = 0
    """When the queue was last used."""

    def use(self, now_ms: int) -> None:
        """Somebody uses the queue at this moment."""
        self._used_ms = max(self._used_ms, now_ms)

    def judge(self, now_ms: int, is_used: bool) -> DeleteQueue | None:
        """Return the deletion that is due, if any.

        Args:
            is_used: there are consumers, gets that wait, or messages that are held.
        """
        if is_used:
            self.use(now_ms)
        if self.is_ending or self.expires_ms is None:
            return None
        if is_used or now_ms < self._used_ms + self.expires_ms:
            return None
        self.is_ending = True
        return DeleteQueue(self.queue_id, self.reign)

    def wake_at_ms(self) -> int | None:
        """When to judge again though nothing happens."""
        if self.is_ending or self.expires_ms is None:
            return None
        return self._used_ms + self.expires_ms
