"""`SpooledQueue`: a queue whose producer goes on without its cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Unpack, cast

from attrs import frozen

from mirrorq.api.arguments import (
    check_block,
    check_callable,
    checked_bodies,
    checked_body,
    deadline_of,
)
from mirrorq.api.batching import ManyPut, OnePut
from mirrorq.api.channel import FIRST_S
from mirrorq.api.closing import Closing
from mirrorq.api.options import (
    Body,
    ManyOptions,
    MessageOptions,
    packed,
    packed_many,
    spelled_out,
)
from mirrorq.api.publish_options import PLAIN, Terms
from mirrorq.api.waits import Wait, Waits, in_thread
from mirrorq.errors import Full, MirrorQError, NoQuorum
from mirrorq.protocol.ops import FLAG_UNIQUE, FLAG_UNIQUE_LATER, FLAG_WHOLE
from mirrorq.spool.confirmation import SpoolConfirmation
from mirrorq.spool.route import SetAside, SpoolStatus
from mirrorq.spool.spool import Spool

if TYPE_CHECKING:
    from mirrorq.api.message import Message
    from mirrorq.api.publisher import Publisher
    from mirrorq.api.queue import MirroredQueue
    from mirrorq.spool.route import Route

Callback = Callable[[SpoolConfirmation], object]
Begun = tuple[SpoolConfirmation, OnePut | ManyPut | None]
"""A put, and the rest that waits for room."""


@frozen
class Whole(Terms):
    """Terms of messages that their target stores together or not at all."""

    @property
    def flags(self) -> int:
        return super().flags | FLAG_WHOLE


@frozen
class Later(Terms):
    """Terms of messages whose unique keys the target checks."""

    @property
    def flags(self) -> int:
        return super().flags & ~FLAG_UNIQUE | FLAG_UNIQUE_LATER


class SpooledQueue(Closing):
    """One queue's handle that accepts puts at any time.

    A put is *accepted* when it is on this machine's disk (fsynced), and *confirmed* when the
    replicated queue has the message: exactly once, in the order of this spool's puts, also when the
    process or the machine restarts in between. A put needs neither the cluster nor the queue.

    To consume, `get` and `consume` use a handle on the queue itself (`replicated`), which does need
    the cluster.

    *Threads*: every method may be called from any thread; not in a forked child.

    Args:
        spool: the spool that takes the puts.
        route: the queue's route through the spool.
        open_queue: a handle on the queue itself, given a time-out in seconds.
    """

    def __init__(
        self, spool: Spool, route: Route, open_queue: Callable[[float | None], MirroredQueue]
    ) -> None:
        self.name: str = route.name
        """The queue's name."""
        self._spool = spool
        self._route = route
        self._open_queue = open_queue
        self._queue: MirroredQueue | None = None

    def __repr__(self) -> str:
        status = self.status()
        state = f"waits: {status.why}" if status.why else "connected"
        return f"<SpooledQueue {self.name!r}, {status.messages} spooled, {state}>"

    # --- Publishing -------------------------------------------------------------------------

    @spelled_out
    def put(
        self,
        body: Body,
        *,
        block: bool = True,
        timeout: float | None = None,
        on_accept: Callback | None = None,
        on_confirm: Callback | None = None,
        **options: Unpack[MessageOptions],
    ) -> SpoolConfirmation:
        """Put a message into the spool; the message is sent on when the cluster can be reached.

        Args:
            ttl, delay: counted from now, the time in the spool included. A
                message whose ttl is over before it was ever sent is dropped.
            block, timeout: wait so long (seconds) while the spool is full
                (`Config.spool_bytes_max`).
            unique, unique_for: the queue checks the key when the message arrives there. The
                result of a repeat is the sequence of the first message.
            on_accept: called with the confirmation when the message is on the disk here.
            on_confirm: called with the confirmation at the outcome.
            Others: as in `MirroredQueue.put`.

        Returns:
            The confirmation: `accepted()` waits for the local disk, `result()` for the queue.

        Raises:
            Full: the spool is full.
            TypeError, ValueError: a body that is not bytes-like, a message that is too large.
            ConfigError: a priority, a ttl or a delay that is invalid.
            ShutDown: the spool is closed.
        """
        confirmation, left = self._begun(body, block, on_accept, on_confirm, options)
        if left is not None:
            in_thread(self._making_room(left, block, timeout))
        return confirmation

    def _begun(
        self,
        body: Body,
        block: bool,
        on_accept: Callback | None,
        on_confirm: Callback | None,
        options: MessageOptions,
    ) -> Begun:
        """Put a message if there is room."""
        check_block(block)
        terms, properties = packed(**options) if options else (PLAIN, b"")
        if terms.is_unique:
            terms = Later(terms.persistent, terms.priority, terms.delay_ms, terms.ttl_ms, True)
        data = checked_body(body, properties, self._spool.config.message_bytes_max)
        confirmation = SpoolConfirmation(self._route)
        if on_accept is not None or on_confirm is not None:
            self._listen(confirmation, on_accept, on_confirm)
        left = self._puts().accept_one(cast(Any, confirmation), data, properties, terms)
        return confirmation, left

    @spelled_out
    def put_many(
        self,
        bodies: Sequence[Body],
        *,
        block: bool = True,
        timeout: float | None = None,
        on_accept: Callback | None = None,
        on_confirm: Callback | None = None,
        **options: Unpack[ManyOptions],
    ) -> SpoolConfirmation:
        """Put messages together: up to `frame_bytes_max` all or none. The result is a range.

        Arguments and errors as in `put`; the options apply to every message.

        Returns:
            The confirmation, one for all messages.
        """
        confirmation, left = self._begun_many(bodies, block, on_accept, on_confirm, options)
        if left is not None:
            in_thread(self._making_room(left, block, timeout))
        return confirmation

    def _begun_many(
        self,
        bodies: Sequence[Body],
        block: bool,
        on_accept: Callback | None,
        on_confirm: Callback | None,
        options: ManyOptions,
    ) -> Begun:
        """Begin a put_many as `_begun` does a put: no message is put yet."""
        check_block(block)
        terms, properties = packed_many(**options)
        data = checked_bodies(bodies, properties, self._spool.config.message_bytes_max)
        confirmation = SpoolConfirmation(self._route, True)
        self._listen(confirmation, on_accept, on_confirm)
        if not data:
            confirmation._finish(range(0), None)
            return confirmation, None
        size = sum(map(len, data)) + len(properties) * len(data)
        whole = Whole(terms.persistent, terms.priority, terms.delay_ms, terms.ttl_ms)
        return confirmation, ManyPut(cast(Any, confirmation), data, properties, whole, size)

    def put_nowait(self, body: Body) -> SpoolConfirmation:
        """As `put`, or Full at once."""
        return self.put(body, block=False)

    def _listen(
        self, made: SpoolConfirmation, on_accept: Callback | None, on_confirm: Callback | None
    ) -> None:
        for name, callback in (("on_accept", on_accept), ("on_confirm", on_confirm)):
            if callback is not None:
                check_callable(name, callback)
        if on_accept is not None:
            made.add_accept_callback(on_accept)
        if on_confirm is not None:
            made.add_done_callback(on_confirm)

    def _puts(self) -> Publisher:
        local = self._route.local
        if local.is_closed or local.is_closing or os.getpid() != local.pid:
            self._spool.check()
            local.check()
        return local.puts

    def _making_room(
        self, left: OnePut | ManyPut, block: bool, timeout: float | None
    ) -> Waits[None]:
        """Put a message when the spool has room. Raises Full: no room in time, and why."""
        route, config = self._route, self._spool.config
        puts, waits = self._puts(), block and config.spool_overflow != "reject-publish"
        try:
            if isinstance(left, OnePut):
                yield from puts.accepting_one(left, waits, timeout)
            else:
                numbers = left.count, left.size, left.own_bytes
                yield from puts.accepting(left, *numbers, waits, timeout)
        except Full as error:
            raise Full(
                f"the spool of queue {self.name!r} holds {route.count} messages (about "
                f"{route.size} bytes; spool_bytes_max is {config.spool_bytes_max}): it waits "
                f"because {route.why or 'the queue takes them more slowly than they come'}"
            ) from error

    # --- Status -------------------------------------------------------------------------------

    def status(self) -> SpoolStatus:
        """Return the amount and age of messages spooled for this queue, and why. Never waits."""
        return self._route.status()

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all puts are accepted: they survive this process then.

        Raises:
            TimeoutError: not all are after `timeout` seconds.
            ShutDown: the spool has failed; puts not accepted before never will be.
        """
        in_thread(self._flushing(timeout))

    def _flushing(self, timeout: float | None) -> Waits[None]:
        """`flush`, for threads and for asyncio."""
        if self._spool.is_forked:
            self._spool.check()
        local = self._route.local

        def is_written() -> bool:
            return local.is_quiet() and not local.puts.count

        local.wake()
        if not (yield Wait(self._spool.outcomes.signal, is_written, deadline_of(timeout))):
            raise TimeoutError(f"the disk has not taken all puts after {timeout} s: wait again")
        if local.is_closed and not self._spool.is_closing:
            self._spool.check()
            local.check()

    def wait_for_confirms(self, timeout: float | None = None) -> None:
        """Wait until nothing is spooled: the queue has all of it.

        Raises:
            Full: not after `timeout` seconds, and why.
        """
        in_thread(self._confirming(timeout))

    def _confirming(self, timeout: float | None) -> Waits[None]:
        """`wait_for_confirms`, for threads and for asyncio."""
        spool, route = self._spool, self._route
        yield from self._flushing(timeout)

        def is_over() -> bool:
            return not route.count or route.local.is_closed

        if not (yield Wait(spool.outcomes.signal, is_over, deadline_of(timeout))):
            raise Full(
                f"queue {self.name!r}: {route.count} messages are spooled after {timeout} s"
                + (f": {route.why}" if route.why else "")
            )
        spool.check()

    def set_aside(self) -> list[SetAside]:
        """Return messages that the queue refused with no process left to be told."""
        kept = self._spool.store.set_aside()
        return [SetAside(one.reason, one.body) for _, one in kept if one.name == self.name]

    def drop_set_aside(self) -> int:
        """Forget all messages that were set aside; return their number."""
        return self._spool.store.drop_aside(self.name)

    # --- The queue itself -----------------------------------------------------------------------

    def replicated(self, timeout: float | None = 30) -> MirroredQueue:
        """Return a handle on the queue itself, for calls that need the cluster. `close` closes it.

        Raises:
            NoQuorum: the cluster was not reached within `timeout` seconds. A connected one has a
                second at least.
        """
        if self._queue is None:
            if timeout is not None and not self._spool.why:
                timeout = max(timeout, FIRST_S)  # without a wait there is no answer
            try:
                self._queue = self._open_queue(timeout)
            except TimeoutError as error:
                raise NoQuorum(str(error)) from error
        return self._queue

    def get(self, block: bool = True, timeout: float | None = None) -> Message:
        """As `MirroredQueue.get`. What is spooled here is not in the queue yet.

        Raises:
            Empty: no message in time. NoQuorum: the cluster was not reached in time.
        """
        check_block(block)
        return self.replicated(timeout if block else 0).get(block, timeout)

    def close(self) -> None:
        """Wait until all puts are accepted, and close. Messages are sent on while the node or
        client of this handle is open. Does nothing in a forked child: the spool is the parent's."""
        if self._spool.is_forked:
            return
        try:
            self.flush(5.0)
        finally:
            queue, self._queue = self._queue, None
            if queue is not None:
                with suppress(MirrorQError):
                    queue.close()
