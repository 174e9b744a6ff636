"""A broker and a result backend of taskiq, so that its tasks run over mirrorq, without a server.

    from mirrorq.contrib.taskiq import MirrorQBroker, MirrorQResultBackend

    results = MirrorQResultBackend("mirrorq://host-a:7400,host-b:7400")
    broker = MirrorQBroker("mirrorq://host-a:7400,host-b:7400").with_result_backend(results)

- `kiq()` returns when the task is on disk on every mirror in sync.
- A task is acked by taskiq's `ack_type`; what a killed worker was at comes again, with the label
  `redelivered`.
- Labels `delay` (seconds) and `priority` (0 to 31) are the queue's own.
- Results go to the process that asked for them, as Celery's `rpc://`, and to no other.

`docs/frameworks.md` says what holds when something is killed.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from pickle import PickleError
from typing import Any

import mirrorq
from mirrorq import aio

try:
    from taskiq import AckableMessage, AsyncBroker, AsyncResultBackend, BrokerMessage, TaskiqResult
    from taskiq.abc.serializer import TaskiqSerializer
    from taskiq.exceptions import ResultGetError
    from taskiq.serializers import JSONSerializer
except ImportError as error:
    raise ImportError(
        "mirrorq.contrib.taskiq needs taskiq: pip install 'mirrorq[taskiq]'"
    ) from error

__all__ = ["MirrorQBroker", "MirrorQResultBackend"]

log = logging.getLogger("mirrorq")

Where = str | Mapping[str, Any] | None
PREFIX = "taskiq.results."
UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, EOFError, PickleError)
"""Exceptions of taskiq's serializers."""
RESULTS_MAX = 100_000
"""The most results that a process keeps unread; the oldest ends first."""
RESULT_TTL_S = 86_400.0
TARGETS_MAX = 1000
"""Handles of a worker on queues of results; the least used is closed first."""


class MirrorQBroker(AsyncBroker):  # type: ignore[misc]
    """Tasks over one queue of mirrorq.

    Args:
        url: address to connect to, as of `mirrorq.connect`; None: `MIRRORQ_URL`.
        queue_name: name of the queue of the tasks.
        confirm_timeout: seconds that `kiq` waits until the task is on disk.
        options: arguments of `mirrorq.connect`.
    """

    def __init__(
        self,
        url: Where = None,
        *,
        queue_name: str = "taskiq",
        confirm_timeout: float = 30.0,
        **options: Any,
    ) -> None:
        super().__init__()
        self._url = url
        self._options = options
        self._queue_name = queue_name
        self._confirm_timeout = confirm_timeout
        self._client: aio.Client | None = None
        self._queue: aio.MirroredQueue | None = None

    async def startup(self) -> None:
        """Connect. A result backend of this module gives the tasks their ids."""
        await super().startup()
        self._client = await aio.connect(self._url, **self._options)
        await self._opened()
        if isinstance(self.result_backend, MirrorQResultBackend):
            self.id_generator = self.result_backend._new_id

    async def shutdown(self) -> None:
        """Disconnect: unacked tasks come again elsewhere."""
        client, self._client, self._queue = self._client, None, None
        if client is not None:
            await client.close()
        await super().shutdown()

    async def _opened(self, ended: aio.MirroredQueue | None = None) -> aio.MirroredQueue:
        """Return a handle on the queue; a new one in place of `ended`, whose queue was deleted."""
        if self._client is None:
            raise mirrorq.ShutDown("the broker is not started: await broker.startup()")
        if self._queue is ended or self._queue is None:
            self._queue = await self._client.queue(self._queue_name)
        return self._queue

    async def kick(self, message: BrokerMessage) -> None:
        """Put a task, and wait until the task is on disk.

        Raises:
            NotConfirmed: the task is certainly not stored.
            TimeoutError, NoQuorum, …: no answer came in time; the task may be stored.
        """
        delay, queue = message.labels.get("delay"), await self._opened()
        options: Any = {
            "headers": {"task_name": message.task_name, "task_id": message.task_id},
            "delay": None if delay is None else float(delay),
            "priority": int(message.labels.get("priority", 0)),
            "timeout": self._confirm_timeout,
        }
        try:
            await queue.put(message.message, **options)
        except mirrorq.ShutDown:
            await (await self._opened(queue)).put(message.message, **options)

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Yield tasks as they come, to be acked."""
        queue = await self._opened()
        while True:
            async for message in queue:
                yield AckableMessage(data=self._flagged(message), ack=partial(acked, message))
            if self._client is None:
                return
            queue = await self._opened(queue)

    def _flagged(self, message: mirrorq.Message) -> bytes:
        """Return a task's body; a task that may have begun gets the label `redelivered`."""
        if not message.redelivered:
            return message.body
        try:
            task = self.formatter.loads(message.body)
        except UNREADABLE:
            return message.body  # its receiver says so
        task.labels["redelivered"] = True
        flagged: bytes = self.formatter.dumps(task).message
        return flagged


async def acked(message: mirrorq.Message) -> None:
    """Ack a task. Log a refused ack: the task had gone back and comes again."""
    try:
        await message.ack()
    except mirrorq.AckRefused as error:
        log.warning("a task is done, and comes again: %s", error)


class MirrorQResultBackend(AsyncResultBackend[Any]):  # type: ignore[misc]
    """Results, sent to the process that has asked for the task.

    Each process that asks for tasks has a queue of its own, whose name is part of the ids of its
    tasks. The queue is deleted when the process has gone.

    Args:
        url, confirm_timeout, options: as of `MirrorQBroker`.
        result_ttl: seconds after which an undelivered result ends.
        serializer: JSON by default.
    """

    def __init__(
        self,
        url: Where = None,
        *,
        result_ttl: float = RESULT_TTL_S,
        serializer: TaskiqSerializer | None = None,
        confirm_timeout: float = 30.0,
        **options: Any,
    ) -> None:
        self._url = url
        self._options = options
        self._ttl = result_ttl
        self._serializer = serializer or JSONSerializer()
        self._confirm_timeout = confirm_timeout
        self._client: aio.Client | None = None
        self._name = PREFIX + uuid.uuid4().hex
        self._results: OrderedDict[str, bytes] = OrderedDict()
        """Results that have come and were not read yet."""
        self._listening: asyncio.Task[None] | None = None
        self._targets: OrderedDict[str, aio.MirroredQueue] = OrderedDict()

    async def startup(self) -> None:
        """Connect, and listen for results."""
        self._client = await aio.connect(self._url, **self._options)
        await self._listen(self._client, 30)

    async def _listen(self, client: aio.Client, timeout: float | None) -> None:
        """Take results. The queue ends while this process is frozen for long: begin again then."""

        def again(_: object) -> None:
            if client is self._client:
                self._listening = asyncio.create_task(self._listen(client, None))

        own = await client.queue(self._name, auto_delete=True, timeout=timeout)
        await own.consume(self._on_result, ack="receipt", on_cancel=again)

    async def shutdown(self) -> None:
        """Disconnect: the queue of this process's results ends with the connection."""
        client, self._client = self._client, None
        self._targets.clear()
        if client is not None:
            await client.close()

    def _new_id(self) -> str:
        """Return the id of a task whose result comes here."""
        return f"{self._name}:{uuid.uuid4().hex}"

    async def _on_result(self, message: mirrorq.Message) -> None:
        self._results[str(message.headers["task_id"])] = message.body
        while len(self._results) > RESULTS_MAX:
            self._results.popitem(last=False)

    async def set_result(self, task_id: str, result: TaskiqResult[Any]) -> None:
        """Send a result; return when the result is on disk. A process that has gone gets none.

        Raises:
            ValueError: no result backend of this class made the id, so no process waits.
        """
        name, _, _ = task_id.partition(":")
        if not name.startswith(PREFIX):
            raise ValueError(
                f"task {task_id} has an id that this broker did not give: its result would go "
                "nowhere"
            )
        body = self._serializer.dumpb(result.model_dump())
        options: Any = {"ttl": self._ttl, "timeout": self._confirm_timeout}
        for _ in range(2):  # the queue may have been deleted, and declared again
            try:
                target = await self._target(name)
                await target.put(body, headers={"task_id": task_id}, **options)
                return
            except (mirrorq.QueueNotFound, mirrorq.ShutDown):
                self._targets.pop(name, None)
        text = "nobody waits for the result of task %s any more: the process that asked has gone"
        log.info(text, task_id)

    async def _target(self, name: str) -> aio.MirroredQueue:
        target = self._targets.get(name)
        if target is None:
            if self._client is None:
                raise mirrorq.ShutDown("the result backend is not started: await broker.startup()")
            target = await self._client.queue(name, passive=True)
            self._targets[name] = target
            while len(self._targets) > TARGETS_MAX:
                _, old = self._targets.popitem(last=False)
                await old.close()
        self._targets.move_to_end(name)
        return target

    async def is_result_ready(self, task_id: str) -> bool:
        """Return true if the result has come. Asks no node."""
        return task_id in self._results

    async def get_result(self, task_id: str, with_logs: bool = False) -> TaskiqResult[Any]:
        """Return a result that has come; the result stays.

        Raises:
            ResultGetError: the result has not come.
        """
        body = self._results.get(task_id)
        if body is None:
            raise ResultGetError
        return TaskiqResult[Any].model_validate(self._serializer.loadb(body))
