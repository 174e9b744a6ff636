"""A handle on an exchange for one loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from mirrorq.aio.bell import Bell, Line, seconds_left
from mirrorq.aio.queue import Body, MirroredQueue
from mirrorq.aio.threads import in_thread
from mirrorq.api import exchange as blocking
from mirrorq.api.arguments import deadline_of
from mirrorq.api.confirmation import Confirmation
from mirrorq.api.publisher import Waiting

if TYPE_CHECKING:
    from mirrorq.api.exchange import Letter
    from mirrorq.api.queue import MirroredQueue as Handle

__all__ = ["Exchange"]


class Exchange:
    """An exchange, for one loop. Made by `Node.exchange` or `Client.exchange`.

    Arguments, results and errors are those of `mirrorq.api.exchange.Exchange`, which is in
    `handle`.
    """

    def __init__(self, handle: blocking.Exchange) -> None:
        """Wrap a blocking handle; in a coroutine, since it belongs to the running loop."""
        self.handle = handle
        """The handle that this one wraps."""
        self._loop = asyncio.get_running_loop()
        self._ended = Bell(self._loop)
        handle._outcomes.listeners.append(self._ended.ring)
        self._gate = Line()
        """Publishes that wait for the bindings."""
        self._bells: dict[Handle, Bell] = {}
        """Of queues that had no room once."""

    @property
    def name(self) -> str:
        """The exchange's name."""
        return self.handle.name

    async def publish(
        self,
        routing_key: str,
        body: Body,
        *,
        block: bool = True,
        timeout: float | None = None,
        **arguments: Any,
    ) -> Confirmation:
        """Publish to every queue that the message reaches; returns once it is accepted."""
        deadline, has_passed = deadline_of(timeout), False
        letter = self.handle._letter(routing_key, body, **arguments)
        while True:
            while not self.handle._is_known() or not (has_passed or self._gate.is_free):
                # The first publish, or after a change of bindings.
                await self._learn()
                has_passed = True
            full = self.handle._accept(letter)
            if full is None:
                return letter.confirmation
            why = full._publisher._full(1, letter.size, len(letter.body))
            if not block:
                raise why
            if deadline is not None and seconds_left(deadline) <= 0:
                raise full._why_not(why)
            await self._room(full, letter, deadline)

    async def _learn(self) -> None:
        """One after the other: who came first publishes first."""
        await self._gate.enter()
        try:
            if not self.handle._is_known():
                await in_thread(self.handle._learn)
        finally:
            self._gate.leave()

    async def _room(self, full: Handle, letter: Letter, deadline: float | None) -> None:
        """Wait until something has changed for a queue that had no room."""
        bell = self._bells.get(full)
        if bell is None:
            bell = self._bells[full] = Bell(self._loop)
            full._outcomes.listeners.append(bell.ring)
        publisher = full._publisher

        def may_go_on() -> bool:
            takes = publisher.takes(1, letter.size, len(letter.body))
            return takes or full._is_closed

        call = Waiting("")
        publisher._waiting.add(call)
        try:
            await bell.next(may_go_on, seconds_left(deadline))
        finally:
            publisher._waiting.leave(call)
        if full._is_closed:
            self._bells.pop(full, None)

    async def bind(
        self,
        queue: str | MirroredQueue,
        routing_key: str = "",
        *,
        arguments: Mapping[str, Any] | None = None,
        timeout: float | None = 30,
    ) -> None:
        """Have messages reach a queue."""
        bind = partial(self.handle.bind, arguments=arguments, timeout=timeout)
        await in_thread(partial(bind, _end(queue), routing_key))

    async def unbind(
        self,
        queue: str | MirroredQueue,
        routing_key: str = "",
        *,
        arguments: Mapping[str, Any] | None = None,
        timeout: float | None = 30,
    ) -> None:
        """Take a binding away; when there is none like it, nothing happens."""
        unbind = partial(self.handle.unbind, arguments=arguments, timeout=timeout)
        await in_thread(partial(unbind, _end(queue), routing_key))

    async def bindings(self) -> list[tuple[str, str, str]]:
        """(queue's name, key, arguments as JSON) of each binding, in the order made."""
        return await in_thread(self.handle.bindings)

    async def delete(self, if_unused: bool = False, *, timeout: float | None = 30) -> None:
        """Delete the exchange with its bindings; queues stay."""
        await in_thread(partial(self.handle.delete, if_unused, timeout=timeout))

    async def wait_for_confirms(self, timeout: float | None = None) -> bool:
        """Wait until everything published has an outcome; True."""
        handle = self.handle
        await self._ended.until(lambda: not handle._open, deadline_of(timeout))
        return handle.wait_for_confirms(0)

    async def close(self) -> None:
        """Wait up to 5 s for what is open, and close the handle. The exchange stays."""
        await in_thread(self.handle.close)

    async def __aenter__(self) -> Exchange:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<aio {self.handle!r}>"


def _end(queue: str | MirroredQueue) -> str | Handle:
    return queue.handle if isinstance(queue, MirroredQueue) else queue
