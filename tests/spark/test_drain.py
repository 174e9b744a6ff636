"""Drain: messages leased to one job, acked when its block ends well, returned when it raises."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from pyspark.sql import SparkSession

import mirrorq
import pyspark_mirrorq
from mirrorq import bulk
from mirrorq.api.queue import MirroredQueue
from mirrorq.bulk.leases import RangeLease
from mirrorq.client.client import Client
from mirrorq.errors import ConfigError
from processes.cluster import Cluster
from pyspark_mirrorq.draining import Drain, acked

from .conftest import connected_to, in_sync, until

HOLDER = """
import json, sys
import pyspark_mirrorq
from pyspark_mirrorq.draining import Drain

class Session:
    pass

class Held(Drain):
    def _frame(self):
        return None

endpoints, queue = sys.argv[1:]
with Held(Session(), {"endpoints": endpoints, "queue": queue}, 30) as held:
    print(json.dumps(held.count), flush=True)
    sys.stdin.readline()
"""


def test_a_block_that_ends_well_acks_what_it_was_given(
    spark: SparkSession, orders: MirroredQueue, client: Client, tmp_path: Path
) -> None:
    """The limit is leased, nobody else gets it meanwhile, and afterwards it is gone."""
    orders.put_many([b"%d" % number for number in range(300)]).result(120)
    path = str(tmp_path / "out")
    with pyspark_mirrorq.drain(spark, client.endpoints, orders.name, limit=200) as drained:
        assert drained.count == 200
        assert orders.get(timeout=120).sequence == 201
        drained.df.write.parquet(path)
    assert drained.acked == 200
    rows = spark.read.parquet(path).collect()
    assert sorted(row.sequence for row in rows) == list(range(1, 201))
    assert bulk.extent(orders, 120).messages == 100


@pytest.mark.parametrize(
    "bound",
    [
        {"startingOffsets": "2"},
        {"endingOffsets": "2"},
        {"startingTimestamp": "1"},
        {"endingTimestamp": "1"},
        {"sequences": "1-2"},
    ],
    ids=lambda bound: next(iter(bound)),
)
def test_what_a_drain_takes_is_not_bounded_by_options(bound: dict[str, str]) -> None:
    """It would take, and ack, what they leave out."""
    with pytest.raises(ConfigError, match=f"option {next(iter(bound))} is of batch reads"):
        Drain(Mock(), {"endpoints": "tcp://127.0.0.1:1", "queue": "orders"} | bound)


def test_a_block_that_raises_returns_everything(
    spark: SparkSession, orders: MirroredQueue, client: Client
) -> None:
    """The messages are back at their places, marked as redelivered."""
    orders.put_many([b"%d" % number for number in range(30)]).result(120)
    drained = pyspark_mirrorq.drain(spark, client.endpoints, orders.name)

    def fail() -> None:
        with drained:
            assert drained.count == 30
            raise RuntimeError("the job has failed")

    with pytest.raises(RuntimeError, match="the job has failed"):
        fail()
    assert drained.acked == 0
    message = orders.get(timeout=120)
    assert (message.sequence, message.redelivered) == (1, True)


def test_one_drain_is_used_again(
    spark: SparkSession, orders: MirroredQueue, client: Client
) -> None:
    """Each block leases up to the limit; a second block within the first is refused."""
    orders.put_many([b"%d" % number for number in range(30)]).result(120)
    drained = pyspark_mirrorq.drain(spark, client.endpoints, orders.name, limit=20)
    for count in (20, 10):
        with drained:
            assert drained.count == count
            with pytest.raises(mirrorq.ConfigError, match="leave its block first"):
                drained.__enter__()
        assert drained.acked == count


def test_an_empty_queue_and_wrong_arguments(
    spark: SparkSession, orders: MirroredQueue, client: Client
) -> None:
    """Nothing to drain is no error; what is wrong is told before anything is taken."""
    with pyspark_mirrorq.drain(spark, ",".join(client.endpoints), orders.name) as drained:
        assert drained.df.count() == 0
    assert drained.acked == 0
    with pytest.raises(mirrorq.QueueNotFound, match="none-such"):
        pyspark_mirrorq.drain(spark, client.endpoints, "none-such").__enter__()
    with pytest.raises(mirrorq.ConfigError, match="limit is 0"):
        pyspark_mirrorq.drain(spark, client.endpoints, orders.name, limit=0)


def test_a_dead_driver_returns_what_it_leased(
    orders: MirroredQueue, client: Client, tmp_path: Path
) -> None:
    """A process that is killed keeps its lease no longer than its connection is waited for."""
    orders.put_many([b"%d" % number for number in range(50)]).result(120)
    driver = subprocess.Popen(
        [sys.executable, "-c", HOLDER, ",".join(client.endpoints), orders.name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert driver.stdout is not None
        assert json.loads(driver.stdout.readline()) == 30
        assert bulk.extent(orders, 120).unacknowledged == 30
        driver.send_signal(signal.SIGKILL)
        until(lambda: bulk.extent(orders, 120).ready == 50)
    finally:
        driver.kill()
        driver.communicate()


@pytest.mark.soak
def test_a_driver_that_was_away_too_long_is_told(orders: MirroredQueue, client: Client) -> None:
    """Its process stands still in the middle of the job until its lease has ended and another
    consumer has some of it: when it goes on and its block ends, the drain says what was lost."""
    orders.put_many([b"%d" % number for number in range(50)]).result(120)
    driver = subprocess.Popen(
        [sys.executable, "-c", HOLDER, ",".join(client.endpoints), orders.name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert driver.stdout is not None
        assert json.loads(driver.stdout.readline()) == 30
        driver.send_signal(signal.SIGSTOP)
        until(lambda: bulk.extent(orders, 120).ready == 50)
        message = orders.get(timeout=120)
        assert (message.sequence, message.redelivered) == (1, True)
        driver.send_signal(signal.SIGCONT)
        _, said = driver.communicate("done\n", timeout=300)
        assert driver.returncode == 1
        assert "AckRefused" in said
        assert f"the drain of queue {orders.name!r} lost its lease" in said
        message.nack().result(120)
        # Nothing that it held was acked behind another consumer's back.
        assert bulk.extent(orders, 120).messages == 50
    finally:
        driver.kill()
        driver.communicate()


class Answered(RangeLease):
    """A lease whose ack has this outcome."""

    def __init__(self, outcome: int | mirrorq.MirrorQError) -> None:
        self.outcome = outcome

    def ack(self, timeout: float | None = None) -> int:
        if isinstance(self.outcome, int):
            return self.outcome
        raise self.outcome


LOST = mirrorq.AckRefused("disconnected by an operator: maintenance")
GONE = mirrorq.ShutDown("the client is closed")
NO_ANSWER = mirrorq.QueueDown("no master")
UNKNOWN = mirrorq.ConfirmUnknown("the client was disconnected")


@pytest.mark.parametrize(
    ("outcomes", "error", "text"),
    [
        ([20, LOST], mirrorq.AckRefused, r"lost its lease.*maintenance.*comes again is in the job"),
        ([GONE], mirrorq.AckRefused, r"lost its lease.*closed.*discard that"),
        ([UNKNOWN], mirrorq.ConfirmUnknown, r"disconnected.*may come again.*discard that"),
        ([NO_ANSWER], mirrorq.ConfirmUnknown, r"no master.*may come again.*discard that"),
        ([UNKNOWN, LOST], mirrorq.AckRefused, r"maintenance.*disconnected.*discard that"),
    ],
)
def test_an_ack_that_is_not_taken_says_what_comes_again(
    outcomes: list[int | mirrorq.MirrorQError], error: type[mirrorq.MirrorQError], text: str
) -> None:
    """Somebody disconnects the driver before its ack, or while that is on its way."""
    leases = {f"orders#{number}": Answered(one) for number, one in enumerate(outcomes)}
    with pytest.raises(error, match=rf"(?s)queue 'orders'.*{text}"):
        acked("orders", leases)


def test_every_lease_is_acked() -> None:
    assert acked("orders", {"orders#0": Answered(3), "orders#1": Answered(4)}) == 7


def test_a_drain_goes_over_the_death_of_the_master(
    spark: SparkSession, own_nodes: Cluster, tmp_path: Path
) -> None:
    """The master dies in the middle of the block: all is read, all is acked, nothing is left."""
    endpoints = list(own_nodes.endpoints.values())
    with connected_to(own_nodes) as client:
        orders = client.queue("orders", timeout=60)
        orders.put_many([b"%d" % number for number in range(5000)]).result(60)
        status = in_sync(orders)
        assert status.master is not None
        path = str(tmp_path / "out")
        with pyspark_mirrorq.drain(spark, endpoints, "orders", timeout="60s") as drained:
            own_nodes.kill(status.master)
            drained.df.write.parquet(path)
        assert drained.acked == 5000
        assert bulk.extent(orders, 60).messages == 0
        assert spark.read.parquet(path).select("sequence").distinct().count() == 5000
