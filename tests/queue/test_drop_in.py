"""The standard library's own tests of queue.Queue, run on `as_queue()`.

Items are objects there and bytes here, so a thin class pickles them and gives each test a queue
with the bound that it asks for, by policy. Left out, because they are not about what a user of
queue.Queue relies on: `test_shrinking_queue` (sets an attribute that is not documented),
`test_references` (an unacknowledged message is kept on purpose), the two variants of
`test_many_threads` that spin on an empty queue, and of Python 3.13 the two that shut a queue down
in the middle of 65,536 puts of one message each: every one of these is synced to the disk.
"""

from __future__ import annotations

import pickle
import queue as standard
import tempfile
import unittest
from typing import Any

import pytest

from mirrorq import Node

cases = pytest.importorskip(
    "test.test_queue", reason="this Python comes without its own test package"
)


class Queue:
    """`queue.Queue(maxsize)` on a mirrored queue of its own."""

    opened: list[Queue] = []

    def __init__(self, maxsize: int = 0) -> None:
        self.maxsize = maxsize
        self._folder = tempfile.TemporaryDirectory(prefix="mirrorq-drop-in-")
        self._node = Node("a", path=self._folder.name)
        self._node.wait_ready(60)
        if maxsize:
            self._node.set_policy("bound", "", {"max-length": maxsize})
        self._queue = self._node.queue("jobs").as_queue()
        Queue.opened.append(self)

    def close(self) -> None:
        self._node.close()
        self._folder.cleanup()

    def put(self, item: object, *given: Any, **named: Any) -> None:
        self._queue.put(pickle.dumps(item), *given, **named)

    def put_nowait(self, item: object) -> None:
        self._queue.put_nowait(pickle.dumps(item))

    def get(self, *given: Any, **named: Any) -> object:
        return pickle.loads(self._queue.get(*given, **named))

    def get_nowait(self) -> object:
        return pickle.loads(self._queue.get_nowait())

    def __getattr__(self, name: str) -> Any:
        """task_done, join, qsize, empty, full: as they are."""
        return getattr(self._queue, name)


class _OnMirroredQueue(unittest.TestCase):
    type2test = Queue
    queue = standard
    """Where the tests take Empty and Full from: ours are those, too."""

    def tearDown(self) -> None:
        super().tearDown()
        while Queue.opened:
            Queue.opened.pop().close()


class TestQueue(cases.BaseQueueTestMixin, _OnMirroredQueue):  # type: ignore[misc, name-defined]
    test_shrinking_queue = None
    test_shutdown_all_methods_in_many_threads = None
    test_shutdown_immediate_all_methods_in_many_threads = None


class TestSimpleQueue(cases.BaseSimpleQueueTest, _OnMirroredQueue):  # type: ignore[misc, name-defined]
    test_references = None
    test_many_threads_nonblock = None
    test_many_threads_timeout = None
