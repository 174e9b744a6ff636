"""Nodes die at random moments of reads, drains and writes: nothing lost, nothing twice.

Random kills of streams, of Spark's workers and of its driver are those of `make soak-spark`.
"""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import pyspark_mirrorq
from mirrorq import bulk
from mirrorq.api.queue import MirroredQueue
from mirrorq.client.client import Client
from processes.cluster import Cluster

from .conftest import connected_to, until
from .test_write import bodies, write

pytestmark = pytest.mark.soak

COUNT = 20_000
"""Rows of each write: several chunks of each task."""
ROUNDS = 12
LATEST_S = 2.0
"""A kill comes so long after the job has begun, at most."""


class Killer:
    """Kills a random node at a random moment of a job, and starts it again."""

    def __init__(self, cluster: Cluster, queue: MirroredQueue, chance: random.Random) -> None:
        self.cluster = cluster
        self.queue = queue
        self.chance = chance
        self.killed: list[str] = []

    def __enter__(self) -> Killer:
        # Two of three copies have to stay.
        until(lambda: len(self.queue.status().synchronised_mirrors) == 2)
        victim, pause_s = self.chance.choice("abc"), self.chance.uniform(0, LATEST_S)
        self.killed.append(victim)
        self._thread = threading.Thread(target=self._kill, args=(victim, pause_s))
        self._thread.start()
        return self

    def _kill(self, victim: str, pause_s: float) -> None:
        time.sleep(pause_s)
        self.cluster.kill(victim)
        self.cluster.launch(victim)

    def __exit__(self, *_: object) -> None:
        self._thread.join()


@pytest.mark.parametrize("seed", [1, 2])
def test_nodes_die_at_random_moments(
    spark: SparkSession, own_nodes: Cluster, tmp_path: Path, seed: int
) -> None:
    """A kill in each write, read and drain: the queue has each row once, the read shows each once,
    the drain takes all, and its output has each once."""
    with connected_to(own_nodes) as client:
        orders = client.queue("orders", timeout=60)
        killer = Killer(own_nodes, orders, random.Random(seed))
        for turn in range(ROUNDS // 3):
            course(spark, client, orders, killer, tmp_path / str(turn))
        assert len(killer.killed) == ROUNDS


def course(
    spark: SparkSession, client: Client, orders: MirroredQueue, killer: Killer, out: Path
) -> None:
    """Write, read, drain; the queue is empty before and after."""
    wanted = list(range(COUNT))
    before = bulk.extent(orders, 120).next_sequence
    with killer:
        write(
            spark.range(0, COUNT, 1, 4).selectExpr("CAST(id AS STRING) AS value"),
            client,
            orders,
            timeout="120s",
        )
    assert sorted(map(int, bodies(orders, before))) == wanted
    with killer:
        reader = spark.read.format("mirrorq").options(queue=orders.name, minPartitions="4")
        frame = reader.option("timeout", "120s").option("endpoints", ",".join(client.endpoints))
        rows = frame.load().select("value").collect()
    assert sorted(int(row.value) for row in rows) == wanted
    with (
        killer,
        pyspark_mirrorq.drain(
            spark, client.endpoints, orders.name, minPartitions=4, timeout="120s"
        ) as drained,
    ):
        drained.df.write.parquet(str(out))
    assert drained.acked == COUNT
    assert bulk.extent(orders, 120).messages == 0
    rows = spark.read.parquet(str(out)).select("value").collect()
    assert sorted(int(row.value) for row in rows) == wanted
