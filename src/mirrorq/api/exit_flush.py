"""The process ends, and handles are still open: what they have put is waited for, within a bound.

At the end of the interpreter the threads that step handles die at once, and what was put and not
confirmed would be gone in silence. So the end waits until everything that was called at handles of
this process has an outcome, at most `Config.exit_flush_ms`, and says what has none then. A process
that is killed, or leaves by `os._exit`, says nothing.
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


class Counted(Protocol):
    """The puts of a handle: how many there were, and how many have ended."""

    @property
    def count(self) -> int: ...
    @property
    def accepted_count(self) -> int: ...
    @property
    def ended_count(self) -> int: ...


class Flushed(Protocol):
    """A handle, as what waits for its outcomes at the end sees it."""

    name: str
    pid: int
    host: Host
    config: Config
    outcomes: Outcomes

    @property
    def puts(self) -> Counted: ...
    def wake(self) -> None: ...
    def is_quiet(self) -> bool: ...


_open: dict[int, ref[Flushed]] = {}
"""Handles of this process that are open; keeps none of them."""


def remember(handle: Flushed) -> None:
    """Flush it at the end, unless it is closed before."""
    key = id(handle)
    _open[key] = ref(handle, lambda _: _open.pop(key, None))
    _hear_of_the_end()


def forget(handle: object) -> None:
    """It is closed."""
    _open.pop(id(handle), None)


def flush_all(*, is_stopping: bool = False) -> None:
    """Wait until everything has an outcome, as long as each handle may; say what has none then.

    Args:
        is_stopping: the nodes of this process are stopped next, while it goes on for a moment:
            only what was put before is waited for, and not without a majority.
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
    """Whether all that was put until now has an outcome."""
    publisher = handle.puts
    count = publisher.accepted_count
    return lambda: publisher.ended_count >= count


_told: set[tuple[int, int]] = set()
"""What has been said: handles, and of how many messages. A process may be stopped, and then end."""


def _warn(handle: Flushed) -> None:
    """Say what may be lost."""
    count = handle.puts.count
    if count > 0 and (id(handle), count) not in _told:
        _told.add((id(handle), count))
        text = (
            f"the process ends with {count} unconfirmed message(s) to queue {handle.name}: whether "
            "they are stored is not known. close() waits for them, and gives each its outcome"
        )
        log.error(text)


_heard: set[int] = set()
"""Processes that have asked to be told of their end."""


def _hear_of_the_end() -> None:
    """A child of `multiprocessing` ends without what `atexit` has."""
    pid = os.getpid()
    util = sys.modules.get("multiprocessing.util")
    if pid not in _heard and util is not None:
        _heard.add(pid)
        util.Finalize(None, flush_all, exitpriority=0)


atexit.register(flush_all)
