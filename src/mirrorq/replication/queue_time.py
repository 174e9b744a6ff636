"""The time of one queue, as one of its members knows it. Pure.

Durations in a queue (TTLs, delays, the idle time of a producer's id) are measured by the queue's
own time. The stamps of its ops carry the time. It begins near the wall clock of the first master.
Each later master continues it by a clock that is never set (`steady_time`).

Guarantee. However the wall clocks of the members are set: the time never goes back and never stands
still. A change of masters makes it wrong by no more than the duration of the change.

How it works. A member knows by how much the queue's time is ahead of its own steady time: its
*lead*. The master sends the time along with its ops, and each mirror passes it on. So a promoted
mirror knows how much time has passed since the last op, however long the queue was idle. A message
tells the time at which it was sent. A later time than expected is believed at once. An earlier time
may only mean a slow message, so the lead falls by a small part of the time since the last message
(a sixteenth). This is more than two clocks drift apart, so a fast lead is corrected. The first
message of an epoch is believed as it is: it comes from the master of that epoch. Older knowledge
may rest on a wrong clock at a start, or on an op that was cut.

Times of messages are times of the queue, so they should be near the wall clocks. A master lets its
lead approach the wall clock by 1 in 2000, which is less than an hour in 80 days.

Invariants:
1. `now_us` is at least the stamp of every op in the log.
2. `now_us` never falls while a member leads.
"""

from __future__ import annotations

DRIFT = 16
"""A lead falls by at most this fraction (1 / 16) of the time since the last message."""
TIME_MAX_US = 1 << 62
"""Greatest valid time, beyond all clocks. Greater values are cut to fit an op's stamp."""
KEPT_US = 500_000
"""A lead that has changed by this much is kept again for the node's next life."""
FADE = 2000
"""A master's lead fades by this fraction (1 / 2000) of the time that goes by."""


class QueueTime:
    """Queue time of one member. All times are microseconds since 1970-01-01 UTC.

    Args:
        ahead_us: lead that was kept in an earlier life of this node.
    """

    def __init__(self, ahead_us: int = 0) -> None:
        self.ahead_us = ahead_us
        self._kept_us = ahead_us
        self._steady_us = 0
        """This node's steady time in this step; 0 before the first step."""
        self._stamp_us = 0
        """Greatest stamp of an op in the log."""
        self._heard_us = 0
        """Steady time of the last message of this epoch's master; 0: none."""
        self._faded_us = 0
        """At a master: steady time up to which its lead has faded."""
        self._is_leading = False

    @property
    def now_us(self) -> int:
        """The queue's time in this step."""
        return max(self._steady_us + self.ahead_us, self._stamp_us)

    @property
    def told_us(self) -> int:
        """The queue's time for other members; 0 before the first step."""
        return self.now_us if self._steady_us else 0

    @property
    def is_due(self) -> bool:
        """Return true if the lead must be kept again for a later life. With equal wall clocks this
        never happens."""
        is_far = abs(self.ahead_us - self._kept_us) >= KEPT_US
        return is_far and (self._is_leading or self._heard_us > 0)

    def keep(self) -> int:
        """Return the lead to be kept for a later life."""
        self._kept_us = self.ahead_us
        return self.ahead_us

    def begin_step(self, steady_us: int) -> None:
        """Begin a step."""
        if steady_us <= self._steady_us:
            return
        is_first, self._steady_us = not self._steady_us, steady_us
        if is_first:
            self._raise(self._stamp_us)
            self._faded_us = self._steady_us
        if self._is_leading and self._steady_us - self._faded_us >= FADE:
            self._fade()

    def install(self, *, is_master: bool) -> None:
        """Begin an epoch."""
        self._heard_us = 0
        if is_master and not self._is_leading and self._steady_us:
            self.ahead_us = self.now_us - self._steady_us
            self._faded_us = self._steady_us
        self._is_leading = is_master

    def record_stamp(self, stamp_us: int) -> None:
        """Note the stamp of an op in the log, which may be an old op that comes late."""
        stamp_us = min(stamp_us, TIME_MAX_US)
        self._stamp_us = max(self._stamp_us, stamp_us)
        if self._steady_us:
            self._raise(stamp_us)

    def cut(self, stamp_us: int) -> None:
        """Forget ops after this stamp: they are cut, and their stamps do not count."""
        self._stamp_us = min(self._stamp_us, stamp_us)
        self._heard_us = 0

    def hear(self, told_us: int) -> None:
        """Take the time from the left member; 0: its version sends none."""
        if not told_us or not self._steady_us or self._is_leading:
            return
        ahead_us = min(told_us, TIME_MAX_US) - self._steady_us
        if self._heard_us:
            since_us = self._steady_us - self._heard_us
            ahead_us = max(ahead_us, self.ahead_us - since_us // DRIFT)
        self.ahead_us = max(ahead_us, self._stamp_us - self._steady_us)
        self._heard_us = self._steady_us

    def _raise(self, least_us: int) -> None:
        self.ahead_us = max(self.ahead_us, least_us - self._steady_us)

    def _fade(self) -> None:
        parts = (self._steady_us - self._faded_us) // FADE
        self._faded_us += parts * FADE
        if self.ahead_us > 0:
            self.ahead_us = max(self.ahead_us - parts, 0)
        else:
            self.ahead_us = min(self.ahead_us + parts, 0)
