"""`as_queue()`: code written for `queue.Queue` runs unchanged on a mirrored queue."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mirrorq.message import Message
    from mirrorq.queue import MirroredQueue

__all__ = ["QueueAdapter"]

JOIN_PAUSE_S = 0.02
"""join() asks the queue this often."""


class QueueAdapter:
    """`queue.Queue` on a handle: `get()` gives bytes, `task_done()` acks.

    `task_done()` acks the oldest unsettled message that this thread got. `join()` waits until
    the queue has neither ready nor unacknowledged messages.
    """

    maxsize = 0

    def __init__(self, handle: MirroredQueue) -> None:
        self._handle = handle
        self._local = threading.local()

    @property
    def _taken(self) -> deque[Message]:
        taken: deque[Message] | None = getattr(self._local, "taken", None)
        if taken is None:
            taken = self._local.taken = deque()
        return taken

    def put(self, item: bytes, block: bool = True, timeout: float | None = None) -> None:
        """Publish, and wait for the confirmation: then it is as safe as it gets."""
        self._handle.put(item, block=block, timeout=timeout).result(timeout if block else None)

    def put_nowait(self, item: bytes) -> None:
        self.put(item, block=False)

    def get(self, block: bool = True, timeout: float | None = None) -> bytes:
        """Take the next body; `task_done()` acks it."""
        if timeout is not None and timeout < 0:
            raise ValueError("'timeout' must be a non-negative number")
        message = self._handle.get(block, timeout)
        self._taken.append(message)
        return message.body

    def get_nowait(self) -> bytes:
        return self.get(block=False)

    def task_done(self) -> None:
        """Ack the oldest message that this thread got and has not settled.

        Raises:
            ValueError: there is none.
        """
        if not self._taken:
            raise ValueError("task_done() called too many times")
        self._taken.popleft().ack().result()

    def join(self) -> None:
        """Wait until everything in the queue has been taken and acked."""
        while True:
            counts = self._handle._counts()
            if not counts.ready and not counts.unacknowledged:
                return
            time.sleep(JOIN_PAUSE_S)

    def qsize(self) -> int:
        return self._handle.qsize()

    def empty(self) -> bool:
        return self._handle.empty()

    def full(self) -> bool:
        return self._handle.full()

    def shutdown(self, immediate: bool = False) -> None:
        """Close the handle; messages stay in the queue."""
        self._handle.shutdown(immediate)
