"""`ShardedHandle`: the handle of a `MirroredQueue` on a queue with shards.

The handles of the shards do the work (`shard`), each with a session at its shard's master, all on
the thread of their host. The sharded handle has no session. It chooses the shard of a put, takes
from all shards in turn, and joins several outcomes into one.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Sequence
from itertools import groupby, islice
from operator import attrgetter
from typing import NoReturn

from mirrorq.api import exit_flush
from mirrorq.api.arguments import deadline_of, not_a_message
from mirrorq.api.channel import CLOSE_S, FLUSH_S, AskedRequest, Channel
from mirrorq.api.confirmation import Confirmation, Settlement
from mirrorq.api.fan_out import gathered_reply, settle_together
from mirrorq.api.host import Declared, Host
from mirrorq.api.message import Message
from mirrorq.api.publish_options import Terms
from mirrorq.api.publisher import OnConfirm, PutCall
from mirrorq.api.sharded.publisher import ShardedPublisher
from mirrorq.api.sharded.receiver import ShardedReceiver
from mirrorq.api.sharded.shard import Shard
from mirrorq.api.waits import Wait, Waits, in_thread
from mirrorq.errors import (
    Empty,
    Full,
    MirrorQError,
    PreconditionFailed,
    ShutDown,
)
from mirrorq.protocol.shard_names import shard_of


class ShardedHandle(Channel):
    """A handle on a sharded queue, held by its face, with a handle on each shard. Users' threads
    call it, and hosts' threads by way of its parts.

    Sequences are the shards' own; messages of one key are in one shard, in order; between shards
    there is no order.
    """

    def __init__(self, host: Host, declared: Declared, name: str) -> None:
        super().__init__(host, declared, name)
        self._parts: list[Shard] = []

    def open(self) -> None:
        """Open the parts in the current process."""
        super().open()
        self._parts = []
        for number, ring in enumerate(self.ring_ids):
            part = Shard(self, ring, number)
            self._parts.append(part)
            part.open()
        self.puts = ShardedPublisher(self, self._parts)
        self.receiver = ShardedReceiver(self, self.puts, self._parts)
        exit_flush.remember(self)

    # --- Shards ---------------------------------------------------------------------------

    def shard_of(self, key: str | bytes) -> int:
        """Return the number of the shard for messages with the key."""
        return shard_of(key, self.shards)

    def rings(self) -> Sequence[Shard]:
        return [part for part in self._parts if part.is_open]

    def ring_for(self, call: str) -> NoReturn:
        raise PreconditionFailed(
            f"{call} works on one shard, and queue {self.name!r} has {self.shards}: call it on a "
            f"shard, queue.shard(0) to queue.shard({self.shards - 1})"
        )

    def part_of(self, key: str | bytes | None) -> Shard:
        return self.puts.choose() if key is None else self._parts[self.shard_of(key)]

    def source_of(self, message: Message) -> Shard | None:
        holder = message._chunk.handle
        return next((part for part in self._parts if part is holder), None)

    # --- Publishing -----------------------------------------------------------------------

    def put(
        self,
        body: bytes,
        properties: bytes,
        terms: Terms,
        key: str | bytes | None,
        block: bool,
        timeout: float | None,
        on_confirm: OnConfirm,
    ) -> Confirmation:
        """Put a message, as `MirroredQueue.put`, with checked and packed arguments.

        With a key, put into the key's shard and wait even if other shards run. Without a key, put
        into the next running shard.
        """
        if os.getpid() != self.pid:
            self.check()
        if key is not None:
            part = self._parts[self.shard_of(key)]
            return part.put(body, properties, terms, key, block, timeout, on_confirm)
        ready = self.puts.next_ready() if timeout is None else None
        if ready is not None:
            try:
                return ready.put(body, properties, terms, None, False, None, on_confirm)
            except (Full, ShutDown):
                pass  # look closer
        how = PutCall(properties, terms, key, block, timeout, on_confirm)
        return in_thread(self.putting(body, how))

    def putting(self, body: bytes, how: PutCall) -> Waits[Confirmation]:
        """Put a message as `put`, for any kind of waiting."""
        if os.getpid() != self.pid:
            self.check()
        if how.key is not None:
            return self._parts[self.shard_of(how.key)].putting(body, how)
        at_once = how.at_once()
        return self.puts.putting_anywhere(
            lambda one: one.putting(body, at_once), 1, len(body), how.block, how.timeout
        )

    def putting_many(self, bodies: Sequence[bytes], how: PutCall) -> Waits[Confirmation]:
        """Put messages as `MirroredQueue.put_many` into one shard: all or none, with one range."""
        self.check_open_for_puts()
        if how.key is not None:
            return self._parts[self.shard_of(how.key)].putting_many(bodies, how)
        at_once, size = how.at_once(), sum(map(len, bodies))
        return self.puts.putting_anywhere(
            lambda one: one.putting_many(bodies, at_once),
            len(bodies),
            size,
            how.block,
            how.timeout,
        )

    # --- Consuming ------------------------------------------------------------------------

    def take_one(self, found: list[Message]) -> None:
        """Take the next message that is here, if there is any."""
        if (
            self.is_shut_for_gets
            or self.is_closing
            or self.refusals
            or self.receiver.next_part.is_closed
            or os.getpid() != self.pid
        ):
            self.check_open_for_gets()
        self.receiver.take_one(found)

    def ack_many(self, messages: Sequence[Message]) -> Settlement:
        """Ack messages as `MirroredQueue.ack_many`: one op for each shard."""
        held = self._by_shard(messages)
        settlement = Settlement(self.outcomes)
        if not held:
            settlement._finish(None, None)
            return settlement
        parts = settle_together(settlement, [part.outcomes for part in held])
        for (part, mine), one in zip(held.items(), parts, strict=True):
            part.settle("ack", mine, settlement=one)
        return settlement

    def _by_shard(self, messages: Sequence[Message]) -> dict[Shard, list[Message]]:
        """Return messages of the handle by shard, in their order."""
        held: dict[Shard, list[Message]] = {}
        try:
            # Neighbours mostly share a frame: there is no work per message.
            for _, neighbours in groupby(messages, attrgetter("_chunk")):
                mine = list(neighbours)
                source = self.source_of(mine[0])
                if source is None:
                    text = f"not all messages came from this handle on queue {self.name!r}"
                    raise ValueError(text)
                held.setdefault(source, []).extend(mine)
        except AttributeError:
            raise not_a_message(messages) from None
        return held

    def browsing(self, start: int, count_max: int) -> Waits[list[Message]]:
        """Browse as `MirroredQueue.browse`: in order within each shard, and by the shards' times
        between them."""
        found = []
        for part in self.rings():
            found.append((yield from part.browsing(start, count_max)))
        return list(islice(heapq.merge(*found, key=lambda one: one.timestamp), count_max))

    # --- Questions ------------------------------------------------------------------------

    def asking(self, request: AskedRequest, timeout: float) -> Waits[object]:
        asked = [(part, part.begin_ask(request)) for part in self.rings()]
        until = deadline_of(timeout)

        def is_over() -> bool:
            return all(answer.is_done or part.is_closed for part, answer in asked)

        yield Wait(self.outcomes.signal, is_over, until)
        replies, error = [], None
        for part, answer in asked:
            try:
                replies.append(part.end_ask(answer, timeout))
            except MirrorQError as why:
                error = why
        if error is not None:
            raise error
        if not replies:
            self.check()
            raise ShutDown(self.closed_text())
        return gathered_reply(replies)

    def stuck_for(self, otherwise: MirrorQError) -> MirrorQError | None:
        """Return the error of a blocked queue. A shard that is down blocks gets; a put without a
        key can use another shard."""
        whys = [part.stuck_for(otherwise) for part in self.rings()]
        reasons = [why for why in whys if why is not None]
        is_why = isinstance(otherwise, Empty) or len(reasons) == len(whys)
        return reasons[0] if is_why and reasons else None

    # --- The end --------------------------------------------------------------------------

    @property
    def why_closed(self) -> str:
        return ""

    def on_part_closed(self) -> None:
        """Note that a part was closed. On the host's thread."""
        parts = self._parts
        if len(parts) == self.shards:  # else the handle is being opened
            self.is_deleted = all(part.is_deleted for part in parts)
            self.is_closed = all(part.is_closed for part in parts)

    def check(self) -> None:
        if os.getpid() != self.pid:
            self.on_forked()
        if any(part.is_refused for part in self._parts):
            for part in self._parts:
                part.check()
        if self.is_closing or self.is_closed or self.host.is_closed:
            raise ShutDown(self.closed_text())

    def wake(self) -> None:
        for part in self._parts:
            part.wake()

    def is_quiet(self) -> bool:
        return all(part.is_quiet() for part in self._parts)

    def shut_rings(self, *, immediate: bool) -> None:
        for part in self.rings():
            part.shut_rings(immediate=immediate)
        self.receiver.signal.notify()

    def begin_close(self, callers: set[int]) -> None:
        self.is_closing = True
        self.outcomes.notify()
        self.receiver.signal.notify()
        for consumer in list(self.consumers.values()):
            consumer._cancel(callers)
        for part in self._parts:
            part.begin_close(callers)

    def abandon(self) -> None:
        self.is_closing = True
        exit_flush.forget(self)
        for part in self._parts:
            part.abandon()

    def end_session(self) -> None:
        for part in self.rings():
            part.detach()
        self.outcomes.wait_for(lambda: self.is_closed, CLOSE_S - FLUSH_S)
