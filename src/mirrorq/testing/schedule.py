"""Threads of a simulation: real threads that run one at a time, on virtual time.

Each thread of the simulation is a `Task`. The running task has the *baton*. A waiting task lets the
next events happen (`at`) until some task has a reason to go on, and hands the baton to that task;
the seed draws one of several. Time passes only from event to event, so only when all tasks wait,
and a run is decided by the seed alone.

`mirrorq.clock` and `mirrorq.waiting` ask here while a simulation is open, for its threads only:
other threads in the same Python process use the machine's clocks.

*Threads*: everything here belongs to the thread with the baton.
"""

from __future__ import annotations

import sys
import threading
import traceback
from _thread import allocate_lock, get_ident
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from heapq import heappop, heappush
from pathlib import Path
from queue import Empty
from random import Random
from threading import TIMEOUT_MAX
from types import FrameType
from typing import Any

from attrs import define, field

from mirrorq import clock, waiting
from mirrorq.waiting import ProcessEnded

START_US = 1_700_000_000_000_000
"""Time of wall clocks at the beginning."""
STALL_S = 60.0
"""A task with the baton for this long, in real seconds, waits for something outside the
simulation."""
STALL_LOOKS = 60
"""So often is looked meanwhile: a machine that stands still costs one look, not the time."""
CHOICES_MAX = 1_000_000
"""Limit on the turns of tasks at one moment of virtual time."""
START = threading.Thread.start
"""The real function, which `patching` replaces."""
LIBRARY = str(Path(__file__).parents[1])
STANDARD = str(Path(threading.__file__).parent)


class SimulationError(Exception):
    """The simulation cannot go on; the message has the cause, and the state of each task."""


class Stuck(SimulationError):
    """Time passes without progress (see `time_limit` of `SimulatedCluster`), or stands still."""


@define(eq=False)
class Process:
    """Threads that end together: a node's thread, and the tasks beside the node."""

    name: str
    tasks: list[Task] = field(factory=list)
    """Tasks that have not ended."""
    is_alive: bool = True
    frozen_until_us: int = 0
    held: list[Task] = field(factory=list)
    """Tasks that would go on if the process were not frozen."""
    wall_ahead_us: int = 0
    """Error of the wall clock of the process's machine."""


@define(eq=False)
class Task:
    """A function on a thread of the simulation. `result` waits for its end."""

    name: str
    """For messages."""
    _scheduler: Scheduler
    _process: Process
    is_done: bool = False
    """True once the task has returned, has raised, or its process has ended."""
    error: BaseException | None = None
    """Exception of the task."""
    _value: object = None
    _ident: int = 0
    _baton: threading.Lock = field(factory=allocate_lock)
    """Free: the task may run. Only the task's own thread takes the lock."""
    _has_baton: bool = True
    """False while the thread waits for the baton, after an interrupted wait too."""
    _is_parked: bool = False
    _is_killed: bool = False
    _ticket: int = 0
    """Counts waits: a time-out of an older wait has no effect."""
    _until_us: int | None = None
    _is_hosts: bool = False
    """The task is a thread of mirrorq, not of the test."""
    _bears: Process | None = None
    """Process of threads that the task begins; None: the task's own."""
    _makes_real: bool = False
    """Locks made by the task now are real locks."""
    _ended: list[Lock] = field(factory=list)
    """Locks of tasks that wait for the end."""

    def result(self, timeout: float | None = None) -> object:
        """Wait for the end; return the function's result, or raise its error.

        Args:
            timeout: in virtual seconds.

        Raises:
            TimeoutError: the task has not ended by then.
            SimulationError: the task's process was crashed or stopped.
        """
        if not self._scheduler.join(self, timeout):
            raise TimeoutError(f"task {self.name} has not ended after {timeout} s")
        self._scheduler.forgive(self)
        if self.error is not None:
            raise self.error
        if self._is_killed:
            raise SimulationError(f"task {self.name} ended with its process {self._process.name}")
        return self._value

    def __repr__(self) -> str:
        return f"<Task {self.name}>"


class Lock:
    """A `threading.Lock` on which tasks wait in virtual time. For other threads an ordinary lock: a
    module may keep the lock after the simulation."""

    __slots__ = ("__weakref__", "_real", "_scheduler", "_waiting")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._real = allocate_lock()
        self._waiting: deque[Task] = deque()

    def locked(self) -> bool:
        """Return true if the lock is taken."""
        return self._real.locked()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock; return false if the time was over first."""
        if not blocking or timeout == 0 or (timeout < 0 and timeout != -1):
            return self._real.acquire(blocking, timeout)  # its errors are the real lock's
        if self._real.acquire(False):
            return True
        task = _tasks.get(get_ident())
        if task is None or task._scheduler is not self._scheduler:
            return self._real.acquire(True, timeout)
        return self._wait(task, timeout)

    def _wait(self, task: Task, timeout: float) -> bool:
        scheduler = self._scheduler
        is_endless = timeout < 0 or timeout >= TIMEOUT_MAX
        until_us = None if is_endless else scheduler.now_us + max(int(timeout * 1_000_000), 1)
        while True:
            self._waiting.append(task)
            try:
                scheduler.wait(until_us)
            except BaseException:
                self._pass_on(task)
                raise
            if task in self._waiting:
                self._waiting.remove(task)
            if self._real.acquire(False):
                return True
            if until_us is not None and scheduler.now_us >= until_us:
                return False

    def _pass_on(self, task: Task) -> None:
        """Wake the next task if this task, which waits no more, may have been woken."""
        if task in self._waiting:
            self._waiting.remove(task)
        elif self._waiting and not self._real.locked():
            self._scheduler.make_ready(self._waiting.popleft())

    def release(self) -> None:
        """Free the lock; the first waiting task goes on."""
        self._real.release()
        if self._waiting:
            self._scheduler.make_ready(self._waiting.popleft())

    def _at_fork_reinit(self) -> None:
        self._real = allocate_lock()
        self._waiting.clear()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Mailbox:
    """Mailbox of one task, filled by others: `queue.SimpleQueue` in virtual time."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._items: deque[Any] = deque()
        self._waiting: deque[Lock] = deque()
        self._scheduler = scheduler

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Put something in; never waits."""
        self._items.append(item)
        if self._waiting:
            self._waiting.popleft().release()

    put_nowait = put

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take the oldest item out; wait for an item.

        Raises:
            queue.Empty: no item came in time.
        """
        until_us = None if timeout is None else self._scheduler.now_us + int(timeout * 1_000_000)
        while not self._items:
            left = -1.0 if until_us is None else (until_us - self._scheduler.now_us) / 1_000_000
            if not block or (until_us is not None and left <= 0):
                raise Empty
            bell = Lock(self._scheduler)
            bell.acquire()
            self._waiting.append(bell)
            try:
                bell.acquire(True, left)
            finally:
                if bell in self._waiting:
                    self._waiting.remove(bell)
        return self._items.popleft()

    def get_nowait(self) -> Any:
        """Take the oldest item out, if there is one."""
        return self.get(block=False)

    def qsize(self) -> int:
        """Return the number of items."""
        return len(self._items)

    def empty(self) -> bool:
        """Return true if the mailbox is empty."""
        return not self._items


_tasks: dict[int, Task] = {}
"""Thread id -> task, of all simulations."""


def current_task() -> Task | None:
    """Return the task of the calling thread; None: not a simulated thread."""
    return _tasks.get(get_ident())


class Scheduler:
    """One simulation's tasks, events and time.

    Args:
        seed: decides all that happens by chance.
        time_limit: in virtual seconds, see `SimulatedCluster`.
    """

    def __init__(self, seed: int, time_limit: float) -> None:
        self.random = Random(seed)
        self.now_us = 0
        self.failure: BaseException | None = None
        """Why the simulation has ended early."""
        self.test = Process("the test")
        """Process of tasks that belong to no node."""
        self._limit_us = int(time_limit * 1_000_000)
        """No wait goes past this time; calls that let time pass move the limit."""
        self._events: list[tuple[int, int, Callable[..., None], tuple[object, ...]]] = []
        self._order = 0
        self._ready: list[Task] = []
        self._failed: list[Task] = []
        """Failed tasks whose error is not reported yet."""
        self._main = Task("the test", self, self.test)
        self._current = self._main
        self._switches = 0
        self._choices = 0
        """How often a task was chosen since virtual time moved."""
        self._number = 0
        self._is_stalled = False
        """A task waits for something real: it was named, and the end does not wait for it again."""

    def new_number(self) -> int:
        """1, 2, 3, …"""
        self._number += 1
        return self._number

    # --- The test's thread --------------------------------------------------------------

    def open(self) -> None:
        """Make the calling thread the first task.

        Raises:
            SimulationError: the thread is already a task, or the simulation is over.
        """
        ident = get_ident()
        if self._main._ident:
            raise SimulationError("this simulation was entered before: make another one")
        if ident in _tasks:
            raise SimulationError("a simulation runs on this thread already: leave that first")
        self._main._ident = ident
        self._main._baton.acquire()
        _tasks[ident] = self._main
        clock.play(_CLOCK)
        waiting.play(_THREADS)

    def close(self) -> None:
        """End every task, and make the calling thread an ordinary one."""
        try:
            self.running()
            self.failure = None
            for task in [task for task in _tasks.values() if task._scheduler is self]:
                self.kill(task._process)
            self._limit_us = self.now_us + 60_000_000
            while sum(task._scheduler is self for task in _tasks.values()) > 1:
                self.sleep_us(1000)
        finally:
            # All of them: one that waits for something real is left to itself.
            for ident in [ident for ident, task in _tasks.items() if task._scheduler is self]:
                del _tasks[ident]
            if not _tasks:
                clock.play(clock.MACHINE)
                waiting.play(None)

    # --- Time ---------------------------------------------------------------------------

    def at(self, time_us: int, action: Callable[..., None], *arguments: object) -> None:
        """Have a call happen at a time; the call must not wait."""
        self._order += 1
        heappush(self._events, (max(time_us, self.now_us), self._order, action, arguments))

    def after(self, delay_us: int, action: Callable[..., None], *arguments: object) -> None:
        """Have something happen in so many microseconds."""
        self.at(self.now_us + delay_us, action, *arguments)

    def sleep_us(self, duration_us: int) -> None:
        """Let time pass on the calling task."""
        until_us = self.now_us + max(duration_us, 0)
        while True:
            self.wait(until_us)
            if self.now_us >= until_us:
                return

    def allow(self, duration_us: int) -> None:
        """So much time is wanted, and is not of the limit."""
        self._limit_us += duration_us

    def leap(self, duration_us: int) -> None:
        """Let time pass without any activity; events due meanwhile happen afterwards."""
        self.allow(duration_us)
        self.now_us += duration_us
        self.sleep_us(0)

    # --- Tasks --------------------------------------------------------------------------

    def running(self) -> Task:
        """Return the calling task.

        Raises:
            SimulationError: the calling thread is no task, or does not have the baton.
        """
        task = _tasks.get(get_ident())
        if task is None or task._scheduler is not self:
            raise SimulationError(
                f"thread {threading.current_thread().name} is not of this simulation and uses "
                "something of it: start it by cluster.spawn"
            )
        if not task._has_baton:  # interrupted while it waited for it
            self._take_baton(task)
        return task

    @contextmanager
    def born_in(self, process: Process) -> Iterator[None]:
        """Let threads that begin meanwhile belong to `process`, and be mirrorq's own."""
        task = self.running()
        before, task._bears = task._bears, process
        try:
            yield
        finally:
            task._bears = before

    @contextmanager
    def real_locks(self) -> Iterator[None]:
        """Let locks that the calling task makes meanwhile be real locks."""
        task = self.running()
        task._makes_real = True
        try:
            yield
        finally:
            task._makes_real = False

    def spawn(self, name: str, process: Process, function: Callable[[], object]) -> Task:
        """Start a task."""
        task = Task(name, self, process)
        self._start(task, threading.Thread(target=function, name=name, daemon=True), function)
        return task

    def begin(self, thread: threading.Thread, *, is_hosts: bool = True) -> None:
        """Start a thread as a task of the caller's process.

        Args:
            is_hosts: mirrorq has made the thread, not the test.
        """
        mother = self.running()
        process = mother._bears or mother._process
        task = Task(thread.name, self, process, is_hosts=is_hosts)
        self._start(task, thread, thread.run)

    def _start(self, task: Task, thread: threading.Thread, function: Callable[[], object]) -> None:
        thread.daemon = True
        thread.run = partial(self._run, task, function)  # type: ignore[method-assign]
        thread._simulated = task  # type: ignore[attr-defined]
        task._baton.acquire()
        task._is_parked = True
        task._process.tasks.append(task)
        # Work of the new thread before its first turn is waited for in real time.
        with self.real_locks():
            thread._started = threading.Event()  # type: ignore[attr-defined]
            START(thread)
        assert thread.ident is not None
        task._ident = thread.ident
        _tasks[task._ident] = task
        self.make_ready(task)

    def _run(self, task: Task, function: Callable[[], object]) -> None:
        """Run a task from begin to end, on its thread."""
        task._baton.acquire()
        try:
            if not task._is_killed:
                task._value = function()
        except ProcessEnded:
            task._is_killed = True
        except BaseException as error:
            task.error = error
            self._failed.append(task)
        self._end(task)

    def _end(self, task: Task) -> None:
        task.is_done = True
        task._process.tasks.remove(task)
        for lock in task._ended:
            lock.release()
        following = self._choose()
        del _tasks[task._ident]
        self._current = following
        self._switches += 1
        following._baton.release()

    def join(self, task: Task, timeout: float | None) -> bool:
        """Wait for a task's end."""
        if not task.is_done:
            lock = Lock(self)
            lock.acquire()
            task._ended.append(lock)
            lock.acquire(True, -1 if timeout is None else timeout)
            if lock in task._ended:
                task._ended.remove(lock)
        return task.is_done

    def forgive(self, task: Task) -> None:
        """Mark the task's error as reported."""
        if task in self._failed:
            self._failed.remove(task)

    def raise_failed(self) -> None:
        """Raise the first unreported error of a task."""
        if self._failed:
            task = self._failed.pop(0)
            assert task.error is not None
            task.error.add_note(f"in task {task.name}, of {task._process.name}")
            raise task.error

    # --- Waiting ------------------------------------------------------------------------

    def wait(self, until_us: int | None) -> None:
        """Hand the baton on until the calling task is ready, or the time is `until_us`."""
        task = self.running()
        self._check(task)
        task._ticket += 1
        task._until_us = until_us
        if until_us is not None:
            self.at(until_us, self._on_time, task, task._ticket)
        task._is_parked = True
        following = self._choose()
        if following is not task:
            self._current = following
            self._switches += 1
            following._baton.release()
            self._take_baton(task)
        self._check(task)

    def make_ready(self, task: Task) -> None:
        """Make a task ready to go on."""
        if task._is_parked and get_ident() not in _tasks:
            self.running()
        if task._is_parked:
            task._is_parked = False
            self._ready.append(task)

    def _on_time(self, task: Task, ticket: int) -> None:
        if task._ticket == ticket:
            self.make_ready(task)

    def _check(self, task: Task) -> None:
        if task._is_killed:
            raise ProcessEnded(f"{task._process.name} has crashed")
        if self.failure is not None and task is self._main:
            raise self.failure

    def _choose(self) -> Task:
        """Return the next task to run; let events happen until there is one."""
        self._choices += 1
        if self._choices > CHOICES_MAX:
            self._choices = 0
            self._fail(
                Stuck(
                    f"virtual time stands still at {self.now_us / 1_000_000:.6f} s: somebody looks "
                    f"again and again, and never waits. {self.describe()}"
                )
            )
        while True:
            while self._ready:
                count = len(self._ready)
                task = self._ready.pop(self.random.randrange(count) if count > 1 else 0)
                if task._process.frozen_until_us <= self.now_us or task._is_killed:
                    return task
                task._process.held.append(task)
            if not self._events:
                self._fail(Stuck(f"nothing will ever happen any more. {self.describe()}"))
                continue
            time_us = self._events[0][0]
            if time_us > self._limit_us and self.failure is None:
                self._limit_us = sys.maxsize
                limit_s = self.now_us / 1_000_000
                self._fail(
                    Stuck(
                        f"{limit_s:.0f} virtual seconds have passed, the time_limit, and somebody "
                        f"waits still. {self.describe()}"
                    )
                )
                continue
            _, _, action, arguments = heappop(self._events)
            if time_us > self.now_us:
                self.now_us, self._choices = time_us, 0
            try:
                action(*arguments)
            except BaseException as error:
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """End the simulation: the test's thread gets the error when the thread runs next."""
        self.failure = self.failure or error
        self.make_ready(self._main)

    def _take_baton(self, task: Task) -> None:
        """Wait, in real time, for the other tasks' running."""
        task._has_baton = False
        seen, looks = self._switches, 0
        while not task._baton.acquire(True, STALL_S / STALL_LOOKS):
            if self._switches != seen:
                seen, looks, self._is_stalled = self._switches, 0, False
            looks += task is self._main
            if looks >= (2 if self._is_stalled else STALL_LOOKS):
                self._is_stalled = True
                raise SimulationError(
                    f"task {self._current.name} has been running for {STALL_S:.0f} real seconds "
                    "and does not wait: it computes for ever, or waits for something that is not "
                    f"of the simulation. {self.describe()}"
                )
        task._has_baton = True

    # --- Processes ----------------------------------------------------------------------

    def kill(self, process: Process) -> None:
        """End a process: its tasks raise `ProcessEnded` wherever they wait."""
        process.is_alive = False
        process.frozen_until_us = 0
        process.held.clear()
        for task in process.tasks:
            if task is not self._main:
                task._is_killed = True
                task._is_parked = True
                if task in self._ready:
                    self._ready.remove(task)
                if task is not self._current:
                    self.make_ready(task)

    def kill_and_wait(self, process: Process) -> None:
        """Kill a process and wait until its tasks have ended, except the caller."""
        me = self.running()
        self.kill(process)
        while any(task is not me for task in process.tasks):
            self.sleep_us(1)

    def freeze(self, process: Process, duration_us: int) -> None:
        """A process does nothing for so long, and does not know."""
        process.frozen_until_us = max(process.frozen_until_us, self.now_us + duration_us)
        self.at(process.frozen_until_us, self._thaw, process)

    def _thaw(self, process: Process) -> None:
        if process.frozen_until_us <= self.now_us:
            held, process.held = process.held, []
            self._ready += held

    # --- State of tasks -----------------------------------------------------------------

    def describe(self) -> str:
        """Return the position of each task of the test, for messages."""
        frames = sys._current_frames()
        lines = []
        for ident, task in list(_tasks.items()):
            if task._scheduler is not self or task._is_hosts:
                continue
            lines.append(f"{task.name}: {_place(frames.get(ident))}{self._until(task)}")
        return "What each task does:\n  " + "\n  ".join(lines)

    def _until(self, task: Task) -> str:
        if not task._is_parked:
            return ", running"
        if task._until_us is None:
            return ", waits"
        return f", waits until {task._until_us / 1_000_000:.3f} s"


def _place(frame: FrameType | None) -> str:
    """Return the innermost line outside mirrorq and Python's library."""
    for found, line in traceback.walk_stack(frame):
        name = found.f_code.co_filename
        if not name.startswith((LIBRARY, STANDARD)):
            return f"{name}:{line} in {found.f_code.co_name}"
    return "in mirrorq"


class _Clock:
    """`mirrorq.clock` while a simulation is open."""

    @staticmethod
    def now_ms() -> int:
        task = _tasks.get(get_ident())
        if task is None:
            return clock.MACHINE.now_ms()
        return task._scheduler.now_us // 1000

    @staticmethod
    def wall_us() -> int:
        task = _tasks.get(get_ident())
        if task is None:
            return clock.MACHINE.wall_us()
        return START_US + task._scheduler.now_us + task._process.wall_ahead_us

    @staticmethod
    def boot() -> str:
        return "simulated" if get_ident() in _tasks else clock.MACHINE.boot()

    @staticmethod
    def monotonic() -> float:
        task = _tasks.get(get_ident())
        return clock.MACHINE.monotonic() if task is None else task._scheduler.now_us / 1_000_000

    @staticmethod
    def sleep(seconds: float) -> None:
        task = _tasks.get(get_ident())
        if task is None:
            clock.MACHINE.sleep(seconds)
        else:
            task._scheduler.sleep_us(int(seconds * 1_000_000))


class _Threads:
    """`mirrorq.waiting` while a simulation is open."""

    @staticmethod
    def lock() -> Lock | None:
        task = _tasks.get(get_ident())
        return None if task is None else Lock(task._scheduler)

    @staticmethod
    def mailbox() -> Mailbox | None:
        task = _tasks.get(get_ident())
        return None if task is None else Mailbox(task._scheduler)

    @staticmethod
    def begin(thread: threading.Thread) -> bool:
        task = _tasks.get(get_ident())
        if task is None:
            return False
        task._scheduler.begin(thread)
        return True


_CLOCK = _Clock()
_THREADS = _Threads()
