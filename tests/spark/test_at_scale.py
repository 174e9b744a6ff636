"""Executors that are processes of their own: on local-cluster, and on two standalone workers.

Each test is an application of its own, with JVMs of its own: minutes, so `make spark-cluster`
runs them, and CI does not.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyspark
import pytest

from mirrorq import bulk
from mirrorq.api.queue import MirroredQueue
from mirrorq.client.client import Client
from mirrorq.demo.ports import free_ports

from .at_scale import COUNT
from .conftest import QUIET
from .java import java_home
from .test_write import bodies

pytestmark = pytest.mark.soak

LOCAL_CLUSTER = "local-cluster[2,1,1024]"
COURSE_S = 900
SCRIPT = Path(__file__).with_name("at_scale.py")
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "1ms",
    # It judges by rows that were read: a Python source and RDD show none.
    "spark.speculation.efficiency.enabled": "false",
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of Spark's processes: its home, a Java, this Python."""
    folder = tmp_path_factory.mktemp("environment")
    # Where its home is, Spark writes logs of executors.
    home = folder / "home"
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        (home / entry.name).symlink_to(entry)
    return {
        **os.environ,
        "JAVA_HOME": str(java_home(folder / "java")),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


class Application:
    """What runs a course on a master."""

    def __init__(
        self, client: Client, queue: MirroredQueue, environment: dict[str, str], folder: Path
    ) -> None:
        self.client = client
        self.queue = queue
        self.environment = environment
        self.folder = folder

    def run(self, master: str, course: str, **settings: str) -> object:
        """Run it to its end; return what it has found."""
        given = {
            "endpoints": ",".join(self.client.endpoints),
            "queue": self.queue.name,
            "folder": str(self.folder),
            "settings": {**QUIET, "spark.local.dir": str(self.folder), **settings},
        }
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), master, course, json.dumps(given)],
            stdout=subprocess.PIPE,
            text=True,
            env=self.environment,
            start_new_session=True,
            cwd=self.folder,
        )
        try:
            out, _ = process.communicate(timeout=COURSE_S)
        finally:
            # The executors with it.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        assert process.returncode == 0, out
        return json.loads(out.splitlines()[-1])["found"]

    def is_whole(self) -> bool:
        """Whether the queue has each row once, and nothing else."""
        return sorted(map(int, bodies(self.queue))) == list(range(COUNT))


@pytest.fixture
def application(
    client: Client, orders: MirroredQueue, environment: dict[str, str], tmp_path: Path
) -> Application:
    return Application(client, orders, environment, tmp_path)


# --- local-cluster --------------------------------------------------------------------------


def test_all_ways(application: Application) -> None:
    """Two executors write, read, and drain by a stream: every row once, the queue empty."""
    found = application.run(LOCAL_CLUSTER, "all_ways")
    assert found == {"read": COUNT, "executors": 2, "streamed": [COUNT, COUNT]}
    assert bulk.extent(application.queue, 120).messages == 0


def test_retried_tasks_see_their_rows_in_another_order(application: Application) -> None:
    """Each first attempt had staged a part: none of it shows."""
    assert application.run(LOCAL_CLUSTER, "reordered") == ["failed-0", "failed-1"]
    assert application.is_whole()


def test_retried_tasks_read_the_same_again(application: Application) -> None:
    """Each of four first attempts had passed on a part."""
    found = application.run(LOCAL_CLUSTER, "retried_read")
    assert found == {"failed": 4, "read": [COUNT, COUNT]}
    assert bulk.extent(application.queue, 120).messages == COUNT


def test_an_executor_dies_in_a_write(application: Application) -> None:
    assert application.run(LOCAL_CLUSTER, "killed_executor")
    assert application.is_whole()


def test_an_executor_dies_in_a_stream(application: Application) -> None:
    found = application.run(LOCAL_CLUSTER, "killed_in_a_stream")
    assert found == {"killed": True, "streamed": [COUNT, COUNT]}
    assert bulk.extent(application.queue, 120).messages == 0


def test_a_drain_over_two_executors(application: Application) -> None:
    found = application.run(LOCAL_CLUSTER, "drained")
    third = COUNT // 3
    assert found == {"count": third, "acked": third, "rest": COUNT - third}
    assert bulk.extent(application.queue, 120).messages == COUNT - third


# --- Two standalone workers -----------------------------------------------------------------


class Daemon:
    """Spark's master, or a worker."""

    def __init__(self, folder: Path, environment: dict[str, str], name: str, *given: str) -> None:
        self.log = folder / f"{name}-{len(list(folder.iterdir()))}.log"
        kind = f"org.apache.spark.deploy.{name}.{name.capitalize()}"
        program = f"{environment['SPARK_HOME']}/bin/spark-class"
        command = [program, kind, *given, "--webui-port", "0"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, start_new_session=True
            )

    def wait_for(self, pattern: str) -> None:
        end = time.monotonic() + COURSE_S
        while re.search(pattern, self.log.read_text()) is None:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.1)

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="module")
def standalone(
    environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A master and two workers on addresses of their own: Spark runs no second try on the host of
    the first one."""
    folder = tmp_path_factory.mktemp("standalone")
    (port,) = free_ports(1)
    url = f"spark://127.0.0.1:{port}"
    started: list[Daemon] = []
    try:
        given = ("--host", "127.0.0.1", "--port", str(port))
        started.append(Daemon(folder, environment, "master", *given))
        started[0].wait_for("I have been elected leader")
        for host in ("127.0.0.2", "127.0.0.3"):
            told = {**environment, "SPARK_LOCAL_IP": host}
            work = folder / f"work-{host}"
            given = ("--host", host, "--cores", "2", "--memory", "1g", "--work-dir", str(work), url)
            started.append(Daemon(folder, told, "worker", *given))
        for worker in started[1:]:
            worker.wait_for("Successfully registered with master")
        yield url
    finally:
        for one in started:
            one.end()


@pytest.mark.parametrize(
    ("course", "marks"),
    [
        ("speculative", ["sent-1-1", "slow-1-0"]),
        ("speculative_and_late", ["sent-1-1", "slow-1-0"]),
    ],
)
def test_a_speculative_try_doubles_nothing(
    application: Application, standalone: str, course: str, marks: list[str]
) -> None:
    """A slow task had staged a part when a second try began beside it; one of them counts. In the
    second course the slow one may come to its end, too."""
    found = application.run(standalone, course, **SPECULATION)
    assert isinstance(found, list)
    assert [one for one in found if one != "sent-1-0"] == marks
    assert application.is_whole()


def test_standalone_workers_read_and_write(application: Application, standalone: str) -> None:
    found = application.run(standalone, "all_ways")
    assert found == {"read": COUNT, "executors": 2, "streamed": [COUNT, COUNT]}


def test_a_speculative_try_reads_the_same(application: Application, standalone: str) -> None:
    """Two tries of one task of a stream: each message once in its output, and acked."""
    found = application.run(standalone, "speculative_stream", **SPECULATION)
    assert found == {"again": True, "streamed": [COUNT, COUNT]}
    assert bulk.extent(application.queue, 120).messages == 0
