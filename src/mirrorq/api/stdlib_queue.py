"""`as_queue()`: code written for `queue.Queue` runs unchanged on a mirrored queue.

What that code relies on, and a queue of several processes does not give by itself:

- *What was put is in the queue.* `qsize`, `empty`, `unfinished_tasks` and `join` first wait until
  what this handle has put so far has an outcome, and ask the master after that.
- *`get` and `put` raise Empty and Full.* Where NoQuorum or QueueDown is the reason, what they raise
  is that as well. Calls that have no time-out wait for a master, and say so in the log.
- *What was got is gone.* It is acked when it is got. With `ack="task_done"` it is held until then,
  and comes again if its process dies.

*Interrupts*: tasks are counted, and messages claimed, by single operations, as all that users'
threads share (`waiting`).
"""

from __future__ import annotations

import contextlib
import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar, cast

from msgspec.structs import replace

from mirrorq import clock
from mirrorq.api.arguments import check_block, check_callable, check_flags
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
"""Who never says that a task is done has no more than so many counted."""
JOIN_PAUSE_S = 0.02
"""join() asks the queue after this whether others have ended what it has, then after longer."""
JOIN_PAUSE_S_MAX = 0.2
JOIN_LOOK_S = 1.0
"""It waits for tasks of its own to be told that they are done, and looks this often."""
SETTLE_S = 1.0
"""Who counts waits no longer for the outcomes of own puts and acks."""


def settled_counting(handle: Handle | ShardedHandle) -> Waits[Counts]:
    """What there is, once that which this handle has put so far has an outcome. Puts that wait
    for something else, as for room on a disk, count as ready.

    Raises:
        NoQuorum, QueueDown: the master has not answered, and why.
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
    """The same; where there is no master, one is waited for."""
    is_warned = False
    while True:
        try:
            return (yield from settled_counting(handle))
        except (NoQuorum, QueueDown) as error:
            if is_host_thread():
                raise  # nothing is waited for there
            if not is_warned:
                log.warning(
                    "queue %s is counted as soon as it has a master: %s", handle.name, error
                )
                is_warned = True


def _unfinished(handle: Handle | ShardedHandle, tasks: Tasks) -> Waits[int]:
    """What `join` waits for: messages in the queue, and tasks of this adapter."""
    if handle.is_shut_for_gets:
        return tasks.count
    # What is got is a task before it is acked: it is in one of the two, or in both.
    counts = yield from patient_counting(handle)
    messages = counts.ready + counts.unacknowledged + counts.delayed
    return messages + (tasks.count if isinstance(tasks, Counted) else 0)


def joining(handle: Handle | ShardedHandle, tasks: Tasks) -> Waits[None]:
    """Wait until nothing is unfinished; then the acks of this handle are stable, too."""
    signal, pause_s = handle.outcomes.signal, JOIN_PAUSE_S
    while (yield from _unfinished(handle, tasks)):
        was_shut, is_own = handle.is_shut_for_gets, tasks.count > 0

        def is_over(was_shut: bool = was_shut, is_own: bool = is_own) -> bool:
            is_done = is_own and not tasks.count
            return is_done or handle.is_closed or handle.is_shut_for_gets is not was_shut

        # Who ends a task here says so (`task_done`); others' acks are asked for.
        yield Wait(signal, is_over, clock.monotonic() + (JOIN_LOOK_S if is_own else pause_s))
        pause_s = JOIN_PAUSE_S if is_own else min(2 * pause_s, JOIN_PAUSE_S_MAX)
    until = clock.monotonic() + SETTLE_S
    yield Wait(signal, lambda: handle.is_quiet() or handle.is_closed, until)


def _name_of(function: Callable[..., object]) -> str:
    """Where it comes from and what it is called, as far as it says so."""
    name = getattr(function, "__qualname__", None)
    if name is None:
        return repr(function)
    module = getattr(function, "__module__", None)
    return f"{module}.{name}" if module else name


class Items(Generic[Item]):
    """How items are made bytes and bytes items. Held by an adapter; for any thread."""

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
        """The body that is put."""
        body: Any = item if self._dumps is None else self._dumped(self._dumps, item)
        return self._handle.checked_body(body)

    def _dumped(self, dumps: Callable[[Item], Body], item: Item) -> Body:
        try:
            return dumps(item)
        except BaseException as error:
            if isinstance(error, Exception):
                # Whose error it is its own words do not say: `pickle`'s name none from 3.13 on.
                error.add_note(
                    f"queue {self._handle.name!r}: as_queue's dumps, {_name_of(dumps)}, raised "
                    f"this for an object of type {type(item).__name__}"
                )
            raise

    def unpacked(self, message: Message) -> Item:
        """The item in a message, which goes back to the queue if it cannot be read."""
        body: Any = message.body
        if self._loads is None:
            return cast(Item, body)
        try:
            return self._loads(body)
        except BaseException as error:
            if isinstance(error, Exception):
                message.nack(delay=Retries().delay_s(message))
            raise


class Tasks(ABC):
    """What got out of one adapter and is not done. Held by that; for any thread."""

    @property
    @abstractmethod
    def count(self) -> int:
        """How many there are."""

    @abstractmethod
    def begin(self, message: Message, task: object) -> None:
        """A call is about to return it; `task` is a new thing that stands for it."""

    @abstractmethod
    def withdraw(self, message: Message, task: object) -> None:
        """That call was interrupted, in `begin` or after it."""

    @abstractmethod
    def end(self) -> Settlement | None:
        """One is done; returns its ack, if that was due. Raises ValueError when there is none."""


def _too_many() -> ValueError:
    return ValueError("task_done() called too many times")


class Counted(Tasks):
    """Tasks whose messages are acked when they are got."""

    def __init__(self) -> None:
        self._open: deque[object] = deque(maxlen=TASKS_MAX)
        """One thing for each: in and out by one operation, and it can be taken back."""

    @property
    def count(self) -> int:
        return len(self._open)

    def begin(self, message: Message, task: object) -> None:
        self._open.append(task)
        message.ack()

    def withdraw(self, message: Message, task: object) -> None:
        take_back(self._open, task)

    def end(self) -> None:
        try:
            self._open.popleft()
        except IndexError:
            raise _too_many() from None


class Held(Tasks):
    """Tasks whose messages are acked when they are done.

    A thread (in a loop: a task) ends its own ones, the oldest first; who has none of its own ends
    the oldest of all.
    """

    def __init__(self, own: Callable[[], deque[Message]]) -> None:
        self._own = own
        self._open: deque[Message] = deque()
        self._claims: dict[Message, int] = {}
        """Which thread is about to end a message, so that two do not end the same one."""

    @property
    def count(self) -> int:
        return sum(not message._is_settled for message in list(self._open))

    def begin(self, message: Message, task: object) -> None:
        own = self._own()
        while own and own[0]._is_settled:
            own.popleft()  # other threads have ended them
        own.append(message)
        self._open.append(message)

    def withdraw(self, message: Message, task: object) -> None:
        if take_back(self._own(), message):
            take_back(self._open, message)

    def end(self) -> Settlement:
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
        """Who was interrupted on the way from here to the ack finds its claim again."""
        me = get_ident()
        if self._claims.setdefault(message, me) != me:
            return False
        if not message._is_settled:
            return True
        self._claims.pop(message, None)
        take_back(self._open, message)
        return False


def tasks_of(ack: AckAt, own: Callable[[], deque[Message]]) -> Tasks:
    """Tasks by what `as_queue(ack=…)` says. `own`: those that the caller has got, for it alone."""
    if ack not in {"get", "task_done"}:
        raise ConfigError(f"ack is {ack!r}: it is 'get' or 'task_done'")
    return Counted() if ack == "get" else Held(own)


class _OwnOfThread(threading.local):
    """What one thread has got."""

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()

    def get(self) -> deque[Message]:
        return self._messages


class QueueAdapter(Generic[Item]):
    """`queue.Queue` on a handle; made by `MirroredQueue.as_queue`.

    `put()` returns when the message is confirmed, `put(block=False)` when it is accepted. `get()`
    acks what it returns, or `task_done()` does. `join()` waits until the queue has neither ready,
    nor unacknowledged, nor delayed messages, and what was got here is done.

    `qsize`, `empty`, `unfinished_tasks` and `join` know what this handle has put, confirmed or not:
    they wait for its outcome. They ask the master, and wait for one where there is none.

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
        """Messages that nobody is done with: what `join` waits for.

        Of what was acked when it was got this adapter counts its own alone.
        """
        return in_thread(_unfinished(self._handle, self._tasks))

    def put(self, item: Item, block: bool = True, timeout: float | None = None) -> None:
        """Publish; if `block`, wait until it is safe.

        Args:
            item: what `dumps` makes bytes of.
            block: False: as `put_nowait`.
            timeout: seconds to wait for room, and then for the confirmation. None waits.

        Raises:
            Full: it was not accepted, or not confirmed, in time (NoQuorum, QueueDown as well if
                that is why). What was accepted is published all the same as soon as that can be.
        """
        _check_timeout(block, timeout)
        begun = clock.monotonic()
        handle = self._handle
        body = self._items.packed(item)
        confirmation = handle.put(body, b"", PLAIN, None, block, timeout, None)
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

        What `loads` cannot read goes back to the queue, as what a consumer's callback fails on: it
        comes again later, and others before it.

        Args:
            block: False: as `get_nowait`.
            timeout: seconds to wait.

        Returns:
            The item: what `loads` made of a body.

        Raises:
            Empty: none in time (NoQuorum, QueueDown as well if that is why).
        """
        _check_timeout(block, timeout)
        found: list[Message] = []
        task = object()
        try:
            in_thread(self._handle.receiver.getting(found, block, timeout))
            item = self._items.unpacked(found[0])
            self._tasks.begin(found[0], task)
            return item
        except BaseException:
            # Interrupted: it comes again, and is nobody's to be done with.
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
        """Say that one item that was got here is done; from any thread.

        With `ack="task_done"` this acks: the oldest item that this thread got and that is not done,
        else the oldest of all. If it went back to the queue meanwhile it comes again, as whatever
        `get` returns may; who wants to hear of that listens (`MirroredQueue.add_ack_listener`).

        Raises:
            ValueError: there is none.
        """
        settlement = self._tasks.end()
        self._handle.outcomes.signal.notify()
        if settlement is not None:
            with contextlib.suppress(AckRefused):
                settlement.result()

    def join(self) -> None:
        """Wait until everything in the queue has been taken and is done.

        After `shutdown(immediate=True)`: until what was taken here is done.
        """
        in_thread(joining(self._handle, self._tasks))

    def qsize(self) -> int:
        """Items that no call has returned."""
        handle = self._handle
        return in_thread(handle.receiver.counting_ready(partial(patient_counting, handle)))

    def empty(self) -> bool:
        """Whether there are none."""
        return self.qsize() == 0

    def full(self) -> bool:
        """Whether a `put` would wait."""
        return in_thread(self._handle.puts.filling())

    def shutdown(self, immediate: bool = False) -> None:
        """As `queue.Queue.shutdown`, but messages stay in the queue."""
        check_flags(immediate=immediate)
        self._handle.check()
        self._handle.shut_down(immediate=immediate)
        self._handle.outcomes.signal.notify()


def _check_timeout(block: bool, timeout: float | None) -> None:
    check_block(block)
    if block and timeout is not None and timeout < 0:
        raise ValueError("'timeout' must be a non-negative number")
