"""Python's own time and threads, simulated for tasks.

Code under test sleeps, looks at the clock, starts threads, waits for events and for futures, and
runs asyncio. While a simulation is open these names of the standard library lead to stand-ins that
check the caller: a task gets virtual time, every other thread the real function.

Not replaced: names imported before (`from time import sleep`), functions in C (`datetime.now`), and
waits for the outside world: sockets, files, processes.

*Threads*: any thread may call the stand-ins; only threads that open and leave a cluster call
`patch` and `restore`.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from types import GenericAlias
from typing import Any

from mirrorq.testing.loop import SimulatedLoop
from mirrorq.testing.schedule import (
    START,
    START_US,
    Lock,
    Mailbox,
    SimulationError,
    Task,
    current_task,
)

SIMPLE_QUEUE = queue.SimpleQueue
PAUSE_US = 60_000_000
"""A sleep of the test this long is meant, and not of the time limit; a loop that looks again and
again sleeps less."""
_kept: list[tuple[Any, str, Any]] = []
"""(module or class, name, real value)."""
_open_count = 0


def patch() -> None:
    """Put the stand-ins in their places."""
    global _open_count
    _open_count += 1
    if _open_count == 1:
        for owner, name, value in _stand_ins():
            _kept.append((owner, name, getattr(owner, name)))
            setattr(owner, name, value)


def restore() -> None:
    """Restore the real functions when the last simulation is left."""
    global _open_count
    _open_count -= 1
    while _kept and not _open_count:
        setattr(*_kept.pop())


def _seconds(task: Task) -> float:
    return task._scheduler.now_us / 1_000_000


def _wall_us(task: Task) -> int:
    return START_US + task._scheduler.now_us + task._process.wall_ahead_us


def _for_tasks(
    real: Callable[..., Any], played: Callable[..., Any], *, is_lock: bool = False
) -> Callable[..., Any]:
    """Return a stand-in: `played` gets the calling task before its arguments."""

    def choose(*arguments: Any, **keywords: Any) -> Any:
        task = current_task()
        if task is None or (is_lock and task._makes_real):
            return real(*arguments, **keywords)
        return played(task, *arguments, **keywords)

    return choose


def _stand_ins() -> list[tuple[Any, str, Any]]:
    def sleep(task: Task, seconds: float) -> None:
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        scheduler, duration_us = task._scheduler, int(seconds * 1_000_000)
        if task is scheduler._main and duration_us >= PAUSE_US:
            scheduler.allow(duration_us)
        scheduler.sleep_us(duration_us)

    monotonic = _for_tasks(time.monotonic, _seconds)
    monotonic_ns = _for_tasks(time.monotonic_ns, lambda task: task._scheduler.now_us * 1000)
    lock = _for_tasks(threading.Lock, lambda task: Lock(task._scheduler), is_lock=True)
    new_loop = _for_tasks(asyncio.new_event_loop, _new_loop)
    return [
        (time, "sleep", _for_tasks(time.sleep, sleep)),
        (time, "monotonic", monotonic),
        (time, "monotonic_ns", monotonic_ns),
        (time, "perf_counter", _for_tasks(time.perf_counter, _seconds)),
        (time, "perf_counter_ns", monotonic_ns),
        (time, "time", _for_tasks(time.time, lambda task: _wall_us(task) / 1_000_000)),
        (time, "time_ns", _for_tasks(time.time_ns, lambda task: _wall_us(task) * 1000)),
        (threading, "_time", monotonic),
        (queue, "time", monotonic),
        (threading, "Lock", lock),
        (threading, "_allocate_lock", lock),
        (threading, "RLock", _for_tasks(threading.RLock, _recursive, is_lock=True)),
        (threading.Thread, "start", _start),
        (threading.Thread, "join", _for_threads(threading.Thread.join, _join)),
        (threading.Thread, "is_alive", _for_threads(threading.Thread.is_alive, _is_alive)),
        (queue, "SimpleQueue", SimpleQueue),
        (asyncio.events, "new_event_loop", new_loop),
        (asyncio, "new_event_loop", new_loop),
    ]


class SimpleQueue(Mailbox):
    """`queue.SimpleQueue`, also as a base class and as `SimpleQueue[int]`."""

    __class_getitem__: Any = classmethod(GenericAlias)

    def __new__(cls, *given: Any, **named: Any) -> Any:
        if cls is SimpleQueue and current_task() is None:
            return SIMPLE_QUEUE(*given, **named)
        return super().__new__(cls)

    def __init__(self) -> None:
        task = current_task()
        if task is None:
            raise SimulationError(f"a {type(self).__name__} is made by no thread of the simulation")
        super().__init__(task._scheduler)


def _recursive(task: Task) -> Any:
    return threading._PyRLock()  # type: ignore[attr-defined]


def _new_loop(task: Task) -> asyncio.AbstractEventLoop:
    return SimulatedLoop(task._scheduler)


def _start(thread: threading.Thread) -> None:
    """`Thread.start`."""
    task = current_task()
    if task is None:
        START(thread)
        return
    if getattr(thread, "_simulated", None) is not None:
        raise RuntimeError("threads can only be started once")
    task._scheduler.begin(thread, is_hosts=False)


def _for_threads(real: Callable[..., Any], played: Callable[..., Any]) -> Callable[..., Any]:
    """Return a stand-in for threads that are tasks, when a task calls."""

    def choose(thread: threading.Thread, *arguments: Any, **keywords: Any) -> Any:
        begun: Task | None = getattr(thread, "_simulated", None)
        if begun is None or current_task() is None:
            return real(thread, *arguments, **keywords)
        return played(begun, *arguments, **keywords)

    return choose


def _join(begun: Task, timeout: float | None = None) -> None:
    if begun is current_task():
        raise RuntimeError("cannot join current thread")
    begun._scheduler.join(begun, None if timeout is None else max(timeout, 0))


def _is_alive(begun: Task) -> bool:
    return not begun.is_done
