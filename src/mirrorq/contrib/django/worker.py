"""`Worker`: threads that run the tasks of one backend.

*Threads*: consumers' threads put messages into one inbox, from which the worker's own threads take
them. Messages left in the inbox when the worker stops go back to their queue.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from functools import partial
from traceback import format_exception
from typing import Any

from django.db import close_old_connections
from django.utils import timezone

import mirrorq
from mirrorq.contrib.django.api import (
    TaskContext,
    TaskError,
    TaskResultStatus,
    normalize_json,
    signals,
)
from mirrorq.contrib.django.backend import MirrorQBackend, change, opened
from mirrorq.waiting import begin_thread, new_mailbox

__all__ = ["Worker"]

log = logging.getLogger("mirrorq")

UNKNOWN_S = 10.0
"""Delay of a task that this worker cannot import: another worker may have the code."""
EARLIER = "not-known"
"""Stands for each earlier worker that was given a task, with any outcome."""


class Worker:
    """Runs tasks until `stop`.

    Args:
        backend: backend of the tasks.
        queues: names, as in its QUEUES.
        threads: number of tasks run at once, and the most messages fetched ahead from each queue.
        name: worker's name in the results of its tasks.
    """

    def __init__(
        self, backend: MirrorQBackend, queues: Sequence[str], *, threads: int, name: str
    ) -> None:
        self._backend = backend
        self._queues = queues
        self._count = threads
        self._name = name
        self._inbox = new_mailbox()
        """Items: a message; the name of a queue that has ended its consumer; None: stop."""
        self._ended = new_mailbox()
        """A thread that has ended puts an item here."""
        self._handles: dict[str, mirrorq.MirroredQueue] = {}
        self._failure: BaseException | None = None
        self.is_stopping = False
        """Whether `stop` was called."""

    def begin(self) -> None:
        """Connect, and consume from the queues."""
        for name in self._queues:
            self._consume(name)

    def run(self) -> None:
        """Work until `stop` is called. Raises the error that has ended a thread."""
        for _ in range(self._count):
            begin_thread(threading.Thread(target=self._work, daemon=True))
        for _ in range(self._count):
            self._ended.get()
        for handle in self._handles.values():
            handle.close()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Let running tasks end, and give back all other tasks. May be called by a signal
        handler."""
        self.is_stopping = True
        for _ in range(self._count):
            self._inbox.put(None)

    def _consume(self, name: str) -> None:
        """Consume from a queue, again after the queue has ended its consumer."""
        old = self._handles.pop(name, None)
        if old is not None:
            old.close()
        handle = self._handles[name] = self._backend.queue(name)
        handle.add_ack_listener(_on_refused)
        handle.consume(
            self._inbox.put,
            prefetch=self._count,
            ack="manual",
            on_cancel=lambda _consumer: self._inbox.put(name),
        )

    def _work(self) -> None:
        """A thread's life."""
        try:
            while True:
                item = self._inbox.get()
                if item is None or self.is_stopping:
                    return
                if isinstance(item, str):
                    log.warning("queue %r has ended its consumer: another one is started", item)
                    self._consume(item)
                else:
                    self._do(item)
        except BaseException as error:
            self._failure = error
            self.stop()
        finally:
            self._ended.put(None)

    def _do(self, message: mirrorq.Message) -> None:
        try:
            result = opened(message.body, self._backend.alias)
        except BaseException:
            log.exception("%r is not a task that this worker knows; it comes again", message)
            message.nack(delay=UNKNOWN_S)
            return
        result.worker_ids.extend([EARLIER] * (message.delivery_count - 1))
        close_old_connections()
        try:
            self._run(result)
        finally:
            close_old_connections()
        message.ack()

    def _run(self, result: Any) -> None:
        """Run a task, and keep its result, even an exception."""
        sent = partial(self._tell, result)
        now = timezone.now()
        result.worker_ids.append(self._name)
        change(result, status=TaskResultStatus.RUNNING, started_at=now, last_attempted_at=now)
        sent(signals.task_started)
        task = result.task
        first = (TaskContext(task_result=result),) if task.takes_context else ()
        try:
            value = normalize_json(task.call(*first, *result.args, **result.kwargs))
        except BaseException as error:
            kind = type(error)
            path = f"{kind.__module__}.{kind.__qualname__}"
            text = "".join(format_exception(error))
            result.errors.append(TaskError(exception_class_path=path, traceback=text))
            change(result, status=TaskResultStatus.FAILED, finished_at=timezone.now())
            sent(signals.task_finished)
        else:
            done = TaskResultStatus.SUCCESSFUL
            change(result, status=done, finished_at=timezone.now(), _return_value=value)
            sent(signals.task_finished)

    def _tell(self, result: Any, signal: Any) -> None:
        """Keep a result's new state, and send its signal. Errors of the cache or of a listener go
        to the log: no such error may run a task twice."""
        try:
            self._backend.keep(result)
        except BaseException:
            log.exception("the cache did not keep the result of task %s", result.id)
        for receiver, answer in signal.send_robust(type(self._backend), task_result=result):
            if isinstance(answer, Exception):
                log.error("%r failed for task %s", receiver, result.id, exc_info=answer)


def _on_refused(message: mirrorq.Message, error: mirrorq.AckRefused) -> None:
    log.warning("a task is done, and comes again: %s", error)
