"""`as_queue()` for asyncio: code written for `asyncio.Queue` runs unchanged on a mirrored queue.

`put`, `get` and `join` wait in the loop. `get_nowait`, `qsize` and `empty` are plain calls, as in
`asyncio.Queue`. So plain calls ask no node: they see only messages *here*, fetched ahead. From the
first plain call on the adapter fetches as many messages ahead as a consumer (`Config.prefetch`),
until the adapter is dropped. A message of another process is here a moment after its confirm.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

from mirrorq.api.message import Message
from mirrorq.api.receiver import Demand, unsee
from mirrorq.api.stdlib_queue import (
    AckAt,
    Items,
    joining,
    patient_counting,
    tasks_of,
)
from mirrorq.errors import Empty, Full, MirrorQError, ShutDown

if TYPE_CHECKING:
    from mirrorq.api.confirmation import Confirmation
    from mirrorq.api.options import Body
    from mirrorq.api.queue import MirroredQueue
    from mirrorq.api.waits import Waits

Item = TypeVar("Item")
Result = TypeVar("Result")

_ShutDownBase: type[Exception] = getattr(asyncio, "QueueShutDown", Exception)


class _QueueEmpty(Empty, asyncio.QueueEmpty):
    """Nothing is here."""


class _QueueFull(Full, asyncio.QueueFull):
    """The item was not put."""


class _QueueShutDown(ShutDown, _ShutDownBase):  # type: ignore[misc, valid-type]
    """The handle is shut down or closed."""


def _known_to_asyncio(error: MirrorQError) -> MirrorQError:
    """Return the same error as a class that an `asyncio.Queue` raises too."""
    for kind, known in ((Full, _QueueFull), (ShutDown, _QueueShutDown)):
        if isinstance(error, kind):
            return known(str(error))
    return error


class LoopQueue(Protocol):
    """Used part of `aio.MirroredQueue`."""

    handle: MirroredQueue

    async def send(self, body: Body) -> Confirmation: ...

    def put_nowait(self, body: Body) -> Confirmation: ...

    async def _take(self, found: list[Message], block: bool, timeout: float | None) -> None: ...

    async def _run(self, call: Waits[Result], /) -> Result: ...


class QueueAdapter(Generic[Item]):
    """`asyncio.Queue` on a handle, for its loop; made by `aio.MirroredQueue.as_queue`.

    `put()` returns when the message is confirmed, `put_nowait()` when accepted. `get()` or
    `task_done()` acks. `join()` waits until the queue has neither ready, unacknowledged, nor
    delayed messages, and items got here are done. Without a master all three wait.
    """

    maxsize: int = 0
    """0: the number of messages is unbounded."""

    def __init__(
        self,
        queue: LoopQueue,
        dumps: Callable[[Item], Body] | None = None,
        loads: Callable[[bytes], Item] | None = None,
        ack: AckAt = "get",
    ) -> None:
        self._queue = queue
        self._handle = handle = queue.handle._handle
        self._items = Items(handle, dumps, loads)
        self._own: WeakKeyDictionary[asyncio.Task[object], deque[Message]] = WeakKeyDictionary()
        """Task of the loop -> messages that the task has got, to be acked when done."""
        self._tasks = tasks_of(ack, self._own_of_task)
        self._demand: Demand | None = None
        """Messages that plain calls fetch ahead; None before the first plain call."""
        self._is_drained = False
        """The adapter was shut down, and the master has reported that no message is ready."""
        self._looking: asyncio.Task[None] | None = None
        """Asks the master for `_is_drained`, for plain calls."""

    def _own_of_task(self) -> deque[Message]:
        try:
            task = asyncio.current_task()
        except RuntimeError:
            task = None  # in a thread beside the loop
        return deque() if task is None else self._own.setdefault(task, deque())

    # --- Putting --------------------------------------------------------------------------

    async def put(self, item: Item) -> None:
        """Publish, and wait for the confirm. A cancelled put may be published all the same.

        Args:
            item: an item; `dumps` turns the item into bytes.

        Raises:
            asyncio.QueueShutDown: the handle is shut down (before Python 3.13: ShutDown).
        """
        body = self._items.packed(item)
        try:
            confirmation = await self._queue.send(body)
        except ShutDown as error:
            raise _known_to_asyncio(error) from None
        await confirmation

    def put_nowait(self, item: Item) -> None:
        """Publish, if the item is accepted at once.

        Args:
            item: an item; `dumps` turns the item into bytes.

        Raises:
            asyncio.QueueFull: the item is not accepted.
        """
        try:
            self._queue.put_nowait(self._items.packed(item))
        except (Full, ShutDown) as error:
            raise _known_to_asyncio(error) from None

    def full(self) -> bool:
        """Return true if `put_nowait` would raise."""
        return not self._handle.puts.takes(1, 1, 1)

    # --- Getting --------------------------------------------------------------------------

    async def get(self) -> Item:
        """Take the next item. What `loads` cannot read goes back, and comes again later.

        Returns:
            The item: what `loads` made of a body.

        Raises:
            asyncio.QueueShutDown: the handle is shut down and empty (before Python 3.13: ShutDown).
            PreconditionFailed: a consumer holds the queue exclusively.
        """
        found: list[Message] = []
        try:
            await self._queue._take(found, True, None)
        except BaseException as error:
            unsee(found)
            if isinstance(error, ShutDown):
                self._is_drained = True
                raise _known_to_asyncio(error) from None
            raise
        return self._begun(found)

    def get_nowait(self) -> Item:
        """Take the next item that is here.

        Returns:
            The item: `loads` made the item from a body.

        Raises:
            asyncio.QueueEmpty: no item is here.
            asyncio.QueueShutDown: no item will come (before Python 3.13: ShutDown).
            PreconditionFailed: a consumer holds the queue exclusively.
        """
        found: list[Message] = []
        name = self._handle.name
        self._fetch()
        try:
            self._handle.take_one(found)
        except ShutDown as error:
            raise _known_to_asyncio(error) from None
        if found:
            return self._begun(found)
        self._check_refused()
        if self._is_drained:
            raise _QueueShutDown(f"the handle on queue {name!r} was shut down, and nothing is left")
        if self._handle.is_shut and self._looking is None:
            self._looking = asyncio.ensure_future(self._look())
        raise _QueueEmpty(f"no message of queue {name!r} has come to this process yet")

    async def _look(self) -> None:
        """Ask the master whether more will come after a shutdown."""
        try:
            handle = self._handle
            counting = partial(patient_counting, handle)
            self._is_drained = not await self._queue._run(handle.receiver.counting_ready(counting))
        finally:
            self._looking = None

    def _begun(self, found: list[Message]) -> Item:
        task = object()
        try:
            item = self._items.unpacked(found[0])
            self._tasks.begin_task(found[0], task)
            return item
        except BaseException:
            self._tasks.withdraw(found[0], task)
            unsee(found)
            raise

    def _fetch(self) -> None:
        """Fetch messages for plain calls ahead, from now on."""
        if self._demand is None and not self._handle.is_shut_for_gets:
            self._handle.check_open_for_gets()
            self._demand = Demand(self._handle.config.prefetch)
            self._handle.receiver.want(self._demand)

    def _check_refused(self) -> None:
        """Raise the master's refusal; the next call asks again."""
        if self._handle.receiver.refused and self._demand is not None:
            self._handle.receiver.unwant(self._demand)
            self._demand = None
            self._handle.receiver.check_refused()

    def qsize(self) -> int:
        """Items that are here. `await queue.qsize()` of the handle asks the master."""
        self._fetch()
        return self._handle.receiver.buffered

    def empty(self) -> bool:
        """Return true if `get_nowait` would raise."""
        return self.qsize() == 0

    # --- Tasks ----------------------------------------------------------------------------

    def task_done(self) -> None:
        """Mark an item that was got here as done.

        With `ack="task_done"` this call acks a message: the oldest undone item of this task of the
        loop, else the oldest of all. Refused acks are reported to the listener of
        `aio.MirroredQueue.add_ack_listener`.

        Raises:
            ValueError: no item is open.
        """
        self._tasks.end_task()
        self._handle.outcomes.signal.notify()

    async def join(self) -> None:
        """Wait until everything in the queue has been taken and is done."""
        await self._queue._run(joining(self._handle, self._tasks))

    def shutdown(self, immediate: bool = False) -> None:
        """As `asyncio.Queue.shutdown`, but messages stay in the queue."""
        self._handle.shutdown(immediate)
        self._handle.outcomes.signal.notify()

    def __repr__(self) -> str:
        return f"<aio.QueueAdapter on {self._queue!r}>"
