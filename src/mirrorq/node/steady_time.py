"""A node's steady time: the wall clock without its steps. Pure.

It is what the wall clock said when the node's store was made, and goes on by a clock that is never
set and counts sleep (CLOCK_BOOTTIME); towards the wall clock it moves by 1 in 2000 and no faster. A
process that ends and begins again on a machine that was not booted meanwhile goes on by that
clock. After a boot there is only the wall clock: then the difference that was kept is taken to
be what it was, so that a clock that is always an hour ahead does no harm, and one that was set
while the machine was off does.
"""

from __future__ import annotations

import msgspec

from mirrorq.errors import MALFORMED

SLEW = 2000
"""Steady time moves towards the wall clock by one part in so many."""
KEPT_US = 500_000
"""What is kept is kept anew when it is wrong by so much."""


class _Kept(msgspec.Struct, array_like=True, frozen=True):
    boot: str
    """Of the machine: the clock that is never set began with it."""
    base_us: int
    """Steady time less that clock."""
    ahead_us: int
    """Steady time less the wall clock."""


class SteadyTime:
    """Of one life of a node.

    Args:
        now_us: of the clock that is never set.
        wall_us: of the wall clock, at the same moment.
        boot: what boot of the machine this is; "" is not known.
        kept: what an earlier life has kept; None: nothing.
    """

    def __init__(self, now_us: int, wall_us: int, boot: str, kept: bytes | None) -> None:
        self._boot = boot
        self._kept = _read(kept)
        if self._kept is None:
            steady_us = wall_us
        elif boot and self._kept.boot == boot:
            steady_us = now_us + self._kept.base_us
        else:
            steady_us = wall_us + self._kept.ahead_us
        self._base_us = steady_us - now_us
        self._ahead_us = steady_us - wall_us
        self._slewed_us = now_us

    def read(self, now_us: int, wall_us: int) -> int:
        """Steady time now, in microseconds since 1970-01-01 UTC."""
        if now_us - self._slewed_us >= SLEW:
            self._slew(now_us, wall_us)
        steady_us = now_us + self._base_us
        self._ahead_us = steady_us - wall_us
        return steady_us

    def _slew(self, now_us: int, wall_us: int) -> None:
        """Move towards the wall clock."""
        parts = (now_us - self._slewed_us) // SLEW
        self._slewed_us += parts * SLEW
        self._base_us -= max(min(now_us + self._base_us - wall_us, parts), -parts)

    @property
    def is_due(self) -> bool:
        """Whether what is kept has to be kept anew."""
        kept = self._kept
        if kept is None or kept.boot != self._boot:
            return True
        far_us = max(abs(kept.base_us - self._base_us), abs(kept.ahead_us - self._ahead_us))
        return far_us >= KEPT_US

    def image(self) -> bytes:
        """What a later life goes on from."""
        return msgspec.msgpack.encode(self._now_kept())

    def on_kept(self) -> None:
        """That is on the disk."""
        self._kept = self._now_kept()

    def _now_kept(self) -> _Kept:
        return _Kept(self._boot, self._base_us, self._ahead_us)


def _read(data: bytes | None) -> _Kept | None:
    """What was kept; None where it is not what this version keeps."""
    try:
        return None if data is None else msgspec.msgpack.decode(data, type=_Kept)
    except MALFORMED:
        return None
