"""Kafka brokers, and Spark's own Kafka source for `spark.py --kafka`.

Both come from Maven Central by `mvn`, into build/kafka: once, some 100 MB. Brokers run on loopback
and do not fsync, which is Kafka's default. `spark.py` starts one, so its figures show the cost of
Spark's part; `compare.steady` starts three, with three copies of the data.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

import pyspark

from mirrorq.demo.ports import free_ports

BROKER = ("org.apache.kafka", "kafka_2.13", "4.1.1")
CONNECTOR = ("org.apache.spark", "spark-sql-kafka-0-10_2.13")
OWN = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
"""Jars that PySpark does not bring along."""
FOLDER = Path(__file__).parents[1] / "build" / "kafka"
START_S = 120.0
CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAA"
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion>
<groupId>bench</groupId><artifactId>bench</artifactId><version>1</version><packaging>pom</packaging>
<dependencies><dependency>
<groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
</dependency></dependencies>
</project>
"""
PROPERTIES = """process.roles=broker,controller
node.id={number}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={folder}/logs-{number}
num.partitions={partitions}
default.replication.factor={count}
min.insync.replicas={quorum}
offsets.topic.replication.factor={count}
offsets.topic.num.partitions=3
group.initial.rebalance.delay.ms=0
transaction.state.log.replication.factor={count}
transaction.state.log.min.isr={quorum}
"""


class NotToBeHad(Exception):
    """Kafka cannot run beside on this machine, and why."""


def connector_jars() -> str:
    """Spark's Kafka source for this PySpark, as `spark.jars` wants it.

    Raises:
        NotToBeHad: Maven or the jars are not to be had.
    """
    # The first patch of a minor version serves them all.
    minor = ".".join(pyspark.__version__.split(".")[:2])
    jars = _fetched((*CONNECTOR, f"{minor}.0")).glob("*.jar")
    return ",".join(str(jar) for jar in sorted(jars) if jar.name.startswith(OWN))


def _fetched(artifact: tuple[str, str, str]) -> Path:
    """The folder with the jars of an artifact and of all that it needs."""
    folder = FOLDER / "-".join(artifact[1:])
    if folder.exists():
        return folder
    maven = shutil.which("mvn")
    if maven is None:
        raise NotToBeHad("Maven (mvn) is not installed, by which its jars are fetched")
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch, "pom.xml").write_text(POM.format(*artifact))
        command = [maven, "-B", "-q", "dependency:copy-dependencies", "-DoutputDirectory=jars"]
        done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = [line for line in done.stdout.splitlines() if "ERROR" in line]
            why = re.sub(r"\x1b\[\d*m|\[ERROR\] ", "", lines[0]) if lines else done.stderr
            raise NotToBeHad(f"Maven cannot fetch {':'.join(artifact)}: {why.strip()[:300]}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(Path(scratch, "jars"), folder.with_suffix(".part"), dirs_exist_ok=True)
        folder.with_suffix(".part").rename(folder)
    return folder


class Brokers:
    """So many brokers of one cluster, each also a controller (KRaft), until the block ends.

    A topic has a copy on each; a message sent with `acks=all` is in the page cache of a majority.
    """

    def __init__(self, folder: Path, partitions: int, count: int = 1) -> None:
        ports = free_ports(2 * count)
        self.endpoints = [f"127.0.0.1:{port}" for port in ports[:count]]
        self._folder = folder
        self._jars = f"{_fetched(BROKER)}/*"
        self._processes: list[subprocess.Popen[bytes]] = []
        controllers = ports[count:]
        voters = ",".join(f"{n}@127.0.0.1:{port}" for n, port in enumerate(controllers, 1))
        self._settings = [folder / f"server-{number}.properties" for number in range(1, count + 1)]
        for number, settings in enumerate(self._settings, 1):
            settings.write_text(
                PROPERTIES.format(
                    number=number,
                    voters=voters,
                    port=ports[number - 1],
                    controller=controllers[number - 1],
                    folder=folder,
                    partitions=partitions,
                    count=count,
                    quorum=count // 2 + 1,
                )
            )

    def _command(self, name: str, *given: str) -> list[str]:
        home = os.environ.get("JAVA_HOME")
        java = str(Path(home, "bin", "java")) if home else "java"
        return [java, "-Xmx512m", "-cp", self._jars, name, *given]

    def __enter__(self) -> Brokers:
        for settings in self._settings:
            given = ("format", "-t", CLUSTER_ID, "-c", str(settings))
            tool = self._command("kafka.tools.StorageTool", *given)
            subprocess.run(tool, check=True, capture_output=True)
        for settings in self._settings:
            with settings.with_suffix(".log").open("w") as log:
                command = self._command("kafka.Kafka", str(settings))
                self._processes.append(subprocess.Popen(command, stdout=log, stderr=log))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def wait_ready(self) -> None:
        """Wait until each broker listens.

        Raises:
            NotToBeHad: one does not.
        """
        end = time.monotonic() + START_S
        for endpoint, process in zip(self.endpoints, self._processes, strict=True):
            host, port = endpoint.split(":")
            while True:
                try:
                    socket.create_connection((host, int(port)), 1).close()
                    break
                except OSError as error:
                    if process.poll() is not None or time.monotonic() > end:
                        raise NotToBeHad(f"broker {endpoint} did not start: {error}") from None
                time.sleep(0.2)
