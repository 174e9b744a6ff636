"""A broker of dramatiq, so that its actors run over mirrorq, without a server.

    import dramatiq
    from mirrorq.contrib.dramatiq import MirrorQBroker

    dramatiq.set_broker(MirrorQBroker("mirrorq://host-a:7400,host-b:7400,host-c:7400"))

- `send()` returns when the message is on disk on every mirror in sync.
- A message is acked when its actor is done; a killed worker's message comes again, with the
  option `redelivered`.
- A delayed message waits in its queue, not in a worker.
- A message that has failed for good goes to the queue `NAME.XQ`, with the ack, both or neither, and
  stays there for a week.

`docs/frameworks.md` describes the guarantees after a kill.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import mirrorq
from mirrorq import bulk
from mirrorq.contrib.targets import Targets
from mirrorq.waiting import Waiters

try:
    import dramatiq
    from dramatiq.common import xq_name
    from dramatiq.errors import ConnectionClosed, ConnectionFailed, QueueJoinTimeout, QueueNotFound
except ImportError as error:
    raise ImportError(
        "mirrorq.contrib.dramatiq needs dramatiq: pip install 'mirrorq[dramatiq]'"
    ) from error

__all__ = ["MirrorQBroker"]

DEAD_MESSAGE_TTL_S = 7 * 86_400.0
"""Time for which a failed message stays in its queue `.XQ`: dramatiq's habit."""
JOIN_LOOK_S = 0.05
"""Interval in which `join` asks the queue's master."""


class MirrorQBroker(dramatiq.Broker):  # type: ignore[misc]
    """Actors over queues of mirrorq.

    Args:
        url: address to connect to, as of `mirrorq.connect`; None: `MIRRORQ_URL`. Each process
            connects at first use.
        middleware: as of `dramatiq.Broker`.
        confirm_timeout: seconds that `send` waits until the message is on disk.
        dead_message_ttl: seconds that failed messages are kept; None: for ever.
        options: arguments of `mirrorq.connect`.
    """

    def __init__(
        self,
        url: str | Mapping[str, Any] | None = None,
        *,
        middleware: list[Any] | None = None,
        confirm_timeout: float = 30.0,
        dead_message_ttl: float | None = DEAD_MESSAGE_TTL_S,
        **options: Any,
    ) -> None:
        super().__init__(middleware)
        self.queues: set[str] = set()
        self.actor_options.add("broker_priority")
        self._url = url
        self._options = options
        self._confirm_timeout = confirm_timeout
        self._dead_message_ttl = dead_message_ttl
        self._client: mirrorq.Client | None = None
        self._targets = Targets(self._opened)
        """To write and count queues with."""

    @property
    def client(self) -> mirrorq.Client:
        """The connection. Raises ConnectionFailed when there is no node."""
        if self._client is None:
            try:
                self._client = mirrorq.connect(self._url, **self._options)
            except (mirrorq.NoQuorum, mirrorq.AuthenticationError) as error:
                raise ConnectionFailed(str(error)) from error
        return self._client

    def close(self) -> None:
        """Disconnect: unacked messages come again elsewhere."""
        client, self._client = self._client, None
        self._targets = Targets(self._opened)
        if client is not None:
            client.close()

    def get_declared_queues(self) -> set[str]:
        """Return the names of queues that actors have."""
        return self.queues.copy()

    def declare_queue(self, queue_name: str) -> None:
        """Register a queue; the first use makes the queue. May be repeated."""
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues.add(queue_name)
            self.emit_after("declare_queue", queue_name)

    def _opened(self, queue_name: str) -> mirrorq.MirroredQueue:
        """Return a new handle on a queue; a missing queue is made."""
        try:
            return self.client.queue(queue_name, timeout=self._confirm_timeout)
        except (mirrorq.NoQuorum, mirrorq.ShutDown) as error:
            raise ConnectionClosed(str(error)) from error

    def enqueue(self, message: Any, *, delay: int | None = None) -> Any:
        """Put a message, and wait until the message is on disk.

        Args:
            delay: milliseconds until the message is due.

        Raises:
            QueueNotFound: no actor has this queue.
            ConnectionClosed: no confirm came in time. The message may be stored all the same.
        """
        queue_name = message.queue_name
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        self.emit_before("enqueue", message, delay)
        self._put(queue_name, message, None if delay is None else delay / 1000)
        self.emit_after("enqueue", message, delay)
        return message

    def _put(self, queue_name: str, message: Any, delay: float | None) -> None:
        actor, wait_s = self.actors.get(message.actor_name), self._confirm_timeout
        options = {**(actor.options if actor is not None else {}), **message.options}
        priority = options.get("broker_priority") or 0

        def put(queue: mirrorq.MirroredQueue) -> None:
            body = message.encode()
            queue.put(body, priority=priority, delay=delay, timeout=wait_s).result(wait_s)

        try:
            self._targets.call(queue_name, put)
        except mirrorq.ShutDown as error:
            raise ConnectionClosed(str(error)) from error
        except (mirrorq.MirrorQError, TimeoutError) as error:
            if isinstance(error, ValueError):
                raise  # of a wrong argument, or too large a message
            raise ConnectionClosed(f"{message} is not confirmed: {error}") from error

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30_000) -> Consumer:
        """Take messages of a queue that an actor has.

        Args:
            prefetch: the most messages held before their acks.
            timeout: milliseconds after which the iterator gives None without a message.
        """
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        if self._dead_message_ttl != 0:
            self._targets.get(xq_name(queue_name))
        return Consumer(self, self._opened(queue_name), prefetch, timeout / 1000)

    def flush(self, queue_name: str) -> None:
        """Drop waiting messages of a queue, and its failed messages."""
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        for name in (queue_name, xq_name(queue_name)):
            self._targets.get(name).purge()

    def flush_all(self) -> None:
        """The same of all queues."""
        for name in self.get_declared_queues():
            self.flush(name)

    def join(self, queue_name: str, *, timeout: int | None = None) -> None:
        """Wait until everything in a queue is done, delayed messages too.

        Raises:
            QueueJoinTimeout: that was not within `timeout` milliseconds.
        """
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        end = None if timeout is None else time.monotonic() + timeout / 1000
        while not self._is_empty(queue_name):
            if end is not None and time.monotonic() >= end:
                raise QueueJoinTimeout(queue_name)
            time.sleep(JOIN_LOOK_S)

    def _is_empty(self, queue_name: str) -> bool:
        """Ask the master about messages; without a master the queue counts as not empty."""
        queue = self._targets.get(queue_name)
        try:
            parts = [queue.shard(number) for number in range(queue.shards)] or [queue]
            return not any(bulk.extent(part).messages for part in parts)
        except mirrorq.ShutDown:
            self._targets.drop(queue_name)
        except (mirrorq.NoQuorum, mirrorq.QueueDown):
            pass
        return False


class Delivery(dramatiq.MessageProxy):  # type: ignore[misc]
    """A message held by a worker."""

    def __init__(self, taken: mirrorq.Message) -> None:
        message = dramatiq.Message.decode(taken.body)
        if taken.redelivered:
            message.options["redelivered"] = True
        super().__init__(message)
        self.taken = taken


class Consumer(dramatiq.Consumer):  # type: ignore[misc]
    """Messages that one worker takes from one queue. Made by `MirrorQBroker.consume`."""

    def __init__(
        self, broker: MirrorQBroker, queue: mirrorq.MirroredQueue, prefetch: int, timeout: float
    ) -> None:
        self._broker = broker
        self._queue = queue
        self._prefetch = max(prefetch, 1)
        self._timeout = timeout
        self._held: set[mirrorq.Message] = set()
        self._freed = Waiters()

    def __next__(self) -> Delivery | None:
        """The next message; None when there is none in time, or enough are held."""
        if not self._freed.wait_for(lambda: len(self._held) < self._prefetch, self._timeout):
            return None
        try:
            taken = self._queue.get(timeout=self._timeout)
        except mirrorq.Empty:
            return None
        except mirrorq.ShutDown as error:
            raise ConnectionClosed(str(error)) from error
        try:
            delivery = Delivery(taken)
        except dramatiq.DecodeError:
            self._broker.logger.exception("A message of %r cannot be read.", taken.queue)
            self._give_up(taken)
            return None
        self._held.add(taken)
        return delivery

    def ack(self, message: Delivery) -> None:
        """Ack a message whose actor is done."""
        self._settle(message, mirrorq.Message.ack)

    def nack(self, message: Delivery) -> None:
        """Move a message that has failed for good to the queue `.XQ`, with its ack.

        Raises ConnectionClosed when there is no majority and no such queue; the message is still
        held, and dramatiq calls again.
        """
        self._settle(message, self._give_up)

    def _give_up(self, taken: mirrorq.Message) -> None:
        ttl = self._broker._dead_message_ttl
        if ttl == 0:
            taken.ack()
            return
        # By its handle: a name would need a look into the catalog, which needs a majority.
        self._broker._targets.call(
            xq_name(self._queue.name), lambda dead: taken.ack_and_put(dead, taken.body, ttl=ttl)
        )

    def requeue(self, messages: Iterable[Delivery]) -> None:
        """Give back messages that no actor has begun."""
        for message in messages:
            self._settle(message, mirrorq.Message.nack)

    def _settle(self, message: Delivery, settle: Callable[[mirrorq.Message], object]) -> None:
        """Settle a message. It no longer counts as held, unless dramatiq will call again."""
        try:
            settle(message.taken)
        except ConnectionClosed:
            raise
        except BaseException:
            self._let_go(message)
            raise
        self._let_go(message)

    def _let_go(self, message: Delivery) -> None:
        self._held.discard(message.taken)
        self._freed.notify()

    def close(self) -> None:
        """Wait for acks on their way; held messages go back."""
        self._queue.close()
