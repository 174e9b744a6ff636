"""Publishing to a sharded queue: the shard of a message without a key, and waiting for room."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mirrorq import clock
from mirrorq.api.arguments import deadline_of
from mirrorq.api.channel import Channel
from mirrorq.api.confirmation import Confirmation
from mirrorq.api.publisher import Publishing, Waiting
from mirrorq.api.sharded.shard import Shard
from mirrorq.api.waits import Wait, Waits
from mirrorq.errors import Full, ShutDown

FEW = 16
"""While each shard has fewer unconfirmed messages, a turn is one put."""
TURN_PART = 2
"""Above FEW a turn is at most 1/TURN_PART of the unconfirmed messages, so that no shard gets much
more than the others, however quick puts come."""

Put = Callable[[Shard], Waits[Confirmation]]


class ShardedPublisher(Publishing):
    """The puts of a handle on a sharded queue, and the choice of a shard. Held by the handle; from
    any thread."""

    def __init__(self, channel: Channel, parts: Sequence[Shard]) -> None:
        super().__init__(channel, [part.puts for part in parts])
        self._parts = parts
        self._turn = 0
        """Number of the shard with the next turn."""
        self._taking = parts[0]
        """The shard of the current turn."""
        self._left = 0
        """Puts left in the current turn."""

    def takes(self, count: int, size: int, body_bytes: int) -> bool:
        return self._choice(count, size, body_bytes) is not None

    @property
    def waits_for(self) -> str:
        found = [(part.name, part.puts.waits_for) for part in self._parts]
        found.append(("any shard", super().waits_for))
        return "; ".join(f"{name}: {why}" for name, why in found if why)

    # --- A shard for what has no key ------------------------------------------------------

    def choose(self) -> Shard:
        """Return the shard with the current turn, a running shard if there is any."""
        shard = self._choice(0, 0, 0) or self._parts[self._turn]
        self._turn = (shard.number + 1) % len(self._parts)
        self._left = 0
        return shard

    def next_ready(self) -> Shard | None:
        """Return the shard for the next put, if it runs and may have room. None: use
        `putting_anywhere`.

        A turn is one put while few messages are unconfirmed, and grows with their number. A turn
        also ends when the host has taken the turn's puts, so the puts of a shard leave together.
        """
        if self._left > 0 and self._taking.inbox:
            self._left -= 1
            return self._taking
        if self.wants_credit:
            return None
        shard = self._parts[self._turn]
        if not shard.runs:
            return None
        self._turn = (self._turn + 1) % len(self._parts)
        self._taking, self._left = shard, 0
        under_way = self.count
        if under_way >= FEW * len(self._parts):
            self._left = under_way // TURN_PART - 1
        return shard

    def _in_turn(self) -> list[Shard]:
        parts, turn = self._parts, self._turn
        return [*parts[turn:], *parts[:turn]]

    def _choice(self, count: int, size: int, body_bytes: int) -> Shard | None:
        """Return the next shard with room, among the running shards if there are any. A put into a
        stopped shard would wait while other shards could take it."""
        first = self._parts[self._turn]
        if first.runs and first.puts.takes(count, size, body_bytes):
            return first
        in_turn = self._in_turn()
        able = [part for part in in_turn if part.runs] or [p for p in in_turn if p.is_open]
        return next((p for p in able if p.puts.takes(count, size, body_bytes)), None)

    def putting_anywhere(
        self, put: Put, count: int, size: int, block: bool, timeout: float | None
    ) -> Waits[Confirmation]:
        """Put messages without a key into the next shard that has room.

        Args:
            put: does the put, without waiting.
            count, size: number of the messages, and bytes of their bodies.
        """
        until = deadline_of(timeout)
        yield from self.learning()
        while True:
            shard = self._choice(count, size, size)
            if shard is not None:
                self._turn = (shard.number + 1) % len(self._parts)
                self._left = 0
                try:
                    confirmation = yield from put(shard)
                    return confirmation
                except Full:
                    continue  # another thread was quicker
                except ShutDown:
                    self._channel.check_open_for_puts()
                    continue  # only the one shard was deleted
            yield from self._waiting_for_any(count, size, block, until)

    def _waiting_for_any(
        self, count: int, size: int, block: bool, until: float | None
    ) -> Waits[None]:
        channel = self._channel
        channel.check_open_for_puts()
        full = Full(
            f"queue {channel.name!r}: none of its {channel.shards} shards has room for {count} "
            f"more message(s) of {size} bytes: "
            + (self._parts[self._turn].puts.queue_full_text(count, size) or "wait")
        )
        call = Waiting(str(full))

        def may_go_on() -> bool:
            return self.takes(count, size, size) or channel.is_shut or channel.is_closed

        try:
            self.waiting.add(call)
            signal = self._outcomes.signal
            in_time = yield Wait(signal, may_go_on, until if block else clock.monotonic())
        finally:
            self.waiting.leave(call)
        if not in_time:
            raise channel.why_not(full) if block else full
