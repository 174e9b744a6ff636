"""The end of a process or a host with open handles: a bounded wait for unconfirmed puts.

At the end of the interpreter the threads that step handles die at once, and unconfirmed puts would
be lost silently. So the end waits until every call on handles of the process has an outcome, at
most `Config.exit_flush_ms`, and logs the calls without an outcome. A process that is killed, or
leaves by `os._exit`, does neither.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Callable
from typing import Protocol
from weakref import ref

from mirrorq import clock
from mirrorq.api.completion import Outcomes
from mirrorq.api.host import Host
from mirrorq.config import Config

log = logging.getLogger("mirrorq")


class PutCounts(Protocol):
    """The puts of a handle: the number of puts, and of ended puts."""

    @property
    def count(self) -> int: ...
    @property
    def accepted_count(self) -> int: ...
    @property
    def ended_count(self) -> int: ...


class Flushed(Protocol):
    """A handle, reduced to the needs of the flush."""

    name: str
    pid: int
    host: Host
    config: Config
    outcomes: Outcomes

    @property
    def puts(self) -> PutCounts: ...
    def wake(self) -> None: ...
    def is_quiet(self) -> bool: ...
    def end_calls(self) -> None: ...


_open: dict[int, ref[Flushed]] = {}
"""Weak references to the open handles of the process."""


def remember(handle: Flushed) -> None:
    """Flush a handle at the end of the process, unless it is closed before."""
    key = id(handle)
    _open[key] = ref(handle, lambda _: _open.pop(key, None))
    _hear_of_the_end()


def forget(handle: object) -> None:
    """Forget a closed handle."""
    _open.pop(id(handle), None)


def flush_host(host: Host, seconds: float) -> None:
    """Let no new call begin on handles of a host, and wait until earlier calls have outcomes.

    Args:
        host: is closed next. If it is closed already, there is no wait.
        seconds: bound of the wait.
    """
    deadline = clock.monotonic() + seconds
    handles = [one for each in list(_open.values()) if (one := each()) and one.host is host]
    for handle in handles:
        handle.end_calls()
    for handle in handles:
        handle.wake()
        handle.outcomes.wait_for(handle.is_quiet, deadline - clock.monotonic())


def flush_all(*, is_stopping: bool = False) -> None:
    """Wait for all outcomes, as long as each handle allows; log the puts without an outcome.

    Args:
        is_stopping: the nodes of the process stop next, while the process still runs:
            wait only for puts made before the call, and not without a majority.
    """
    begun = clock.monotonic()
    for one in list(_open.values()):
        handle = one()
        if handle is not None and handle.pid == os.getpid() and not handle.host.is_closed:
            deadline = begun + handle.config.exit_flush_ms / 1000
            if not (is_stopping and handle.host.is_paused):
                handle.wake()
                over = _is_over(handle) if is_stopping else handle.is_quiet
                handle.outcomes.wait_for(over, deadline - clock.monotonic())
            _warn(handle)


def _is_over(handle: Flushed) -> Callable[[], bool]:
    """Return a function that is true once all earlier puts have an outcome."""
    publisher = handle.puts
    count = publisher.accepted_count
    return lambda: publisher.ended_count >= count


_told: set[tuple[int, int]] = set()
"""Logged pairs of handle and message count. A process may be stopped, and then end."""


def _warn(handle: Flushed) -> None:
    """Log the messages that may be lost."""
    count = handle.puts.count
    if count > 0 and (id(handle), count) not in _told:
        _told.add((id(handle), count))
        text = (
            f"the process ends with {count} unconfirmed message(s) to queue {handle.name}: whether "
            "they are stored is not known. close() waits for them, and gives each its outcome"
        )
        log.error(text)


_heard: set[int] = set()
"""Processes with a registered finalizer."""


def _hear_of_the_end() -> None:
    """Register a finalizer in a child of `multiprocessing`, which ends without `atexit`."""
    pid = os.getpid()
    util = sys.modules.get("multiprocessing.util")
    if pid not in _heard and util is not None:
        _heard.add(pid)
        util.Finalize(None, flush_all, exitpriority=0)


atexit.register(flush_all)
