"""How much a queue takes in a second: `max-rate` and `max-rate-bytes`. Pure.

Only the master judges, before it takes a publish into the log. After more publishes than the time
since has allowed, the next publish waits, whole, and so do publishes behind it. Nothing is refused
or split. After a while without publishes a second's worth may come at once. All amounts are whole
thousandths, so that no rounding lets a queue take more.
"""

from __future__ import annotations

from attrs import define

from mirrorq.protocol.policy import Definition

BURST_MS = 1000


def pace_of(definition: Definition) -> Pace | None:
    """Pace of a definition; None: no bound."""
    count, size = definition.max_rate, definition.max_rate_bytes
    if count is None and size is None:
        return None
    return Pace(_Bucket(count), _Bucket(size))


def has_same_pace(one: Definition, other: Definition) -> bool:
    """Return true if the pace continues across a change of the policy."""
    return (one.max_rate, one.max_rate_bytes) == (other.max_rate, other.max_rate_bytes)


@define
class _Bucket:
    """Amount that may still come, in thousandths. Below 0: publishes must wait."""

    rate: int | None
    """Amount in a second; None: no bound."""
    level: int = 0
    filled_ms: int | None = None

    def fill(self, now_ms: int) -> None:
        if self.rate is None:
            return
        if self.filled_ms is None:
            self.level = self.rate * BURST_MS
        else:
            grown = self.level + self.rate * max(now_ms - self.filled_ms, 0)
            self.level = min(grown, self.rate * BURST_MS)
        self.filled_ms = now_ms

    def spend(self, amount: int) -> None:
        if self.rate is not None:
            self.level -= amount * 1000

    @property
    def wait_ms(self) -> int:
        """Time until a publish may come, counted from the last fill."""
        if self.rate is None or self.level > 0:
            return 0
        return -self.level // self.rate + 1


@define
class Pace:
    """The rate limit of a queue in a master's term."""

    count: _Bucket
    size: _Bucket

    def is_open(self, now_ms: int) -> bool:
        """Return true if a publish may come."""
        self.count.fill(now_ms)
        self.size.fill(now_ms)
        return not self.count.wait_ms and not self.size.wait_ms

    def count_messages(self, count: int, size: int) -> None:
        """Count messages, and the bytes of their bodies."""
        self.count.spend(count)
        self.size.spend(size)

    def opens_at_ms(self, now_ms: int) -> int:
        """Time at which a publish may come."""
        self.is_open(now_ms)
        return now_ms + max(self.count.wait_ms, self.size.wait_ms)

    @property
    def text(self) -> str:
        """Why a publish waits. The text is the same as long as the wait lasts."""
        parts = []
        if self.count.rate is not None:
            parts.append(f"max-rate {self.count.rate}")
        if self.size.rate is not None:
            parts.append(f"max-rate-bytes {self.size.rate}")
        return f"more is published than the policy takes in a second: {' and '.join(parts)}"
