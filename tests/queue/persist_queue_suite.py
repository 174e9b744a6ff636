"""persist-queue's own tests of its file queue, unchanged, on `as_queue(ack="task_done")`:
`make queue-suites` fetches its sdist, and puts this file there as its conftest.

Its queue is a folder: what was not done there comes again to who opens it next. Here it is the
folder of a node, which the handle brings along.
"""

from __future__ import annotations

import io
from typing import Any

import persistqueue
import pytest
from persistqueue.serializers import pickle as default

import mirrorq

FILES = "spoils or looks at persist-queue's own files"
NOT_OURS = {
    "test_partial_write": FILES,
    "test_garbage_on_head": FILES,
    "test_del": FILES,
    "test_clear_tail_file": "one task_done() there is for all that was got before it",
    "test_autosave_get": "saves at each get, which is ack='get' here",
    "test_protocol": "its serializer gives two things for one: what it wrote, and what it reads",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each exception has its reason."""
    for item in items:
        why = NOT_OURS.get(item.name.partition("[")[0])
        if why is not None:
            item.add_marker(pytest.mark.skip(reason=why))


class Queue:
    """`persistqueue.Queue(path, …)` on a mirrored queue in that folder."""

    def __init__(
        self, path: str, maxsize: int = 0, serializer: Any = default, autosave: bool = False
    ) -> None:
        def dumps(item: object) -> bytes:
            file = io.BytesIO()
            serializer.dump(item, file)
            return file.getvalue()

        def loads(body: bytes) -> object:
            return serializer.load(io.BytesIO(body))

        self.maxsize = maxsize
        self._handle = mirrorq.MirroredQueue("queue", path=path)
        if maxsize:
            self._handle.node.set_policy("bound", "", {"max-length": maxsize})
        self._queue = self._handle.as_queue(dumps=dumps, loads=loads, ack="task_done")

    def __del__(self) -> None:
        if "_handle" in self.__dict__:
            self._handle.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


persistqueue.Queue = Queue
persistqueue.Empty = mirrorq.Empty
persistqueue.Full = mirrorq.Full
