"""A handle on a queue for one loop."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Unpack, overload

from mirrorq.aio.bell import Bells, Line
from mirrorq.aio.consumer import Consumer
from mirrorq.aio.opening import Closing, Opening, opening
from mirrorq.aio.outcomes import outcome_of
from mirrorq.aio.stdlib_queue import QueueAdapter
from mirrorq.aio.steps import Transaction
from mirrorq.aio.threads import closed, in_thread, opened
from mirrorq.api import queue as blocking
from mirrorq.api.arguments import (
    check_block,
    check_callable,
    check_count,
    check_flags,
    check_timeout,
    checked_bodies,
    deadline_of,
    left_until,
    not_a_message,
)
from mirrorq.api.channel import ASK_S, purged_count
from mirrorq.api.confirmation import Confirmation, Settlement
from mirrorq.api.message import Message
from mirrorq.api.options import (
    Body,
    ConsumeOptions,
    DeclareOptions,
    EmbeddedOptions,
    ManyOptions,
    MessageOptions,
    annotations_of,
    packed,
    packed_many,
    place_key,
    refuse_unknown,
    spelled_out,
)
from mirrorq.api.publisher import OnConfirm, PutCall
from mirrorq.api.receiver import unsee
from mirrorq.api.stdlib_queue import AckAt
from mirrorq.api.waits import Waits
from mirrorq.errors import AckRefused, Full, ShutDown
from mirrorq.session.calls import purge_request

if TYPE_CHECKING:
    import os

    from mirrorq.monitoring.status import QueueStatus

Listener = Callable[[Confirmation], object]
Accepted = TypeVar("Accepted", Confirmation, Settlement)
Item = TypeVar("Item")


class HandleHost(Protocol):
    """The node or client of a handle, for asyncio: see `Node` and `Client`."""

    host: Any

    def queue(self, name: str, **options: Unpack[DeclareOptions]) -> Opening[MirroredQueue]:
        """Declare a queue, or find it."""

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]: ...


_wrap: Callable[[Any], HandleHost] | None = None


def wrap_hosts_with(wrap: Callable[[Any], HandleHost]) -> None:
    """Set the function that wraps a node or a client for `MirroredQueue.node`."""
    global _wrap
    _wrap = wrap


class MirroredQueue(Closing):
    """A handle on a queue, for one loop. Made by `open`, `Node.queue` or `Client.queue`.

    Arguments, results and errors as in `mirrorq.MirroredQueue`, whose handle is in `handle`; the
    calls of `mirrorq.bulk` take `handle`, in a thread.
    """

    def __init__(self, handle: blocking.MirroredQueue) -> None:
        """Wrap a blocking handle; call in a coroutine of the loop."""
        self.handle: blocking.MirroredQueue = handle
        """The wrapped handle."""
        self._loop = asyncio.get_running_loop()
        self._bells = Bells(self._loop)
        self._run = self._bells.run
        self._lines: dict[int, Line] = {}
        """Shard -> puts that wait for room in the shard; -1: in any shard."""

    @classmethod
    @opening
    @spelled_out
    async def open(
        cls,
        name: str,
        *,
        path: str | os.PathLike[str],
        node: str | None = None,
        **options: Unpack[EmbeddedOptions],
    ) -> MirroredQueue:
        """Open `mirrorq.MirroredQueue(name, …)`: the handle brings its node along.

        Arguments, result and errors as in `mirrorq.MirroredQueue`.
        """
        make = partial(blocking.MirroredQueue, name, path=path, node=node, **options)
        return cls(await opened(make))

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.handle.name

    @property
    def node(self) -> HandleHost:
        """The node or client of this handle, for asyncio."""
        assert _wrap is not None, "importing mirrorq.aio sets it"
        return _wrap(self.handle.node)

    @property
    def shards(self) -> int:
        """How many shards the queue has; 0: not sharded."""
        return self.handle.shards

    @opening
    async def shard(self, number: int) -> MirroredQueue:
        """A new handle on one shard, from 0.

        Arguments, result and errors as in `mirrorq.MirroredQueue.shard`.
        """
        return MirroredQueue(await opened(partial(self.handle.shard, number)))

    # --- Publishing -----------------------------------------------------------------------

    @spelled_out
    async def put(
        self,
        body: Body,
        block: bool = True,
        timeout: float | None = None,
        *,
        on_confirm: OnConfirm = None,
        **options: Unpack[MessageOptions],
    ) -> int:
        """Publish a message, and wait for the confirm.

        Arguments as in `mirrorq.MirroredQueue.put`. `timeout` bounds the wait for room and the wait
        for the confirmation together. A call that is cancelled, or out of time, after the message
        was accepted cannot undo the put: the message is published as soon as possible.

        Returns:
            The message's sequence.

        Raises:
            NotConfirmed: the message is certainly not stored.
            ConfirmUnknown: the handle was closed before the answer came.
            Full: too much was unconfirmed for `timeout` seconds (NoQuorum, QueueDown as well if
                one of them is the reason).
            TimeoutError: the message was accepted, and is not confirmed after `timeout` seconds.
        """
        until = deadline_of(timeout)
        sent = await self.send(body, block, timeout, on_confirm=on_confirm, **options)
        sequence: int = await self._outcome(sent, until)
        return sequence

    @spelled_out
    async def send(
        self,
        body: Body,
        block: bool = True,
        timeout: float | None = None,
        *,
        on_confirm: OnConfirm = None,
        **options: Unpack[MessageOptions],
    ) -> Confirmation:
        """Publish a message without a wait for the confirm: many can be on their way at once.

        Returns once there is room. Await the confirmation for the outcome.

        Arguments, result and errors as in `mirrorq.MirroredQueue.put`.
        """
        check_block(block)
        handle = self.handle._handle
        until, key = deadline_of(timeout), place_key(options)
        terms, properties = packed(**options)
        data = handle.checked_body(body, properties)

        def putting() -> Waits[Confirmation]:
            how = PutCall(properties, terms, key, block, left_until(until), on_confirm)
            return handle.putting(data, how)

        return await self._accepted(putting, block, until, key)

    @spelled_out
    async def put_many(
        self,
        bodies: Sequence[Body],
        block: bool = True,
        timeout: float | None = None,
        *,
        on_confirm: OnConfirm = None,
        **options: Unpack[ManyOptions],
    ) -> Sequence[int]:
        """Publish messages together, up to `frame_bytes_max` all or none, and wait until they are
        confirmed.

        Arguments as in `mirrorq.MirroredQueue.put_many`; errors as in `put`.

        Returns:
            Their sequences: a range, or a tuple when another producer came between.
        """
        until = deadline_of(timeout)
        sent = await self.send_many(bodies, block, timeout, on_confirm=on_confirm, **options)
        sequences: Sequence[int] = await self._outcome(sent, until)
        return sequences

    @spelled_out
    async def send_many(
        self,
        bodies: Sequence[Body],
        block: bool = True,
        timeout: float | None = None,
        *,
        on_confirm: OnConfirm = None,
        **options: Unpack[ManyOptions],
    ) -> Confirmation:
        """`put_many` without a wait for the confirm: see `send`.

        Arguments, result and errors as in `mirrorq.MirroredQueue.put_many`.
        """
        check_block(block)
        handle = self.handle._handle
        until, key = deadline_of(timeout), options.get("key")
        terms, properties = packed_many(**options)
        data = checked_bodies(bodies, properties, handle.config.message_bytes_max)

        def putting() -> Waits[Confirmation]:
            how = PutCall(properties, terms, key, block, left_until(until), on_confirm)
            return handle.putting_many(data, how)

        return await self._accepted(putting, block, until, key)

    def put_nowait(self, body: Body) -> Confirmation:
        """`send` that raises Full at once instead of waiting for room.

        Arguments, result and errors as in `mirrorq.MirroredQueue.put_nowait`.
        """
        self._bells.check()
        if not self._line_of(None).is_free:
            raise self._overtaking()
        return self.handle.put_nowait(body)

    async def _accepted(
        self,
        call: Callable[[], Waits[Accepted]],
        block: bool = True,
        until: float | None = None,
        key: str | bytes | None = None,
    ) -> Accepted:
        """Wait for room and return the result of a call; no call overtakes an earlier one."""
        self._bells.check()
        line = self._line_of(key)
        if not block and not line.is_free:
            raise self._overtaking()
        try:
            await line.enter(until)
        except TimeoutError:
            raise self.handle._handle.why_not(self._overtaking()) from None
        try:
            return await self._run(call())
        finally:
            line.leave()

    async def _outcome(
        self, confirmation: Confirmation | Settlement, until: float | None = None
    ) -> Any:
        return await outcome_of(self._run, confirmation, until)

    def _line_of(self, key: str | bytes | None) -> Line:
        number = -1
        if self.shards and isinstance(key, str | bytes):
            number = self.handle.shard_of(key)
        return self._lines.setdefault(number, Line())

    def _overtaking(self) -> Full:
        return Full(f"queue {self.name!r}: calls that came before wait for room")

    def add_confirm_listener(
        self,
        on_confirmed: Callable[[Confirmation], object] | None,
        on_not_confirmed: Callable[[Confirmation], object] | None = None,
    ) -> None:
        """Have functions called in this loop with each confirmation, by success and failure.

        Arguments, result and errors as in `mirrorq.MirroredQueue.add_confirm_listener`.
        """
        self.handle.add_confirm_listener(self._heard(on_confirmed), self._heard(on_not_confirmed))

    def _heard(self, function: Listener | None) -> Listener | None:
        check_callable("a listener", function)
        return None if function is None else partial(self._call_in_loop, function)

    def _call_in_loop(self, function: Callable[..., object], *told: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(function, *told)

    def add_ack_listener(self, on_refused: Callable[[Message, AckRefused], object]) -> None:
        """Have a function called in this loop with each message whose ack was refused.

        Arguments, result and errors as in `mirrorq.MirroredQueue.add_ack_listener`.
        """
        if on_refused is None:
            raise TypeError("on_refused is None: give a function of a Message and an AckRefused")
        check_callable("on_refused", on_refused)
        self.handle.add_ack_listener(partial(self._call_in_loop, on_refused))

    async def wait_for_confirms(self, timeout: float | None = None) -> bool:
        """Wait until everything put has an outcome; True.

        Arguments, result and errors as in `mirrorq.MirroredQueue.wait_for_confirms`.
        """
        return await self._run(self.handle._handle.puts.confirming(timeout))

    # --- Consuming ------------------------------------------------------------------------

    async def get(
        self, block: bool = True, timeout: float | None = None, *, auto_ack: bool = False
    ) -> Message:
        """Take the next message; it is held until it is acked or given back.

        Arguments, result and errors as in `mirrorq.MirroredQueue.get`.
        """
        if timeout is not None:
            check_timeout(timeout)
        check_block(block)
        check_flags(auto_ack=auto_ack)
        found: list[Message] = []
        try:
            await self._take(found, block, timeout)
            if auto_ack:
                found[0].ack()
            return found[0]
        except BaseException:
            unsee(found)
            raise

    async def _take(self, found: list[Message], block: bool, timeout: float | None) -> None:
        """`get` into a list that the caller still has after an interrupt."""
        self._bells.check()
        handle = self.handle._handle
        handle.take_one(found)
        if not found:
            await self._run(handle.receiver.getting(found, block, timeout))

    async def get_nowait(self) -> Message:
        """`get` without a wait for the next put.

        Arguments, result and errors as in `mirrorq.MirroredQueue.get_nowait`.
        """
        return await self.get(block=False)

    async def get_many(self, count_max: int, timeout: float | None = None) -> list[Message]:
        """Take 1 to `count_max` messages as soon as there is one; [] at the time-out.

        Arguments, result and errors as in `mirrorq.MirroredQueue.get_many`.
        """
        check_count("count_max", count_max)
        found: list[Message] = []
        try:
            await self._run(self.handle._handle.receiver.getting_many(found, count_max, timeout))
            return found
        except BaseException:
            unsee(found)
            raise

    def ack_many(self, messages: Sequence[Message]) -> Settlement:
        """Ack messages of this handle together. Await the settlement for the outcome."""
        return self.handle.ack_many(messages)

    def __aiter__(self) -> AsyncIterator[Message]:
        """Yield messages as they come, until the handle is closed; the caller acks messages. A
        cancelled wait for the next one ends nothing."""
        return _Messages(self)

    @spelled_out
    async def ack_and_put(
        self,
        message: Message,
        queue: str | MirroredQueue,
        body: Body,
        *,
        block: bool = True,
        **options: Unpack[MessageOptions],
    ) -> None:
        """`message.ack_and_put`: ack a message, put another into a queue, both or neither.

        Returns once both are confirmed.

        Arguments and errors as in `mirrorq.Message.ack_and_put` and its settlement.
        """
        check_block(block)
        if not isinstance(message, Message):
            raise not_a_message(message)
        key = place_key(options)
        source = self.handle._handle.source_of(message)
        if source is None:
            raise ValueError(f"{message!r} did not come from this handle on {self.name!r}")
        terms, properties = packed(**options)
        target = queue.handle if isinstance(queue, MirroredQueue) else queue
        ring = await in_thread(partial(source.id_of, target, key))

        def putting() -> Waits[Settlement]:
            return source.acking_and_putting(message, ring, body, properties, terms, block=block)

        await self._outcome(await self._accepted(putting, block))

    @spelled_out
    async def consume(
        self,
        callback: Callable[[Message], Coroutine[Any, Any, object]],
        *,
        on_cancel: Callable[[Consumer], object] | None = None,
        **options: Unpack[ConsumeOptions],
    ) -> Consumer:
        """Have `await callback(message)` run in this loop for each message, one at a time, by a
        task of its own.

        Arguments as in `mirrorq.MirroredQueue.consume`; `on_cancel` is called in this loop. The end
        of `async with await queue.consume(…)` cancels the consumer.
        """
        check_callable("on_cancel", on_cancel)
        if inspect.isasyncgenfunction(callback):
            raise TypeError(
                "callback is an async generator, whose body never runs: leave yield out"
            )
        refuse_unknown(options, annotations_of(ConsumeOptions))
        in_loop = None if on_cancel is None else partial(self._call_in_loop, on_cancel)
        consumer = Consumer(self.handle._handle, callback, on_cancel=in_loop, **options)
        return await opened(consumer._begun, lambda consumer: consumer.cancel())

    # --- Questions ------------------------------------------------------------------------

    async def qsize(self) -> int:
        """Messages ready, without messages that a call has returned."""
        return await self._run(self.handle._handle.receiver.sizing())

    async def empty(self) -> bool:
        """Return true if no message is ready."""
        return await self.qsize() == 0

    def full(self) -> bool:
        """Return true if a `put` would wait."""
        return self.handle.full()

    def status(self) -> QueueStatus:
        """Return the queue's status as this handle's node sees it. Never raises. The call is not
        awaited: a client's holds up the loop until its entry node answers, a second at most."""
        return self.handle.status()

    async def browse(self, start: int | None = None, count_max: int = 1000) -> list[Message]:
        """Return all messages, delayed messages too, without taking them.

        Arguments, result and errors as in `mirrorq.MirroredQueue.browse`.
        """
        position = blocking.browse_start(start, count_max)
        handle = self.handle._handle
        handle.check_for("read")
        return await self._run(handle.browsing(position, count_max))

    async def purge(self) -> int:
        """End all ready and delayed messages; returns how many."""
        handle = self.handle._handle
        handle.check_for("read")
        return purged_count(self.name, await self._run(handle.asking(purge_request, ASK_S)))

    async def delete_messages(self, first: int, last: int | None = None) -> int:
        """End a message, or a range of messages, by sequence; returns how many.

        Arguments, result and errors as in `mirrorq.MirroredQueue.delete_messages`.
        """
        return await in_thread(partial(self.handle.delete_messages, first, last))

    async def move_messages(
        self, first: int, last: int | None = None, *, to: str | MirroredQueue
    ) -> int:
        """Move a message, or a range of messages, to another queue; returns how many.

        Arguments, result and errors as in `mirrorq.MirroredQueue.move_messages`.
        """
        target = to.handle if isinstance(to, MirroredQueue) else to
        return await in_thread(partial(self.handle.move_messages, first, last, to=target))

    async def pause(self) -> None:
        """Have the queue hand out nothing until `resume`; see `mirrorq.MirroredQueue.pause`."""
        await in_thread(self.handle.pause)

    async def resume(self) -> None:
        """End a `pause`."""
        await in_thread(self.handle.resume)

    async def redrive(
        self, count_max: int | None = None, *, first: int | None = None, last: int | None = None
    ) -> int:
        """Move dead letters back to the queues in which they ended; returns how many.

        Arguments, result and errors as in `mirrorq.MirroredQueue.redrive`.
        """
        return await in_thread(partial(self.handle.redrive, count_max, first=first, last=last))

    def transaction(self) -> Transaction:
        """Return a transaction: puts and acks on this queue as one op; see `aio.Transaction`."""
        handle = self.handle._handle
        handle.check_open_for_puts(right="")
        return Transaction(handle, self._accepted)

    @overload
    def as_queue(self, *, ack: AckAt = "get") -> QueueAdapter[bytes]: ...

    @overload
    def as_queue(
        self,
        *,
        dumps: Callable[[Item], Body],
        loads: Callable[[bytes], Item],
        ack: AckAt = "get",
    ) -> QueueAdapter[Item]: ...

    def as_queue(
        self,
        *,
        dumps: Callable[[Any], Body] | None = None,
        loads: Callable[[bytes], Any] | None = None,
        ack: AckAt = "get",
    ) -> QueueAdapter[Any]:
        """A drop-in `asyncio.Queue` on this handle: `get_nowait`, `qsize` and `empty` are plain
        calls there. Arguments as in `mirrorq.MirroredQueue.as_queue`."""
        return QueueAdapter(self, dumps, loads, ack)

    async def delete(self, if_empty: bool = False, if_unused: bool = False) -> None:
        """Delete the queue with all messages.

        Arguments, result and errors as in `mirrorq.MirroredQueue.delete`.
        """
        await in_thread(partial(self.handle.delete, if_empty=if_empty, if_unused=if_unused))

    # --- The end --------------------------------------------------------------------------

    async def shutdown(self, immediate: bool = False) -> None:
        """Take no more puts on this handle; `get` goes on until no message is ready.

        Arguments, result and errors as in `mirrorq.MirroredQueue.shutdown`.
        """
        await in_thread(partial(self.handle.shutdown, immediate))

    async def close(self) -> None:
        """Wait up to 5 s for open calls, give held messages back, and close the handle."""
        await closed(self.handle.close)

    def __repr__(self) -> str:
        return f"<aio {self.handle!r}>"


class _Messages:
    """The messages of a handle, one after the other, until the handle is closed."""

    def __init__(self, queue: MirroredQueue) -> None:
        self._queue = queue

    def __aiter__(self) -> _Messages:
        return self

    async def __anext__(self) -> Message:
        try:
            return await self._queue.get()
        except ShutDown:
            raise StopAsyncIteration from None
