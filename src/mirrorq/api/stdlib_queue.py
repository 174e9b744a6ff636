"""`as_queue()`: code written for `queue.Queue` runs unchanged on a mirrored queue.

Guarantees of `queue.Queue` that a queue of several processes lacks without the adapter:

- *A put item is in the queue.* `qsize`, `empty`, `unfinished_tasks` and `join` first wait until
  earlier puts of the handle have an outcome, and then ask the master.
- *`get` and `put` raise Empty and Full.* If NoQuorum or QueueDown is the reason, the error has
  both types. Calls without a time-out wait for a master, and log the wait.
- *A got item is gone.* It is acked by `get`. With `ack="task_done"` it is held until then, and
  comes again if its process dies.

*Interrupts*: tasks are counted, and messages claimed, by single operations, as for all state that
users' threads share (`waiting`).
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar, cast

from msgspec.structs import replace

from mirrorq import clock
from mirrorq.api.arguments import check_block, check_callable
from mirrorq.api.publish_options import PLAIN
from mirrorq.api.receiver import unsee
from mirrorq.api.retries import Retries
from mirrorq.api.waits import Wait, Waits, in_thread
from mirrorq.errors import (
    AckRefused,
    ConfigError,
    Full,
    NoQuorum,
    QueueDown,
)
from mirrorq.waiting import is_host_thread, take_back

if TYPE_CHECKING:
    from mirrorq.api.confirmation import Settlement
    from mirrorq.api.handle import Handle
    from mirrorq.api.message import Message
    from mirrorq.api.options import Body
    from mirrorq.api.sharded.handle import ShardedHandle
    from mirrorq.protocol.sessions import Counts

log = logging.getLogger("mirrorq")

Item = TypeVar("Item")
AckAt = Literal["get", "task_done"]

TASKS_MAX = 1 << 20
"""Limit on counted tasks, for programs that never call task_done()."""
JOIN_PAUSE_S = 0.02
"""Seconds after which join() asks the queue again about other handles' work; the pause grows."""
JOIN_PAUSE_S_MAX = 0.2
JOIN_LOOK_S = 1.0
"""Interval in seconds at which join() looks while own tasks are unfinished."""
SETTLE_S = 1.0
"""Limit in seconds for a count's wait for outcomes of own puts and acks."""


def settled_counting(handle: Handle | ShardedHandle) -> Waits[Counts]:
    """Return the counts after earlier puts of the handle have an outcome. Puts that wait otherwise,
    as for room on a disk, count as ready.

    Raises:
        NoQuorum, QueueDown: the master has not answered, with the reason.
    """
    handle.check()
    until = clock.monotonic() + SETTLE_S
    left = 0
    for ring in handle.rings():
        puts, count = ring.puts, ring.puts.accepted_count
        yield Wait(
            ring.outcomes.signal,
            lambda puts=puts, count=count, ring=ring: (  # type: ignore[misc]
                puts.ended_count >= count or puts.is_over or ring.is_closed
            ),
            until,
        )
        left += 0 if puts.is_over else max(count - puts.ended_count, 0)
    counts = yield from handle.counting()
    return replace(counts, ready=counts.ready + left) if left else counts


def patient_counting(handle: Handle | ShardedHandle) -> Waits[Counts]:
    """Return the counts as `settled_counting`, after a wait for a master if needed."""
    is_warned = False
    while True:
        try:
            return (yield from settled_counting(handle))
        except (NoQuorum, QueueDown) as error:
            if is_host_thread():
                raise  # a host's thread must not wait
            if not is_warned:
                log.warning(
                    "queue %s is counted as soon as it has a master: %s", handle.name, error
                )
                is_warned = True


def _unfinished(handle: Handle | ShardedHandle, tasks: Tasks) -> Waits[int]:
    """Return the number that `join` waits for: messages in the queue, and tasks of the adapter."""
    if handle.is_shut_for_gets:
        return tasks.count
    # A got item is a task before its ack: it is counted in one or both.
    counts = yield from patient_counting(handle)
    messages = counts.ready + counts.unacknowledged + counts.delayed
    return messages + (tasks.count if isinstance(tasks, CountedTasks) else 0)


def joining(handle: Handle | ShardedHandle, tasks: Tasks) -> Waits[None]:
    """Wait until nothing is unfinished; then the acks of the handle are stable, too."""
    signal, pause_s = handle.outcomes.signal, JOIN_PAUSE_S
    while (yield from _unfinished(handle, tasks)):
        was_shut, is_own = handle.is_shut_for_gets, tasks.count > 0

        def is_over(was_shut: bool = was_shut, is_own: bool = is_own) -> bool:
            is_done = is_own and not tasks.count
            return is_done or handle.is_closed or handle.is_shut_for_gets is not was_shut

        # Tasks ended here notify (`task_done`); acks of other handles are polled.
        yield Wait(signal, is_over, clock.monotonic() + (JOIN_LOOK_S if is_own else pause_s))
        pause_s = JOIN_PAUSE_S if is_own else min(2 * pause_s, JOIN_PAUSE_S_MAX)
    until = clock.monotonic() + SETTLE_S
    yield Wait(signal, lambda: handle.is_quiet() or handle.is_closed, until)


def _name_of(function: Callable[..., object]) -> str:
    """Return a function's module and name, as far as known."""
    name = getattr(function, "__qualname__", None)
    if name is None:
        return repr(function)
    module = getattr(function, "__module__", None)
    return f"{module}.{name}" if module else name


class Items(Generic[Item]):
    """Conversion between items and bytes. Held by an adapter; for any thread."""

    def __init__(
        self,
        handle: Handle | ShardedHandle,
        dumps: Callable[[Item], Body] | None,
        loads: Callable[[bytes], Item] | None,
    ) -> None:
        check_callable("dumps", dumps)
        check_callable("loads", loads)
        self._handle = handle
        self._dumps = dumps
        self._loads = loads

    def packed(self, item: Item) -> bytes:
        """Return the body for an item."""
        body: Any = item if self._dumps is None else self._dumped(self._dumps, item)
        return self._handle.checked_body(body)

    def _dumped(self, dumps: Callable[[Item], Body], item: Item) -> Body:
        try:
            return dumps(item)
        except BaseException as error:
            if isinstance(error, Exception):
                # The error's text does not name its source: `pickle`'s only names it from 3.13 on.
                error.add_note(
                    f"queue {self._handle.name!r}: as_queue's dumps, {_name_of(dumps)}, raised "
                    f"this for an object of type {type(item).__name__}"
                )
            raise

    def unpacked(self, message: Message) -> Item:
        """Return the item in a message; an unreadable message goes back to the queue."""
        body: Any = message.body
        if self._loads is None:
            return cast(Item, body)
        try:
            return self._loads(body)
        except BaseException as error:
            if isinstance(error, Exception):
                message.nack(delay=Retries().delay_s(message))
            raise


def _too_many() -> ValueError:
    return ValueError("task_done() called too many times")


class CountedTasks:
    """Items that an adapter has returned and that are not done; their messages are acked by `get`.
    Held by the adapter; for any thread."""

    def __init__(self) -> None:
        self._open: deque[object] = deque(maxlen=TASKS_MAX)
        """One token per task: added and removed by one operation, and removable again."""

    @property
    def count(self) -> int:
        """Number of unfinished tasks."""
        return len(self._open)

    def begin_task(self, message: Message, task: object) -> None:
        """Begin a task: a call is about to return the message. `task` is its unique token."""
        self._open.append(task)
        message.ack()

    def withdraw(self, message: Message, task: object) -> None:
        """Undo a `begin_task` whose call was interrupted, inside or after it."""
        take_back(self._open, task)

    def end_task(self) -> None:
        """End a task. Raises ValueError when there is no task."""
        try:
            self._open.popleft()
        except IndexError:
            raise _too_many() from None


class HeldTasks:
    """As `CountedTasks`, but the messages are acked by `task_done`.

    A thread (in a loop: a task) ends its own tasks, the oldest first; a thread without tasks of its
    own ends the oldest of all.
    """

    def __init__(self, own: Callable[[], deque[Message]]) -> None:
        self._own = own
        self._open: deque[Message] = deque()
        self._claims: dict[Message, int] = {}
        """Message -> thread about to end it, so that two threads do not end the same message."""

    @property
    def count(self) -> int:
        return sum(not message._is_settled for message in list(self._open))

    def begin_task(self, message: Message, task: object) -> None:
        own = self._own()
        while own and own[0]._is_settled:
            own.popleft()  # other threads have ended them
        own.append(message)
        self._open.append(message)

    def withdraw(self, message: Message, task: object) -> None:
        if take_back(self._own(), message):
            take_back(self._open, message)

    def end_task(self) -> Settlement:
        """End a task; return its ack. Raises ValueError when there is no task."""
        message = self._claimed()
        settlement = message.ack()
        take_back(self._open, message)
        self._claims.pop(message, None)
        return settlement

    def _claimed(self) -> Message:
        own = self._own()
        while own:
            if self._is_mine(own[0]):
                return own[0]
            own.popleft()
        place = 0
        while True:
            try:
                message = self._open[place]
            except IndexError:
                raise _too_many() from None
            if self._is_mine(message):
                return message
            place += 1

    def _is_mine(self, message: Message) -> bool:
        """Claim a message for the thread. An interrupted thread finds its claim again."""
        me = get_ident()
        if self._claims.setdefault(message, me) != me:
            return False
        if not message._is_settled:
            return True
        self._claims.pop(message, None)
        take_back(self._open, message)
        return False


Tasks = CountedTasks | HeldTasks


def tasks_of(ack: AckAt, own: Callable[[], deque[Message]]) -> Tasks:
    """Return tasks for `as_queue(ack=…)`. `own`: returns the messages of the calling thread."""
    if ack not in ("get", "task_done"):
        raise ConfigError(f"ack is {ack!r}: it is 'get' or 'task_done'")
    return CountedTasks() if ack == "get" else HeldTasks(own)


class _OwnOfThread(threading.local):
    """Messages that one thread has got."""

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()

    def get(self) -> deque[Message]:
        return self._messages


class QueueAdapter(Generic[Item]):
    """`queue.Queue` on a handle; made by `MirroredQueue.as_queue`.

    `put()` returns when the message is confirmed, `put(block=False)` when it is accepted. `get()`
    acks the item that it returns, or `task_done()` does. `join()` waits until the queue has neither
    ready, nor unacknowledged, nor delayed messages, and items got here are done.

    `qsize`, `empty`, `unfinished_tasks` and `join` include puts of the handle, confirmed or not:
    they wait for their outcomes. They ask the master, and wait for a master if there is none.

    *Threads*: every method may be called from any thread.
    """

    maxsize: int = 0
    """No bound on the number of messages."""

    def __init__(
        self,
        handle: Handle | ShardedHandle,
        dumps: Callable[[Item], Body] | None = None,
        loads: Callable[[bytes], Item] | None = None,
        ack: AckAt = "get",
    ) -> None:
        self._handle = handle
        self._items = Items(handle, dumps, loads)
        self._tasks = tasks_of(ack, _OwnOfThread().get)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"as_queue() of {self._handle.name!r} cannot be pickled: pickle the handle, and call "
            "as_queue() where it is used"
        )

    @property
    def is_shutdown(self) -> bool:
        """Whether `shutdown` was called, as in Python 3.13."""
        return self._handle.is_shut

    @property
    def unfinished_tasks(self) -> int:
        """Number of unfinished messages, for which `join` waits.

        Of items acked by `get` the adapter counts only its own.
        """
        return in_thread(_unfinished(self._handle, self._tasks))

    def put(self, item: Item, block: bool = True, timeout: float | None = None) -> None:
        """Publish; if `block`, wait until it is safe.

        Args:
            item: converted to bytes by `dumps`.
            block: False: as `put_nowait`.
            timeout: seconds to wait for room, and then for the confirmation. None waits.

        Raises:
            Full: it was not accepted, or not confirmed, in time (also NoQuorum, QueueDown for such
                a reason). An accepted item is published all the same as soon as possible.
        """
        _check_timeout(block, timeout)
        begun = clock.monotonic()
        handle = self._handle
        body = self._items.packed(item)
        confirmation = handle.put(body, b"", PLAIN, None, block, timeout if block else None, None)
        if not block:
            return
        left = None if timeout is None else max(timeout - (clock.monotonic() - begun), 0)
        try:
            confirmation.result(left)
        except TimeoutError:
            text = (
                f"a message to queue {handle.name!r} was accepted and is not confirmed after "
                f"{timeout} s: it is published when that can be"
            )
            raise handle.why_not(Full(text)) from None

    def put_nowait(self, item: Item) -> None:
        """`put` that does not wait for the confirmation either.

        Argument and errors as in `put`.
        """
        self.put(item, block=False)

    def get(self, block: bool = True, timeout: float | None = None) -> Item:
        """Take the next item. Without `timeout` it waits for ever, for a master too.

        An item that `loads` cannot read goes back to the queue, as a message whose callback failed:
        it comes again later, and other items before it.

        Args:
            block: False: as `get_nowait`.
            timeout: seconds to wait.

        Returns:
            The item that `loads` made of a body.

        Raises:
            Empty: no item in time (also NoQuorum, QueueDown for such a reason).
        """
        _check_timeout(block, timeout)
        found: list[Message] = []
        task = object()
        try:
            in_thread(self._handle.receiver.getting(found, block, timeout if block else None))
            item = self._items.unpacked(found[0])
            self._tasks.begin_task(found[0], task)
            return item
        except BaseException:
            # Interrupted: the item comes again, and is no task of any thread.
            if found:
                self._tasks.withdraw(found[0], task)
            unsee(found)
            raise

    def get_nowait(self) -> Item:
        """`get` that does not wait for a message to be published.

        Result and errors as in `get`.
        """
        return self.get(block=False)

    def task_done(self) -> None:
        """End one item that was got here; from any thread.

        With `ack="task_done"` it acks the oldest unfinished item of the calling thread, else the
        oldest of all. If the message went back to the queue meanwhile it comes again, as any item
        of `get` may; a listener learns of such messages (`MirroredQueue.add_ack_listener`).

        Raises:
            ValueError: there is no unfinished item.
        """
        settlement = self._tasks.end_task()
        self._handle.outcomes.signal.notify()
        if settlement is not None:
            with contextlib.suppress(AckRefused):
                settlement.result()

    def join(self) -> None:
        """Wait until everything in the queue has been taken and is done.

        After `shutdown(immediate=True)`: until the items taken here are done.
        """
        in_thread(joining(self._handle, self._tasks))

    def qsize(self) -> int:
        """Items that no call has returned."""
        handle = self._handle
        return in_thread(handle.receiver.counting_ready(partial(patient_counting, handle)))

    def empty(self) -> bool:
        """Whether there are no items."""
        return self.qsize() == 0

    def full(self) -> bool:
        """Whether a `put` would wait."""
        return in_thread(self._handle.puts.filling())

    def shutdown(self, immediate: bool = False) -> None:
        """As `queue.Queue.shutdown`, but messages stay in the queue."""
        self._handle.shutdown(immediate)
        self._handle.outcomes.signal.notify()


def _check_timeout(block: bool, timeout: float | None) -> None:
    if block not in (0, 1):  # code written for `queue.Queue` says them for False and True
        check_block(block)
    if block and timeout is not None and timeout < 0:
        raise ValueError("'timeout' must be a non-negative number")
