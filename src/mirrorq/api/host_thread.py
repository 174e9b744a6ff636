"""The thread of a node or a client that steps its handles, and the table of the handles.

A handle calls only its `Host`. Here is the common part of the drivers of nodes and of clients.
"""

from __future__ import annotations

import logging
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Generic, TypeVar

from attrs import define, field

from mirrorq import clock
from mirrorq.api.host import SessionPort
from mirrorq.containers.timers import Deadlines
from mirrorq.errors import ConfigError
from mirrorq.protocol.sessions import SessionRequest
from mirrorq.session.calls import SessionEvent
from mirrorq.waiting import Latch, ProcessEnded, run_host

log = logging.getLogger("mirrorq")


def check_threads() -> None:
    """Refuse a process with greenlets in place of threads: a host's thread waits in C, and would
    block all greenlets for ever.

    Raises:
        ConfigError: gevent or eventlet has replaced threads.
    """
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    if gevent is not None and gevent.is_module_patched("threading"):
        name = "gevent"
    elif eventlet is not None and eventlet.is_monkey_patched("thread"):
        name = "eventlet"
    else:
        return
    raise ConfigError(
        f"{name} has put greenlets in place of Python's threads, and mirrorq needs a real one: use "
        "threads or processes here (Celery: -P threads or -P prefork; gunicorn: -k gthread)"
    )


@define(eq=False)
class Port:
    """One open handle, as its host's thread sees it."""

    number: int
    """Number of its session, unique in the host."""
    handle: SessionPort
    queue_id: int
    events: list[SessionEvent] = field(factory=list)
    """Events for the next step."""


AnyPort = TypeVar("AnyPort", bound=Port)


class Ports(Generic[AnyPort]):
    """The handles of one host, and the handles with work to do.

    The host's thread owns the object; `wake` may be called from any thread.
    """

    def __init__(self) -> None:
        self._ports: dict[int, AnyPort] = {}
        self._of_queue: dict[int, dict[int, AnyPort]] = {}
        """The ports by queue."""
        self.woken: deque[int] = deque()
        """Numbers of handles with calls of their users."""
        self.due: dict[int, None] = {}
        """Numbers of handles with events."""
        self.deadlines = Deadlines()
        """Times at which handles are to be stepped."""

    def __len__(self) -> int:
        return len(self._ports)

    def __iter__(self) -> Iterator[AnyPort]:
        return iter(list(self._ports.values()))

    def get(self, number: int) -> AnyPort | None:
        return self._ports.get(number)

    def of_queue(self, queue_id: int) -> Iterator[AnyPort]:
        return iter(self._of_queue.get(queue_id, {}).values())

    def open(self, port: AnyPort) -> None:
        """Add a handle, with a first step soon."""
        self._ports[port.number] = port
        self._of_queue.setdefault(port.queue_id, {})[port.number] = port
        self.due[port.number] = None

    def close(self, port: AnyPort) -> None:
        """Remove a handle."""
        del self._ports[port.number]
        others = self._of_queue[port.queue_id]
        del others[port.number]
        if not others:
            del self._of_queue[port.queue_id]
        self.deadlines.set(port.number, None)

    def tell(self, port: AnyPort, event: SessionEvent) -> None:
        """Have a handle stepped with an event."""
        port.events.append(event)
        self.due[port.number] = None

    def wake(self, number: int) -> None:
        """Have a handle stepped soon; the host's thread may also have to be woken."""
        self.woken.append(number)

    def take_due(self, now_ms: int) -> Iterator[AnyPort]:
        """Yield each handle with work to do, if it is still open by then."""
        due, self.due = self.due, {}
        while self.woken:
            due[self.woken.popleft()] = None
        if self.deadlines.next_ms <= now_ms:
            due.update(dict.fromkeys(self.deadlines.take_due(now_ms)))
        for number in due:
            port = self._ports.get(number)
            if port is not None:
                yield port

    def step_port(self, port: AnyPort, now_ms: int) -> tuple[SessionRequest, ...]:
        """Let a handle turn its user's calls and its events into requests."""
        events, port.events = port.events, []
        requests, wake_ms = port.handle.step(now_ms, events)
        self.deadlines.set(port.number, wake_ms)
        return requests


class HostThread(ABC, Generic[AnyPort]):
    """One thread that makes rounds until it is stopped, or fails.

    Args:
        name: name of the thread.
        label: kind and name of the host, for its log.

    Raises:
        ConfigError: threads are not Python's own in the process.
    """

    def __init__(self, name: str, label: str) -> None:
        check_threads()
        self._label = label
        self.failure: BaseException | None = None
        """Why the thread has ended, if not by `stop`."""
        self.is_stopping = False
        self._ports: Ports[AnyPort] = Ports()
        self._calls: deque[Callable[[], None]] = deque()
        """Functions of other threads to call on the thread."""
        self._turn = deque([self._run])
        """`_run`, until the thread takes it, or `stop` before the thread begins. It runs once."""
        self._ended = Latch()
        self.thread = threading.Thread(target=self._take_turn, name=name, daemon=True)

    # --- From other threads ---------------------------------------------------------------

    @abstractmethod
    def wake(self) -> None:
        """End the thread's wait."""

    def call(self, function: Callable[[], None]) -> None:
        """Have a function called on the thread."""
        self._calls.append(function)
        self.wake()

    def wake_session(self, number: int) -> None:
        """Have a handle stepped soon."""
        self._ports.wake(number)
        self.wake()

    def stop(self, timeout: float) -> bool:
        """End the thread; open calls of handles end because their host is closed.

        The thread's run closes its resources. If the thread has not begun, the caller does the run.

        Returns:
            True if it has ended within `timeout` seconds. Else it ends when its work is done.
        """
        self.is_stopping = True
        self.wake()
        self._take_turn()
        return self._ended.wait(timeout)

    @property
    def is_running(self) -> bool:
        """Whether the thread has not ended. True also before the thread begins."""
        return not self._ended.is_set()

    # --- On the thread --------------------------------------------------------------------

    def _take_turn(self) -> None:
        try:
            run = self._turn.popleft()
        except IndexError:
            return
        run_host(run)

    def _run(self) -> None:
        try:
            self._run_rounds()
        finally:
            self._ended.set()

    @abstractmethod
    def _run_rounds(self) -> None:
        """Make rounds until `is_stopping`, keep an exception that ends them, wake waiting callers,
        and close the thread's own resources."""

    def _attempt(self, work: Callable[[], None]) -> None:
        """Do a part of the work. The first exception, of any class, is kept as `failure`. Other
        parts are done all the same, even if a user's log handler raises."""
        try:
            work()
        except BaseException as error:
            if self.failure is None:
                self.failure = error
            if not isinstance(error, ProcessEnded):
                with suppress(BaseException):  # of the log handler, again
                    log.critical("%s has stopped: %s", self._label, error, exc_info=True)

    def _do_calls(self) -> None:
        while self._calls:
            self._calls.popleft()()

    @abstractmethod
    def _carry(self, port: AnyPort, requests: tuple[SessionRequest, ...]) -> None:
        """Send a handle's requests."""

    def _step_ports(self, now_ms: int) -> None:
        """Let handles with work to do make requests."""
        ports = self._ports
        if ports.woken or ports.due or ports.deadlines.next_ms <= now_ms:
            for port in ports.take_due(now_ms):
                requests = ports.step_port(port, now_ms)
                if requests:
                    self._carry(port, requests)

    def _take_out(self, number: int) -> AnyPort | None:
        """Close a handle's port: the user's last calls still become requests."""
        port = self._ports.get(number)
        if port is not None:
            self._carry(port, self._ports.step_port(port, clock.now_ms()))
            self._ports.close(port)
        return port
