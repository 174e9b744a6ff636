"""A node's steady time: the wall clock without its steps. Pure.

Steady time begins with the wall clock's time when the node's store was made. It follows a clock
that is never set and counts sleep (CLOCK_BOOTTIME). It approaches the wall clock by at most 1 in
2000. A new process on a machine that was not booted since continues by the same clock. After a boot
only the wall clock is left, and the stored difference is assumed unchanged. So a clock that is
always an hour ahead does no harm; a clock that was set while the machine was off does.
"""

from __future__ import annotations

import msgspec

from mirrorq.errors import MALFORMED

SLEW = 2000
"""Steady time moves towards the wall clock by one part in so many."""
KEPT_US = 500_000
"""The stored value is replaced when its error reaches so many microseconds."""


class _Kept(msgspec.Struct, array_like=True, frozen=True):
    boot: str
    """Boot id of the machine: the clock that is never set began with the boot."""
    base_us: int
    """Steady time minus the clock that is never set."""
    ahead_us: int
    """Steady time minus the wall clock."""


class SteadyTime:
    """Steady time of one life of a node.

    Args:
        now_us: the clock that is never set.
        wall_us: the wall clock at the same moment.
        boot: id of the machine's boot; "": not known.
        kept: the value stored by an earlier life; None: nothing.
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
        """Return the steady time now, in microseconds since 1970-01-01 UTC."""
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
        """Whether the stored value must be replaced."""
        kept = self._kept
        if kept is None or kept.boot != self._boot:
            return True
        far_us = max(abs(kept.base_us - self._base_us), abs(kept.ahead_us - self._ahead_us))
        return far_us >= KEPT_US

    def image(self) -> bytes:
        """Return the value to store for a later life."""
        return msgspec.msgpack.encode(self._now_kept())

    def on_kept(self) -> None:
        """Note that the value is on disk."""
        self._kept = self._now_kept()

    def _now_kept(self) -> _Kept:
        return _Kept(self._boot, self._base_us, self._ahead_us)


def _read(data: bytes | None) -> _Kept | None:
    """Return the stored value; None if it is not in the format of the current version."""
    try:
        return None if data is None else msgspec.msgpack.decode(data, type=_Kept)
    except MALFORMED:
        return None
