"""Priorities: each priority in use is a *level* with its own order and horizon.

Priority 0 is the level that every queue has, and `queue_state` keeps it in its own fields. The
classes here cost nothing until a message of another priority comes. A level stays once it was used,
so its horizon stays ahead of the next message of the level.

- `PriorityLevel`: applied state of one priority above 0.
- `ReadyLevels`: the ready messages of a master's term.
- `Horizons`: how far ahead of demand a master moves each level's horizon.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import define, field

from mirrorq.containers.ranges import Range, RangeSet
from mirrorq.protocol.ops import HorizonOp, HorizonsOp

HORIZON_STEP = 256
"""Least step of a delivery horizon: an op for at least so many deliveries."""

REACH_COUNT = 16_384
"""Bound of the horizons of levels: about twice this number of messages ahead."""

NOTHING = RangeSet()
"""Ready messages of a level that is not in use. Never changed."""


@define
class PriorityLevel:
    """Applied state of a priority above 0."""

    horizon: int = 1
    """Messages of this level at lower places may be delivered."""
    marks: list[Range] = field(factory=list)
    """Promotions, as in `QueueState.marks`. A mark counts for messages of this level only."""
    members: RangeSet = field(factory=RangeSet)
    """Sequences of the level's live messages."""


class ReadyLevels:
    """Ready messages: their places, in a range set for each priority in use."""

    def __init__(self, plain: RangeSet) -> None:
        self.plain = plain
        """Places of priority 0."""
        self._levels: dict[int, RangeSet] = {}
        """Places of the priorities above 0, the highest first."""

    @property
    def count(self) -> int:
        """Number of ready messages."""
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
        """Priorities in use, the highest first."""
        return [*self._levels, 0]

    def top(self) -> tuple[int, RangeSet]:
        """Highest priority with a ready message, and its ready places; 0 without any."""
        if self._levels:
            for priority, level in self._levels.items():
                if level:
                    return priority, level
        return 0, self.plain

    def level(self, priority: int) -> RangeSet:
        """Ready places of one priority. The caller may read and remove, not add."""
        return self._levels.get(priority, NOTHING) if priority else self.plain

    def add_level(self, priority: int, ready: RangeSet) -> None:
        """Begin to use a priority above 0, with these ready places."""
        self._levels[priority] = ready
        self._levels = dict(sorted(self._levels.items(), reverse=True))

    def add(self, priority: int, first: int, last: int) -> None:
        """Add ready places."""
        if not priority:
            self.plain.add(first, last)
            return
        if priority not in self._levels:
            self.add_level(priority, RangeSet())
        self._levels[priority].add(first, last)


class Horizons:
    """Moves the horizons of a term ahead of demand, so that no delivery waits."""

    def __init__(self) -> None:
        self._is_pending = False
        self._announced: list[int] = []
        """Priorities above 0 that publishes of this term have named."""

    def announce(self, priority: int) -> None:
        """Note a publish of this priority: its horizon is moved at the same time."""
        if priority not in self._announced:
            self._announced.append(priority)

    def on_applied(self) -> None:
        """Note that the requested op is applied."""
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
        """Return the op that moves horizons that are too near, or None.

        Args:
            ready: ready messages.
            horizon: horizon of priority 0.
            levels: the levels of the applied state.
            next_place: place of the next message.
            wanted: number of messages that consumers would take now.
            prefetch: the largest prefetch.
        """
        if self._is_pending:
            return None
        # Ready messages of higher priorities go first: lower levels are not counted for the step.
        step = max(prefetch, HORIZON_STEP, 2 * wanted)
        if not levels and not self._announced:
            plain = ready.level(0)
            front = plain.first if plain else next_place
            if front + wanted + step // 2 <= horizon:
                return None
            self._is_pending = True
            return HorizonOp(front + wanted + step)
        # The places of a level are counted from its front, so the count is bounded.
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
    """Horizon that lets `count` messages of a level pass, future messages included."""
    if count <= 0:
        return 0
    if count > level.count:
        return next_place + count - level.count
    return level.nth(count) + 1
