"""A handle on a queue for one loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from mirrorq import clock
from mirrorq.aio.bell import LOOK_S, Bell, Line, seconds_left
from mirrorq.aio.opening import opening
from mirrorq.aio.steps import Transaction
from mirrorq.aio.threads import in_thread, opened
from mirrorq.api import queue as blocking
from mirrorq.api.arguments import check_callable, check_count, check_timeout, deadline_of
from mirrorq.api.confirmation import Confirmation, Settlement
from mirrorq.api.handle import ASK_S
from mirrorq.api.message import Message
from mirrorq.api.publisher import FIRST_S, Publisher, Waiting
from mirrorq.api.receiver import NOWAIT_S, RECALL_ASKS, Demand
from mirrorq.api.sharded.queue import ShardedQueue
from mirrorq.errors import AckRefused, Empty, Full, ShutDown
from mirrorq.protocol.sessions import Browsed, Counts, Purged
from mirrorq.session.calls import browse_request, inquire_request, purge_request

if TYPE_CHECKING:
    from mirrorq.aio.hosts import Host
    from mirrorq.api.consumer import Consumer
    from mirrorq.monitoring.status import QueueStatus

__all__ = ["Body", "MirroredQueue"]

Listener = Callable[[Confirmation], object]
Body = bytes | bytearray | memoryview
Accepted = TypeVar("Accepted", Confirmation, Settlement, "Confirmation | Settlement")


class MirroredQueue:
    """A handle on a queue, for one loop. Made by `open`, `Node.queue` or `Client.queue`.

    Arguments, results and errors are those of `mirrorq.MirroredQueue`, whose handle is in
    `handle`; what is not here (`read`, `lease`, `claim`, `as_queue`) is that one's, for a thread.
    """

    def __init__(self, handle: blocking.MirroredQueue) -> None:
        """Wrap a blocking handle; in a coroutine, since it belongs to the running loop."""
        loop = asyncio.get_running_loop()
        self.handle = handle
        """The handle that this one wraps."""
        self._outcomes = Bell(loop)
        self._arrivals = Bell(loop)
        self._gate = Line()
        """Puts that wait for the master's first word."""
        self._lines: dict[int, Line] = {}
        """Puts that wait for room: in each shard, whose keys hold up no others, and in any (-1)."""
        handle._outcomes.listeners.append(self._outcomes.ring)
        handle._receiver.listeners.append(self._arrivals.ring)

    @classmethod
    @opening
    async def open(cls, name: str, **arguments: Any) -> MirroredQueue:
        """`mirrorq.MirroredQueue(name, …)`: the handle brings its node with it."""
        return cls(await opened(partial(blocking.MirroredQueue, name, **arguments)))

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.handle.name

    @property
    def node(self) -> Host:
        """The node or client that this handle lives on, for asyncio."""
        from mirrorq.aio.hosts import of_host

        return of_host(self.handle._host)

    @property
    def shards(self) -> int:
        """How many shards the queue has; 0: it is not sharded."""
        return self.handle.shards

    @opening
    async def shard(self, number: int) -> MirroredQueue:
        """A new handle on one shard, from 0."""
        return MirroredQueue(await opened(partial(self.handle.shard, number)))

    # --- Publishing -----------------------------------------------------------------------

    async def put(
        self, body: Body, *, block: bool = True, timeout: float | None = None, **arguments: Any
    ) -> Confirmation:
        """Publish a message; returns once it is accepted. Await the confirmation as well."""
        put = partial(self.handle.put, body, **arguments)
        return await self._accepted(put, block, timeout, arguments.get("key"))

    async def put_many(
        self,
        bodies: Sequence[Body],
        *,
        block: bool = True,
        timeout: float | None = None,
        **arguments: Any,
    ) -> Confirmation:
        """Publish messages together: up to `frame_bytes_max` all or none."""
        put = partial(self.handle.put_many, bodies, **arguments)
        return await self._accepted(put, block, timeout, arguments.get("key"))

    def put_nowait(self, body: Body) -> Confirmation:
        """`put` that raises Full at once."""
        if not self._gate.is_free or not self._line_of(None).is_free:
            raise self._overtaking()
        return self.handle.put_nowait(body)

    async def _accepted(
        self,
        put: Callable[..., Accepted],
        block: bool,
        timeout: float | None,
        key: str | bytes | None = None,
    ) -> Accepted:
        """What `put` returns as soon as it raises no Full; no call overtakes an earlier one."""
        deadline = deadline_of(timeout)
        try:
            if self.handle._publisher.is_curious or not self._gate.is_free:
                await self._learn(deadline)
            line = self._line_of(key)
            if not block:
                if not line.is_free:
                    raise self._overtaking()
                return put(block=False)
            if line.is_free:
                with contextlib.suppress(Full):
                    return put(block=False)
            await line.enter(deadline)
        except TimeoutError:
            raise self.handle._why_not(self._overtaking()) from None
        try:
            return await self._accepted_first(put, deadline)
        finally:
            line.leave()

    async def _learn(self, deadline: float | None) -> None:
        """Wait, once in a handle's life, for the master's first word, as a blocking put does."""
        publisher = self.handle._publisher
        await self._gate.enter(deadline)
        try:
            if publisher.is_curious:
                publisher.is_curious = False
                await self._outcomes.until(publisher.knows, clock.monotonic() + FIRST_S)
        finally:
            self._gate.leave()

    async def _accepted_first(
        self, put: Callable[..., Accepted], deadline: float | None
    ) -> Accepted:
        """The same of the first in its line."""
        call = Waiting("")
        parts = self._publishers
        for publisher in parts:
            # Who takes a message tells it: that makes room where a handle has fetched ahead.
            publisher._waiting.add(call)
        try:
            while True:
                before = self._room()
                try:
                    return put(block=False)
                except Full as full:
                    if deadline is not None and clock.monotonic() >= deadline:
                        raise self.handle._why_not(full) from None
                changed = partial(self._has_changed, before)
                await self._outcomes.next(changed, seconds_left(deadline))
        finally:
            for publisher in parts:
                publisher._waiting.leave(call)

    @property
    def _publishers(self) -> list[Publisher]:
        """The handle's, and those of its shards."""
        handle = self.handle
        parts = handle._parts if isinstance(handle, ShardedQueue) else ()
        return [handle._publisher, *(part._publisher for part in parts)]

    def _line_of(self, key: str | bytes | None) -> Line:
        handle = self.handle
        number = -1
        if isinstance(handle, ShardedQueue) and isinstance(key, str | bytes):
            number = handle.shard_of(key)
        return self._lines.setdefault(number, Line())

    def _overtaking(self) -> Full:
        return Full(f"queue {self.name!r}: calls that came before wait for room")

    def _room(self) -> tuple[object, ...]:
        """It changes when a put that found no room may find some."""
        publisher = self.handle._publisher
        return publisher.count, publisher.credit, self.handle._receiver.buffered

    def _has_changed(self, before: tuple[object, ...]) -> bool:
        return self._room() != before

    def add_confirm_listener(
        self,
        on_confirmed: Listener | None,
        on_not_confirmed: Listener | None = None,
    ) -> None:
        """Have functions called in this loop with each confirmation: of the good, of the others."""
        self.handle.add_confirm_listener(self._heard(on_confirmed), self._heard(on_not_confirmed))

    def on_confirm(self, function: Listener) -> None:
        """Have a function called in this loop with each confirmation that ends, however it does."""
        if function is None:
            raise TypeError("function is None: give a function that takes a Confirmation")
        check_callable("function", function)
        self.handle.on_confirm(partial(self._call_in_loop, function))

    def _heard(self, function: Listener | None) -> Listener | None:
        check_callable("a listener", function)
        return None if function is None else partial(self._call_in_loop, function)

    def _call_in_loop(self, function: Callable[..., object], *told: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._outcomes.loop.call_soon_threadsafe(function, *told)

    def add_ack_listener(self, on_refused: Callable[[Message, AckRefused], object]) -> None:
        """Have a function called in this loop with each message whose ack was refused."""
        if on_refused is None:
            raise TypeError("on_refused is None: give a function of a Message and an AckRefused")
        check_callable("on_refused", on_refused)
        self.handle.add_ack_listener(partial(self._call_in_loop, on_refused))

    async def wait_for_confirms(self, timeout: float | None = None) -> bool:
        """Wait until everything put has an outcome; True."""
        handle = self.handle
        publisher = handle._publisher
        deadline = deadline_of(timeout)
        await self._outcomes.until(lambda: publisher.is_over or handle._is_closed, deadline)
        return handle.wait_for_confirms(0)

    # --- Consuming ------------------------------------------------------------------------

    async def get(
        self, block: bool = True, timeout: float | None = None, *, auto_ack: bool = False
    ) -> Message:
        """Take the next message; it is held until it is acked or given back."""
        if timeout is not None:
            check_timeout(timeout)
        found: list[Message] = []
        try:
            await self._get_into(found, block, timeout)
            if auto_ack:
                found[0].ack()
            return found[0]
        except BaseException:
            self.handle._unsee(found)
            raise

    async def _get_into(self, found: list[Message], block: bool, timeout: float | None) -> None:
        """`get`, into a list that the caller still has when it is interrupted."""
        self.handle._take_one(found)
        if not found:
            await self._obtain(found, 1, block, timeout)
        if not found:
            within = f" within {timeout} s" if block else ""
            empty = Empty(f"queue {self.name!r} had no message ready{within}")
            raise self.handle._why_not(empty)

    async def get_nowait(self) -> Message:
        """`get` that does not wait for a message to be published."""
        return await self.get(block=False)

    async def get_many(self, count_max: int, timeout: float | None = None) -> list[Message]:
        """Take 1 to `count_max` messages as soon as there is one; [] at the time-out."""
        check_count("count_max", count_max)
        found: list[Message] = []
        try:
            await self._obtain(found, count_max, True, timeout)
            if not found:
                reason = self.handle._why_not(Empty(""))
                if not isinstance(reason, Empty):
                    raise reason
            return found
        except BaseException:
            self.handle._unsee(found)
            raise

    async def _obtain(
        self, found: list[Message], count: int, block: bool, timeout: float | None
    ) -> None:
        handle, receiver = self.handle, self.handle._receiver
        deadline = deadline_of(timeout)
        handle._check_open_for_gets()
        receiver.take_buffered(found, count)
        if found:
            return
        demand = Demand(count)
        try:
            receiver.want(demand)
            while True:
                # From here to the return nothing is awaited: a cancelled call has no message.
                receiver.take_buffered(found, count)
                if found:
                    return
                handle._check_open_for_gets()
                receiver.check_refused()
                if handle._is_shut or not block or timeout == 0:
                    await self._obtain_now(found, count)
                    return
                if deadline is not None and clock.monotonic() >= deadline:
                    return
                await self._arrivals.next(self._may_get, seconds_left(deadline))
        finally:
            receiver.unwant(demand)

    def _may_get(self) -> bool:
        handle = self.handle
        return bool(handle._receiver.buffered) or handle._is_shut or handle._is_closed

    async def _obtain_now(self, found: list[Message], count: int) -> None:
        """Until the master has said that nothing is ready; as `Receiver._obtain_now`."""
        handle, receiver = self.handle, self.handle._receiver
        publisher = handle._publisher
        own_count = publisher.accepted_count
        deadline = clock.monotonic() + NOWAIT_S
        await self._outcomes.until(
            lambda: publisher.ended_count >= own_count or handle._is_closed, deadline
        )
        for _ in range(RECALL_ASKS):
            counts = await self._counts()
            if counts.ready and not receiver.buffered:
                await self._arrivals.next(lambda: bool(receiver.buffered), LOOK_S)
            receiver.take_buffered(found, count)
            if found:
                return
            receiver.check_refused()
            if not counts.ready and not counts.unacknowledged:
                break
        if handle._is_shut:
            raise ShutDown(f"the handle on queue {self.name!r} was shut down")

    def ack_many(self, messages: Sequence[Message]) -> Settlement:
        """Ack messages of this handle together. Await the settlement for the outcome."""
        return self.handle.ack_many(messages)

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Messages as they come, until the handle is closed; acking is the caller's."""
        handle = self.handle
        while True:
            found: list[Message] = []
            try:
                await self._get_into(found, True, None)
            except ShutDown:
                return
            except BaseException:
                handle._unsee(found)
                raise
            yield found[0]

    async def ack_and_put(
        self, message: Message, queue: str | MirroredQueue, body: Body, **arguments: Any
    ) -> Settlement:
        """`message.ack_and_put`: ack it, and put another one into another queue, both or neither.

        Returns once it is accepted. Await the settlement for the outcome.
        """
        if self.handle._source_of(message) is None:
            raise ValueError(f"{message!r} did not come from this handle on {self.name!r}")
        target: Any = queue.handle if isinstance(queue, MirroredQueue) else queue
        if isinstance(target, str):
            target = await in_thread(partial(self.handle._id_of, target, arguments.get("key")))
        put = partial(message.ack_and_put, target, body, **arguments)
        return await self._accepted(put, True, None)

    async def consume(
        self, callback: Callable[[Message], Coroutine[Any, Any, object]], **arguments: Any
    ) -> Consumer:
        """Have `await callback(message)` run in this loop for each message, one at a time.

        Arguments as in `mirrorq.MirroredQueue.consume`; the consumer has one thread, which
        waits for the callback. Cancel it with `await asyncio.to_thread(consumer.cancel)`.
        """
        loop = asyncio.get_running_loop()

        def run(message: Message) -> object:
            return asyncio.run_coroutine_threadsafe(callback(message), loop).result()

        consume = partial(self.handle.consume, run, **arguments)
        return await opened(consume, lambda consumer: consumer.cancel())

    # --- Questions ------------------------------------------------------------------------

    async def _counts(self) -> Counts:
        reply = await self._ask(inquire_request)
        assert isinstance(reply, Counts)
        return reply

    async def _ask(
        self, request: Callable[[int], Any], first: Callable[[], None] | None = None
    ) -> object:
        handle = self.handle
        answer = handle._begin_ask(request, first)
        deadline = deadline_of(ASK_S)
        await self._outcomes.until(lambda: answer.is_done or handle._is_closed, deadline)
        return handle._end_ask(answer, ASK_S)

    async def qsize(self) -> int:
        """Messages ready: those that no call has returned."""
        self.handle._check()
        return (await self._counts()).ready + self.handle._receiver.buffered

    async def empty(self) -> bool:
        """Whether no message is ready."""
        return await self.qsize() == 0

    def full(self) -> bool:
        """Whether a `put` would wait."""
        return self.handle.full()

    def status(self) -> QueueStatus:
        """What this handle's node knows of the queue. Never blocks, never raises."""
        return self.handle.status()

    async def browse(self, start: int | None = None, count_max: int = 1000) -> list[Message]:
        """Look at all messages, those delayed too, without taking them."""
        position = blocking._browse_start(start, count_max)
        self.handle._check()
        self.handle._check_right("read")
        if self.handle.shards:
            return await in_thread(partial(self.handle.browse, start, count_max))
        found: list[Message] = []
        while position is not None and len(found) < count_max:
            page = min(count_max - len(found), blocking.BROWSE_PAGE)
            reply = await self._ask(browse_request(position, page))
            assert isinstance(reply, Browsed)
            messages, position = self.handle._browsed(reply)
            found += messages
        return found

    async def purge(self) -> int:
        """End all ready and delayed messages; returns how many."""
        self.handle._check()
        self.handle._check_right("read")
        reply = await self._ask(purge_request)
        assert isinstance(reply, Purged)
        return reply.count

    async def redrive(self, count_max: int | None = None) -> int:
        """Move dead letters back to the queues in which they ended; returns how many."""
        return await in_thread(partial(self.handle.redrive, count_max))

    def transaction(self) -> Transaction:
        """Puts and acks on this queue that are one op; see `aio.Transaction`."""
        self.handle._check_open_for_puts(right="")
        return Transaction(self.handle, self._accepted)

    async def delete(self, if_empty: bool = False, if_unused: bool = False) -> None:
        """Delete the queue with everything in it."""
        await in_thread(partial(self.handle.delete, if_empty=if_empty, if_unused=if_unused))

    # --- The end --------------------------------------------------------------------------

    async def shutdown(self, immediate: bool = False) -> None:
        """Take no more puts on this handle; `get` goes on until nothing is ready."""
        await in_thread(partial(self.handle.shutdown, immediate))

    async def close(self) -> None:
        """Wait up to 5 s for what is open, give back what is held, and close the handle."""
        await in_thread(self.handle.close)

    async def __aenter__(self) -> MirroredQueue:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<aio {self.handle!r}>"
