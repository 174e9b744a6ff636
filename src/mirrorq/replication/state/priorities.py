"""Priorities: each one that is in use is a *lane* with an order and a horizon of its own.

Priority 0 is the lane that a queue always has, and `queue_state` keeps it in its own fields; what
is here costs nothing until a message of another priority comes. A lane stays once it was used, so
that its horizon is ahead of the next message of it.

- `Lane`: what the applied state knows of one priority above 0.
- `ReadyLanes`: the ready messages of a master's term.
- `Horizons`: how far ahead of demand a master moves each lane's horizon.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import define, field

from mirrorq.containers.ranges import Range, RangeSet
from mirrorq.protocol.ops import HorizonOp, HorizonsOp

HORIZON_STEP = 256
"""Least step of a delivery horizon: one op for so many deliveries."""

NOTHING = RangeSet()
"""What is ready in a lane that is not in use. Never changed."""


@define
class Lane:
    """One priority above 0."""

    horizon: int = 1
    """Messages of this lane below it may be handed out."""
    marks: list[Range] = field(factory=list)
    """Promotions, as `QueueState.marks`: each counts for messages of this lane only."""
    members: RangeSet = field(factory=RangeSet)
    """Sequences of its live messages."""


class ReadyLanes:
    """Ready messages: their places, in a range set for each priority in use."""

    def __init__(self, plain: RangeSet) -> None:
        self.plain = plain
        """Those of priority 0."""
        self._lanes: dict[int, RangeSet] = {}
        """Those of others, the highest first."""

    @property
    def count(self) -> int:
        """How many messages are ready."""
        if not self._lanes:
            return self.plain.count
        return self.plain.count + sum(lane.count for lane in self._lanes.values())

    def __bool__(self) -> bool:
        if self.plain:
            return True
        return bool(self._lanes) and any(self._lanes.values())

    def __iter__(self) -> Iterator[Range]:
        """Ranges of places in the order of delivery."""
        for lane in self._lanes.values():
            yield from lane
        yield from self.plain

    @property
    def priorities(self) -> list[int]:
        """Those in use, the highest first."""
        return [*self._lanes, 0]

    def top(self) -> tuple[int, RangeSet]:
        """The highest priority with a ready message, and what is ready of it; 0 when none is."""
        if self._lanes:
            for priority, lane in self._lanes.items():
                if lane:
                    return priority, lane
        return 0, self.plain

    def lane(self, priority: int) -> RangeSet:
        """What is ready of one priority; to be read and removed from only."""
        return self._lanes.get(priority, NOTHING) if priority else self.plain

    def add(self, priority: int, first: int, last: int) -> None:
        """These places have become ready."""
        if not priority:
            self.plain.add(first, last)
            return
        if priority not in self._lanes:
            self._lanes[priority] = RangeSet()
            self._lanes = dict(sorted(self._lanes.items(), reverse=True))
        self._lanes[priority].add(first, last)


class Horizons:
    """Keeps the horizons of one term ahead of demand: handing out waits for no round trip."""

    def __init__(self) -> None:
        self._is_pending = False
        self._announced: list[int] = []
        """Priorities above 0 that publishes of this term have named."""

    def announce(self, priority: int) -> None:
        """A publish of this priority is in the log: its horizon is moved at the same time."""
        if priority not in self._announced:
            self._announced.append(priority)

    def on_applied(self) -> None:
        """The op that was asked for is applied."""
        self._is_pending = False

    def due(
        self,
        ready: ReadyLanes,
        horizon: int,
        lanes: dict[int, Lane],
        next_place: int,
        wanted: int,
        prefetch: int,
    ) -> HorizonOp | HorizonsOp | None:
        """The op that moves what must be moved, if any.

        Args:
            ready: ready messages.
            horizon: that of priority 0.
            lanes: the lanes of the applied state.
            next_place: of the next message.
            wanted: how many messages consumers would take now.
            prefetch: the largest prefetch.
        """
        if self._is_pending:
            return None
        # What is ready of higher priorities goes first: lower lanes are not counted for that.
        step = max(prefetch, HORIZON_STEP, 2 * wanted)
        if not lanes and not self._announced:
            plain = ready.lane(0)
            front = plain.first if plain else next_place
            if front + wanted + step // 2 <= horizon:
                return None
            self._is_pending = True
            return HorizonOp(front + wanted + step)
        known = {0: horizon} | dict.fromkeys(self._announced, 1)
        known |= {priority: lane.horizon for priority, lane in lanes.items()}
        moved = []
        before = 0
        for priority, old in sorted(known.items(), reverse=True):
            lane = ready.lane(priority)
            if _reach(lane, next_place, wanted + step // 2 - before) > old:
                moved.append((priority, _reach(lane, next_place, wanted + step - before)))
            before += lane.count
        if not moved:
            return None
        self._is_pending = True
        if len(moved) == 1 and not moved[0][0]:
            return HorizonOp(moved[0][1])
        return HorizonsOp(tuple(reversed(moved)))


def _reach(lane: RangeSet, next_place: int, count: int) -> int:
    """A horizon that lets `count` messages of a lane pass, those to come included."""
    if count <= 0:
        return 0
    if count > lane.count:
        return next_place + count - lane.count
    return lane.nth(count) + 1
