"""`MirrorQBackend`: a backend of Django's tasks, and tasks and results as JSON.

Django makes a backend for each thread. The client belongs to the process: all backends share the
client. Forked children connect for themselves.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from inspect import signature
from math import inf
from typing import Any

from django.core import checks
from django.core.cache import caches
from django.core.cache.backends.base import InvalidCacheBackendError
from django.utils import timezone
from django.utils.crypto import get_random_string
from django.utils.module_loading import import_string

import mirrorq
from mirrorq.contrib.django.api import (
    TASK_MAX_PRIORITY,
    TASK_MIN_PRIORITY,
    BaseTaskBackend,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    signals,
)
from mirrorq.contrib.targets import Targets

__all__ = ["MirrorQBackend"]

OPTIONS = ("url", "connect", "confirm_timeout", "queue_prefix", "result_cache", "result_ttl")
RESULT_TTL_S = 86_400.0
PRIORITY_MAX = 31
"""The queue's highest; Django's is from -100 to 100."""
KEY = "mirrorq.task."
"""In a cache, before a task's id."""

_clients: dict[str, mirrorq.Client] = {}
"""Clients of this process, by their options, and the address in the environment."""


class MirrorQBackend(BaseTaskBackend):  # type: ignore[misc]
    """Tasks over queues of mirrorq.

    OPTIONS of its entry in TASKS:
        url: address to connect to, as of `mirrorq.connect`; without it `MIRRORQ_URL`.
        connect: other arguments of `mirrorq.connect`, by name.
        confirm_timeout: seconds that `enqueue` waits until the task is on disk (30).
        queue_prefix: prefix of the names of QUEUES in mirrorq ("django.").
        result_cache: alias of the cache that keeps results. Without a cache `enqueue` returns a
            result that cannot be refreshed.
        result_ttl: seconds for which the cache keeps results, from the last change (86,400).
    """

    supports_defer = True
    supports_async_task = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        options = self.options
        self.confirm_timeout = options.get("confirm_timeout", 30.0)
        self._prefix = str(options.get("queue_prefix", "django."))
        self._cache: str | None = options.get("result_cache")
        self._ttl = options.get("result_ttl", RESULT_TTL_S)
        self._targets = Targets(self.queue)

    @property
    def supports_get_result(self) -> bool:
        """With a cache, from any process with the same cache."""
        return self._cache is not None

    def check(self, **_: Any) -> list[checks.CheckMessage]:
        """Return the messages of `manage.py check` about the settings."""
        found = [
            checks.Error(f"TASKS[{self.alias!r}] has the option {name!r}: there are {OPTIONS}")
            for name in self.options
            if name not in OPTIONS
        ]
        for name, value, is_right, wanted in (
            ("confirm_timeout", self.confirm_timeout, _is_time, "seconds"),
            ("result_ttl", self._ttl, _is_time, "seconds"),
            ("connect", self.options.get("connect", {}), _is_for_connect, "arguments of connect()"),
        ):
            if not is_right(value):
                found.append(
                    checks.Error(f"TASKS[{self.alias!r}], {name}: {value!r} are no {wanted}")
                )
        try:
            if self._cache is not None:
                caches[self._cache]
        except InvalidCacheBackendError as error:
            found.append(checks.Error(f"TASKS[{self.alias!r}], result_cache: {error}"))
        return found

    # --- The queues ---------------------------------------------------------------------

    @property
    def client(self) -> mirrorq.Client:
        """The process's connection; made at first use and after a close."""
        key = repr((sorted(self.options.items(), key=str), os.environ.get("MIRRORQ_URL")))
        client = _clients.get(key)
        if client is not None and client.is_closed:
            _clients.pop(key, None)
            self._targets.close()
            client = None
        if client is None:
            made = mirrorq.connect(self.options.get("url"), **self.options.get("connect", {}))
            client = _clients.setdefault(key, made)
            if client is not made:
                made.close()  # another thread was first
        return client

    def queue(self, name: str) -> mirrorq.MirroredQueue:
        """Return a new handle on the queue of this name in QUEUES; a missing queue is made."""
        return self.client.queue(self._prefix + name, timeout=self.confirm_timeout)

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Put a task, and wait until the task is on disk.

        Raises:
            InvalidTask: the task is not valid for this backend.
            NotConfirmed: the task is certainly not stored.
            TimeoutError, NoQuorum, …: no answer came in time; the task may be stored.
        """
        self.validate_task(task)
        result = ready(
            task=task,
            id=get_random_string(32),
            enqueued_at=timezone.now(),
            args=list(args),
            kwargs=kwargs,
            backend=self.alias,
        )
        # First: a worker may finish the task before `put` returns.
        self.keep(result)
        self._put(result)
        signals.task_enqueued.send(type(self), task_result=result)
        return result

    def _put(self, result: Any) -> None:
        task, wait_s = result.task, self.confirm_timeout

        def put(queue: mirrorq.MirroredQueue) -> None:
            queue.put(
                sealed(result),
                message_id=result.id,
                priority=priority_of(task.priority),
                delay=delay_of(task.run_after),
                timeout=wait_s,
            ).result(wait_s)

        self._targets.call(task.queue_name, put)

    # --- Results ------------------------------------------------------------------------

    def keep(self, result: Any) -> None:
        """Store a task's state for other processes. Raises the cache's errors."""
        if self._cache is not None:
            caches[self._cache].set(KEY + result.id, recorded(result), self._ttl)

    def get_result(self, result_id: str) -> Any:
        """Return the state of a task.

        Raises:
            TaskResultDoesNotExist: the cache does not have the result, or no longer.
            NotImplementedError: there is no `result_cache`.
        """
        if self._cache is None:
            return super().get_result(result_id)
        record = caches[self._cache].get(KEY + result_id)
        if record is None:
            raise TaskResultDoesNotExist(result_id)
        return remembered(record, self.alias)


# --- As JSON --------------------------------------------------------------------------------


def priority_of(priority: int) -> int:
    """Return Django's -100 to 100 as 0 to 31: six or seven neighbours map to the same number."""
    span = TASK_MAX_PRIORITY - TASK_MIN_PRIORITY
    level: int = round((priority - TASK_MIN_PRIORITY) * PRIORITY_MAX / span)
    return level


def delay_of(run_after: datetime | None) -> float | None:
    """Return the seconds until a task is due, None if due now."""
    if run_after is None:
        return None
    now = datetime.now(UTC) if timezone.is_aware(run_after) else datetime.now()
    left = (run_after - now).total_seconds()
    return left if left > 0 else None


def sealed(result: Any) -> bytes:
    """Return a task with its arguments as the body of a message."""
    task = result.task
    return json.dumps(
        {
            "id": result.id,
            "task": task.module_path,
            "args": result.args,
            "kwargs": result.kwargs,
            "priority": task.priority,
            "queue_name": task.queue_name,
            "run_after": _text(task.run_after),
            "enqueued_at": _text(result.enqueued_at),
        }
    ).encode()


def ready(**told: Any) -> Any:
    """Return the result of a task that no worker has begun."""
    never = dict.fromkeys(("started_at", "finished_at", "last_attempted_at"))
    return TaskResult(status=TaskResultStatus.READY, **never, errors=[], worker_ids=[], **told)


def opened(body: bytes | str, alias: str) -> Any:
    """Return a new task as a result. Raises any error of the task's import."""
    told = json.loads(body)
    task = import_string(told["task"]).using(
        priority=told["priority"],
        queue_name=told["queue_name"],
        run_after=_time(told["run_after"]),
        backend=alias,
    )
    return ready(
        task=task,
        id=told["id"],
        enqueued_at=_time(told["enqueued_at"]),
        args=told["args"],
        kwargs=told["kwargs"],
        backend=alias,
    )


def recorded(result: Any) -> str:
    """Return a result in the cache's format."""
    return json.dumps(
        {
            "task": sealed(result).decode(),
            "status": str(result.status.value),
            "started_at": _text(result.started_at),
            "finished_at": _text(result.finished_at),
            "last_attempted_at": _text(result.last_attempted_at),
            "errors": [[error.exception_class_path, error.traceback] for error in result.errors],
            "worker_ids": result.worker_ids,
            "return_value": result._return_value,
        }
    )


def remembered(record: str, alias: str) -> Any:
    """Return the result from the text of `recorded`."""
    told = json.loads(record)
    result = opened(told["task"], alias)
    result.errors.extend(
        TaskError(exception_class_path=path, traceback=text) for path, text in told["errors"]
    )
    result.worker_ids.extend(told["worker_ids"])
    change(
        result,
        status=TaskResultStatus(told["status"]),
        started_at=_time(told["started_at"]),
        finished_at=_time(told["finished_at"]),
        last_attempted_at=_time(told["last_attempted_at"]),
        _return_value=told["return_value"],
    )
    return result


def change(result: Any, **values: Any) -> None:
    """Change a result, which Django freezes for readers, as Django's own backends do."""
    for name, value in values.items():
        object.__setattr__(result, name, value)


def _text(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _is_time(value: object) -> bool:
    return type(value) in (int, float) and 0 < value < inf  # type: ignore[operator]


def _is_for_connect(value: object) -> bool:
    """Whether these are arguments of `mirrorq.connect`, by name."""
    try:
        signature(mirrorq.connect).bind(None, **value)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True
