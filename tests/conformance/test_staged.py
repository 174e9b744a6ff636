"""Staged publishing: what shows, what never does, and what is said of it."""

from __future__ import annotations

import math
import pickle
from array import array
from itertools import accumulate
from typing import Any

import pytest

import mirrorq
from conformance.faces import THREADS, Case, Stage, case
from mirrorq import bulk
from mirrorq.bulk.staged_chunk import CHUNK_COUNT
from mirrorq.bulk.staging import Committed, Staged, StagedPart
from mirrorq.testing import SimulatedCluster

CASE = Case(THREADS)


@pytest.fixture
def node(stage: Stage) -> Any:
    return stage.host


@pytest.fixture
def queue(stage: Stage) -> Any:
    return stage.queue("q")


def part_of(staged: Staged, partition: int, attempt: int, bodies: list[bytes]) -> StagedPart:
    task = staged.attempt(partition, attempt)
    task.put_many(bodies)
    return task.finish(math.inf)


def taken(queue: Any, count: int) -> list[bytes]:
    """So many messages, acked; there are no more."""
    got: list[mirrorq.Message] = []
    while len(got) < count:
        got += queue.get_many(count - len(got), timeout=30)
    queue.ack_many(got).result(30)
    assert queue.get_many(1, timeout=0.05) == []
    return [message.body for message in got]


def test_winners_show_at_once_in_order_of_partitions(node: Any, queue: Any) -> None:
    queue.put(b"before").result(30)
    with bulk.staged(node, "job", 0, "q") as staged:
        second = part_of(staged, 1, 0, [b"c", b"d"])
        part_of(staged, 0, 0, [b"lost"])
        first = part_of(staged, 0, 1, [b"a", b"b"])
        assert queue.qsize() == 1
        queue.put(b"between").result(30)
        done = staged.commit([second, first], math.inf)
        assert not done.already
        after = queue.put(b"after").result(30)
        assert queue.qsize() == 7
        assert done.sequences[-1] + 1 == after
        shown = list(queue.browse(start=done.sequences[0], count_max=4))
        assert [message.sequence for message in shown] == list(done.sequences)
        assert [message.body for message in shown] == [b"a", b"b", b"c", b"d"]
    assert taken(queue, 7) == [b"before", b"between", b"a", b"b", b"c", b"d", b"after"]


def test_many_chunks_come_whole(node: Any, queue: Any) -> None:
    """More than one chunk by count, and by bytes; the parts can be pickled."""
    small = [b"%d" % number for number in range(2 * CHUNK_COUNT + 7)]
    large = [bytes([number]) * (600 * 1024) for number in range(5)]
    with bulk.staged(node, "job", 0, "q") as staged:
        parts = [part_of(staged, 0, 0, small), part_of(staged, 1, 0, large)]
        assert [part.queues for part in parts] == [(("q", 3, len(small)),), (("q", 3, 5),)]
        staged.commit(pickle.loads(pickle.dumps(parts)), 30)
    assert taken(queue, len(small) + 5) == small + large


def arrow(bodies: list[bytes], before: bytes = b"") -> tuple[bytes, bytes]:
    """Offsets and values as Arrow has them, of a slice behind `before`."""
    ends = accumulate(map(len, bodies), initial=len(before))
    return array("i", ends).tobytes(), before + b"".join(bodies)


def test_a_column_comes_as_its_bodies_do(node: Any, queue: Any) -> None:
    """Columns and lists in one attempt, small and large, cut into chunks on the way."""
    small = [b"%d" % number for number in range(CHUNK_COUNT + 7)]
    large = [bytes([number]) * (600 * 1024) for number in range(5)]
    with bulk.staged(node, "job", 0, "q") as staged:
        task = staged.attempt(0, 0)
        task.put(b"dressed", message_id="m")
        task.put_column(*arrow(small, before=b"not these"))
        task.put_column(*arrow([]))
        task.put_many([b"a", b""])
        task.put_column(*arrow([b"", b"b"]))
        task.put_column(*arrow(large))
        part = task.finish(30)
        assert part.count == len(small) + 10
        staged.commit([part], 30)
    assert queue.browse(start=1, count_max=1)[0].message_id == "m"
    assert taken(queue, part.count) == [b"dressed", *small, b"a", b"", b"", b"b", *large]


def test_columns_that_are_none_change_nothing(node: Any, queue: Any) -> None:
    """Offsets that fall, begin below 0, go too far, or are no offsets; a body that is too long."""
    with bulk.staged(node, "job", 0, "q") as staged:
        task = staged.attempt(0, 0)
        for numbers in ([0, 2, 1], [-1, 0], [0, 4], [2**31 - 1, -(2**31)]):
            with pytest.raises(ValueError, match="offsets"):
                task.put_column(array("i", numbers).tobytes(), b"abc")
        for offsets in (b"", b"\0\0\0\0\0"):
            with pytest.raises(ValueError, match="not offsets"):
                task.put_column(offsets, b"abc")
        with pytest.raises(ValueError, match="message_bytes_max"):
            task.put_column(*arrow([bytes(mirrorq.Config().message_bytes_max + 1)]))
        part = task.finish(30)
        assert part.count == 0
        with pytest.raises(ValueError, match="finished"):
            task.put_column(*arrow([b"late"]))


def test_what_comes_with_a_message(node: Any, queue: Any) -> None:
    with bulk.staged(node, "job", 0, "q") as staged:
        task = staged.attempt(0, 0)
        task.put(b"plain")
        task.put(b"dressed", headers={"n": 3}, message_id="m", key="k")
        staged.commit([task.finish(30)], 30)
    plain, dressed = queue.get_many(2, timeout=30)
    assert (plain.headers, plain.message_id, plain.delivery_count) == ({}, None, 1)
    assert (dressed.headers, dressed.message_id) == ({"n": 3}, "m")


def test_a_version_is_committed_once(node: Any, queue: Any) -> None:
    """A second commit, a restarted driver with another run, a late task, a late abort."""
    with bulk.staged(node, "job", 5, "q") as staged, bulk.staged(node, "job", 5, "q") as again:
        part = part_of(staged, 0, 0, [b"a"])
        other = part_of(again, 0, 0, [b"a"])
        assert not staged.commit([part], 30).already
        assert staged.commit([part], 30) == Committed(range(0), True)
        assert again.commit([other], 30).already
        late = part_of(again, 1, 0, [b"late"])
        assert late.is_committed
        assert again.commit([late], 30).already
        assert again.abort(timeout=30) is False
    with bulk.staged(node, "job", 4, "q") as older, bulk.staged(node, "job", 6, "q") as newer:
        with pytest.raises(mirrorq.NotConfirmed, match=r"version 4 .* is not, and version 5 is"):
            older.commit([], 30)
        with pytest.raises(mirrorq.NotConfirmed, match="another transaction"):
            part_of(older, 0, 0, [b"lost"])
        assert older.abort(timeout=30)
        assert not newer.commit([part_of(newer, 0, 0, [b"b"])], 30).already
    assert taken(queue, 2) == [b"a", b"b"]


def test_an_aborted_run_never_shows(node: Any, queue: Any) -> None:
    with bulk.staged(node, "job", 0, "q") as staged, bulk.staged(node, "job", 0, "q") as again:
        part = part_of(staged, 0, 0, [b"x"])
        assert staged.abort([part], 30) is True
        with pytest.raises(mirrorq.NotConfirmed, match="aborted"):
            part_of(staged, 0, 1, [b"x"])
        with pytest.raises(mirrorq.NotConfirmed, match="aborted"):
            staged.commit([part], 30)
        assert not again.commit([part_of(again, 0, 0, [b"y"])], 30).already
    assert taken(queue, 1) == [b"y"]


def test_a_refused_commit_stays_refused(node: Any, queue: Any) -> None:
    """A part that is not there whole: the task said so too early, or it is somebody's invention."""
    with bulk.staged(node, "job", 0, "q", run="r") as staged:
        part = part_of(staged, 0, 0, [b"x"])
        wrong = StagedPart("job", 0, "r", 0, 0, (("q", 2, 2),))
        with pytest.raises(mirrorq.NotConfirmed, match="1 chunk"):
            staged.commit([wrong], 30)
        with pytest.raises(mirrorq.NotConfirmed, match="refused"):
            staged.commit([part], 30)
    assert queue.qsize() == 0


def test_bad_input_changes_nothing(node: Any, queue: Any) -> None:
    for transaction, version in (("", 0), ("x" * 600, 0), ("job", -1)):
        with pytest.raises(mirrorq.ConfigError):
            bulk.staged(node, transaction, version, "q")
    with bulk.staged(node, "job", 0, "q") as staged, bulk.staged(node, "job", 0, "q") as other:
        with pytest.raises(mirrorq.ConfigError):
            staged.attempt(-1, 0)
        task = staged.attempt(0, 0)
        with pytest.raises(TypeError):
            task.put("text")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="properties"):
            task.put_many([b"a"], [b"", b""])
        task.put(b"a")
        part = task.finish(30)
        with pytest.raises(ValueError, match="finished"):
            task.put(b"b")
        with pytest.raises(ValueError, match="not part"):
            other.commit([part], 30)
        with pytest.raises(ValueError, match="partition 0"):
            staged.commit([part, part_of(staged, 0, 1, [b"a"])], 30)
        assert not staged.commit([part], 30).already
    with bulk.staged(node, "job", 1, "absent") as nowhere, pytest.raises(mirrorq.QueueNotFound):
        nowhere.commit([], 30)
    assert taken(queue, 1) == [b"a"]


def test_an_empty_version_can_be_committed(node: Any, queue: Any) -> None:
    with bulk.staged(node, "job", 0, "q") as staged:
        assert staged.attempt(0, 0).finish(30).count == 0
        assert staged.commit([], 30) == Committed(range(2, 2), False)
        assert staged.commit([], 30).already
    assert queue.qsize() == 0


def test_limits_hold_at_the_commit(stage: Stage, node: Any, queue: Any) -> None:
    """What is staged counts for nothing; a commit waits for room, is refused, or makes room."""
    node.set_policy("limit", "^q$", {"max-length": 3})
    stage.until(lambda: queue.status().policy == "limit")
    queue.put(b"old").result(30)
    with bulk.staged(node, "job", 0, "q") as staged:
        part = part_of(staged, 0, 0, [b"a", b"b", b"c"])
        with pytest.raises(mirrorq.Full, match="the queue is full"):
            staged.commit([part], 0.2)
        queue.get(timeout=30).ack().result(30)
        assert not staged.commit([part], 30).already
    with bulk.staged(node, "job", 1, "q") as staged:
        part = part_of(staged, 0, 0, [b"1", b"2", b"3", b"4"])
        with pytest.raises(mirrorq.NotConfirmed, match="never fit"):
            staged.commit([part], 30)
        node.set_policy("limit", "^q$", {"max-length": 3, "overflow": "drop-head"})
        stage.until(lambda: not queue.status().blocked_by)
        assert not staged.commit([part], 30).already
    stage.until(lambda: queue.qsize() == 3)
    assert taken(queue, 3) == [b"2", b"3", b"4"]


@case(THREADS, staged_timeout_ms=60_000)
def test_idle_runs_expire(stage: Stage, node: Any, queue: Any) -> None:
    with bulk.staged(node, "job", 0, "q") as staged:
        part = part_of(staged, 0, 0, [b"x"])
        assert queue.status().messages_staged == 1
        stage.run(60)
        stage.until(lambda: queue.status().messages_staged == 0)
        with pytest.raises(mirrorq.NotConfirmed, match="staged_timeout_ms"):
            staged.commit([part], 30)
    assert queue.qsize() == 0


def test_what_is_staged_outlives_a_restart() -> None:
    """Staged and committed bodies are where they were."""
    with SimulatedCluster(1) as cluster:
        node = cluster.node("a")
        node.queue("q")
        with bulk.staged(node, "job", 0, "q", run="r") as staged:
            part = part_of(staged, 0, 0, [b"a", b"b"])
        with bulk.staged(node, "other", 0, "q") as staged:
            staged.commit([part_of(staged, 0, 0, [b"1", b"2"])], 30)
        for end in (cluster.crash, cluster.stop):
            end("a")
            node = cluster.restart("a")
            queue = node.queue("q")
            if end == cluster.crash:
                assert queue.status().messages_staged == 2
                with bulk.staged(node, "job", 0, "q", run="r") as staged:
                    assert not staged.commit([part], 30).already
        assert taken(queue, 4) == [b"1", b"2", b"a", b"b"]


@case(THREADS, nodes=3)
def test_what_is_staged_outlives_its_master(stage: Stage) -> None:
    """Before the commit, and with the commit on its way: all rows come once."""
    queue = stage.queue("q")
    with bulk.staged(stage.host, "job", 0, "q") as staged:
        part = part_of(staged, 0, 0, [b"a", b"b"])
        stage.fail_over()
        assert queue.qsize() == 0
        assert not staged.commit([part], 30).already
    assert bulk.staged(stage.host, "job", 0, "q").commit([], 30).already
    assert taken(queue, 2) == [b"a", b"b"]


# --- Several queues -----------------------------------------------------------------------


def parts_for(staged: Staged, *queues: str) -> list[StagedPart]:
    """Two tasks, each with a row for each queue."""
    parts = []
    for partition in (0, 1):
        task = staged.attempt(partition, 0)
        for name in queues:
            task.put(b"%d for %s" % (partition, name.encode()), queue=name)
        parts.append(task.finish(30))
    return parts


def test_each_queue_shows_its_part(stage: Stage, node: Any, queue: Any) -> None:
    """The one that decides has rows or none; a second commit changes nothing anywhere."""
    with node.queue("r") as other, node.queue("s") as third:
        with bulk.staged(node, "job", 0, "q") as staged:
            parts = parts_for(staged, "q", "r")
            assert not staged.commit(parts, 30).already
            assert staged.commit(parts, 30).already
        with bulk.staged(node, "job", 1, "q") as staged:
            done = staged.commit(parts_for(staged, "r", "s"), 30)
            assert (len(done.sequences), done.already) == (0, False)
        assert taken(queue, 2) == [b"0 for q", b"1 for q"]
        assert taken(other, 4) == [b"0 for r", b"1 for r"] * 2
        assert taken(third, 2) == [b"0 for s", b"1 for s"]
        for one in (queue, other, third):
            stage.until(lambda one=one: one.status().messages_staged == 0)


def test_an_abort_reaches_every_queue(stage: Stage, node: Any, queue: Any) -> None:
    with node.queue("r") as other, bulk.staged(node, "job", 0, "q") as staged:
        parts = parts_for(staged, "q", "r")
        assert other.status().messages_staged == 2
        assert staged.abort(parts, 30)
        assert staged.abort(parts, 30)
        stage.until(lambda: other.status().messages_staged == 0)
        with pytest.raises(mirrorq.NotConfirmed, match="given up"):
            staged.commit(parts, 30)
        assert (queue.qsize(), other.qsize()) == (0, 0)


@case(THREADS, sealed_timeout_ms=60_000)
@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_sealed_queue_asks(stage: Stage, node: Any, queue: Any, is_deleted: bool) -> None:
    """The driver died between seal and commit: the queue that decides gives the run up, and a
    driver that comes back late is refused. Where that queue is deleted nobody decides any more."""
    other = node.queue("r")
    with bulk.staged(node, "job", 0, "q") as staged:
        parts = parts_for(staged, "q", "r")
        staged._seal(parts, None)
        assert other.status().messages_staged == 2
        if is_deleted:
            queue.delete()
        stage.run(60)
        stage.until(lambda: other.status().messages_staged == 0)
        if not is_deleted:
            with pytest.raises(mirrorq.NotConfirmed):
                staged.commit(parts, 30)
            with bulk.staged(node, "job", 0, "q") as again:
                assert not again.commit(parts_for(again, "q", "r"), 30).already
            assert taken(queue, 2) == [b"0 for q", b"1 for q"]
            assert taken(other, 2) == [b"0 for r", b"1 for r"]
    assert other.qsize() == 0


def test_a_queue_is_deleted_when_it_has_told_the_others(node: Any, queue: Any) -> None:
    with node.queue("r") as other, bulk.staged(node, "job", 0, "q") as staged:
        staged.commit(parts_for(staged, "r"), 30)
        queue.delete()
        assert taken(other, 2) == [b"0 for r", b"1 for r"]
