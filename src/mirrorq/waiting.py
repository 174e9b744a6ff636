"""How threads wait for each other, without locks that an exception could leave taken.

A signal handler runs on a user's thread between any two of its bytecodes, and may raise there, or
call mirrorq again; a collection may run a `__del__` there that does. So no thread of a user ever
holds a lock that a host's thread, or the same thread once more, would wait for. What they share
are single operations of C: `append` and `popleft` of a deque, and the release of a lock that is
its waiter's own and that nobody else ever takes.

`threading.Condition` and `Event` are not like that: they are Python that runs with a lock held,
and an exception in `wait` may leave it held for the thread that calls `set`.
"""

from __future__ import annotations

import os
import threading
from _thread import LockType, allocate_lock, get_ident, start_new_thread
from collections import deque
from collections.abc import Callable, Collection
from queue import SimpleQueue
from threading import TIMEOUT_MAX
from typing import Any, Generic, Protocol, TypeVar
from weakref import ref

from mirrorq import clock

__all__ = [
    "Doorbell",
    "Latch",
    "Once",
    "Present",
    "ProcessEnded",
    "Threads",
    "Waiters",
    "begin_thread",
    "is_host_thread",
    "new_mailbox",
    "play",
    "run_host",
    "take_back",
    "wait_among",
]

_hosts: set[int] = set()
"""Threads on which nobody may wait: a collection there may run what a user's `__del__` calls."""

os.register_at_fork(after_in_child=_hosts.clear)
"""A child has none of them, and may have a thread of its own under the same number."""


class ProcessEnded(BaseException):
    """Raised on a simulated process's threads when that is no more: they end, and say nothing."""


class Lock(Protocol):
    """What is used here of a lock of C."""

    def acquire(self, blocking: bool = True, timeout: float = -1, /) -> bool: ...

    def release(self) -> None: ...

    def locked(self) -> bool: ...


class Mailbox(Protocol):
    """What is used here of a `queue.SimpleQueue`."""

    def put(self, item: Any, /) -> None: ...

    def get(self) -> Any: ...

    def empty(self) -> bool: ...


class Threads(Protocol):
    """What a simulation plays: how its threads wait and begin."""

    def lock(self) -> Lock | None:
        """A free lock for the calling thread to wait with; None: it is none of the simulation."""
        ...

    def mailbox(self) -> Mailbox | None:
        """One between threads of the calling thread's simulation; None as above."""
        ...

    def begin(self, thread: threading.Thread) -> bool:
        """Start a thread of the calling thread's process; False: that is a real one."""
        ...


_played: Threads | None = None


def play(threads: Threads | None) -> None:
    """Have threads of a simulation wait by its time; None ends that."""
    global _played
    _played = threads


def _new_lock() -> LockType | Lock:
    lock = None if _played is None else _played.lock()
    return allocate_lock() if lock is None else lock


def new_mailbox() -> Mailbox:
    """What many threads put things into, for one that waits for them."""
    mailbox = None if _played is None else _played.mailbox()
    return SimpleQueue() if mailbox is None else mailbox


def run_host(function: Callable[[], None]) -> None:
    """Run what a host's thread does; until it returns no call of a user waits on this thread."""
    _hosts.add(get_ident())
    try:
        function()
    finally:
        _hosts.discard(get_ident())


def is_host_thread() -> bool:
    """Whether the calling thread steps a node or a client."""
    return get_ident() in _hosts


def begin_thread(thread: threading.Thread) -> None:
    """Start a thread, from one on which no signal handler runs.

    `Thread.start` waits with a lock that the new thread takes: who is interrupted in it may leave
    a thread that never begins. It may begin a moment after this returns.
    """
    if _played is None or not _played.begin(thread):
        start_new_thread(thread.start, ())


class Waiters:
    """Threads that wait for something to come true, which whoever makes it true tells them."""

    def __init__(self) -> None:
        self._bells: deque[LockType | Lock] = deque()
        """One for each thread that waits: taken, until it is told."""

    @property
    def count(self) -> int:
        """How many wait."""
        return len(self._bells)

    def notify(self) -> None:
        """Have all who wait look. Never waits; from any thread."""
        bells = self._bells
        for _ in range(len(bells)):
            try:
                bell = bells.popleft()
            except IndexError:
                return
            try:
                bell.release()
            except RuntimeError:
                continue  # it is among others, too, who were quicker

    def wait_for(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until the condition holds; it is looked at after each `notify`.

        Args:
            timeout: in seconds; None waits for ever. On a host's thread nothing is waited for.
        """
        return wait_among((self,), condition, timeout)


def wait_among(
    waiters: Collection[Waiters], condition: Callable[[], bool], timeout: float | None
) -> bool:
    """Wait among the threads of each of these, as `Waiters.wait_for`."""
    if condition():
        return True
    if (timeout is not None and timeout <= 0) or is_host_thread():
        return False
    deadline = None if timeout is None else clock.monotonic() + timeout
    while True:
        bell = _new_lock()
        bell.acquire()
        try:
            for each in waiters:
                each._bells.append(bell)
            # Looked at again after being among them: what came true before told nobody.
            if condition():
                return True
            left = TIMEOUT_MAX if deadline is None else deadline - clock.monotonic()
            if left <= 0:
                return False
            bell.acquire(True, min(left, TIMEOUT_MAX))
        finally:
            for each in waiters:
                _discard(each._bells, bell)
        if condition():
            return True


class Latch:
    """Something that one thread says and others wait for: `threading.Event`, see above."""

    def __init__(self) -> None:
        self._is_set = False
        self.waiters = Waiters()
        """Told when it is set."""

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self.waiters.notify()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most `timeout` seconds; say whether it is set."""
        return self.waiters.wait_for(self.is_set, timeout)


class Doorbell:
    """Wakes one thread, and stays rung until that one has looked."""

    def __init__(self) -> None:
        self._lock = _new_lock()
        """Free: it was rung. Only its thread takes it."""
        self._lock.acquire()

    def ring(self) -> None:
        """From any thread; cheap when it was rung already."""
        if self._lock.locked():
            try:
                self._lock.release()
            except RuntimeError:
                return  # another thread was quicker

    def wait(self, timeout: float | None = None) -> None:
        """Wait until it is rung, at most `timeout` seconds; the next wait is for another ring."""
        if timeout is None:
            self._lock.acquire()
        elif timeout > 0:
            self._lock.acquire(True, min(timeout, TIMEOUT_MAX))
        else:
            self._lock.acquire(False)


def _discard(items: deque[Any], item: object) -> None:
    """Take it out, if nobody else has."""
    try:
        items.remove(item)
    except ValueError:
        return


def take_back(items: deque[Any], item: object) -> bool:
    """Take out what this thread has just put in; False: another one has it already."""
    while True:
        try:
            items.remove(item)
        except IndexError:  # another thread changed it meanwhile
            continue
        except ValueError:
            return False
        return True


Call = TypeVar("Call")


class Present(Generic[Call]):
    """Users' calls that are under way. One that an exception has ended, at whatever place, is
    gone with its frame: nobody has to take it out."""

    def __init__(self) -> None:
        self._refs: deque[ref[Call]] = deque()

    def __bool__(self) -> bool:
        """False: there is certainly none."""
        return bool(self._refs)

    def add(self, call: Call) -> None:
        """It is there until nobody refers to it any more, or `leave` is called."""
        self._refs.append(ref(call))

    def leave(self, call: Call) -> None:
        """It is over."""
        _discard(self._refs, ref(call))

    def all(self) -> list[Call]:
        """Those that are there; forgets what is gone."""
        found = []
        for one in list(self._refs):
            call = one()
            if call is not None:
                found.append(call)
            else:
                _discard(self._refs, one)
        return found


class Once:
    """Something that is done once, on a thread of its own, while whoever wants it done waits.

    An exception that ends the waiting does not end the doing: who calls again waits for the rest.
    """

    def __init__(self, function: Callable[[], None]) -> None:
        self._left = deque([function])
        self._done = Latch()
        self._error: BaseException | None = None
        self.callers: set[int] = set()
        """Threads that have asked for it: they are not waited for in it."""
        self._thread = 0
        """Which does it."""

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def run(self) -> None:
        """Have it done, and wait for its end: but on a host's thread, which it may wait for."""
        if self.is_done:
            return
        self.callers.add(get_ident())
        try:
            if _played is None or not _played.begin(threading.Thread(target=self._run)):
                start_new_thread(self._run, ())
        except RuntimeError:  # the interpreter is ending: it starts no threads any more
            self._run()
        if self._thread != get_ident():
            self._done.wait()
        if self._error is not None and self.is_done:
            raise self._error

    def _run(self) -> None:
        try:
            function = self._left.popleft()
        except IndexError:
            return
        self._thread = get_ident()
        try:
            function()
        except BaseException as error:
            self._error = error
        finally:
            self._done.set()
