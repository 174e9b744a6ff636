"""A Kafka broker and Spark's own Kafka source, for `spark.py --kafka`.

Both come from Maven Central by `mvn`, into build/kafka: once, some 100 MB. The broker is one
process on loopback with one copy of the data and no fsync, as it is by default: far less than what
a confirm of mirrorq means, so its figures show what Spark's part costs, not what a queue can do.
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

BROKER = ("org.apache.kafka", "kafka_2.13", "3.9.1")
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
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={folder}/logs
num.partitions={partitions}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
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


class Broker:
    """One broker, which is its own controller (KRaft), for as long as the block lasts."""

    def __init__(self, folder: Path, partitions: int) -> None:
        port, controller = free_ports(2)
        self.endpoint = f"127.0.0.1:{port}"
        self._folder = folder
        self._jars = f"{_fetched(BROKER)}/*"
        self._settings = folder / "server.properties"
        self._settings.write_text(
            PROPERTIES.format(
                port=port, controller=controller, folder=folder, partitions=partitions
            )
        )

    def _command(self, name: str, *given: str) -> list[str]:
        home = os.environ.get("JAVA_HOME")
        java = str(Path(home, "bin", "java")) if home else "java"
        return [java, "-Xmx512m", "-cp", self._jars, name, *given]

    def __enter__(self) -> Broker:
        given = ("format", "-t", CLUSTER_ID, "-c", str(self._settings))
        tool = self._command("kafka.tools.StorageTool", *given)
        subprocess.run(tool, check=True, capture_output=True)
        with (self._folder / "log").open("w") as log:
            server = self._command("kafka.Kafka", str(self._settings))
            self._process = subprocess.Popen(server, stdout=log, stderr=log)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()

    def wait_ready(self) -> None:
        """Wait until it listens.

        Raises:
            NotToBeHad: it does not.
        """
        host, port = self.endpoint.split(":")
        end = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection((host, int(port)), 1).close()
                return
            except OSError as error:
                if self._process.poll() is not None or time.monotonic() > end:
                    raise NotToBeHad(f"its broker did not start: {error}") from None
            time.sleep(0.2)
