"""The time of an explored queue: what the exploration says, the same at every member.

How members keep the time between them is no matter of orders of messages: it has tests of its
own, and would make two states of what behaves alike.
"""

from __future__ import annotations

from mirrorq.replication.queue_time import QueueTime

__all__ = ["ToldTime"]


class ToldTime(QueueTime):
    """It stands where the step has put it."""

    told_us = 0
    is_due = False

    def begin_step(self, steady_us: int) -> None:
        self._steady_us = steady_us

    def install(self, *, is_master: bool) -> None:
        pass

    def record_stamp(self, stamp_us: int) -> None:
        pass

    def hear(self, told_us: int) -> None:
        pass
