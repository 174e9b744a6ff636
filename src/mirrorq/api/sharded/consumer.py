"""`ShardedConsumer`: one callback, one thread, a seat at every shard."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from mirrorq.api.consumer import Consumer
from mirrorq.api.message import Chunk, Message
from mirrorq.api.sharded.shard import share
from mirrorq.waiting import Latch

if TYPE_CHECKING:
    from mirrorq.api.sharded.queue import ShardedQueue
    from mirrorq.api.sharded.shard import Shard

__all__ = ["ShardedConsumer"]


class _Seat(Consumer):
    """The consumer's place at one shard: it gathers, its thread is the whole's."""

    def __init__(self, shard: Shard, number: int, whole: ShardedConsumer, prefetch: int) -> None:
        super().__init__(
            shard,
            number,
            whole._callback,
            prefetch=prefetch,
            auto_ack=whole._auto_ack,
            exclusive=whole._exclusive,
            on_cancel=None,
            cancel_on_failover=whole.cancel_on_failover,
        )
        self._whole = whole

    def _begin(self) -> None:
        """No thread of its own."""

    def _feed(self, chunks: list[Chunk]) -> None:
        super()._feed(chunks)
        self._whole._on_arrival()

    def _refuse(self, why: str) -> None:
        self.refused = why
        if self._whole.is_running:
            self._leave()
            self._cancelled()

    def _cancelled(self) -> None:
        super()._cancelled()
        self._whole._on_seat_cancelled(self.refused)


class ShardedConsumer(Consumer):
    """A consumer of all shards of a queue. Made by `MirroredQueue.consume`.

    Its prefetch is divided over the shards, at least one message for each. Ended at one shard, by
    its queue or with `cancel_on_failover`, it ends at all.
    """

    def __init__(
        self,
        queue: ShardedQueue,
        number: int,
        callback: Callable[[Message], object],
        *,
        prefetch: int,
        auto_ack: bool,
        exclusive: bool,
        on_cancel: Callable[[Consumer], object] | None,
        cancel_on_failover: bool,
    ) -> None:
        super().__init__(
            queue,
            number,
            callback,
            prefetch=prefetch,
            auto_ack=auto_ack,
            exclusive=exclusive,
            on_cancel=on_cancel,
            cancel_on_failover=cancel_on_failover,
        )
        self._queue = queue
        self._seats: list[_Seat] = []
        self._turn = 0
        self._untold = deque([None])
        """Who takes what is in it ends the consumer, and tells its user if that was not he."""

    def _ask_for_prefetch(self) -> None:
        for seat in self._seats:
            seat.prefetch = share(self._prefetch, self._queue.shards)

    @property
    def unsettled(self) -> int:
        """Messages delivered and neither acked nor given back."""
        return sum(seat.unsettled for seat in self._seats)

    @property
    def is_running(self) -> bool:
        """Whether its thread has begun: a refusal before that is told by `consume`."""
        return self._is_begun

    def _cancel(self, callers: Collection[int]) -> None:
        self._abandon()
        for seat in self._seats:
            seat._cancel(callers)
        self._join(callers)

    def _abandon(self) -> Latch:
        self._untold.clear()
        self._queue._consumers.pop(self.number, None)
        self._end()
        for seat in self._seats:
            seat._abandon()
        return Latch()

    def _start(self) -> None:
        self._queue._consumers[self.number] = self
        try:
            for shard in self._queue._parts:
                if shard.is_open:
                    self._take_seat(shard)
        except BaseException:
            self.cancel()
            raise
        self._begin()

    def _take_seat(self, shard: Shard) -> None:
        bound = share(self._prefetch, self._queue.shards)
        seat = _Seat(shard, shard._next_consumer(), self, bound)
        self._seats.append(seat)
        seat._start()

    # --- The host's thread ----------------------------------------------------------------

    def _on_arrival(self) -> None:
        self._arrival.ring()

    def _on_seat_cancelled(self, why: str) -> None:
        """Some shard has ended it: it ends at the others too, and its user is told once."""
        try:
            self._untold.pop()
        except IndexError:
            return
        self.refused = why
        self._queue._consumers.pop(self.number, None)
        for seat in self._seats:
            if seat.is_active:
                seat._handle._on_host(seat._leave)
                seat._end()
        self._end()
        if self._on_cancel is not None:
            self._queue._outcomes.call_back(self._on_cancel, self)

    # --- Its own thread -------------------------------------------------------------------

    def _has_message(self) -> bool:
        return any(seat._buffer for seat in self._seats)

    def _next(self) -> Message | None:
        """The next message, of the shards in turn."""
        seats, turn = self._seats, self._turn
        for number, seat in enumerate((*seats[turn:], *seats[:turn]), turn + 1):
            try:
                message = seat._buffer.popleft()
            except IndexError:
                continue
            self._turn = number % len(seats)
            return message
        return None
