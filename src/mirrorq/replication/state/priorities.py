"""Priorities: each one that is in use is a *level* with an order and a horizon of its own.

Priority 0 is the level that a queue always has, and `queue_state` keeps it in its own fields; what
is here costs nothing until a message of another priority comes. A level stays once it was used, so
that its horizon is ahead of the next message of it.

- `PriorityLevel`: what the applied state knows of one priority above 0.
- `ReadyLevels`: the ready messages of a master's term.
- `Horizons`: how far ahead of demand a master moves each level's horizon.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import define, field

from mirrorq.containers.ranges import Range, RangeSet
from mirrorq.protocol.ops import HorizonOp, HorizonsOp

HORIZON_STEP = 256
"""Least step of a delivery horizon: one op for so many deliveries."""

REACH_COUNT = 16_384
"""The horizons of levels are no further ahead than about twice this."""

NOTHING = RangeSet()
"""What is ready in a level that is not in use. Never changed."""


@define
class PriorityLevel:
    """One priority above 0."""

    horizon: int = 1
    """Messages of this level below it may be handed out."""
    marks: list[Range] = field(factory=list)
    """Promotions, as `QueueState.marks`: each counts for messages of this level only."""
    members: RangeSet = field(factory=RangeSet)
    """Sequences of its live messages."""


class ReadyLevels:
    """Ready messages: their places, in a range set for each priority in use."""

    def __init__(self, plain: RangeSet) -> None:
        self.plain = plain
        """Those of priority 0."""
        self._levels: dict[int, RangeSet] = {}
        """Those of others, the highest first."""

    @property
    def count(self) -> int:
        """How many messages are ready."""
        if not self._levels:
            return self.plain.count
        return self.plain.count + sum(level.count for level in self._levels.values())

    def __bool__(self) -> bool:
        if self.plain:
            return True
        return bool(self._levels) and any(self._levels.values())

    def __iter__(self) -> Iterator[Range]:
        """Ranges of places in the order of delivery."""
        for level in self._levels.values():
            yield from level
        yield from self.plain

    @property
    def priorities(self) -> list[int]:
        """Those in use, the highest first."""
        return [*self._levels, 0]

    def top(self) -> tuple[int, RangeSet]:
        """The highest priority with a ready message, and what is ready of it; 0 when none is."""
        if self._levels:
            for priority, level in self._levels.items():
                if level:
                    return priority, level
        return 0, self.plain

    def level(self, priority: int) -> RangeSet:
        """What is ready of one priority; to be read and removed from only."""
        return self._levels.get(priority, NOTHING) if priority else self.plain

    def begin(self, priority: int, ready: RangeSet) -> None:
        """A priority above 0 is in use, and this is ready of it."""
        self._levels[priority] = ready
        self._levels = dict(sorted(self._levels.items(), reverse=True))

    def add(self, priority: int, first: int, last: int) -> None:
        """These places have become ready."""
        if not priority:
            self.plain.add(first, last)
            return
        if priority not in self._levels:
            self.begin(priority, RangeSet())
        self._levels[priority].add(first, last)


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
        ready: ReadyLevels,
        horizon: int,
        levels: dict[int, PriorityLevel],
        next_place: int,
        wanted: int,
        prefetch: int,
    ) -> HorizonOp | HorizonsOp | None:
        """The op that moves what must be moved, if any.

        Args:
            ready: ready messages.
            horizon: that of priority 0.
            levels: the levels of the applied state.
            next_place: of the next message.
            wanted: how many messages consumers would take now.
            prefetch: the largest prefetch.
        """
        if self._is_pending:
            return None
        # What is ready of higher priorities goes first: lower levels are not counted for that.
        step = max(prefetch, HORIZON_STEP, 2 * wanted)
        if not levels and not self._announced:
            plain = ready.level(0)
            front = plain.first if plain else next_place
            if front + wanted + step // 2 <= horizon:
                return None
            self._is_pending = True
            return HorizonOp(front + wanted + step)
        # What is ready of a level is counted out from its front: not for all who would take it.
        wanted, step = min(wanted, REACH_COUNT), min(step, REACH_COUNT)
        known = {0: horizon} | dict.fromkeys(self._announced, 1)
        known |= {priority: level.horizon for priority, level in levels.items()}
        moved = []
        before = 0
        for priority, old in sorted(known.items(), reverse=True):
            level = ready.level(priority)
            if _reach(level, next_place, wanted + step // 2 - before) > old:
                moved.append((priority, _reach(level, next_place, wanted + step - before)))
            before += level.count
        if not moved:
            return None
        self._is_pending = True
        if len(moved) == 1 and not moved[0][0]:
            return HorizonOp(moved[0][1])
        return HorizonsOp(tuple(reversed(moved)))


def _reach(level: RangeSet, next_place: int, count: int) -> int:
    """A horizon that lets `count` messages of a level pass, those to come included."""
    if count <= 0:
        return 0
    if count > level.count:
        return next_place + count - level.count
    return level.nth(count) + 1
