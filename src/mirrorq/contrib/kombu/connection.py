"""`Connection`: one client of mirrorq, and state shared by its channels.

A consumer's thread puts deliveries into the inbox of the connection. Only `drain_events`
dispatches, on the thread of its caller. An event loop waits for a pipe that holds a byte while the
inbox is not empty.

*Threads*: consumers' threads call `arrive`, users of the connection all else. A forked child finds
the connection closed, and closes nothing of its parent's.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from amqp import exceptions as amqp
from attrs import frozen

import mirrorq
from mirrorq.contrib.targets import Targets
from mirrorq.waiting import Waiters

__all__ = ["Arrival", "Connection", "Terms", "translated"]

log = logging.getLogger("mirrorq")

LOOK_S = 1.0
"""Interval in which an endless wait checks the client."""
DRAIN_MAX = 256
"""The most deliveries that one `drain_events` dispatches."""
KNOWN_S = 1.0
"""A queue that is declared again within this time is not asked for again."""


class Channel(Protocol):
    """A channel, as a connection needs it."""

    def dispatch(self, tag: str, message: mirrorq.Message | None) -> bool:
        """Give a consumer an arrived message."""

    def forget_queue(self, name: str) -> None:
        """Drop a deleted queue."""

    def close(self) -> None:
        """Give back held messages."""


Arrival = tuple[Channel, str, mirrorq.Message | None]
"""Channel, consumer's tag, message; None: the queue has ended the consumer."""


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raise AMQP's errors in place of mirrorq's, if AMQP has one."""
    try:
        yield
    except mirrorq.QueueNotFound as error:
        raise amqp.NotFound(str(error)) from error
    except (mirrorq.PreconditionFailed, mirrorq.ConfigError) as error:
        raise amqp.PreconditionFailed(str(error)) from error
    except mirrorq.AuthenticationError as error:
        raise amqp.AccessRefused(str(error)) from error
    except TimeoutError as error:
        raise amqp.RecoverableConnectionError(str(error)) from error


@frozen
class Terms:
    """Terms of a queue's declaration."""

    durable: bool
    exclusive: bool
    auto_delete: bool
    arguments: Mapping[str, Any]


class Connection:
    """A connection to a cluster for kombu. Made by `Transport.establish_connection`."""

    def __init__(
        self,
        client: Any,
        node: mirrorq.Client,
        channel: Callable[[Connection, int], Any],
        *,
        confirm_timeout: float = 30.0,
        eta: str = "queue",
        confirm: str = "wait",
        has_unique_ids: bool = False,
    ) -> None:
        self.client = client
        """kombu's own connection, which kombu looks up here."""
        self.mirrorq = node
        self._make_channel = channel
        self.confirm_timeout = confirm_timeout
        self.eta = eta
        self.confirm = confirm
        self.has_unique_ids = has_unique_ids
        self.channels: dict[int, Channel] = {}
        self.queues = Targets(self._queue)
        """To publish with, as the next."""
        self.exchanges = Targets(self._exchange)
        self.kinds: dict[str, str] = {}
        """Exchange that was declared here -> kind."""
        self.terms: dict[str, Terms] = {}
        """Queue that was declared here -> terms."""
        self._counts: dict[str, tuple[tuple[int, int] | None, float]] = {}
        """Queue -> last counts of its master, and the time until which they are valid."""
        self.exclusive: set[str] = set()
        """Queues that end with this connection."""
        self._pid = os.getpid()
        self._is_closed = False
        self._channel_number = 0
        self._inbox: deque[Arrival] = deque()
        # No lock is held during a wait: Celery's time-outs raise in calls.
        self._lock = threading.RLock()
        self._arrived = Waiters()
        self._pipe: tuple[int, int] | None = None
        self._is_rung = False
        node.add_listener(lambda _notice: self._ring())

    # --- Life ---------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        """True if usable in this process: the client reconnects by itself."""
        return not self._is_closed and self._pid == os.getpid() and not self.mirrorq.is_closed

    def channel(self, channel_id: int | None = None) -> Any:
        """Open a channel, or find the channel of this number."""
        self.check_open()
        if channel_id is not None and channel_id in self.channels:
            return self.channels[channel_id]
        if channel_id is None:
            self._channel_number += 1
            channel_id = self._channel_number
        channel = self.channels[channel_id] = self._make_channel(self, channel_id)
        return channel

    def close(self) -> None:
        """Close the channels, which give back held messages, and the client."""
        if self._is_closed:
            return
        with self._lock:
            self._is_closed = True
        if self._pid != os.getpid():
            return
        for channel in list(self.channels.values()):
            channel.close()
        for name in sorted(self.exclusive):
            with contextlib.suppress(mirrorq.MirrorQError, TimeoutError):
                self.mirrorq.queue(name, passive=True, timeout=LOOK_S).delete()
        self.queues.close()
        self.exchanges.close()
        self.mirrorq.close()
        self._inbox.clear()
        with self._lock:
            pipe, self._pipe = self._pipe, None
        self._arrived.notify()
        for end in pipe or ():
            os.close(end)

    def check_open(self) -> None:
        """Raise an error that makes kombu reconnect, if closed or opened before a fork."""
        if not self.connected:
            raise amqp.RecoverableConnectionError("the connection to mirrorq is closed")

    # --- Handles to publish with --------------------------------------------------------

    def _queue(self, name: str) -> mirrorq.MirroredQueue:
        """Return a new handle on an existing queue. Raises QueueNotFound without one."""
        self.check_open()
        return self.mirrorq.queue(name, passive=True, timeout=self.confirm_timeout)

    def _exchange(self, name: str) -> mirrorq.Exchange:
        """Return a new handle on an existing exchange. Raises QueueNotFound without one."""
        self.check_open()
        return self.mirrorq.exchange(name, passive=True, timeout=self.confirm_timeout)

    def declared(self, name: str, terms: Terms) -> tuple[int, int] | None:
        """Return ready messages and consumers of a queue that was declared here in the same way and
        still exists; else None.

        `rpc://` declares its reply queue for each task. Counts of the master stay valid for
        `KNOWN_S`; a queue that is deleted over this connection is forgotten at once.
        """
        handle = self.queues.known(name)
        if handle is None or self.terms.get(name) != terms:
            return None
        counts, until = self._counts.get(name, (None, 0.0))
        if time.monotonic() < until:
            return counts
        try:
            counts = handle.qsize(), handle.status().consumers
        except (mirrorq.ShutDown, mirrorq.QueueNotFound):
            self.check_open()
            self.queues.drop(name)
            return None
        self._counts[name] = counts, time.monotonic() + KNOWN_S
        return counts

    def forget_queue(self, name: str) -> None:
        """Drop a deleted queue: a later queue of the same name is another queue."""
        self.exclusive.discard(name)
        self.terms.pop(name, None)
        self._counts.pop(name, None)
        self.queues.drop(name)
        for channel in list(self.channels.values()):
            channel.forget_queue(name)

    # --- Deliveries ---------------------------------------------------------------------

    def arrive(self, arrival: Arrival) -> None:
        """Take a delivery of a consumer. Called on the consumer's thread."""
        self._inbox.append(arrival)
        self._arrived.notify()
        self._ring()

    def _ring(self) -> None:
        """Wake the event loop."""
        with self._lock:
            if self._pipe is None or self._is_rung:
                return
            os.write(self._pipe[1], b"\0")
            self._is_rung = True

    def _unring(self) -> None:
        """The inbox is empty. With the lock held."""
        if self._pipe is not None and self._is_rung:
            os.read(self._pipe[0], 16)
            self._is_rung = False

    def fileno(self) -> int:
        """Return a descriptor for an event loop: readable while the inbox has items. -1 when
        closed, as of a socket."""
        with self._lock:
            if self._is_closed:
                return -1
            if self._pipe is None:
                self._pipe = os.pipe()
                for end in self._pipe:
                    os.set_blocking(end, False)
            number = self._pipe[0]
        self._ring()  # what has arrived before it was asked for
        return number

    def drain_events(self, timeout: float | None = None, **_: Any) -> None:
        """Dispatch arrived messages; wait for a message, up to `timeout` seconds, None without end.

        Raises:
            socket.timeout: nothing came.
            RecoverableConnectionError: the connection is closed; a ConsumerCancelled: a queue was
                deleted, or has ended a consumer that hung.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        count = 0
        while count < DRAIN_MAX:
            arrival = self._next(deadline, may_wait=count == 0)
            if arrival is None and count == 0:
                raise socket.timeout(f"nothing was delivered within {timeout} s")  # noqa: UP041
            if arrival is None:
                return
            channel, tag, message = arrival
            count += channel.dispatch(tag, message)

    def _next(self, deadline: float | None, *, may_wait: bool) -> Arrival | None:
        while True:
            with contextlib.suppress(IndexError):
                return self._inbox.popleft()
            with self._lock:
                if not self._inbox:
                    self._unring()
            self.check_open()
            left = LOOK_S if deadline is None else deadline - time.monotonic()
            if not may_wait or left <= 0:
                return None
            self._arrived.wait_for(lambda: bool(self._inbox or self._is_closed), min(left, LOOK_S))
