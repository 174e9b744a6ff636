"""Waiting between threads, without locks that an exception could leave taken.

A signal handler runs on a user's thread between any two bytecodes, and may raise there, or call
mirrorq again; a garbage collection may run a `__del__` there with the same effect. So no user's
thread ever holds a lock that a host's thread, or the same thread again, would wait for. Threads
share only single operations of C: `append` and `popleft` of a deque, and the release of a lock of
the waiter, which no other thread ever takes.

`threading.Condition` and `Event` are different: both are Python that runs with a lock held, and an
exception in `wait` may leave the lock held for the thread that calls `set`.
"""

from __future__ import annotations

import os
import sys
import threading
from _thread import LockType, allocate_lock, get_ident, start_new_thread
from collections import deque
from collections.abc import Callable, Collection
from queue import SimpleQueue
from threading import TIMEOUT_MAX
from typing import Any, Generic, Protocol, TypeVar
from weakref import ref

from mirrorq import clock

_hosts: set[int] = set()
"""Threads on which no call may wait: a collection there may run calls of a user's `__del__`."""

os.register_at_fork(after_in_child=_hosts.clear)
"""A child has no host threads, and may have a thread of its own under the same number."""


class ProcessEnded(BaseException):
    """Raised on threads of a simulated process that has ended: the threads end silently."""


class Lock(Protocol):
    """Used part of a lock of C."""

    def acquire(self, blocking: bool = True, timeout: float = -1, /) -> bool: ...

    def release(self) -> None: ...

    def locked(self) -> bool: ...


class Mailbox(Protocol):
    """Used part of a `queue.SimpleQueue`."""

    def put(self, item: Any, /) -> None: ...

    def get(self) -> Any: ...

    def empty(self) -> bool: ...


class Threads(Protocol):
    """Hooks of a simulation: how its threads wait and begin."""

    def lock(self) -> Lock | None:
        """Return a free lock for the calling thread; None: the thread is not simulated."""

    def mailbox(self) -> Mailbox | None:
        """Return a mailbox between threads of the caller's simulation; None as above."""

    def begin(self, thread: threading.Thread) -> bool:
        """Start a thread of the calling thread's process; False: the caller's is a real process."""


_played: Threads | None = None


def play(threads: Threads | None) -> None:
    """Let threads of a simulation wait by its time; None ends the simulation."""
    global _played
    _played = threads


def _new_lock() -> LockType | Lock:
    lock = None if _played is None else _played.lock()
    return allocate_lock() if lock is None else lock


def new_mailbox() -> Mailbox:
    """Return a mailbox: many threads put items, one thread waits for items."""
    mailbox = None if _played is None else _played.mailbox()
    return SimpleQueue() if mailbox is None else mailbox


def run_host(function: Callable[[], None]) -> None:
    """Run a host's thread; until `function` returns no call of a user waits on this thread."""
    _hosts.add(get_ident())
    try:
        function()
    finally:
        _hosts.discard(get_ident())


def is_host_thread() -> bool:
    """Return true if the calling thread steps a node or a client."""
    return get_ident() in _hosts


def begin_thread(thread: threading.Thread) -> None:
    """Start a thread, from a thread on which no signal handler runs.

    `Thread.start` waits with a lock that the new thread takes: an interrupt there may leave a
    thread that never begins. The thread may begin a moment after the return.
    """
    if _played is None or not _played.begin(thread):
        start_new_thread(thread.start, ())


class Waiters:
    """Threads that wait for a condition. A thread that makes the condition true calls `notify`."""

    def __init__(self) -> None:
        self._bells: deque[LockType | Lock] = deque()
        """A lock for each waiting thread: taken until the thread is notified."""

    @property
    def count(self) -> int:
        """Return the number of waiting threads."""
        return len(self._bells)

    def notify(self) -> None:
        """Wake all waiting threads to check their conditions. Never waits; from any thread."""
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
    """Wait among the threads of each of several `Waiters`, like `Waiters.wait_for`."""
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
            # Checked again after joining the waiters: an earlier change notified no thread.
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
    """A flag: one thread sets, other threads wait. Replaces `threading.Event`, see above."""

    def __init__(self) -> None:
        self._is_set = False
        self.waiters = Waiters()
        """Notified when the flag is set."""

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self.waiters.notify()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most `timeout` seconds; return true if the flag is set."""
        return self.waiters.wait_for(self.is_set, timeout)


class Doorbell:
    """Wakes one thread, and stays rung until the thread has looked."""

    def __init__(self) -> None:
        self._lock = _new_lock()
        """Free after a ring. Only the bell's own thread takes the lock."""
        self._lock.acquire()

    def ring(self) -> None:
        """Ring, from any thread; cheap if already rung."""
        if self._lock.locked():
            try:
                self._lock.release()
            except RuntimeError:
                return  # another thread was quicker

    def wait(self, timeout: float | None = None) -> None:
        """Wait for a ring, at most `timeout` seconds; the next wait is for another ring."""
        if timeout is None:
            self._lock.acquire()
        elif timeout > 0:
            self._lock.acquire(True, min(timeout, TIMEOUT_MAX))
        else:
            self._lock.acquire(False)


def _discard(items: deque[Any], item: object) -> None:
    """Remove an item unless another thread has removed the item."""
    try:
        items.remove(item)
    except ValueError:
        return


def take_back(items: deque[Any], item: object) -> bool:
    """Remove an item that this thread has just added; False: another thread has the item."""
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
    """Users' calls that are under way. A call ended by an exception, at any place, is gone with the
    call's frame: no code has to remove the call."""

    def __init__(self) -> None:
        self._refs: deque[ref[Call]] = deque()

    def __bool__(self) -> bool:
        """False: there is certainly none."""
        return bool(self._refs)

    def add(self, call: Call) -> None:
        """Add a call. The call stays until its last reference is gone, or `leave` is called."""
        self._refs.append(ref(call))

    def leave(self, call: Call) -> None:
        """Remove a call that is over."""
        _discard(self._refs, ref(call))

    def all(self) -> list[Call]:
        """Return the present calls; forget calls that are gone."""
        found = []
        for one in list(self._refs):
            call = one()
            if call is not None:
                found.append(call)
            else:
                _discard(self._refs, one)
        return found


class Once:
    """A function that runs once, on a thread of its own, while callers wait.

    An exception that ends a wait does not end the function: a repeated call waits for the rest.
    """

    def __init__(self, function: Callable[[], None]) -> None:
        self._left = deque([function])
        self._done = Latch()
        self._error: BaseException | None = None
        self.callers: set[int] = set()
        """Threads that called `run`: the function must not wait for these threads."""
        self._thread = 0
        """Thread that runs the function."""

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def run(self) -> None:
        """Start the function and wait for its end. A host's thread does not wait.

        At the end of the interpreter nothing happens: all other threads are gone, and the end of
        the process closes the rest.
        """
        if self.is_done or sys.is_finalizing():
            return
        self.callers.add(get_ident())
        try:
            if _played is None or not _played.begin(threading.Thread(target=self._run)):
                start_new_thread(self._run, ())
        except RuntimeError:  # no more threads can be started
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
