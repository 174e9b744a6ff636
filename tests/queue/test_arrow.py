"""`mirrorq.arrow`: queues as Arrow tables, and back."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from mirrorq import AckRefused, ConfigError, MirroredQueue, ShutDown, arrow
from mirrorq.testing import SimulatedCluster

WAIT_S = 30


@pytest.fixture
def cluster() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(3) as cluster:
        yield cluster


def filled(queue: MirroredQueue, count: int = 10) -> MirroredQueue:
    """Bodies 0 to count - 1."""
    queue.put_many([b"%d" % number for number in range(count)], key="k").result(WAIT_S)
    return queue


def values(table: pa.Table) -> list[bytes]:
    """The bodies in a table."""
    found: list[bytes] = table["value"].to_pylist()
    return found


@pytest.mark.parametrize("shards", [None, 2])
def test_who_reads_takes_nothing(cluster: SimulatedCluster, shards: int | None) -> None:
    """Held messages are seen, too; the columns are those that were asked for."""
    queue = cluster.connect("web").queue("orders", shards=shards)
    assert arrow.read(queue).read_all().num_rows == 0
    held = filled(queue).get(timeout=WAIT_S)
    table = arrow.read(queue).read_all()
    assert table.schema.names == ["value", "sequence", "timestamp"]
    assert values(table) == [b"%d" % number for number in range(10)]
    assert table["sequence"].to_pylist() == list(range(1, 11))
    assert held.ack().result(WAIT_S) is None
    queue.put(b"last", headers={"n": 1}, message_id="m", key="k").result(WAIT_S)
    columns = ("queue", "shard", "headers", "message_id", "redelivered", "delivery_count")
    (*_, last) = arrow.read(queue, columns).read_all().to_pylist()
    assert (last["queue"], last["message_id"], last["headers"]) == ("orders", "m", [("n", "1")])
    with pytest.raises(ConfigError, match="no column 'vaule': they are value, sequence"):
        arrow.read(queue, ["vaule"])
    with pytest.raises(ConfigError, match="no column is named"), arrow.take(queue, []):
        pass
    with arrow.take(queue, (name for name in ["value"])) as reader:
        assert reader.read_all().num_rows == 10


@pytest.mark.parametrize("shards", [None, 2])
def test_what_is_taken_is_acked_at_a_clean_end(
    cluster: SimulatedCluster, shards: int | None
) -> None:
    """An exception gives it back, counted."""
    queue = filled(cluster.queue("orders", on="a", shards=shards))
    with pytest.raises(ZeroDivisionError), arrow.take(queue) as reader:
        assert 1 / (reader.read_all().num_rows - 10)
    cluster.run_until(lambda: queue.qsize() == 10, WAIT_S)
    with arrow.take(queue, ["value", "delivery_count"], count_max=4) as reader:
        table = reader.read_all()
    assert values(table) == [b"0", b"1", b"2", b"3"]
    assert queue.qsize() == 6
    with arrow.take(queue) as reader:
        pass
    with pytest.raises((ValueError, ShutDown), match=r"used after its `with`|is closed"):
        reader.read_all()


def test_the_exception_of_a_block_comes_out_of_it(cluster: SimulatedCluster) -> None:
    """Also where nothing can be given back any more: it goes back with the handle."""
    queue, other = filled(cluster.queue("orders", on="a")), cluster.queue("orders", on="b")

    def job(lose: Callable[[], None]) -> None:
        with arrow.take(queue):
            lose()
            raise KeyError("the job's own")

    for lose in (queue.close, other.delete):
        with pytest.raises(KeyError, match="the job's own"):
            job(lose)
        queue = cluster.queue("orders", on="a")
    with pytest.raises(ShutDown), arrow.take(filled(queue)):
        queue.close()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (None, "NoneType"),
        ([b"x"], "bytes"),
        (pa.array([b"x"]), "Scalar"),
        (pa.chunked_array([[b"x"]]), "Scalar"),
        ({"value": [b"x"]}, "str"),
    ],
)
def test_what_is_no_table_is_refused(cluster: SimulatedCluster, data: object, text: str) -> None:
    queue = cluster.queue("orders", on="a")
    with pytest.raises(TypeError, match=f"data has a .*{text}: give a table"):
        arrow.write(queue, data)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no column 'value'"):
        arrow.write(queue, pa.record_batch({"other": pa.array([], pa.binary())}))
    with pytest.raises(TypeError, match="is no MirroredQueue"):
        arrow.read(cluster.node("a")).read_all()  # type: ignore[arg-type]


def test_what_is_taken_nobody_else_is_given(cluster: SimulatedCluster) -> None:
    """Over a failover, too."""
    queue, other = filled(cluster.queue("orders", on="b")), cluster.queue("orders", on="c")
    with arrow.take(queue) as reader:
        reader.read_all()
        cluster.crash("a")
        cluster.run_until(lambda: queue.status().master not in (None, "a"), WAIT_S)
        assert other.get_many(10, timeout=5) == []
    assert queue.browse() == []


def test_a_lost_shard_keeps_no_other_from_being_acked(cluster: SimulatedCluster) -> None:
    """Only what was lost comes again."""
    queue = cluster.queue("orders", on="a", shards=3)
    for number in range(12):
        queue.put(b"%d" % number, key=str(number)).result(WAIT_S)
    held = [queue.shard(index).qsize() for index in range(3)]

    def job() -> None:
        with arrow.take(queue) as reader:
            assert reader.read_all().num_rows == 12
            node = cluster.node("a")
            (tag,) = [one.tag for one in node.consumers() if one.queue == queue.shard(0).name]
            node.disconnect(tag)
            cluster.run(1)

    with pytest.raises(AckRefused):
        job()
    cluster.run(1)
    assert [queue.shard(index).qsize() for index in range(3)] == [held[0], 0, 0]


class Frame:
    """A table of another library: one batch, as a stream of Arrow's C interface."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.combine_chunks().__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize("kind", ["string_view", "binary_view", "string", "large_binary"])
def test_tables_of_other_libraries_are_written(cluster: SimulatedCluster, kind: str) -> None:
    """In parts, though they come as one batch; whatever kind of texts they have."""
    queue = cluster.queue("orders", on="a")
    bodies = [b"%d" % number for number in range(arrow.PART_ROWS + 2)]
    made = [body.decode() for body in bodies] if "string" in kind else bodies
    table = pa.table({"value": pa.array(made, type=getattr(pa, kind)())})
    assert arrow.write(queue, Frame(table)) == len(bodies)
    assert values(arrow.read(queue).read_all()) == bodies


def test_a_table_is_written_in_order(cluster: SimulatedCluster) -> None:
    """Texts as UTF-8; options are those of put_many."""
    queue = cluster.queue("orders", on="a")
    table = pa.table({"name": ["\u00e4", "b"] * 5_000, "n": range(10_000)})
    assert arrow.write(queue, table, "name", headers={"from": "table"}) == 10_000
    assert arrow.write(queue, pa.record_batch({"value": [b"x"]})) == 1
    assert arrow.write(queue, iter(table.to_batches(max_chunksize=100)), "name") == 10_000
    found = values(arrow.read(queue).read_all())
    assert found == ["\u00e4".encode(), b"b"] * 5_000 + [b"x"] + ["\u00e4".encode(), b"b"] * 5_000
    assert queue.get(timeout=WAIT_S).headers == {"from": "table"}
    for column, words in (("n", "is int64: give binary"), ("no", "there is no column 'no': name")):
        with pytest.raises(ConfigError, match=words):
            arrow.write(queue, table, column)
    with pytest.raises(ConfigError, match="has 1 nulls"):
        arrow.write(queue, pa.table({"value": [b"a", None]}))


SUSPENDED = """
import mirrorq
from mirrorq import arrow

def rows(queue):
    with arrow.take(queue) as reader:
        for batch in reader:
            yield from batch.column("value").to_pylist()

queue = mirrorq.MirroredQueue("q", path="./data")
queue.put_many([b"x"] * 9).result(60)
taken = rows(queue)
print(next(taken))
"""


@pytest.mark.real
def test_a_program_ends_within_a_take(tmp_path: Path) -> None:
    """Of a generator that nobody goes on with: its messages are given back at once."""
    command = [sys.executable, "-c", SUSPENDED]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=25, check=True)
    assert ended.stdout.split() == [b"b'x'"]
    with MirroredQueue("q", path=tmp_path / "data") as queue:
        assert len(queue.get_many(9, 60)) == 9
