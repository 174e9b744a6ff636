"""`Consumer` for asyncio: one task of the loop runs a coroutine function, without a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from threading import get_ident
from typing import Any, Self

from mirrorq.aio.bell import Bell
from mirrorq.api import consumer as blocking
from mirrorq.api.channel import Channel
from mirrorq.api.message import Message
from mirrorq.waiting import ProcessEnded


class Consumer(blocking.Consumer):
    """One consumer of one handle, in the loop in which `aio.MirroredQueue.consume` made the
    consumer.

    `cancel` may be called from any thread. In the loop, `cancel` does not wait for a running
    callback; `wait_cancelled` and the end of `async with` do. A cancelled task gives back the
    message in work, and `on_cancel` is called: at the end of `asyncio.run`, or when the callback
    cancels its own task.
    """

    def __init__(
        self,
        channel: Channel,
        callback: Callable[[Message], Coroutine[Any, Any, object]],
        **options: Any,
    ) -> None:
        """Arguments as in `mirrorq.Consumer`; call in a coroutine."""
        super().__init__(channel, callback, **options)
        self._work = callback
        self._loop = asyncio.get_running_loop()
        self._bell = Bell(self._loop)
        self._context = copy_context()
        self._server = get_ident()
        self._task: asyncio.Task[None] | None = None

    def cancel(self, *, wait: bool = True) -> None:
        """Stop. What has come and was not begun goes back uncounted.

        Args:
            wait: on other threads, for the message under way, a second at most.
        """
        if get_ident() == self._server:
            self._abandon()
            self._end()
        else:
            super().cancel(wait=wait)

    async def wait_cancelled(self) -> None:
        """Wait until nothing is being worked on any more; not in the callback itself."""
        task = self._task
        if task is not None and task is not asyncio.current_task():
            await asyncio.wait((task,))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()
        await self.wait_cancelled()

    def _ring(self) -> None:
        self._bell.ring()

    def _begin_serving(self) -> None:
        """Begin to serve. Runs in the thread that has made the consumer known to the queue."""

        def begin() -> None:
            self._task = self._loop.create_task(self._run_in_loop())

        try:
            self._loop.call_soon_threadsafe(begin, context=self._context)
        except RuntimeError:  # the loop is closed: nobody waits for this consumer
            self._finished.set()
            self._abandon()
            self._end()

    async def _run_in_loop(self) -> None:
        try:
            await self._serve_in_loop()
        except ProcessEnded:
            raise
        except asyncio.CancelledError:
            if not self._is_ended:
                self._tell_cancelled()
            self.cancel()
            self._give_back()
            raise
        except BaseException:
            self._fail()
        finally:
            self._finished.set()

    async def _serve_in_loop(self) -> None:
        while not self._is_ended:
            self._message = message = self._next()
            if message is not None:
                await self._handle_in_loop(message)
            elif not self._has_more():
                await self._bell.until(lambda: self._is_ended or self._has_more(), None)

    async def _handle_in_loop(self, message: Message) -> None:
        self._ack_if("receipt", message)
        try:
            await _awaitable(self._work(message))
        except ProcessEnded:
            raise
        except BaseException as error:
            if ends_task(error):
                raise
            self._give_back_later(message, error)
        else:
            self._ack_if("return", message)

    def _give_back(self) -> None:
        message = self._message
        if message is not None and not message._is_settled:
            message.nack()


def ends_task(error: BaseException) -> bool:
    """Return true if the running task was cancelled itself, and not only what it awaits."""
    task = asyncio.current_task()
    is_cancel = isinstance(error, asyncio.CancelledError)
    return is_cancel and task is not None and task.cancelling() > 0


def _awaitable(given: object) -> Awaitable[object]:
    """Return the awaitable that a callback has returned.

    Raises:
        TypeError: the value cannot be awaited.
    """
    if not isinstance(given, Awaitable):
        raise TypeError(f"the callback returned {given!r}, no coroutine: make it an async def")
    return given
