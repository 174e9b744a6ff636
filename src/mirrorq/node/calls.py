"""Calls of the node's own process: served on the node thread, while the calling thread waits.

A program asks its own node with the same messages that a client sends to its entry node, and one
request handler serves both. Every call raises after `close`, once the node thread has failed, and
in a forked child.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from attrs import define, field

from mirrorq import clock
from mirrorq.api.arguments import check_timeout, checked_call
from mirrorq.api.termination import Interruptible, interruptible
from mirrorq.engine.events import SessionClosed
from mirrorq.errors import MirrorQError, NoQuorum, ShutDown, named_error
from mirrorq.node.gateway.calls import Calls
from mirrorq.protocol import clients
from mirrorq.protocol.identities import SessionId, connection_of
from mirrorq.waiting import Latch, is_host_thread

if TYPE_CHECKING:
    from mirrorq.node.driver import Driver
    from mirrorq.node.gateway.request_handler import RequestHandler

log = logging.getLogger("mirrorq")

ANSWER_S = 30.0
"""Limit in seconds for a round of the node thread, unless the machine stands still."""
LOOK_S = 1.0
"""Interval in seconds at which a waiting thread checks that the node still runs."""
SILENCE_S = 2.0
"""A call that waits longer for the cluster logs the reason, in seconds."""
Result = TypeVar("Result")


@define(eq=False)
class _Call:
    """One call, shared by the waiting thread and the node thread that serves the call."""

    message: clients.ClientCall
    since_ms: int = field(factory=clock.now_ms)
    left: deque[None] = field(factory=lambda: deque([None]))
    """The side that takes the item decides: the node thread begins, or the caller gives up."""
    done: Latch = field(factory=Latch)
    answer: clients.ClientAnswer | None = None
    so_far: clients.ClientAnswer | None = None
    """A partial outcome, while the caller waits for the rest."""

    def claim(self) -> bool:
        """Return true if the call was neither begun nor given up before."""
        try:
            self.left.pop()
        except IndexError:
            return False
        return True


class NodeCalls:
    """The calls of one node's own process: calls that wait, and calls that the node thread serves.

    `Node` owns the object. Any thread may call the methods above "On the node thread".

    Args:
        name: name of the node.
        driver: driver with the node thread.
        handler: serves calls on the node thread.
        others: other nodes to start when there is no majority.
        silent_text: returns the endpoints without a running node, and why; blocks for a moment.
    """

    identity = b""
    permits = None

    def __init__(
        self,
        name: str,
        driver: Driver,
        handler: RequestHandler,
        others: Sequence[str],
        silent_text: Callable[[], str],
    ) -> None:
        self._name = name
        self._driver = driver
        self._handler = handler
        self._others = others
        self._silent_text = silent_text
        me = driver.engine.me
        self.connection = connection_of(SessionId(me.node, me.incarnation, 0))
        self._pid = os.getpid()
        self._closed = Latch()
        self._numbers = itertools.count(1)
        self._calls = Calls(self, driver, self._session, self._note_done)
        """For the node thread only, as is `_open`."""
        self._open: dict[int, _Call] = {}
        """Calls that the node thread serves, by number."""

    # --- Whether calls are taken ----------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    def close(self) -> None:
        """Take no more calls."""
        self._closed.set()

    def check_process(self) -> None:
        """Raise MirrorQError in a forked child: the node belongs to the parent."""
        if os.getpid() != self._pid:
            raise MirrorQError(
                f"node {self._name} was made in process {self._pid}; this is process "
                f"{os.getpid()}, forked from it: make a node or connect() in the child"
            )

    def check_open(self) -> None:
        """Raise ShutDown if the node is closed or has failed."""
        self.check_process()
        failure = self._driver.failure
        if failure is not None:
            raise ShutDown(f"node {self._name} has failed: {failure}") from failure
        if self._closed.is_set():
            raise ShutDown(f"node {self._name} is closed")

    # --- One look -------------------------------------------------------------------------

    def run(self, function: Callable[[], Result], timeout: float, default: Result) -> Result:
        """Call a function on the node thread; return `default` if no result comes in time, and in
        a forked child.

        Args:
            function: must not raise, because an exception would end the node.
            timeout: in seconds.
        """
        if threading.current_thread() is self._driver.thread:
            return function()
        if os.getpid() != self._pid:
            return default
        done = Latch()
        result = [default]

        def run() -> None:
            result[0] = function()
            done.set()

        self._driver.call(run)
        waited = 0.0
        while not done.wait(min(0.05, timeout)) and waited < timeout:
            waited += 0.05
            if not self._driver.is_running:
                break
        return result[0]

    # --- Waiting --------------------------------------------------------------------------

    def ask(self, call: clients.AnyCall, timeout: float | None) -> clients.ClientAnswer:
        """Have a call served and return the answer.

        Raises:
            NoQuorum: the cluster did not answer within `timeout` seconds.
            ValueError, TypeError: the time-out is invalid (`check_timeout`).
            ConfigError: no node could read the call.
        """
        self.check_open()
        if timeout is not None:
            check_timeout(timeout)
        one = _Call(clients.ClientCall(next(self._numbers), checked_call(call)))
        is_given_up = True
        try:
            self._driver.call(lambda: self._begin(one))
            is_told = not isinstance(
                call, clients.ClientLook | clients.ClientRead | clients.ClientSeek
            )
            is_in_time = self._wait(one.done, timeout, lambda: self._check(one), is_told=is_told)
            answer = one.answer if is_in_time else one.so_far
            is_given_up = answer is None
        finally:
            if one.answer is None:
                self._driver.call(lambda: self._forget(one, is_given_up))
        if answer is None:
            raise NoQuorum(
                f"the cluster did not answer within {timeout} s: node {self._name} "
                f"{self._waiting_text()}{self._cure_text(is_told=is_told)}"
            )
        if answer.error:
            raise named_error(answer.error, answer.text)
        return answer

    def wait_ready(self, is_ready: Callable[[], bool], timeout: float | None) -> None:
        """Wait until the node takes part in a cluster that has a majority.

        Args:
            is_ready: returns true when the node takes part; called on the node thread.

        Raises:
            NoQuorum: the node was not ready within `timeout` seconds.
            ValueError, TypeError: the time-out is invalid (`check_timeout`).
        """
        self.check_open()
        if timeout is not None:
            check_timeout(timeout)
        ready = Latch()
        try:
            self._driver.call(lambda: self._driver.when(ready, is_ready, ready.set))
            is_in_time = self._wait(ready, timeout, self.check_open, is_told=True)
        finally:
            if not ready.is_set():
                self._driver.call(lambda: self._driver.waits.remove(ready))
        self.check_open()
        if not is_in_time:
            raise NoQuorum(
                f"node {self._name} is not ready after {timeout} s: it "
                f"{self._waiting_text()}{self._cure_text(is_told=True)}"
            )

    def _wait(
        self, done: Latch, timeout: float | None, check: Callable[[], None], *, is_told: bool
    ) -> bool:
        """Wait until the node thread sets a latch. Return false if the time is over.

        Args:
            check: called from time to time; raises when the wait is in vain.
            is_told: log after a moment why the cluster does not answer.
        """
        began_ms, waited_s = clock.now_ms(), 0.0
        needs_cluster = is_told
        with interruptible() as call:
            while True:
                pauses = [LOOK_S]
                if timeout is not None:
                    pauses.append(timeout - waited_s)
                if is_told:
                    pauses.append(SILENCE_S - waited_s)
                if self._wait_once(call, done, max(min(pauses), 0.0), needs_cluster):
                    return True
                check()
                waited_s = (clock.now_ms() - began_ms) / 1000
                if is_host_thread() or (timeout is not None and waited_s >= timeout):
                    return done.is_set()
                if is_told and waited_s >= SILENCE_S:
                    is_told = False
                    self._warn()

    def _wait_once(
        self, call: Interruptible, done: Latch, timeout: float, needs_cluster: bool
    ) -> bool:
        """Wait once until the latch is set. Raises when no wait can help."""

        def error() -> MirrorQError | None:
            return self._hopeless(call, needs_cluster)

        call.wait_for(done.waiters, lambda: done.is_set() or error() is not None, timeout)
        found = None if done.is_set() else error()
        if found is not None:
            raise found
        return done.is_set()

    def _hopeless(self, call: Interruptible, needs_cluster: bool) -> MirrorQError | None:
        """Return the error for a call that must not wait longer; None: the call may wait."""
        if needs_cluster and self._driver.engine.is_out_for_good:
            return NoQuorum(f"node {self._name} {self._waiting_text()}")
        if call.why and self._lacks_majority():
            return ShutDown(
                f"{call.why}: the call waits for a majority no longer. Node {self._name} "
                f"{self._waiting_text()}"
            )
        return None

    def _lacks_majority(self) -> bool:
        engine = self._driver.engine
        return engine.lease.paused or bool(engine.waiting_text())

    def _check(self, one: _Call) -> None:
        """Raise for a call that the node thread does not answer."""
        self.check_open()
        if clock.now_ms() - one.since_ms >= ANSWER_S * 1000 and one.claim():
            raise NoQuorum(f"node {self._name} is busy: its thread did not answer. Ask again")

    def _warn(self) -> None:
        log.warning(
            "node %s: a call waits for the cluster: it %s%s",
            self._name,
            self._waiting_text(),
            self._silence(),
        )

    def _waiting_text(self) -> str:
        """Return the reason why the node does not answer."""
        engine = self._driver.engine
        text = engine.waiting_text()
        if not text and engine.is_paused(clock.now_ms()):
            text = "has no contact with a majority"
        return text or f"has leader {engine.leader or 'none'}"

    def _silence(self) -> str:
        silent = self._silent_text()
        return f". No node answers at {silent}" if silent else ""

    def _cure_text(self, *, is_told: bool) -> str:
        """Return advice. `is_told` false: do not block to find silent nodes."""
        silence = self._silence() if is_told and not is_host_thread() else ""
        if not self._others:
            return silence
        return f"{silence}. Start more of {', '.join(self._others)}, or correct endpoints or keys"

    # --- On the node thread ---------------------------------------------------------------

    def send(self, message: clients.ClientAnswer) -> None:
        """Give an answer to the waiting caller, as a link sends an answer to a client."""
        one = self._open.pop(message.number, None)
        if one is not None:
            one.answer = message
            one.done.set()

    def _note_done(self, answer: clients.ClientAnswer) -> None:
        self._open[answer.number].so_far = answer

    def _begin(self, one: _Call) -> None:
        if one.claim():
            self._open[one.message.number] = one
            self._calls.begin_call(one.message.number)
            self._handler.serve(self._calls, one.message)

    def _forget(self, one: _Call, is_given_up: bool) -> None:
        """Drop a call that has ended. The queue of an abandoned exclusive declaration ends."""
        number, call = one.message.number, one.message.call
        self._open.pop(number, None)
        self._calls.forget(number)
        if is_given_up and isinstance(call, clients.ClientDeclare) and call.exclusive:
            self._driver.post(SessionClosed(self._session(call.session), 0))

    def _session(self, number: int) -> SessionId:
        me = self._driver.engine.me
        return SessionId(me.node, me.incarnation, number)
