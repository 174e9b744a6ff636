"""mirrorq for asyncio: the same names, awaited.

    from mirrorq import aio

    async with await aio.connect("tcp://127.0.0.1:7400") as client:
        orders = await client.queue("orders")
        confirmation = await orders.put(b"order 1")     # accepted
        sequence = await confirmation                   # on disk on every member in sync
        async for message in orders:
            await work(message.body)
            await message.ack()

What waits here waits in the loop: no call has a thread of its own. The exceptions are calls that
seldom happen (opening, declaring, deleting, closing, administration), which run in a thread of
the loop's default executor. `Confirmation` and `Settlement` are the ones of `mirrorq`: they can
be awaited as they are.

*Cancellation*: a cancelled call loses nothing. A `get` takes its message in the moment in which
it returns it and not before; a cancelled `put` was not accepted.

*Threads*: an object of this module belongs to the loop in which it was made; the handle below
it (`queue.handle`) may be used from any thread beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from mirrorq import queue as blocking
from mirrorq.confirmation import Confirmation, Settlement
from mirrorq.errors import Empty, Full, MirrorQError, ShutDown
from mirrorq.handle import ASK_S
from mirrorq.message import Message
from mirrorq.messages import Counts
from mirrorq.publisher import FIRST_S
from mirrorq.receiver import NOWAIT_S, RECALL_ASKS
from mirrorq.session import PutCredit, inquire_request

if TYPE_CHECKING:
    from mirrorq.client import Client as BlockingClient
    from mirrorq.consumer import Consumer
    from mirrorq.node import Node as BlockingNode
    from mirrorq.status import QueueStatus
    from mirrorq.steps import AsyncTransaction

__all__ = ["Client", "MirroredQueue", "Node", "connect", "wait"]

Result = TypeVar("Result")
Openable = TypeVar("Openable", "blocking.MirroredQueue", "BlockingNode", "BlockingClient")
Body = bytes | bytearray | memoryview

LOOK_S = 0.5
"""Who waits looks this often by himself, for what nobody tells (a lost majority)."""


class _Bell:
    """Wakes tasks of one loop when another thread says that something has changed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_rung = False

    def ring(self) -> None:
        """From any thread; cheap when nobody waits or it has been rung already."""
        if self._waiting and not self._is_rung:
            self._is_rung = True
            try:
                self._loop.call_soon_threadsafe(self._wake)
            except RuntimeError:
                self._is_rung = False  # the loop is closed: nobody waits any more

    def _wake(self) -> None:
        self._is_rung = False
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def until(self, condition: Callable[[], bool], deadline: float | None) -> bool:
        """Wait until the condition holds, which is looked at whenever the bell rings."""
        while not condition():
            left = LOOK_S if deadline is None else min(LOOK_S, deadline - time.monotonic())
            if left <= 0:
                return False
            await self._next(condition, left)
        return True

    async def _next(self, condition: Callable[[], bool], timeout: float) -> None:
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(future)
        timer = self._loop.call_later(timeout, _resolve, future)
        try:
            # Looked at again after being in the list: a change before that rang for nobody.
            if not condition():
                await future
        finally:
            timer.cancel()
            self._waiting.remove(future)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _deadline(timeout: float | None) -> float | None:
    if timeout is None:
        return None
    if timeout < 0:
        raise ValueError(f"the timeout is {timeout}: it is 0 or more seconds")
    return time.monotonic() + timeout


class MirroredQueue:
    """A handle on a queue, for one loop. Made by `open`, `Node.queue` or `Client.queue`.

    Arguments, results and errors are those of `mirrorq.MirroredQueue`, whose handle is in
    `handle`.
    """

    def __init__(self, handle: blocking.MirroredQueue) -> None:
        """Wrap a blocking handle; in a coroutine, since it belongs to the running loop."""
        loop = asyncio.get_running_loop()
        self.handle = handle
        self._outcomes = _Bell(loop)
        self._arrivals = _Bell(loop)
        with handle._outcomes.lock:
            handle._outcomes.listeners.append(self._outcomes.ring)
        handle._receiver.listeners.append(self._arrivals.ring)

    @classmethod
    async def open(cls, name: str, **arguments: Any) -> MirroredQueue:
        """`mirrorq.MirroredQueue(name, …)`: the handle brings its node with it."""
        return cls(await _opened(partial(blocking.MirroredQueue, name, **arguments)))

    @property
    def name(self) -> str:
        return self.handle.name

    # --- Publishing -----------------------------------------------------------------------

    async def put(
        self, body: Body, *, block: bool = True, timeout: float | None = None, **arguments: Any
    ) -> Confirmation:
        """Publish a message; returns once it is accepted. Await the confirmation as well."""
        return await self._accepted(partial(self.handle.put, body, **arguments), block, timeout)

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
        return await self._accepted(put, block, timeout)

    def put_nowait(self, body: Body) -> Confirmation:
        """`put` that raises Full at once."""
        return self.handle.put_nowait(body)

    async def _accepted(
        self, put: Callable[..., Confirmation], block: bool, timeout: float | None
    ) -> Confirmation:
        deadline = _deadline(timeout)
        publisher = self.handle._publisher
        if publisher.is_curious:
            # What a blocking put does by itself.
            publisher.is_curious = False
            await self._outcomes.until(publisher.knows, time.monotonic() + FIRST_S)
        while True:
            try:
                return put(block=False)
            except Full as full:
                if not block:
                    raise
                if deadline is not None and time.monotonic() >= deadline:
                    raise self.handle._why_not(full) from None
                before = (publisher.count, publisher.credit)
                changed = partial(self._has_changed, before)
                await self._outcomes._next(changed, self._left(deadline))

    def _has_changed(self, before: tuple[int, PutCredit]) -> bool:
        publisher = self.handle._publisher
        return (publisher.count, publisher.credit) != before

    @staticmethod
    def _left(deadline: float | None) -> float:
        return LOOK_S if deadline is None else max(min(LOOK_S, deadline - time.monotonic()), 0)

    async def wait_for_confirms(self, timeout: float | None = None) -> bool:
        """Wait until everything put has an outcome; True."""
        handle = self.handle
        publisher = handle._publisher
        deadline = _deadline(timeout)
        await self._outcomes.until(lambda: not publisher.count or handle._is_closed, deadline)
        return handle.wait_for_confirms(0)

    # --- Consuming ------------------------------------------------------------------------

    async def get(
        self, block: bool = True, timeout: float | None = None, *, auto_ack: bool = False
    ) -> Message:
        """Take the next message; it is held until it is acked or given back."""
        found = await self._obtain(1, block, timeout)
        if not found:
            within = f" within {timeout} s" if block else ""
            empty = Empty(f"queue {self.name!r} had no message ready{within}")
            raise self.handle._why_not(empty)
        if auto_ack:
            self.handle._settle("ack", found)
        return found[0]

    async def get_many(self, count_max: int, timeout: float | None = None) -> list[Message]:
        """Take 1 to `count_max` messages as soon as there is one; [] at the time-out."""
        if count_max < 1:
            raise ValueError(f"count_max is {count_max}: ask for at least 1")
        found = await self._obtain(count_max, True, timeout)
        if not found:
            reason = self.handle._why_not(Empty(""))
            if not isinstance(reason, Empty):
                raise reason
        return found

    async def _obtain(self, count: int, block: bool, timeout: float | None) -> list[Message]:
        handle, receiver = self.handle, self.handle._receiver
        deadline = _deadline(timeout)
        handle._check_open_for_gets()
        found = receiver.take_buffered(count)
        if found:
            return found
        receiver.want(count)
        try:
            while True:
                # From here to the return nothing is awaited: a cancelled call has no message.
                found = receiver.take_buffered(count)
                if found:
                    return found
                handle._check_open_for_gets()
                receiver.check_refused()
                if handle._is_shut or not block or timeout == 0:
                    return await self._obtain_now(count)
                if deadline is not None and time.monotonic() >= deadline:
                    return []
                await self._arrivals._next(self._may_get, self._left(deadline))
        finally:
            receiver.want(-count)

    def _may_get(self) -> bool:
        handle = self.handle
        return bool(handle._receiver.buffered) or handle._is_shut or handle._is_closed

    async def _obtain_now(self, count: int) -> list[Message]:
        """Until the master has said that nothing is ready; as `Receiver._obtain_now`."""
        handle, receiver = self.handle, self.handle._receiver
        publisher = handle._publisher
        own_count = publisher.accepted_count
        deadline = time.monotonic() + NOWAIT_S
        await self._outcomes.until(
            lambda: publisher.ended_count >= own_count or handle._is_closed, deadline
        )
        for _ in range(RECALL_ASKS):
            counts = await self._counts()
            if counts.ready and not receiver.buffered:
                await self._arrivals._next(lambda: bool(receiver.buffered), LOOK_S)
            found = receiver.take_buffered(count)
            if found:
                return found
            receiver.check_refused()
            if not counts.ready and not counts.unacknowledged:
                break
        if handle._is_shut:
            raise ShutDown(f"the handle on queue {self.name!r} was shut down")
        return []

    def ack_many(self, messages: Sequence[Message]) -> Settlement:
        """Ack messages of this handle together. Await the settlement for the outcome."""
        return self.handle.ack_many(messages)

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Messages as they come, until the handle is closed; acking is the caller's."""
        while True:
            try:
                message = await self.get()
            except ShutDown:
                return
            yield message

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

        return await _in_thread(partial(self.handle.consume, run, **arguments))

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
        deadline = _deadline(ASK_S)
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
        return await _in_thread(partial(self.handle.browse, start, count_max))

    async def purge(self) -> int:
        """End all ready and delayed messages; returns how many."""
        return await _in_thread(self.handle.purge)

    async def redrive(self, count_max: int | None = None) -> int:
        """Move dead letters back to the queues in which they ended; returns how many."""
        return await _in_thread(partial(self.handle.redrive, count_max))

    def transaction(self) -> AsyncTransaction:
        """Puts and acks on this queue that are one op; see `steps.AsyncTransaction`."""
        from mirrorq.steps import AsyncTransaction

        self.handle._check_open_for_puts()
        return AsyncTransaction(self.handle)

    async def delete(self, if_empty: bool = False, if_unused: bool = False) -> None:
        """Delete the queue with everything in it."""
        await _in_thread(partial(self.handle.delete, if_empty=if_empty, if_unused=if_unused))

    # --- The end --------------------------------------------------------------------------

    async def shutdown(self, immediate: bool = False) -> None:
        """Take no more puts on this handle; `get` goes on until nothing is ready."""
        await _in_thread(partial(self.handle.shutdown, immediate))

    async def close(self) -> None:
        """Wait up to 5 s for what is open, give back what is held, and close the handle."""
        await _in_thread(self.handle.close)

    async def __aenter__(self) -> MirroredQueue:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<aio {self.handle!r}>"


class _Host:
    """A node or a client. Calls that are not here run in a thread, with the same arguments."""

    def __init__(self, host: BlockingNode | BlockingClient) -> None:
        self.host = host

    async def queue(self, name: str, **arguments: Any) -> MirroredQueue:
        """Declare a queue, or find it, and return a handle for this loop."""
        return MirroredQueue(await _opened(partial(self.host.queue, name, **arguments)))

    async def close(self) -> None:
        await _in_thread(self.host.close)

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        """Administration: `await node.set_policy(…)` and all the others."""
        method = getattr(self.host, name)
        if name.startswith("_") or not callable(method):
            raise AttributeError(f"{name} is no call: take it from .host")
        return lambda *values, **named: _in_thread(partial(method, *values, **named))

    def __repr__(self) -> str:
        return f"<aio {self.host!r}>"


class Node(_Host):
    """`mirrorq.Node` for asyncio. Made by `await Node.open(name, path=…)`."""

    @classmethod
    async def open(cls, name: str, **arguments: Any) -> Node:
        """Arguments and errors as of `mirrorq.Node`."""
        from mirrorq.node import Node as BlockingNode

        return cls(await _opened(partial(BlockingNode, name, **arguments)))

    async def __aenter__(self) -> Node:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Client(_Host):
    """`mirrorq.Client` for asyncio. Made by `connect`."""

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def connect(endpoints: str | Sequence[str], **arguments: Any) -> Client:
    """`mirrorq.connect`: the same queues from a process that is no node."""
    from mirrorq.client import connect as blocking_connect

    return Client(await _opened(partial(blocking_connect, endpoints, **arguments)))


async def wait(
    confirmations: Sequence[Confirmation | Settlement], timeout: float | None = None
) -> tuple[set[Confirmation | Settlement], set[Confirmation | Settlement]]:
    """Wait until all have ended, or `timeout` seconds; return (done, not_done)."""

    async def outcome(one: Confirmation | Settlement) -> None:
        with contextlib.suppress(MirrorQError):
            await one

    tasks = [asyncio.ensure_future(outcome(one)) for one in confirmations]
    if tasks:
        _, pending = await asyncio.wait(tasks, timeout=timeout)
        for task in pending:
            task.cancel()
    return ({c for c in confirmations if c.done()}, {c for c in confirmations if not c.done()})


async def _in_thread(function: Callable[[], Result]) -> Result:
    return await asyncio.get_running_loop().run_in_executor(None, function)


async def _opened(function: Callable[[], Openable]) -> Openable:
    """What a thread opens. Who is cancelled meanwhile leaves nothing open behind."""
    future = asyncio.get_running_loop().run_in_executor(None, function)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        future.add_done_callback(_close_unwanted)
        raise


def _close_unwanted(opened: asyncio.Future[Any]) -> None:
    if not opened.cancelled() and opened.exception() is None:
        opened.get_loop().run_in_executor(None, opened.result().close)
