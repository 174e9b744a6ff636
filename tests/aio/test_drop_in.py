"""The standard library's own tests of asyncio.Queue, run on `aio`'s `as_queue()`.

A thin class gives each test a queue with the bound that it asks for, by policy. Where the tests put
without waiting and look at once, it lets what was put come first: a queue on disks has it a commit
later. What is left out, and why, is said below.
"""

from __future__ import annotations

import asyncio
import pickle
import tempfile
import types
import unittest
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import pytest

from mirrorq import Node, aio
from mirrorq.api.stdlib_queue import settled_counting
from mirrorq.api.waits import in_thread
from mirrorq.protocol.sessions import Counts

pytestmark = pytest.mark.real

cases: Any = pytest.importorskip(
    "test.test_asyncio.test_queues", reason="this Python comes without its own test package"
)

INSIDE = "looks into the deques that asyncio.Queue is made of"
NO_LOOP = "makes the queue outside a loop: one on a node belongs to the running one"
TURNS = "counts turns of the loop until a put has happened: here it takes a commit"
JOIN = "has join() end in the turn of the last task_done(): here it looks every 20 ms"
SOON = "takes after 10 ms what was put, and hangs if it is not there: a commit may take longer"
TURNS_MAX = 30
"""Of the loop, from what a node has said to the end of a task that waited for it."""
NOT_OURS = {
    "test_repr": INSIDE,
    "test_str": INSIDE,
    "test_format": INSIDE,
    "test_generic_alias": "the class's own text",
    "test_cancelled_getters_not_being_held_in_self_getters": INSIDE,
    "test_cancelled_puts_not_being_held_in_self_putters": INSIDE,
    "test_cancelled_put_silence_value_error_exception": INSIDE,
    "test_get_with_putters": INSIDE,
    "test_blocking_put_wait": SOON,
    "test_maxsize": TURNS,
    "test_put_cancelled": TURNS,
    "test_put_cancelled_race": TURNS,
    "test_shutdown_immediate_with_unfinished": JOIN,
    "test_shutdown_nonempty": JOIN,
    "test_why_are_getters_waiting": INSIDE,
    "test_why_are_putters_waiting": INSIDE,
    "test_nonblocking_get": NO_LOOP,
    "test_nonblocking_get_exception": NO_LOOP,
    "test_nonblocking_put": NO_LOOP,
    "test_nonblocking_put_exception": NO_LOOP,
    "test_task_done_underflow": NO_LOOP,
}


def beside_the_loop(handle: Any) -> Counts:
    """Count a queue's messages on a thread of its own: a call that waits is refused in a loop."""
    with ThreadPoolExecutor(1) as beside:
        return beside.submit(in_thread, settled_counting(handle)).result()


class Queue:
    """`asyncio.Queue(maxsize)` on a mirrored queue of its own."""

    opened: list[Queue] = []

    def __init__(self, maxsize: float = 0) -> None:
        self.maxsize = maxsize
        self._folder = tempfile.TemporaryDirectory(prefix="mirrorq-drop-in-")
        self._node = Node("a", path=self._folder.name)
        self._node.wait_ready(60)
        if maxsize > 0:
            self._node.set_policy("bound", "", {"max-length": -int(-maxsize // 1)})
        self._handle = self._node.queue("jobs")
        queue = aio.MirroredQueue(self._handle)
        self._queue = queue.as_queue(dumps=pickle.dumps, loads=pickle.loads)
        Queue.opened.append(self)

    def close(self) -> None:
        self._node.close()
        self._folder.cleanup()

    def _arrive(self) -> None:
        """Have what was put come here before the loop goes on: it is the test's alone."""
        self._queue.qsize()
        handle = self._handle._handle

        while beside_the_loop(handle).ready and not handle.is_shut_for_gets:
            pass

    def get_nowait(self) -> object:
        self._arrive()
        return self._queue.get_nowait()

    def qsize(self) -> int:
        self._arrive()
        return self._queue.qsize()

    def empty(self) -> bool:
        self._arrive()
        return self._queue.empty()

    def full(self) -> bool:
        self._arrive()
        return self._queue.full()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


async def _sleep(delay: float) -> None:
    """Where the tests let others have a turn of the loop, the node has one, too."""
    for turn in range(TURNS_MAX if delay == 0 else 0):
        await asyncio.sleep(0)
        for queue in Queue.opened if turn % 5 == 0 else ():
            beside_the_loop(queue._handle._handle)
    await asyncio.sleep(delay)


class _OnMirroredQueue(unittest.IsolatedAsyncioTestCase):
    q_class = Queue

    def setUp(self) -> None:
        super().setUp()
        names = {**vars(asyncio), "Queue": Queue, "sleep": _sleep}
        self.enterContext(mock.patch.object(cases, "asyncio", types.SimpleNamespace(**names)))

    def tearDown(self) -> None:
        super().tearDown()
        while Queue.opened:
            Queue.opened.pop().close()


def _on_ours(name: str) -> type:
    """A class of the standard library's tests, without what is not ours."""
    case = getattr(cases, name)
    left_out: dict[str, Any] = {one: None for one in NOT_OURS if hasattr(case, one)}
    return type(f"Test{name}", (_OnMirroredQueue, case), {**left_out, "q_class": Queue})


TestQueueBasicTests = _on_ours("QueueBasicTests")
TestQueueGetTests = _on_ours("QueueGetTests")
TestQueuePutTests = _on_ours("QueuePutTests")
TestQueueJoinTests = _on_ours("QueueJoinTests")
if hasattr(cases, "QueueShutdownTests"):
    TestQueueShutdownTests = _on_ours("QueueShutdownTests")
