"""A handle on an exchange for one loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any, Unpack

from mirrorq.aio.bell import Bells, Line
from mirrorq.aio.opening import Closing
from mirrorq.aio.outcomes import outcome_of
from mirrorq.aio.queue import MirroredQueue
from mirrorq.aio.threads import closed, in_thread
from mirrorq.api import exchange as blocking
from mirrorq.api.arguments import check_block, deadline_of
from mirrorq.api.confirmation import Confirmation
from mirrorq.api.options import Body, RoutedOptions, spelled_out
from mirrorq.api.publisher import OnConfirm
from mirrorq.api.queue import MirroredQueue as Handle


class Exchange(Closing):
    """An exchange, for one loop. Made by `Node.exchange` or `Client.exchange`.

    Arguments, results and errors as in `mirrorq.api.exchange.Exchange`, which is in `handle`.
    """

    def __init__(self, handle: blocking.Exchange) -> None:
        """Wrap a blocking handle; call in a coroutine of the loop."""
        self.handle: blocking.Exchange = handle
        """The wrapped handle."""
        self._bells = Bells(asyncio.get_running_loop())
        self._gate = Line()
        """Publishes that wait for the bindings."""

    @property
    def name(self) -> str:
        """The exchange's name."""
        return self.handle.name

    @spelled_out
    async def publish(
        self,
        routing_key: str,
        body: Body,
        *,
        mandatory: bool = False,
        block: bool = True,
        timeout: float | None = None,
        on_confirm: OnConfirm = None,
        **options: Unpack[RoutedOptions],
    ) -> dict[str, int]:
        """Publish to every queue that the message reaches, and wait for all confirms.

        Arguments as in `mirrorq.Exchange.publish`. `timeout` bounds the wait for room and the wait
        for the confirmation together.

        Returns:
            The message's sequence in each reached queue, by name.

        Raises:
            NotConfirmed, ConfirmUnknown, Full, NoQuorum, QueueDown: see `mirrorq.Exchange.publish`
                and its confirmation.
            TimeoutError: the message was accepted, and is not confirmed after `timeout` seconds.
        """
        until = deadline_of(timeout)
        sent = await self.send(
            routing_key,
            body,
            mandatory=mandatory,
            block=block,
            timeout=timeout,
            on_confirm=on_confirm,
            **options,
        )
        sequences: dict[str, int] = await outcome_of(self._bells.run, sent, until)
        return sequences

    @spelled_out
    async def send(
        self,
        routing_key: str,
        body: Body,
        *,
        mandatory: bool = False,
        block: bool = True,
        timeout: float | None = None,
        on_confirm: OnConfirm = None,
        **options: Unpack[RoutedOptions],
    ) -> Confirmation:
        """`publish` without a wait for confirms: many messages can be on their way at once. Returns
        once there is room in all queues.

        Arguments, result and errors as in `mirrorq.Exchange.publish`.
        """
        check_block(block)
        self._bells.check()
        handle = self.handle
        until, has_passed = deadline_of(timeout), False
        request = handle._checked_request(
            routing_key, body, mandatory=mandatory, on_confirm=on_confirm, **options
        )
        while True:
            while not handle._is_known() or not (has_passed or self._gate.is_free):
                # The first publish, or after a change of bindings.
                await self._learn()
                has_passed = True
            full = handle._accept(request)
            if full is None:
                return request.confirmation
            await self._bells.run(handle._making_room(full, request, block, until))

    async def _learn(self) -> None:
        """Read the bindings, one call at a time: publishes keep their order."""
        await self._gate.enter()
        try:
            if not self.handle._is_known():
                await in_thread(self.handle._learn)
        finally:
            self._gate.leave()

    async def bind(
        self,
        queue: str | MirroredQueue,
        routing_key: str = "",
        *,
        arguments: Mapping[str, Any] | None = None,
        timeout: float | None = 30,
    ) -> None:
        """Have messages reach a queue.

        Arguments, result and errors as in `mirrorq.Exchange.bind`.
        """
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
        """Take a binding away; when there is none like it, nothing happens.

        Arguments, result and errors as in `mirrorq.Exchange.unbind`.
        """
        unbind = partial(self.handle.unbind, arguments=arguments, timeout=timeout)
        await in_thread(partial(unbind, _end(queue), routing_key))

    async def bindings(self) -> list[tuple[str, str, str]]:
        """(queue's name, key, arguments as JSON) of each binding, in the order made."""
        return await in_thread(self.handle.bindings)

    async def delete(self, if_unused: bool = False, *, timeout: float | None = 30) -> None:
        """Delete the exchange with its bindings; queues stay.

        Arguments, result and errors as in `mirrorq.Exchange.delete`.
        """
        await in_thread(partial(self.handle.delete, if_unused, timeout=timeout))

    async def wait_for_confirms(self, timeout: float | None = None) -> bool:
        """Wait until everything published has an outcome; True.

        Arguments, result and errors as in `mirrorq.Exchange.wait_for_confirms`.
        """
        return await self._bells.run(self.handle._confirming(timeout))

    async def close(self) -> None:
        """Wait up to 5 s for what is open, and close the handle. The exchange stays."""
        await closed(self.handle.close)

    def __repr__(self) -> str:
        return f"<aio {self.handle!r}>"


def _end(queue: str | MirroredQueue) -> str | Handle:
    return queue.handle if isinstance(queue, MirroredQueue) else queue
