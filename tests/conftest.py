"""What all tests share: their tiers, and the guard that keeps real time out of most of them."""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import mirrorq

# The same examples each time, on every machine; and a loaded machine is no bug.
settings.register_profile("mirrorq", deadline=None, derandomize=True, database=None)
settings.load_profile("mirrorq")


def _reraise(handler: logging.Handler, record: logging.LogRecord) -> None:
    raise


# The library lets no error of a log line pass. In tests a wrong line is to be seen.
logging.NullHandler.handleError = _reraise  # type: ignore[method-assign]

# A shell that runs the tests in the background has them, and all that they start, ignore SIGINT.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

TESTS = Path(__file__).parent
REAL_FOLDERS = frozenset({"browser", "cli", "client", "contrib", "processes", "spark"})
"""Every test in these folders is marked `real`."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.relative_to(TESTS).parts[0] in REAL_FOLDERS:
            item.add_marker("real")


def pytest_collection_finish() -> None:
    """Thousands of tests are not walked again by each full collection of garbage."""
    gc.collect()
    gc.freeze()


class Guard:
    """Makes threads, processes, sockets and sleep raise while a test runs that is not `real`."""

    is_on = False

    def put(self, owner: Any, name: str) -> None:
        """Have a call refused while the guard is on."""
        call: Callable[..., Any] = getattr(owner, name)

        def guarded(*args: Any, **kwargs: Any) -> Any:
            if self.is_on and not self._is_simulator(sys._getframe(1)):
                raise AssertionError(
                    f"{name} of {owner.__name__} takes real time: mark the test `real`, or play it "
                    "with mirrorq.testing"
                )
            return call(*args, **kwargs)

        setattr(owner, name, guarded)

    def _is_simulator(self, frame: Any) -> bool:
        """Tell whether the caller is the scheduler, which lets one thread run at a time."""
        return str(frame.f_globals.get("__name__")).startswith("mirrorq.testing.")


GUARD = Guard()
for owner, name in (
    (threading.Thread, "start"),
    (subprocess.Popen, "__init__"),
    (socket.socket, "__init__"),
    (os, "fork"),
    (time, "sleep"),
):
    GUARD.put(owner, name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Fixtures of a module are set up in here, too."""
    GUARD.is_on = item.get_closest_marker("real") is None
    try:
        return (yield)
    finally:
        GUARD.is_on = False


@pytest.fixture
def endpoint() -> str:
    """Where nobody listens."""
    from tests.kit import free_endpoint

    return free_endpoint()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[mirrorq.Node]:
    """A cluster of one that listens on loopback."""
    with mirrorq.Node("a", path=tmp_path / "a", listen="tcp://127.0.0.1:0") as node:
        node.wait_ready(60)
        yield node
