"""`ShardedQueue`: what `queue()` returns for a queue with shards.

One handle a shard does the work (`shard`), each with a session at its shard's master, all on the
one thread of their host. This one has no session: it chooses the shard for what is put, takes from
all of them in turn, and tells the outcomes of several as one.
"""

from __future__ import annotations

import heapq
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn

from mirrorq.api import exit_flush
from mirrorq.api.arguments import not_a_message
from mirrorq.api.completion import Outcomes
from mirrorq.api.confirmation import Confirmation, Settlement
from mirrorq.api.handle import CLOSE_S, FLUSH_S
from mirrorq.api.host import FORK_LOCK, Declared
from mirrorq.api.message import Message
from mirrorq.api.publish_options import PLAIN, terms_of
from mirrorq.api.queue import MirroredQueue
from mirrorq.api.sharded.consumer import ShardedConsumer
from mirrorq.api.sharded.gathering import GatheredAnswer, gathered_reply, settle_together
from mirrorq.api.sharded.publisher import ShardedPublisher
from mirrorq.api.sharded.receiver import ShardedReceiver
from mirrorq.api.sharded.shard import Shard
from mirrorq.errors import (
    Empty,
    Full,
    MirrorQError,
    NoQuorum,
    PreconditionFailed,
    QueueDown,
    ShutDown,
)
from mirrorq.protocol.shard_names import shard_name, shard_of
from mirrorq.waiting import Once
from mirrorq.wire.properties import HeaderValue, pack_properties

if TYPE_CHECKING:
    from mirrorq.api.consumer import Consumer
    from mirrorq.api.handle import Answer
    from mirrorq.api.host import Host

__all__ = ["ShardedQueue"]


class ShardedQueue(MirroredQueue):
    """A handle on a sharded queue. Made by `MirroredQueue`, `Node.queue` and `Client.queue`.

    The calls are those of `MirroredQueue`. Sequences are the shards' own; messages of one key are
    in one shard, in order; between shards there is no order.
    """

    _parts: list[Shard]
    _publisher: ShardedPublisher
    _receiver: ShardedReceiver

    def _open(self, host: Host, declared: Declared, name: str) -> None:
        self.name = self._queue_name = name
        self._shard = None
        self._host = host
        self._queue_id = declared.queue_id
        self._refusals = declared.refusals
        self._config = host.config
        self._rings = declared.shards
        self._is_shut = self._is_shut_for_gets = self._is_closing = False
        self._consumers = {}
        self._consumer_numbers = itertools.count(1)
        self._session = None
        self._closing = Once(self._close)
        self._begin()

    def _begin(self) -> None:
        """Open the parts, in this process."""
        self._pid = os.getpid()
        self._outcomes = Outcomes()
        self._parts = []
        for number, ring in enumerate(self._rings):
            self._parts.append(Shard.of(self, ring, number))
        self._publisher = ShardedPublisher(self)
        self._receiver = ShardedReceiver(self)
        self._remember()

    # --- Shards ---------------------------------------------------------------------------

    @property
    def shards(self) -> int:
        """How many shards the queue has."""
        return len(self._rings)

    def shard(self, number: int) -> MirroredQueue:
        """A new handle on one shard, from 0, to be closed like any: it has everything that a queue
        which is not sharded has, leases, claims and reading too.

        Raises:
            PreconditionFailed: there is no such shard.
        """
        if isinstance(number, bool) or number not in range(self.shards):
            raise PreconditionFailed(
                f"queue {self.name!r} has no shard {number!r}: its shards are 0 to "
                f"{self.shards - 1}"
            )
        self._check()
        declared = Declared(self._rings[number], refusals=self._refusals)
        return MirroredQueue._attach(self._host, declared, shard_name(self.name, number))

    def shard_of(self, key: str | bytes) -> int:
        """The number of the shard to which messages with this key go."""
        return shard_of(key, self.shards)

    def _part_of(self, key: str | bytes | None) -> Shard:
        return self._publisher.choose() if key is None else self._parts[self.shard_of(key)]

    def _source_of(self, message: Message) -> Shard | None:
        handle = message._chunk.handle
        return handle if isinstance(handle, Shard) and handle._whole is self else None

    # --- Publishing -----------------------------------------------------------------------

    def put(
        self,
        body: bytes | bytearray | memoryview,
        *,
        headers: Mapping[str, HeaderValue] | None = None,
        message_id: str | None = None,
        ttl: float | None = None,
        priority: int = 0,
        delay: float | None = None,
        key: str | bytes | None = None,
        persistent: bool = True,
        block: bool = True,
        timeout: float | None = None,
        on_confirm: Callable[[Confirmation], object] | None = None,
    ) -> Confirmation:
        """Publish a message into the shard of its key, or of those that run the next one.

        With a key it waits for that shard, though others run. Arguments and errors as of
        `MirroredQueue.put`; the confirmation ends with the sequence in its `shard`.
        """
        terms = PLAIN
        if persistent is not True or priority != 0 or delay is not None or ttl is not None:
            terms = terms_of(persistent, priority, delay, ttl)
        publisher = self._publisher
        if type(body) is bytes and len(body) <= self._config.message_bytes_max:
            data = body
        else:
            data = publisher.body(body)
        properties = b""
        if headers is not None or message_id is not None or key is not None:
            properties = pack_properties(headers, message_id, key)
        if os.getpid() != self._pid:
            self._check()
        if key is not None:
            part = self._parts[self.shard_of(key)]
            return part._put_packed(data, properties, terms, block, timeout, on_confirm)
        ready = publisher.next_ready() if timeout is None else None
        if ready is not None:
            try:
                return ready._put_packed(data, properties, terms, False, None, on_confirm)
            except (Full, ShutDown):
                pass  # look closer

        def put(one: Shard) -> Confirmation:
            return one._put_packed(data, properties, terms, False, None, on_confirm)

        return self._publisher.put_anywhere(put, 1, len(data), block, timeout)

    def put_many(
        self,
        bodies: Sequence[bytes | bytearray | memoryview],
        *,
        headers: Mapping[str, HeaderValue] | None = None,
        message_id: str | None = None,
        ttl: float | None = None,
        priority: int = 0,
        delay: float | None = None,
        key: str | bytes | None = None,
        persistent: bool = True,
        block: bool = True,
        timeout: float | None = None,
        on_confirm: Callable[[Confirmation], object] | None = None,
    ) -> Confirmation:
        """Publish messages together into one shard: that of the key, or the next that runs.

        So it is all or none, and ends with one range, as of `MirroredQueue.put_many`.
        """
        self._check_open_for_puts()
        terms_of(persistent, priority, delay, ttl)
        data = self._publisher.bodies(bodies)
        pack_properties(headers, message_id, key)

        def put(part: Shard, block: bool = False, timeout: float | None = None) -> Confirmation:
            return part.put_many(
                data,
                headers=headers,
                message_id=message_id,
                ttl=ttl,
                priority=priority,
                delay=delay,
                key=key,
                persistent=persistent,
                block=block,
                timeout=timeout,
                on_confirm=on_confirm,
            )

        if key is not None:
            return put(self._parts[self.shard_of(key)], block, timeout)
        size = sum(map(len, data))
        return self._publisher.put_anywhere(put, len(data), size, block, timeout)

    # --- Consuming ------------------------------------------------------------------------

    def _take_one(self, found: list[Message]) -> None:
        if (
            self._is_shut_for_gets
            or self._is_closing
            or self._refusals
            or self._receiver.next_part._is_closed
            or os.getpid() != self._pid
        ):
            self._check_open_for_gets()
        self._receiver.take_one(found)

    def ack_many(self, messages: Sequence[Message]) -> Settlement:
        """Ack messages of this handle together: one outcome for all, an op for each shard."""
        return self._settle("ack", list(messages))

    def _settle(
        self,
        kind: str,
        messages: Sequence[Message],
        delay_ms: int = 0,
        target: int = 0,
        settlement: Settlement | None = None,
    ) -> Settlement:
        held = self._by_shard(messages)
        settlement = settlement or Settlement(self._outcomes)
        if held:
            return settle_together(settlement, kind, held)
        settlement._finish(None, None)
        return settlement

    def _by_shard(self, messages: Sequence[Message]) -> dict[Shard, list[Message]]:
        """Messages of this handle, in their order, by where they came from."""
        held: dict[Shard, list[Message]] = {}
        try:
            # Neighbours are of one frame, as a rule: nothing is done for each message.
            for chunk, neighbours in groupby(messages, attrgetter("_chunk")):
                source = chunk.handle
                if not isinstance(source, Shard) or source._whole is not self:
                    text = f"not all messages came from this handle on queue {self.name!r}"
                    raise ValueError(text)
                held.setdefault(source, []).extend(neighbours)
        except AttributeError:
            raise not_a_message(messages) from None
        return held

    def _consumer_class(self) -> type[Consumer]:
        return ShardedConsumer

    # --- Questions ------------------------------------------------------------------------

    def browse(self, start: int | None = None, count_max: int = 1000) -> list[Message]:
        """Look at messages of all shards without taking them, the oldest first.

        In order within each shard, and by the times of the shards between them.

        Args:
            start: first sequence, inclusive, of every shard; None: the oldest.
            count_max: most messages returned.
        """
        self._check()
        found = [part.browse(start, count_max) for part in self._parts if part.is_open]
        return list(islice(heapq.merge(*found, key=lambda one: one.timestamp), count_max))

    def redrive(self, count_max: int | None = None) -> int:
        """Move dead letters of all shards back to the queues in which they ended; how many."""
        moved = 0
        for part in self._parts:
            left = None if count_max is None else count_max - moved
            moved += part.redrive(left)
        return moved

    def _begin_ask(
        self, request: Callable[[int], Any], first: Callable[[], None] | None = None
    ) -> Answer:
        asked = [(part, part._begin_ask(request)) for part in self._parts if part.is_open]
        return GatheredAnswer(asked)  # type: ignore[return-value]

    def _end_ask(self, answer: Answer, timeout: float) -> object:
        assert isinstance(answer, GatheredAnswer)
        replies, error = [], None
        for part, each in answer.parts:
            try:
                replies.append(part._end_ask(each, timeout))
            except MirrorQError as why:
                error = why
        if error is not None:
            raise error
        if not replies:
            self._check()
            raise ShutDown(f"the handle on queue {self.name!r} is closed")
        return gathered_reply(replies)

    def _why_not(self, otherwise: MirrorQError) -> MirrorQError:
        """The reason for a time-out: no message could come from a shard that is down, but what has
        no key can be put into another."""
        whys = [part._why_not(otherwise) for part in self._parts if part.is_open]
        reasons = [why for why in whys if isinstance(why, NoQuorum | QueueDown)]
        is_why = reasons if isinstance(otherwise, Empty) else len(reasons) == len(whys)
        return reasons[0] if is_why and reasons else otherwise

    # --- What only one shard can do ---------------------------------------------------------

    def _only_of_a_shard(self, call: str) -> NoReturn:
        raise PreconditionFailed(
            f"{call} is of one ring, and queue {self.name!r} has {self.shards}: call it on a "
            f"shard, queue.shard(0) to queue.shard({self.shards - 1})"
        )

    def lease(self, *_: Any, **__: Any) -> NoReturn:
        """Not of a sharded queue: see `shard`."""
        self._only_of_a_shard("lease()")

    def claim(self, *_: Any, **__: Any) -> NoReturn:
        """Not of a sharded queue: see `shard`."""
        self._only_of_a_shard("claim()")

    def extent(self, *_: Any, **__: Any) -> NoReturn:
        """Not of a sharded queue: see `shard`."""
        self._only_of_a_shard("extent()")

    def live_ranges(self, *_: Any, **__: Any) -> NoReturn:
        """Not of a sharded queue: see `shard`."""
        self._only_of_a_shard("live_ranges()")

    def read(self, *_: Any, **__: Any) -> NoReturn:
        """Not of a sharded queue: see `shard`."""
        self._only_of_a_shard("read()")

    def sequence_at(self, *_: Any, **__: Any) -> NoReturn:
        """Not of a sharded queue: see `shard`."""
        self._only_of_a_shard("sequence_at()")

    # --- The end --------------------------------------------------------------------------

    @property
    def _is_closed(self) -> bool:  # type: ignore[override]
        """No shard is served any more: the handle was closed, or the queue deleted."""
        return all(part._is_closed for part in self._parts)

    @property
    def _is_deleted(self) -> bool:  # type: ignore[override]
        return all(part._is_deleted for part in self._parts)

    def _check(self) -> None:
        if os.getpid() != self._pid:
            self._on_forked()
        if any(part._is_refused for part in self._parts):
            for part in self._parts:
                part._check()
        if self._is_closing or self._is_closed or self._host.closed():
            raise ShutDown(f"the handle on queue {self.name!r} is closed")

    def _on_forked(self) -> None:
        if not self._host.survives_fork:
            super()._on_forked()
        with FORK_LOCK:
            if os.getpid() != self._pid and not self._is_closing:
                self._consumers = {}
                self._begin()

    def shutdown(self, immediate: bool = False) -> None:
        """Take no more puts on this handle; as `MirroredQueue.shutdown`."""
        self._check()
        self._is_shut = True
        if immediate:
            self._is_shut_for_gets = True
            for consumer in list(self._consumers.values()):
                consumer.cancel()
        for part in self._parts:
            if part.is_open:
                part.shutdown(immediate)
        self._receiver.notify()

    def _begin_close(self) -> None:
        super()._begin_close()
        for part in self._parts:
            part._begin_close()

    def _abandon(self) -> None:
        self._is_closing = True
        exit_flush.forget(self)
        for part in self.__dict__.get("_parts", ()):
            part._abandon()

    def _wake(self) -> None:
        for part in self._parts:
            part._wake()

    def _is_quiet(self) -> bool:
        return all(part._is_quiet() for part in self._parts)

    def _end_session(self) -> None:
        for part in self._parts:
            if part.is_open:
                part._detach()
        self._outcomes.wait_for(lambda: self._is_closed, CLOSE_S - FLUSH_S)

    def __repr__(self) -> str:
        return f"<MirroredQueue {self.name!r} of {self.shards} shards on {self._host.name}>"
