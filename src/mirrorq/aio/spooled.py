"""Spools for asyncio: puts that are accepted on this machine's disk while the cluster is away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Unpack

from mirrorq.aio.bell import Bells, Line
from mirrorq.aio.opening import Closing
from mirrorq.aio.queue import MirroredQueue
from mirrorq.aio.threads import closed, in_thread
from mirrorq.api.arguments import check_block, deadline_of, left_until
from mirrorq.api.message import Message
from mirrorq.api.options import Body, ManyOptions, MessageOptions, spelled_out
from mirrorq.errors import Full
from mirrorq.spool import queue as blocking
from mirrorq.spool.confirmation import SpoolConfirmation
from mirrorq.spool.queue import Begun, Callback
from mirrorq.spool.route import SetAside, SpoolStatus


class SpooledQueue(Closing):
    """A handle that accepts puts at any time, for one loop. Made by `Node.queue(…, spool=True)` or
    `SpoolClient.queue`.

    Arguments, results, errors and promises as in `mirrorq.SpooledQueue`, whose handle is in
    `handle`. A message whose `put` has returned is on this machine's disk. The confirmation,
    awaited, ends when the queue has the message.
    """

    def __init__(self, handle: blocking.SpooledQueue) -> None:
        """Wrap a blocking handle; call in a coroutine of the loop."""
        self.handle: blocking.SpooledQueue = handle
        """The wrapped handle."""
        self._bells = Bells(asyncio.get_running_loop())
        self._run = self._bells.run
        self._line = Line()
        """Puts that wait for room: no put overtakes an earlier put."""

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.handle.name

    # --- Publishing -----------------------------------------------------------------------

    @spelled_out
    async def put(
        self,
        body: Body,
        *,
        block: bool = True,
        timeout: float | None = None,
        on_accept: Callback | None = None,
        on_confirm: Callback | None = None,
        **options: Unpack[MessageOptions],
    ) -> SpoolConfirmation:
        """Put a message into the spool, and wait until the message is on this machine's disk.

        Arguments as in `mirrorq.SpooledQueue.put`. `timeout` bounds the wait for room and the wait
        for the disk together. A call that is cancelled, or out of time, after the message was put
        cannot undo the put.

        Returns:
            The confirmation: awaited, ends with the sequence once the queue has the message.

        Raises:
            Full: the spool was full for `timeout` seconds.
            NotConfirmed, ConfirmUnknown: the disk has failed.
            TimeoutError: the message was put, and is not on the disk after `timeout` seconds.
        """
        until = deadline_of(timeout)
        begin = partial(self.handle._begun, body, block, on_accept, on_confirm, options)
        return await self._accepted(begin, block, until)

    @spelled_out
    async def put_many(
        self,
        bodies: Sequence[Body],
        *,
        block: bool = True,
        timeout: float | None = None,
        on_accept: Callback | None = None,
        on_confirm: Callback | None = None,
        **options: Unpack[ManyOptions],
    ) -> SpoolConfirmation:
        """Put messages together, up to `frame_bytes_max` all or none: as `put`.

        Arguments as in `mirrorq.SpooledQueue.put_many`.

        Returns:
            The confirmation, one for all messages: awaited, ends with a range.
        """
        until = deadline_of(timeout)
        begin = partial(self.handle._begun_many, bodies, block, on_accept, on_confirm, options)
        return await self._accepted(begin, block, until)

    @spelled_out
    async def send(
        self,
        body: Body,
        *,
        block: bool = True,
        timeout: float | None = None,
        on_accept: Callback | None = None,
        on_confirm: Callback | None = None,
        **options: Unpack[MessageOptions],
    ) -> SpoolConfirmation:
        """`put` that does not wait for the disk, only for room: many can be on their way at once.

        Arguments, result and errors as in `mirrorq.SpooledQueue.put`.
        """
        begin = partial(self.handle._begun, body, block, on_accept, on_confirm, options)
        return await self._sent(begin, block, deadline_of(timeout))

    async def _accepted(
        self, begin: Callable[[], Begun], block: bool, until: float | None
    ) -> SpoolConfirmation:
        confirmation = await self._sent(begin, block, until)
        await self._run(confirmation._accepting(left_until(until)))
        return confirmation

    async def _sent(
        self, begin: Callable[[], Begun], block: bool, until: float | None
    ) -> SpoolConfirmation:
        """Put when there is room: no put overtakes an earlier put."""
        self._bells.check()
        check_block(block)
        try:
            await self._line.enter(until if block else 0)
        except TimeoutError:
            raise Full(f"the spool of queue {self.name!r}: earlier puts wait for room") from None
        try:
            confirmation, left = begin()
            if left is not None:
                await self._run(self.handle._making_room(left, block, left_until(until)))
            return confirmation
        finally:
            self._line.leave()

    def put_nowait(self, body: Body) -> SpoolConfirmation:
        """`send` that raises Full at once instead of waiting for room.

        Arguments, result and errors as in `mirrorq.SpooledQueue.put_nowait`.
        """
        self._bells.check()
        if not self._line.is_free:
            raise Full(f"the spool of queue {self.name!r}: earlier puts wait for room")
        return self.handle.put_nowait(body)

    # --- Status -----------------------------------------------------------------------------

    def status(self) -> SpoolStatus:
        """Return the amount and age of messages spooled for this queue, and why. Never waits."""
        return self.handle.status()

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until all puts are on this machine's disk.

        Arguments, result and errors as in `mirrorq.SpooledQueue.flush`.
        """
        await self._run(self.handle._flushing(timeout))

    async def wait_for_confirms(self, timeout: float | None = None) -> None:
        """Wait until the spool is empty: the queue has all messages.

        Arguments, result and errors as in `mirrorq.SpooledQueue.wait_for_confirms`.
        """
        await self._run(self.handle._confirming(timeout))

    async def set_aside(self) -> list[SetAside]:
        """Return messages that the queue refused with no process left to be told."""
        return await in_thread(self.handle.set_aside)

    async def drop_set_aside(self) -> int:
        """Forget all messages that were set aside; returns their number."""
        return await in_thread(self.handle.drop_set_aside)

    # --- The queue itself -------------------------------------------------------------------

    async def replicated(self, timeout: float | None = 30) -> MirroredQueue:
        """Return a handle on the queue itself, for calls that need the cluster. `close` closes it.

        Arguments, result and errors as in `mirrorq.SpooledQueue.replicated`.
        """
        return MirroredQueue(await in_thread(partial(self.handle.replicated, timeout)))

    async def get(self, block: bool = True, timeout: float | None = None) -> Message:
        """Take a message from the queue itself. Messages still in the spool are not there yet.

        Arguments, result and errors as in `mirrorq.SpooledQueue.get`.
        """
        check_block(block)
        until = deadline_of(timeout)
        queue = await self.replicated(timeout if block else 0)
        return await queue.get(block, left_until(until))

    async def close(self) -> None:
        """Wait until all puts are accepted, and close. Messages are sent on while the node or
        client of this handle is open."""
        await closed(self.handle.close)

    def __repr__(self) -> str:
        return f"<aio {self.handle!r}>"
