"""Celery's own integration suite, unchanged, over mirrorq: `make celery-suite` fetches it.

A plugin of pytest, given by `-p celery_suite` with the folder of this file on PYTHONPATH: it starts
a node for the session and says in the environment where broker and results are, where Celery's
conftest looks. With BROKER=redis the suite runs over Redis, to compare; with ETA=worker tasks with
an eta wait in a worker, as they do there.

Results: where there is a `redis-server`, over one that is started here, as in Celery's own CI;
else as files, and what looks into Redis is left out by the suite itself.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from shop import DEADLINE_S
from tests.kit import until

import mirrorq
import mirrorq.contrib.kombu
from mirrorq.demo.ports import free_ports

ETA = "looks for a task with an eta in a worker: it waits in its queue, unless ETA=worker is said"
LOGS = "fails over Redis, too: the worker's own log level hides what it looks for"
CHORD = "fails over Redis, too: an exception that Celery's worker cannot pickle"
EXCEPTIONS = {
    "test_inspect.py::test_Inspect::test_scheduled": ETA,
    "test_tasks.py::test_trace_log_arguments::test_task_success": LOGS,
    "test_tasks.py::test_trace_log_arguments::test_task_failed": LOGS,
    "test_canvas.py::test_chord::test_chord_on_error": CHORD,
}
"""Tests that fail over mirrorq, by the end of their name, and why."""

_running = ExitStack()


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Celery's conftest reads the environment."""
    folder = Path(_running.enter_context(tempfile.TemporaryDirectory()))
    redis = _redis(folder)
    os.environ["TEST_BACKEND"] = f"{redis}/1" if redis else f"file://{folder / 'results'}"
    (folder / "results").mkdir()
    os.environ["PYTHONPATH"] = _registering(folder)
    if os.environ.get("BROKER") == "redis":
        os.environ["TEST_BROKER"] = f"{redis}/0"
    else:
        os.environ["TEST_BROKER"] = _node(folder)
    options = {"eta": os.environ["ETA"]} if "ETA" in os.environ else {}
    # Celery's conftest looks for its configuration here.
    overrides = json.dumps({"broker_transport_options": options})
    Path("integration-tests-config.json").write_text(overrides, "utf-8")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Nothing of this outlives the session."""
    _running.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each exception fails, and has its reason."""
    if os.environ.get("BROKER") == "redis":
        return
    for item in items:
        why = EXCEPTIONS.get(item.nodeid.rpartition("/")[2])
        if why is not None and not (why == ETA and os.environ.get("ETA") == "worker"):
            item.add_marker(pytest.mark.xfail(reason=why, strict=True))


def _redis(folder: Path) -> str:
    """Start a Redis; returns its URL, nothing where there is none."""
    program = shutil.which("redis-server")
    if program is None:
        return ""
    (port,) = free_ports(1)
    options = ("--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", str(folder))
    _start([program, *options], folder / "redis.log")
    os.environ["REDIS_HOST"], os.environ["REDIS_PORT"] = "127.0.0.1", str(port)
    redis = pytest.importorskip("redis").Redis("127.0.0.1", port)
    until(lambda: _answers(redis))
    return f"redis://127.0.0.1:{port}"


def _answers(redis: Any) -> bool:
    try:
        return bool(redis.ping())
    except OSError:
        return False


def _node(folder: Path) -> str:
    """Start a node, a process of its own: Celery's workers are forks of this one."""
    (port,) = free_ports(1)
    listen = f"tcp://127.0.0.1:{port}"
    command = [sys.executable, "-m", "mirrorq", "node", "run", "a", "--path", str(folder / "a")]
    _start([*command, "--listen", listen], folder / "node.log")
    with mirrorq.connect(listen, timeout=DEADLINE_S):
        return f"mirrorq://127.0.0.1:{port}//"


def _start(command: list[str], log: Path) -> None:
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    _running.callback(process.wait)
    _running.callback(process.terminate)


def _registering(folder: Path) -> str:
    """A search path on which every Python that is started knows `mirrorq://`: what an app does by
    an import, the suite's plain `celery worker` has nobody to do."""
    (folder / "sitecustomize.py").write_text("import mirrorq.contrib.kombu\n", "utf-8")
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
