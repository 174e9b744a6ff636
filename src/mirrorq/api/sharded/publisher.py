"""Publishing to a sharded queue: which shard takes what has no key, and waiting for any of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mirrorq.api.arguments import deadline_of, left_until
from mirrorq.api.publisher import FIRST_S, Listener, Publisher, Waiting
from mirrorq.errors import Full, ShutDown
from mirrorq.session.calls import PutCredit
from mirrorq.waiting import Present

if TYPE_CHECKING:
    from mirrorq.api.confirmation import Confirmation
    from mirrorq.api.sharded.queue import ShardedQueue
    from mirrorq.api.sharded.shard import Shard

__all__ = ["ShardedPublisher"]

ALL_KNOWN_S = 0.3
"""A first put waits so long for the first word of all masters; then that of any will do."""

FEW = 16
"""While each shard has fewer messages under way than this, a turn is one put."""
TURN_PART = 2
"""Then it is at most this part of what is under way: so no shard is given much more than the
others, however quick puts come."""

Put = Callable[["Shard"], "Confirmation"]


class ShardedPublisher(Publisher):
    """The puts of a handle on a sharded queue: sums over its shards, and the choice of one."""

    def __init__(self, queue: ShardedQueue) -> None:
        self._sharded = queue
        self._is_curious = True
        self._turn = 0
        """Whose turn comes next."""
        self._taking = queue._parts[0]
        """The shard whose turn it is, in the middle of it."""
        self._left = 0
        """Puts that are left in its turn."""
        self._waiting = Present()
        self._handle = queue
        self._config = queue._config
        self._outcomes = queue._outcomes

    @property
    def _parts(self) -> list[Shard]:
        return self._sharded._parts

    # --- Sums -----------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Messages without an outcome."""
        return sum(part._publisher.count for part in self._parts)

    @property
    def is_over(self) -> bool:
        """Whether everything has an outcome."""
        return all(part._publisher.is_over for part in self._parts)

    @property
    def size(self) -> int:
        """Their bytes."""
        return sum(part._publisher.size for part in self._parts)

    @property
    def credit(self) -> PutCredit:  # type: ignore[override]
        """It changes whenever that of a shard does; only its equality means something."""
        known = [part._publisher.credit for part in self._parts]
        return PutCredit(count=sum(c.count for c in known), size=sum(c.size for c in known))

    @property
    def is_curious(self) -> bool:
        """Whether the first put waits for the masters' first words."""
        return self._is_curious

    @is_curious.setter
    def is_curious(self, value: bool) -> None:
        self._is_curious = value
        for part in self._parts:
            part._publisher.is_curious = value

    @property
    def accepted_count(self) -> int:
        """Messages put so far."""
        return sum(part._publisher.accepted_count for part in self._parts)

    @property
    def ended_count(self) -> int:
        """How many of them have an outcome."""
        return sum(part._publisher.ended_count for part in self._parts)

    def knows(self) -> bool:
        """Whether every master has said how much its shard takes, or never will."""
        return all(part._publisher.knows() for part in self._parts)

    def learn(self) -> None:
        """Wait, once in a handle's life, for the masters' first words."""
        if self.is_curious:
            self.is_curious = False
            if not self._outcomes.wait_for(self.knows, ALL_KNOWN_S):
                is_any = [part._publisher.knows for part in self._parts]
                self._outcomes.wait_for(lambda: any(knows() for knows in is_any), FIRST_S)

    def takes(self, count: int, size: int, body_bytes: int) -> bool:
        """Whether this much more, without a key, may be put now."""
        return self._choice(count, size, body_bytes) is not None

    @property
    def waits_for(self) -> str:
        """Why calls wait, of every shard for which some do."""
        found = [(part.name, part._publisher.waits_for) for part in self._parts]
        found.append(("any shard", super().waits_for))
        return "; ".join(f"{name}: {why}" for name, why in found if why)

    def listen(self, on_confirmed: Listener, on_not_confirmed: Listener) -> None:
        """Have functions called with every confirmation that ends."""
        for part in self._parts:
            part._publisher.listen(on_confirmed, on_not_confirmed)

    # --- A shard for what has no key ------------------------------------------------------

    def choose(self) -> Shard:
        """The shard whose turn it is, one that runs if any does."""
        shard = self._choice(0, 0, 0) or self._parts[self._turn]
        self._turn = (shard._number + 1) % len(self._parts)
        self._left = 0
        return shard

    def next_ready(self) -> Shard | None:
        """The shard that takes the next put, if it runs and may have room: as a rule. None: look
        closer, as `put_anywhere` does.

        A turn is one put while little is under way, and longer the more it is; but it ends when
        the host has taken what was put in it: what a shard is given then leaves together.
        """
        if self._left > 0 and self._taking._inbox:
            self._left -= 1
            return self._taking
        if self._is_curious:
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
        """The next shard with room: of those that run, as long as any does. A put into one that
        does not run would wait for it while others could take it."""
        first = self._parts[self._turn]
        if first.runs and first._publisher.takes(count, size, body_bytes):
            return first
        in_turn = self._in_turn()
        able = [part for part in in_turn if part.runs] or [p for p in in_turn if p.is_open]
        return next((p for p in able if p._publisher.takes(count, size, body_bytes)), None)

    def put_anywhere(
        self, put: Put, count: int, size: int, block: bool, timeout: float | None
    ) -> Confirmation:
        """Put messages without a key into the next shard that has room.

        Args:
            put: does it, without waiting.
            count, size: of messages, and bytes of bodies.
        """
        deadline = deadline_of(timeout)
        self.learn()
        while True:
            shard = self._choice(count, size, size)
            if shard is not None:
                self._turn = (shard._number + 1) % len(self._parts)
                self._left = 0
                try:
                    return put(shard)
                except Full:
                    continue  # another thread was quicker
                except ShutDown:
                    self._sharded._check_open_for_puts()
                    continue  # that shard alone was deleted
            self._wait_for_any(count, size, block, left_until(deadline))

    def _wait_for_any(self, count: int, size: int, block: bool, timeout: float | None) -> None:
        queue = self._sharded
        queue._check_open_for_puts()
        full = Full(
            f"queue {queue.name!r}: none of its {queue.shards} shards has room for {count} more "
            f"message(s) of {size} bytes: "
            + (self._parts[self._turn]._publisher._queue_full_text(count, size) or "wait")
        )
        call = Waiting(str(full))

        def may_go_on() -> bool:
            return self.takes(count, size, size) or queue._is_shut or queue._is_closed

        try:
            self._waiting.add(call)
            in_time = self._outcomes.wait_for(may_go_on, timeout if block else 0)
        finally:
            self._waiting.leave(call)
        if not in_time:
            raise queue._why_not(full) if block else full
