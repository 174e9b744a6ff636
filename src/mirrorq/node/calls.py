"""Users' calls at a node: done on its thread, while the thread that calls waits.

After `close`, once the node thread has failed, and in a forked child every call raises.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from mirrorq import clock
from mirrorq.engine.events import Answer
from mirrorq.errors import MirrorQError, NoQuorum, ShutDown, named_error
from mirrorq.protocol.commands import CatalogCommand
from mirrorq.waiting import Latch

if TYPE_CHECKING:
    from mirrorq.node.driver import Driver

__all__ = ["NodeCalls"]

log = logging.getLogger("mirrorq")

ANSWER_S = 30.0
"""The node thread makes a round within this, unless the machine stands still."""
LOOK_S = 1.0
"""Who looks again and again waits no longer for one look."""
SILENCE_S = 2.0
"""A call that waits longer for the cluster says in the log what it waits for."""
PAUSE_S = 0.005
"""Who waits for something to come true on the node thread looks this often."""
Result = TypeVar("Result")


class NodeCalls:
    """Of one node.

    Args:
        name: of the node.
        driver: its thread.
        others_text: whom to start when there is no majority.
    """

    def __init__(self, name: str, driver: Driver, others_text: str) -> None:
        self._name = name
        self._driver = driver
        self._others_text = others_text
        self._pid = os.getpid()
        self._closed = Latch()

    # --- Whether calls are taken ----------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    def close(self) -> None:
        """Take no calls any more."""
        self._closed.set()

    def check_process(self) -> None:
        """Raise MirrorQError in a forked child: the node is its parent's."""
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
        """Call a function on the node thread; `default` when it does not answer in time.

        Args:
            function: must not raise, which would end the node.
            timeout: in seconds.
        """
        if threading.current_thread() is self._driver.thread:
            return function()
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

    def look(self, function: Callable[[], Result]) -> Result:
        """Return what a function finds on the node thread, raise what it raises of mirrorq.

        Raises:
            NoQuorum: the node thread did not answer.
        """
        found = self.run(lambda: _attempt(function), ANSWER_S, None)
        if found is None:
            self.check_open()
            raise NoQuorum(f"node {self._name} is busy: its thread did not answer. Ask again")
        return _outcome(found)

    # --- Waiting --------------------------------------------------------------------------

    def until(
        self,
        function: Callable[[], Result | None],
        timeout: float | None = None,
        too_late: Callable[[], MirrorQError] | None = None,
        *,
        pause_s: float = PAUSE_S,
        is_told: bool = False,
    ) -> Result:
        """Call a function on the node thread until it finds something; raise what it raises.

        Args:
            timeout: in seconds. None waits as long as the node runs.
            too_late: what to raise then.
            pause_s: between two looks.
            is_told: who waits for the cluster is told what it lacks, after a moment.
        """
        warn_ms = clock.now_ms() + int(SILENCE_S * 1000)
        deadline_ms = None if timeout is None else clock.now_ms() + int(timeout * 1000)
        while True:
            found = self.run(lambda: _attempt(function), LOOK_S, None)
            if found is not None and (outcome := _outcome(found)) is not None:
                return outcome
            self.check_open()
            if too_late and deadline_ms is not None and clock.now_ms() >= deadline_ms:
                raise too_late()
            if is_told and clock.now_ms() >= warn_ms:
                is_told = False
                self._warn()
            clock.sleep(pause_s)

    def command(self, command: CatalogCommand, timeout: float | None) -> Answer:
        """Have a catalog command done.

        Raises:
            NoQuorum: nothing came of it in time.
        """
        self.check_open()
        done = Latch()
        answers: list[Answer] = []
        tokens: list[int] = []

        def answered(answer: Answer) -> None:
            answers.append(answer)
            done.set()

        self._driver.call(lambda: tokens.append(self._driver.ask(command, answered)))
        is_in_time = done.wait(SILENCE_S if timeout is None else min(SILENCE_S, timeout))
        if not is_in_time and (timeout is None or timeout > SILENCE_S):
            self._warn()
            is_in_time = done.wait(None if timeout is None else timeout - SILENCE_S)
        if not is_in_time:
            self._driver.call(lambda: self._driver.forget(tokens[0]))
            raise NoQuorum(
                f"the cluster did not answer within {timeout} s: node {self._name} "
                f"{self._waiting_text()}. Start more of {self._others_text}"
            )
        answer = answers[0]
        if answer.error:
            raise named_error(answer.error, answer.text)
        return answer

    def wait_ready(self, is_ready: Callable[[], bool], timeout: float | None) -> None:
        """Wait until the node takes part in a cluster that has a majority.

        Raises:
            NoQuorum: that did not come within `timeout` seconds.
        """
        self.check_open()
        self.until(
            lambda: is_ready() or None,
            timeout,
            lambda: NoQuorum(
                f"node {self._name} is not ready after {timeout} s: it "
                f"{self._waiting_text()}. Start more of {self._others_text}"
            ),
            is_told=True,
        )

    def _warn(self) -> None:
        log.warning(
            "node %s: a call waits for the cluster: it %s", self._name, self._waiting_text()
        )

    def _waiting_text(self) -> str:
        """Whom this node waits for."""
        engine = self._driver.engine
        text = engine.waiting_text()
        if not text and engine.is_paused(clock.now_ms()):
            text = "has no contact with a majority"
        return text or f"has leader {engine.leader or 'none'}"


def _attempt(function: Callable[[], Result]) -> tuple[Result | None, MirrorQError | None]:
    """What a function gives or raises: an exception must not reach the node thread."""
    try:
        return function(), None
    except MirrorQError as error:
        return None, error


def _outcome(found: tuple[Result | None, MirrorQError | None]) -> Result:
    result, error = found
    if error is not None:
        raise error
    return result  # type: ignore[return-value]
