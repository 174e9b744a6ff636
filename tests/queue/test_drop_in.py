"""The standard library's own tests of queue.Queue, run on `as_queue()`.

A thin class gives each test a queue with the bound that it asks for, by policy. What is left out,
and why, is said where it is.
"""

from __future__ import annotations

import pickle
import queue as standard
import tempfile
import unittest
from typing import Any

import pytest

from mirrorq import Node

pytestmark = pytest.mark.real

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
        self._queue = self._node.queue("jobs").as_queue(dumps=pickle.dumps, loads=pickle.loads)
        Queue.opened.append(self)

    def close(self) -> None:
        self._node.close()
        self._folder.cleanup()

    def __getattr__(self, name: str) -> Any:
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
    # It sets an attribute that is not documented.
    test_shrinking_queue = None
    # They shut a queue down amid 65,536 puts, each of which is synced to the disk.
    test_shutdown_all_methods_in_many_threads = None
    test_shutdown_immediate_all_methods_in_many_threads = None


class TestSimpleQueue(cases.BaseSimpleQueueTest, _OnMirroredQueue):  # type: ignore[misc, name-defined]
    # It counts references to what was put: here that is what pickle makes of it.
    test_references = None
    # They ask an empty queue as fast as they can, with fifty threads: each time the master.
    test_many_threads_nonblock = None
    test_many_threads_timeout = None
