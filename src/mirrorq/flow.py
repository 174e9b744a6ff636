"""What a master tells a handle of the room in its queue, so that a put waits at its caller. Pure.

Told is how far a producer may go: so many messages beyond the highest number that the master
has. A handle's own puts use that up without a word; so there is news only when others fill the
queue, or when so much has become free that the handle knows less than half of it.
"""

from __future__ import annotations

from attrs import define

from mirrorq.limits import Depth, Limit, full_text
from mirrorq.messages import Flow


@define
class Told:
    """What one attachment was told last, and what it has published since."""

    flow: Flow | None = None
    """None: nothing, which means that there is no bound."""
    size_since: int = 0
    """Bytes of bodies that it has published since."""

    def news(
        self, limit: Limit | None, depth: Depth, producer: int, highest: int, count_max: int
    ) -> Flow | None:
        """What the handle should know now, None when it knows.

        Args:
            producer, highest: the handle's producer id and its highest number in the log.
            count_max: more than this is not worth telling.
        """
        if limit is None or limit.overflow != "block":
            flow = None if self.flow is None else Flow(False)
            self.flow = None
            return flow
        room = limit.room(depth)
        flow = Flow(
            True,
            producer,
            highest,
            min(max(room.count, 0), count_max),
            max(room.size, 0),
            limit.count,
            limit.size,
            full_text(limit, depth) if limit.is_reached(depth) else "",
        )
        if not self._is_news(flow):
            return None
        self.flow = flow
        self.size_since = 0
        return flow

    def _is_news(self, flow: Flow) -> bool:
        told = self.flow
        if told is None or told.producer != flow.producer:
            return True
        if (told.count_max, told.size_max) != (flow.count_max, flow.size_max):
            return True
        count = told.count - (flow.highest - told.highest)
        size = told.size - self.size_since
        return _differs(count, flow.count) or _differs(size, flow.size)


def _differs(known: int, now: int) -> bool:
    """Whether there is less room than a handle believes, or more than twice as much."""
    return now < known or (now > known and now >= 2 * known)
