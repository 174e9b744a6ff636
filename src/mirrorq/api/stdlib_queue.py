"""`as_queue()`: code written for `queue.Queue` runs unchanged on a mirrored queue."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from typing import TYPE_CHECKING

from mirrorq import clock
from mirrorq.api.publish_options import PLAIN
from mirrorq.api.receiver import unsee
from mirrorq.api.waits import in_thread
from mirrorq.errors import AckRefused, Full, NoQuorum, QueueDown
from mirrorq.waiting import take_back

if TYPE_CHECKING:
    from mirrorq.api.handle import Handle
    from mirrorq.api.message import Message
    from mirrorq.api.sharded.handle import ShardedHandle

__all__ = ["QueueAdapter"]

log = logging.getLogger("mirrorq")

JOIN_PAUSE_S = 0.02
"""join() asks the queue this often."""


class QueueAdapter:
    """`queue.Queue` on a handle: `get()` gives bytes, `task_done()` acks.

    `put()` returns when the message is confirmed, `put(block=False)` when it is accepted.
    `task_done()` acks the oldest unsettled message that this thread got. `join()` waits until
    the queue has neither ready, nor unacknowledged, nor delayed messages.
    """

    maxsize = 0
    """No bound on the number of messages."""

    def __init__(self, handle: Handle | ShardedHandle) -> None:
        self._handle = handle
        self._local = threading.local()
        self._open: deque[None] = deque()
        """One for each message that got out through this adapter and is not done."""

    @property
    def is_shutdown(self) -> bool:
        """Whether `shutdown` was called, as in Python 3.13."""
        return self._handle.is_shut

    @property
    def unfinished_tasks(self) -> int:
        """Messages that nobody is done with: what `join` waits for."""
        if self._handle.is_shut_for_gets:
            return len(self._open)
        counts = self._handle.counts()
        return counts.ready + counts.unacknowledged + counts.delayed

    @property
    def _taken(self) -> deque[Message]:
        taken: deque[Message] | None = getattr(self._local, "taken", None)
        if taken is None:
            taken = self._local.taken = deque()
        return taken

    def put(self, item: bytes, block: bool = True, timeout: float | None = None) -> None:
        """Publish; if `block`, wait until it is safe.

        Raises:
            Full: it was not accepted, or not confirmed, in time (NoQuorum, QueueDown if that
                is why). What was accepted is published all the same as soon as that can be.
        """
        _check_timeout(block, timeout)
        begun = clock.monotonic()
        confirmation = self._handle.put(
            self._handle.checked_body(item), b"", PLAIN, None, block, timeout, None
        )
        if not block:
            return
        left = None if timeout is None else max(timeout - (clock.monotonic() - begun), 0)
        try:
            confirmation.result(left)
        except TimeoutError:
            raise self._handle.why_not(
                Full(
                    f"a message to queue {self._handle.name!r} was accepted and is not "
                    f"confirmed after {timeout} s: it is published when that can be"
                )
            ) from None

    def put_nowait(self, item: bytes) -> None:
        """`put` that does not wait for the confirmation either."""
        self.put(item, block=False)

    def get(self, block: bool = True, timeout: float | None = None) -> bytes:
        """Take the next body; `task_done()` acks it."""
        _check_timeout(block, timeout)
        taken = self._taken
        found: list[Message] = []
        try:
            in_thread(self._handle.receiver.getting(found, block, timeout))
            body = found[0].body
            taken += found
            self._open.append(None)
            return body
        except BaseException:
            # Interrupted: it comes again, and is not this thread's to be done with.
            if found and take_back(taken, found[0]):
                take_back(self._open, None)
            unsee(found)
            raise

    def get_nowait(self) -> bytes:
        """`get` that does not wait for a message to be published."""
        return self.get(block=False)

    def task_done(self) -> None:
        """Ack the oldest message that this thread got and has not settled.

        If it went back to the queue meanwhile it comes again, as whatever `get` returns may; who
        wants to hear of that listens (`MirroredQueue.add_ack_listener`).

        Raises:
            ValueError: there is none.
        """
        if not self._taken:
            raise ValueError("task_done() called too many times")
        settlement = self._taken[0].ack()
        self._taken.popleft()
        take_back(self._open, None)
        with contextlib.suppress(AckRefused):
            settlement.result()

    def join(self) -> None:
        """Wait until everything in the queue has been taken and acked.

        After `shutdown(immediate=True)`: until what was taken here is done.
        """
        is_warned = False
        while not self._is_done():
            if not is_warned and not self._can_ask():
                log.warning("join() waits: queue %s cannot be reached", self._handle.name)
                is_warned = True
            clock.sleep(JOIN_PAUSE_S)

    def _is_done(self) -> bool:
        try:
            return not self.unfinished_tasks
        except (NoQuorum, QueueDown):
            return False

    def _can_ask(self) -> bool:
        return not isinstance(self._handle.why_not(Full("")), NoQuorum | QueueDown)

    def qsize(self) -> int:
        """Messages ready."""
        return in_thread(self._handle.receiver.sizing())

    def empty(self) -> bool:
        """Whether no message is ready."""
        return self.qsize() == 0

    def full(self) -> bool:
        """Whether a `put` would wait."""
        return in_thread(self._handle.puts.filling())

    def shutdown(self, immediate: bool = False) -> None:
        """As `queue.Queue.shutdown`, but messages stay in the queue."""
        self._handle.check()
        self._handle.shut_down(immediate=immediate)


def _check_timeout(block: bool, timeout: float | None) -> None:
    if block and timeout is not None and timeout < 0:
        raise ValueError("'timeout' must be a non-negative number")
