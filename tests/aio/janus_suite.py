"""janus's own tests, unchanged, with `as_queue()` of threads and of asyncio for its two faces:
`make queue-suites` fetches its sdist, and puts this file there as its conftest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import janus
import pytest

import mirrorq
from aio.test_drop_in import Queue as LoopFace

INSIDE = "looks into what janus is made of"
ORDER = "a mirrored queue is first in, first out"
CLOSING = "closing is janus's own; here a handle is closed, or its node"
TURNS = "expects a put to be over within a turn of the loop: here it takes a commit"
NOT_OURS = {
    "test_get_loop_ok": INSIDE,
    "test_get_loop_different_loop": INSIDE,
    "test_shrinking_queue": INSIDE,
    "test_failing_queue": INSIDE,
    "test_closed_loop_non_failing": INSIDE,
    "test_sync_only_api": "makes the queue outside a loop: its asyncio face belongs to one",
    "test_put_notifies_sync_not_empty": INSIDE,
    "test_put_notifies_async_not_empty": INSIDE,
    "test_get_notifies_sync_not_full": INSIDE,
    "test_get_notifies_async_not_full": INSIDE,
    "test_wait_without_closing": CLOSING,
    "test_put_cancelled": TURNS,
    "test_put_cancelled_race": TURNS,
    "async: test_shutdown_nonempty_get_nowait": "a plain call has not asked whether more comes: "
    "the one after it knows",
    "test_shutdown_immediate_with_undone_tasks": "says that a task is done that nobody took",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each exception has its reason."""
    for item in items:
        face = item.path.stem.removeprefix("test_")
        is_other = "Lifo" in item.nodeid or "Priority" in item.nodeid
        why = NOT_OURS.get(item.name) or NOT_OURS.get(f"{face}: {item.name}")
        if is_other or why is not None:
            item.add_marker(pytest.mark.skip(reason=ORDER if is_other else why))


class NoMutex:
    """What janus's tests wait for before they close."""

    def locked(self) -> bool:
        return False


class SyncFace:
    """`as_queue()`, and what janus adds to it."""

    def __init__(self, parent: Queue, adapter: Any) -> None:
        self._parent = parent
        self._adapter = adapter
        self.maxsize = parent.maxsize

    @property
    def closed(self) -> bool:
        return self._parent.closed

    def __getattr__(self, name: str) -> Any:
        value = beside_the_loop(getattr)(self._adapter, name)
        return beside_the_loop(value) if callable(value) else value


def beside_the_loop(call: Callable[..., Any]) -> Callable[..., Any]:
    """The call on a thread of its own where an event loop runs: ours is refused there, and some of
    janus's tests call the threads' face in a loop."""

    def called(*given: Any, **named: Any) -> Any:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return call(*given, **named)
        with ThreadPoolExecutor(1) as beside:
            return beside.submit(call, *given, **named).result()

    return called


class AsyncFace(LoopFace):
    """aio's, which counts tasks together with the other face, as janus does."""

    parent: Queue

    @property
    def closed(self) -> bool:
        return self.parent.closed

    @property
    def unfinished_tasks(self) -> int:
        return self.parent.sync_q.unfinished_tasks


class Queue:
    """`janus.Queue(maxsize)` on a mirrored queue of its own."""

    _sync_mutex = NoMutex()

    def __init__(self, maxsize: float = 0) -> None:
        self.maxsize = self._maxsize = maxsize
        self.closed = False
        self.async_q = AsyncFace(maxsize)
        self.async_q.parent = self
        queue = self.async_q._queue
        adapter = self.async_q._handle.as_queue(
            dumps=queue._items._dumps, loads=queue._items._loads
        )
        adapter._tasks = queue._tasks
        self.sync_q: Any = SyncFace(self, adapter)

    def shutdown(self, immediate: bool = False) -> None:
        self.sync_q.shutdown(immediate)

    def close(self) -> None:
        if not self.closed:
            self.shutdown(immediate=True)
        self.closed = True

    async def wait_closed(self) -> None:
        await asyncio.to_thread(self.async_q.close)

    async def aclose(self) -> None:
        self.close()
        await self.wait_closed()


@pytest.fixture(autouse=True)
def _all_closed() -> Any:
    yield
    while LoopFace.opened:
        LoopFace.opened.pop().close()


janus.Queue = Queue
janus.SyncQueueEmpty = mirrorq.Empty
janus.SyncQueueFull = mirrorq.Full
janus.SyncQueueShutDown = janus.AsyncQueueShutDown = mirrorq.ShutDown
