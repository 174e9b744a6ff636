"""Reading without taking, and taking without reading: extents, batches, leases, claims."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from conformance.faces import THREADS, WAIT_S, Stage, case, fill, got
from mirrorq import Empty, NoQuorum, PreconditionFailed, QueueDown, ShutDown, bulk

ENDLESS = 2**70


def sequences(queue: Any, first: int, last: int) -> list[int]:
    """What read() shows of a range."""
    found: list[int] = []
    for batch in bulk.reader(queue).read(first, last):
        found += range(batch.first, batch.last + 1)
    return found


# --- Reading ------------------------------------------------------------------------------


@case(THREADS)
def test_batches_hold_what_was_put_and_nothing_is_taken(stage: Stage) -> None:
    """The bodies come in order, with their sequences, and all of them can still be got."""
    queue, bodies = stage.queue(), [b"%d" % number for number in range(1000)]
    queue.put_many(bodies[:600]).result(WAIT_S)
    queue.put_many(bodies[600:]).result(WAIT_S)
    extent = bulk.extent(queue)
    assert (extent.next_sequence, extent.messages, extent.ready) == (1001, 1000, 1000)
    batches = list(bulk.reader(queue).read(1, extent.next_sequence - 1, extent=extent))
    assert [body for batch in batches for body in batch.bodies()] == bodies
    assert sum(batch.count for batch in batches) == 1000
    assert {batch.delivery_count for batch in batches} == {1}
    assert abs(batches[0].timestamp_us / 1e6 - queue.browse()[0].timestamp) < 1
    assert len(queue.get_many(1, WAIT_S)) == 1


@case(THREADS)
def test_the_columns_are_an_arrow_binary_array(stage: Stage, queue: Any) -> None:
    """Offsets are int32 from 0, one more than messages; bodies stand end to end."""
    queue.put_many([b"a", b"", b"ccc"]).result(WAIT_S)
    (batch,) = bulk.reader(queue).read(1, 3)
    (offsets, values), properties = batch.columns
    assert struct.unpack("<4i", offsets) == (0, 1, 1, 4)
    assert bytes(values) == b"accc"
    assert properties is batch.properties() is None
    queue.put(b"x", headers={"n": 1, "b": b"\0"}, message_id="m", key="k").result(WAIT_S)
    (batch,) = bulk.reader(queue).read(4, 4)
    (found,) = batch.properties()
    assert (found.headers, found.message_id, found.key) == ({"n": 1, "b": b"\0"}, "m", "k")


@case(THREADS)
def test_what_was_acked_is_left_out(stage: Stage, queue: Any) -> None:
    """Frames are cut to what lives; ranges tell the same; what is held is shown too."""
    fill(queue, 10)
    held = got(queue, 10)
    queue.ack_many([held[0], held[4], held[5]]).result(WAIT_S)
    extent = bulk.extent(queue)
    assert (extent.messages, extent.unacknowledged) == (7, 7)
    assert bulk.reader(queue).live_ranges(1, 10, extent) == [(2, 4), (7, 10)]
    assert bulk.reader(queue).live_ranges(4, 7, extent) == [(4, 4), (7, 7)]
    assert sequences(queue, 1, 100) == [2, 3, 4, 7, 8, 9, 10]
    held[1].nack().result(WAIT_S)
    counts = {batch.first: batch.delivery_count for batch in bulk.reader(queue).read(2, 4)}
    assert counts == {2: 2, 3: 1}


@case(THREADS)
def test_many_pages_are_one_answer(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page is bounded in bytes and an answer in ranges; what is read is not."""
    monkeypatch.setattr("mirrorq.node.copy_reader.RANGES_MAX", 3)
    queue = stage.queue()
    for _ in range(5):
        queue.put_many([b"x" * 10_000] * 20).result(WAIT_S)
    assert sum(batch.count for batch in bulk.reader(queue).read(1, 100, bytes_max=1000)) == 100
    assert sequences(queue, 37, 61) == list(range(37, 62))
    for message in got(queue, 100):
        if message.sequence % 2:
            message.ack().result(WAIT_S)
    even = list(range(2, 101, 2))
    assert bulk.reader(queue).live_ranges(1, 100) == [(number, number) for number in even]
    assert sequences(queue, 1, 100) == even


@case(THREADS)
def test_what_lies_beyond_the_queue_is_read(stage: Stage, queue: Any) -> None:
    """No mistake: "to the end" may be said with any number."""
    queue.put(b"one").result(WAIT_S)
    (batch,) = bulk.reader(queue).read(0, ENDLESS)
    assert batch.bodies() == [b"one"]
    assert bulk.reader(queue).live_ranges(1, ENDLESS) == [(batch.first, batch.last)]
    assert bulk.reader(queue).sequence_at(float("inf")) == batch.last + 1


@case(THREADS)
def test_a_time_finds_its_first_message(stage: Stage, queue: Any) -> None:
    """Messages are found by when they were published; after the last comes the next sequence."""
    fill(queue, 3)
    old = queue.browse()[0].timestamp
    stage.run(10)
    fill(queue, 3)
    found = [bulk.reader(queue).sequence_at(time) for time in (0, old + 5, old + 3600)]
    assert found == [1, 4, 7]


@case(THREADS)
def test_reading_a_deleted_queue_is_an_error(stage: Stage, queue: Any) -> None:
    queue.put(b"x").result(WAIT_S)
    queue.delete()
    with pytest.raises((QueueDown, ShutDown)):
        list(bulk.reader(queue).read(1, 1))


@case(THREADS, nodes=3)
def test_every_copy_shows_the_same(stage: Stage, queue: Any) -> None:
    """Each of three nodes answers from its own copy, no older than what the master has said."""
    fill(queue, 5000)
    queue.ack_many(got(queue, 10)).result(WAIT_S)
    extent = bulk.extent(queue)
    copies = [stage.cluster.node(name).queue("orders") for name in "abc"] + [queue]
    shown = [bulk.reader(copy).live_ranges(1, 5000, extent) for copy in copies]
    assert shown == [[(11, 5000)]] * 4
    read = [
        [
            body
            for batch in bulk.reader(copy).read(1, 5000, extent=extent)
            for body in batch.bodies()
        ]
        for copy in copies
    ]
    assert read == [[b"%d" % number for number in range(10, 5000)]] * 4


@case(THREADS, nodes=3)
def test_a_node_without_a_copy_says_who_has_one(stage: Stage) -> None:
    queue = stage.alone()
    queue.put(b"x").result(WAIT_S)
    with pytest.raises(QueueDown, match="read from a"):
        list(bulk.reader(queue).read(1, 1))


# --- Leases -------------------------------------------------------------------------------


@case(THREADS)
def test_a_lease_of_many_comes_without_pauses(stage: Stage, queue: Any) -> None:
    """The master hands out 4,096 messages at a time: twenty portions take no twenty pauses."""
    fill(queue, 80_000)
    begun = stage.cluster.now
    with bulk.lease(queue) as lease:
        assert lease.count == 80_000
        assert stage.cluster.now - begun < 0.5
        assert lease.ack(WAIT_S) == 80_000


@case(THREADS)
def test_a_lease_holds_and_acks(stage: Stage) -> None:
    """Nobody else gets what is leased; an ack ends all of it, and says how many."""
    queue, other = stage.queue(), stage.queue()
    fill(queue, 1000)
    with bulk.lease(queue, 990, "a job") as lease:
        assert (lease.count, lease.ranges) == (990, ((1, 990),))
        (batch, *_) = bulk.reader(queue).read(*lease.ranges[0])
        assert batch.bodies()[:2] == [b"0", b"1"]
        assert other.get(timeout=WAIT_S).sequence == 991
        assert lease.ack(WAIT_S) == 990
    assert bulk.extent(queue).messages == 10


@case(THREADS)
def test_what_is_not_acked_goes_back_to_its_place(stage: Stage) -> None:
    """Leaving the block, or closing the handle, returns the messages, counted as a delivery."""
    queue, other = stage.queue(), stage.queue()
    queue.put_many([b"a", b"b", b"c"]).result(WAIT_S)
    with bulk.lease(queue, 1) as lease:
        assert lease.count == bulk.extent(other).unacknowledged == 1
    assert bulk.lease(queue, 2).count == 2
    queue.close()
    messages = got(other, 3)
    assert [message.body for message in messages] == [b"a", b"b", b"c"]
    assert [message.delivery_count for message in messages] == [3, 2, 1]


@case(THREADS)
def test_a_lease_of_an_empty_queue_is_empty(stage: Stage) -> None:
    """Nothing is waited for: a lease takes what is ready now."""
    with bulk.lease(stage.queue()) as lease:
        assert (lease.count, lease.ranges, lease.ack(WAIT_S)) == (0, (), 0)


@case(THREADS, consumer_timeout_ms=1000)
def test_a_lease_outlives_the_consumer_timeout(stage: Stage) -> None:
    """What ends consumers that hang does not end a lease whose connection lives."""
    queue, other = stage.queue(), stage.queue()
    fill(queue, 2)
    lease = bulk.lease(queue)
    stage.run(5)
    with pytest.raises(Empty):
        other.get(timeout=0.2)
    assert lease.ack(WAIT_S) == 2


@case(THREADS, nodes=3)
def test_a_lease_goes_over_a_change_of_master(stage: Stage, queue: Any) -> None:
    """When the master ends the messages are taken again, and acked once."""
    fill(queue, 500)
    lease = bulk.lease(queue, 400)
    stage.fail_over()
    assert lease.ack(60) == 400
    assert bulk.extent(queue, 60).messages == 100


@case(THREADS)
def test_a_claim_has_the_queue_alone_and_acks_by_sequence(stage: Stage) -> None:
    """Others are refused and told who has it; what was acked is gone, the rest stays."""
    queue, other = stage.queue(), stage.queue()
    fill(queue, 10)
    queue.put(b"later", delay=3600).result(WAIT_S)
    with bulk.claim(queue, "query 17") as claim:
        with pytest.raises(PreconditionFailed, match="query 17 on node"):
            other.get(timeout=WAIT_S)
        with pytest.raises(PreconditionFailed, match="query 17 on node"):
            bulk.claim(other, "query 18", timeout=0.3)
        found = [claim.ack(1, 4), claim.ack(1, 4), claim.ack(9, 11)]
        assert found == [4, 0, 3]
        assert bulk.reader(queue).live_ranges(1, 100, bulk.extent(queue)) == [(5, 8)]
    assert other.get(timeout=WAIT_S).sequence == 5


@case(THREADS)
def test_a_claim_waits_for_who_holds_messages(stage: Stage) -> None:
    """While somebody holds messages, their holder is named; then the claim is given."""
    queue, other = stage.queue(), stage.queue()
    fill(queue, 2)
    message = other.get(timeout=WAIT_S)
    with pytest.raises(PreconditionFailed, match=r"unacknowledged|other consumers"):
        bulk.claim(queue, "me", timeout=0.3)
    other.shutdown(immediate=True)
    message.ack().result(WAIT_S)
    with bulk.claim(queue, "me", timeout=WAIT_S) as claim:
        assert claim.ack(1, 2) == 1


@case(THREADS)
def test_a_claim_that_was_given_up_acks_nothing(stage: Stage) -> None:
    """An ack by sequence needs the claim: without it nothing ends."""
    queue, other = stage.queue(), stage.queue()
    fill(queue, 2)
    claim = bulk.claim(queue, "first")
    claim.close()
    with (
        bulk.claim(other, "second", timeout=WAIT_S),
        pytest.raises(PreconditionFailed, match="second"),
    ):
        claim.ack(1, 2)
    with pytest.raises(PreconditionFailed, match="nobody"):
        claim.ack(1, 2)
    assert bulk.extent(queue).messages == 2


@case(THREADS)
def test_a_lease_and_a_claim_keep_the_queue(stage: Stage) -> None:
    """They are a use of it, though no body was fetched."""
    queue, other = stage.queue(), stage.queue()
    fill(queue, 1)
    with bulk.lease(other) as lease:
        with pytest.raises(PreconditionFailed, match=r"message\(s\) that somebody holds"):
            queue.delete(if_unused=True)
        lease.ack(WAIT_S)
    with bulk.claim(other), pytest.raises(PreconditionFailed, match=r"1 consumer\(s\)"):
        queue.delete(if_unused=True)
    stage.run(1)
    queue.delete(if_unused=True)


def fail_at(queue: Any, call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a handle lose its cluster when it hears the answer to its n-th question."""
    counts: Callable[[float], object] = queue._handle.counts
    asked: list[int] = []

    def counts_or_none(timeout: float = 5.0) -> object:
        asked.append(1)
        found = counts(timeout)
        if len(asked) == call:
            raise NoQuorum("no contact with a majority")
        return found

    monkeypatch.setattr(queue._handle, "counts", counts_or_none)


@case(THREADS)
@pytest.mark.parametrize("what", ["claim", "lease"])
def test_what_met_trouble_is_not_in_its_own_way(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, what: str, queue: Any
) -> None:
    """The caller has no claim and no lease, so the master has none: nothing stays held."""
    fill(queue, 3)
    fail_at(queue, 1 if what == "claim" else 2, monkeypatch)
    with pytest.raises(NoQuorum):
        getattr(bulk, what)(queue)
    stage.until(lambda: bulk.extent(queue).ready == 3)
    if what == "lease":
        assert bulk.lease(queue).count == 3
        return
    with bulk.claim(queue, "me", timeout=WAIT_S) as claim:
        assert claim.ack(1, 1) == 1
