"""Offsets of a stream without Spark: the calls that Spark makes, in its order, in this process."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count

import pytest

import mirrorq
from mirrorq import bulk
from mirrorq.api.handle import Handle
from mirrorq.api.queue import MirroredQueue
from mirrorq.bulk.leases import Claim
from mirrorq.client.client import Client
from mirrorq.errors import MirrorQError, NoQuorum, PreconditionFailed, QueueDown
from pyspark_mirrorq import stream_driver
from pyspark_mirrorq.losses import DataLossError
from pyspark_mirrorq.options import parse
from pyspark_mirrorq.snapshot import snapshot
from pyspark_mirrorq.stream_driver import StreamDriver
from pyspark_mirrorq.stream_reader import SEQUENCE_MAX, QueueStream

from .conftest import DEADLINE_S, until, wait_known

Offset = dict[str, dict[str, int | str]]
_numbers = count(1)


@pytest.fixture
def pair(client: Client) -> Iterator[list[MirroredQueue]]:
    """Two queues whose names begin alike."""
    number = next(_numbers)
    made = [client.queue(f"pair-{number}-{side}", timeout=60) for side in ("left", "right")]
    wait_known(client, names(made))
    yield made
    for queue in made:
        queue.delete()
        queue.close()


Opening = Callable[..., QueueStream]


@pytest.fixture
def opening(client: Client) -> Iterator[Opening]:
    """A stream's driver, with options by name; stopped at the end."""
    opened: list[QueueStream] = []

    def open_stream(**options: object) -> QueueStream:
        given = {"endpoints": ",".join(client.endpoints), "timeout": "120s", "mode": "drain"}
        given |= {name: str(value) for name, value in options.items()}
        opened.append(QueueStream(parse(given), ["sequence"]))
        return opened[-1]

    yield open_stream
    for one in opened:
        one.stop()


def names(queues: list[MirroredQueue]) -> list[str]:
    return [queue.name for queue in queues]


def after(stream: QueueStream, start: Offset) -> Offset:
    """Where the next batch ends, once there is one."""
    end = stream.latestOffset(start)
    while end == start:
        end = stream.latestOffset(start)
    return end


def test_a_stream_says_whether_it_takes() -> None:
    """Without the option mode nothing is asked of a cluster: the error names both words."""
    options = parse({"endpoints": "tcp://127.0.0.1:1", "queue": "orders"})
    with pytest.raises(mirrorq.ConfigError, match=r'mode is missing: .*"drain".*"browse"'):
        QueueStream(options, ["sequence"])


def test_trouble_at_the_second_queue_leaves_none_out(
    pair: list[MirroredQueue], opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster cannot be asked when the second of two queues is looked up: the stream begins
    with both, and holds both."""
    parts_of, failed = stream_driver.parts_of, []

    def parts_or_none(client: Client, name: str, timeout_s: float) -> list[MirroredQueue]:
        if name == pair[1].name and not failed:
            failed.append(name)
            raise mirrorq.NoQuorum("no contact with a majority")
        return parts_of(client, name, timeout_s)

    monkeypatch.setattr(stream_driver, "parts_of", parts_or_none)
    stream = opening(queue=",".join(names(pair)))
    assert sorted(stream.initialOffset()) == names(pair)
    assert failed
    for queue in pair:
        with pytest.raises(mirrorq.PreconditionFailed, match="a stream of queue"):
            bulk.claim(queue, timeout=0.1)


def test_trouble_while_claiming_is_not_in_the_streams_own_way(
    pair: list[MirroredQueue], opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master has given the claim, and its word does not come: the stream claims again."""
    subscribe, failed = Claim._subscribe, []

    def subscribe_unheard(claim: Claim) -> None:
        subscribe(claim)
        if not failed:
            failed.append(claim)
            raise mirrorq.QueueDown("the master did not answer")

    monkeypatch.setattr(Claim, "_subscribe", subscribe_unheard)
    stream = opening(queue=pair[0].name)
    assert stream.initialOffset() == {
        pair[0].name: {"from": 1, "seq": 1, "id": bulk.identity(pair[0])}
    }
    assert failed


def test_latest_acks_nothing_that_was_there_before(
    pair: list[MirroredQueue], opening: Opening
) -> None:
    """startingOffsets = latest: only what came later is read, and only that is acked."""
    queue = pair[0]
    queue.put_many([b"old"] * 5).result(120)
    stream = opening(queue=queue.name, startingOffsets="latest")
    start = stream.initialOffset()
    assert start == {queue.name: {"from": 6, "seq": 6, "id": bulk.identity(queue)}}
    queue.put_many([b"new"] * 3).result(120)
    end = after(stream, start)
    (stretch,) = stream.partitions(start, end)
    assert stretch.ranges == [(6, 8)]
    assert bulk.extent(queue, 120).messages == 8
    stream.commit(end)
    assert bulk.reader(queue).live_ranges(1, 8, bulk.extent(queue, 120)) == [(1, 5)]


def test_a_batch_waits_for_the_least_and_no_longer_than_allowed(
    pair: list[MirroredQueue], opening: Opening
) -> None:
    """minOffsetsPerTrigger counts all queues together; after maxTriggerDelay fewer are enough."""
    for queue in pair:
        queue.put_many([b"x"] * 4).result(120)
    stream = opening(queue=",".join(names(pair)), minOffsetsPerTrigger=9)
    start = stream.initialOffset()
    assert stream.latestOffset(start) == start
    pair[1].put(b"x").result(120)
    assert [place["seq"] for place in after(stream, start).values()] == [5, 6]
    stream.stop()
    stream = opening(queue=",".join(names(pair)), minOffsetsPerTrigger=10, maxTriggerDelay="0s")
    assert [place["seq"] for place in after(stream, start).values()] == [5, 6]


def test_sequences_beyond_the_end_are_a_loss(pair: list[MirroredQueue], client: Client) -> None:
    """Named as such; without them as many stretches as for what is there."""
    queue = pair[0]
    queue.put_many([b"x"] * 10).result(120)
    given = {"endpoints": ",".join(client.endpoints), "queue": queue.name}
    far = SEQUENCE_MAX - 1
    for text, gone in (("5-10,300", "300"), (f"100-{far}", "100 to"), ("5-20", "11 to 20")):
        with pytest.raises(DataLossError, match=f"sequences {gone}.*The queue goes up to 10"):
            snapshot(parse({**given, "sequences": text}))
    kept = parse({**given, "sequences": f"5-{far}", "failOnDataLoss": "false"})
    assert [one.ranges for one in snapshot(kept)] == [[(5, 10)]]


def test_a_paused_queue_hands_out_nothing(pair: list[MirroredQueue], opening: Opening) -> None:
    """To who takes. Who only looks sees it."""
    queue = pair[0]
    queue.put(b"x").result(120)
    stream, looking = opening(queue=queue.name), opening(queue=queue.name, mode="browse")
    start = stream.initialOffset()
    queue.pause()
    assert stream.latestOffset(start) == start
    assert after(looking, looking.initialOffset())[queue.name]["seq"] == 2
    queue.resume()
    assert after(stream, start)[queue.name]["seq"] == 2


def test_a_pattern_is_looked_at_again(
    client: Client, pair: list[MirroredQueue], opening: Opening
) -> None:
    """A queue that is declared while the stream runs comes in, from its beginning."""
    stem = pair[0].name.removesuffix("left")
    stream = opening(queuePattern=f"{stem}.*", startingOffsets="latest")
    start = stream.initialOffset()
    assert sorted(start) == names(pair)
    with client.queue(f"{stem}third", timeout=120) as third:
        third.put(b"x").result(120)
        end = after(stream, start)
        assert end == {
            **start,
            third.name: {"from": 1, "seq": 2, "id": bulk.identity(third), "count": 1},
        }
        assert [stretch.queue for stretch in stream.partitions(start, end)] == [third.name]
        stream.commit(end)
        assert bulk.extent(third, 120).messages == 0
        third.delete()


@pytest.mark.parametrize("error", [NoQuorum, QueueDown])
def test_an_available_now_query_waits_for_a_failover(
    pair: list[MirroredQueue],
    opening: Opening,
    monkeypatch: pytest.MonkeyPatch,
    error: type[MirrorQError],
) -> None:
    """It would end as if nothing was there."""
    stream = opening(queue=pair[0].name)
    start = stream.initialOffset()
    pair[0].put_many([b"x"] * 3).result(120)
    stream.prepareForTriggerAvailableNow()
    see, troubles = StreamDriver.see, [error("no master"), error("no master")]

    def interrupted(driver: StreamDriver) -> object:
        if troubles:
            raise troubles.pop()
        return see(driver)

    monkeypatch.setattr(StreamDriver, "see", interrupted)
    assert stream.latestOffset(start)[pair[0].name]["seq"] == 4
    assert not troubles


@pytest.mark.parametrize(
    "starting",
    [{"startingOffsets": 2}, {"startingTimestamp": int(time.time() + 86_400) * 1000}],
    ids=["a sequence", "a time"],
)
def test_a_start_is_of_the_queues_that_were_there(
    client: Client, pair: list[MirroredQueue], opening: Opening, starting: dict[str, int]
) -> None:
    """Of a queue that comes later nothing is left out."""
    for queue in pair:
        queue.put(b"before").result(120)
    stem = pair[0].name.removesuffix("left")
    stream = opening(queuePattern=f"{stem}.*", **starting)
    start = stream.initialOffset()
    assert [start[queue.name]["seq"] for queue in pair] == [2, 2]
    with client.queue(f"{stem}third", timeout=120) as third:
        third.put_many([b"x"] * 3).result(120)
        end = after(stream, start)
        assert (end[third.name]["from"], end[third.name]["seq"]) == (1, 4)
        stream.commit(end)
        third.delete()


def test_a_micro_batch_asks_its_cluster_three_things(
    pair: list[MirroredQueue], opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How far the queue goes, what of it lives, and the ack: each is a round trip. Where the
    copies are is known from the batch before."""
    monkeypatch.setattr(stream_driver, "ORDER_S", 3600.0)
    queue, asked = pair[0], list[str]()
    stream = opening(queue=queue.name, maxOffsetsPerTrigger=10)

    def count_calls(kind: type, name: str) -> None:
        own = getattr(kind, name)

        def counted(self: object, *given: object, **named: object) -> object:
            asked.append(name)
            return own(self, *given, **named)

        monkeypatch.setattr(kind, name, counted)

    def batch(start: Offset) -> Offset:
        queue.put_many([b"x"] * 4).result(120)
        asked.clear()
        end = after(stream, start)
        report = stream.reportLatestOffset()
        assert report == {queue.name: {"seq": end[queue.name]["seq"], "depth": 4}}
        (stretch,) = stream.partitions(start, end)
        assert stretch.ranges == [(start[queue.name]["seq"], end[queue.name]["seq"] - 1)]
        return end

    first = batch(stream.initialOffset())
    count_calls(Handle, "begin_ask")
    count_calls(Client, "_ask")
    second = batch(first)
    stream.commit(first)
    assert len(asked) == 3
    batch(second)


@pytest.mark.parametrize("fails", [True, False])
def test_a_checkpoint_beyond_the_end_of_its_queue(
    pair: list[MirroredQueue], opening: Opening, fails: bool
) -> None:
    """Offsets beyond the queue's end are an error that names them, or are left out."""
    queue = pair[0]
    queue.put_many([b"x"] * 3).result(120)
    stream = opening(queue=queue.name, failOnDataLoss=fails)
    start, end = (
        {queue.name: {"from": 1, "seq": seq, "id": bulk.identity(queue)}} for seq in (3, 10)
    )
    if fails:
        with pytest.raises(DataLossError, match=r"sequences 4 to 9.*set back to an earlier copy"):
            stream.partitions(start, end)
    else:
        assert [one.ranges for one in stream.partitions(start, end)] == [[(3, 3)]]


def declared_again(client: Client, queue: MirroredQueue) -> MirroredQueue:
    """The queue is deleted, and another one takes its name."""
    queue.delete()
    return client.queue(queue.name, timeout=60)


@pytest.mark.parametrize("mode", ["drain", "browse"])
@pytest.mark.parametrize("fails", [True, False])
def test_a_checkpoint_of_a_queue_that_was_declared_again(
    pair: list[MirroredQueue], client: Client, opening: Opening, mode: str, fails: bool
) -> None:
    """The query was down meanwhile. What it has not read is neither acked nor passed over: an error
    that says so, or the new queue from its first message."""
    old = pair[0]
    old.put_many([b"old"] * 10).result(120)
    stream = opening(queue=old.name, mode=mode)
    end = after(stream, stream.initialOffset())
    stream.stop()
    queue = pair[0] = declared_again(client, old)
    queue.put_many([b"new"] * 15).result(120)
    again = opening(queue=queue.name, mode=mode, failOnDataLoss=fails)
    for call in (
        lambda: again.latestOffset(end),
        lambda: again.commit(end),
        lambda: again.partitions(end, end),
    ):
        if fails:
            with pytest.raises(DataLossError, match=r"deleted and declared again.*new checkpoint"):
                call()
        else:
            call()
    assert bulk.extent(queue, 120).messages == 15
    if not fails:
        last = after(again, end)
        assert last[queue.name]["seq"] == 16
        assert [one.ranges for one in again.partitions(end, last)] == [[(1, 15)]]
        assert [one.ranges for one in again.partitions(last, last)] == []


def test_a_queue_that_is_named_no_more(pair: list[MirroredQueue], opening: Opening) -> None:
    """A batch that Spark repeats is read with a claim; what Spark has committed is acked; then the
    queue is for others, and the offset has no place for it."""
    kept, left = pair
    for queue in pair:
        queue.put_many([b"x"] * 3).result(120)
    stream = opening(queue=",".join(names(pair)))
    start = stream.initialOffset()
    end = after(stream, start)
    stream.stop()
    again = opening(queue=kept.name)
    assert sorted(one.queue for one in again.partitions(start, end)) == names(pair)
    with pytest.raises(PreconditionFailed, match="a stream of queue"):
        left.get(timeout=0)
    left.put(b"others").result(120)
    kept.put(b"more").result(120)
    last = after(again, end)
    assert last == {kept.name: {**end[kept.name], "seq": 5, "count": 1}}
    with left.get(timeout=120) as message:
        assert message.body == b"others"
    assert [one.queue for one in again.partitions(end, last)] == [kept.name]


def test_a_queue_that_is_named_no_more_and_is_used_by_others(
    pair: list[MirroredQueue], opening: Opening, caplog: pytest.LogCaptureFixture
) -> None:
    """The stream does not wait for it: without an ack that is due it needs no claim."""
    kept, left = pair
    for queue in pair:
        queue.put(b"x").result(120)
    stream = opening(queue=",".join(names(pair)))
    end = after(stream, stream.initialOffset())
    stream.stop()
    bulk.claim(left, timeout=120).close()
    message = left.get(timeout=120)
    again = opening(queue=kept.name, claimTimeout="0s")
    assert after(again, end).keys() == {kept.name}
    assert re.search(rf"queue {left.name}, named no more, comes again", caplog.text)
    again.stop()
    message.ack().result(120)
    left.put(b"others").result(120)
    held = left.get(timeout=120)
    caplog.clear()
    assert after(opening(queue=kept.name, claimTimeout="0s"), end).keys() == {kept.name}
    assert "comes again" not in caplog.text
    held.ack().result(120)


@pytest.mark.parametrize("fails", [True, False])
def test_a_queue_of_a_pattern_that_is_deleted(
    client: Client, pair: list[MirroredQueue], opening: Opening, fails: bool
) -> None:
    """The query was down meanwhile: an error that says so, or the others go on."""
    stem = pair[0].name.removesuffix("left")
    with client.queue(f"{stem}third", timeout=120) as third:
        third.put(b"x").result(120)
        wait_known(client, [third.name])
        stream = opening(queuePattern=f"{stem}.*")
        start = stream.initialOffset()
        end = after(stream, start)
        stream.stop()
        third.delete()
    again = opening(queuePattern=f"{stem}.*", failOnDataLoss=fails)
    if fails:
        with pytest.raises(DataLossError, match=r"1 message.*are gone"):
            again.partitions(start, end)
        with pytest.raises(DataLossError, match=r"was deleted.*Leave it out of queuePattern"):
            again.latestOffset(end)
    else:
        assert [one.queue for one in again.partitions(start, end)] == []
        assert sorted(after(again, end)) == names(pair)


@pytest.mark.parametrize("fails", [True, False])
def test_a_queue_of_a_pattern_that_is_deleted_while_the_query_runs(
    client: Client, pair: list[MirroredQueue], opening: Opening, fails: bool
) -> None:
    """As while it was down; one of that name that comes after it is read from its first message."""
    stem = pair[0].name.removesuffix("left")
    with client.queue(f"{stem}third", timeout=120) as third:
        third.put_many([b"x"] * 3).result(120)
        wait_known(client, [third.name])
        stream = opening(queuePattern=f"{stem}.*", failOnDataLoss=fails)
        end = after(stream, stream.initialOffset())
        third.delete()
        assert stream._driver is not None
        held = stream._driver.held[third.name]
        until(lambda: held.is_deleted)
    if fails:
        with pytest.raises(DataLossError, match=r"was deleted.*Leave it out of queuePattern"):
            stream.latestOffset(end)
        return
    assert sorted(after(stream, end)) == names(pair)
    with client.queue(third.name, timeout=120) as again:
        again.put(b"new").result(120)
        wait_known(client, [again.name])
        end = after(stream, stream._position)
        assert (end[again.name]["from"], end[again.name]["seq"]) == (1, 2)
        again.delete()


def test_before_4_2_a_queue_that_came_while_the_query_was_down_is_read(
    client: Client,
    pair: list[MirroredQueue],
    opening: Opening,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """From its first message, and all is acked: Spark tells with the batch what was before."""
    stem = pair[0].name.removesuffix("left")
    options = {"queuePattern": f"{stem}.*", "startingOffsets": "latest"}
    stream = opening(**options)
    start = stream.initialOffset()
    stream.stop()
    with client.queue(f"{stem}third", timeout=120) as third:
        third.put_many([b"x"] * 4).result(120)
        wait_known(client, [third.name])
        again = opening(**options)
        end = again.latestOffset()
        assert "does not tell where this query began" in caplog.text
        assert [one.ranges for one in again.partitions(start, end)] == [[(1, 4)]]
        third.put(b"y").result(120)
        last = again.latestOffset()
        assert last[third.name]["from"] == 1
        assert [one.ranges for one in again.partitions(end, last)] == [[(5, 5)]]
        again.commit(end)
        again.commit(last)
        assert bulk.extent(third, 120).messages == 0
        third.delete()


def test_before_4_2_a_deleted_queue_is_missed(
    client: Client, pair: list[MirroredQueue], opening: Opening
) -> None:
    stem = pair[0].name.removesuffix("left")
    with client.queue(f"{stem}third", timeout=120) as third:
        wait_known(client, [third.name])
        stream = opening(queuePattern=f"{stem}.*")
        start = stream.initialOffset()
        stream.stop()
        third.delete()
    pair[0].put(b"x").result(120)
    again = opening(queuePattern=f"{stem}.*")
    with pytest.raises(DataLossError, match=r"was deleted.*Leave it out of queuePattern"):
        again.partitions(start, again.latestOffset())


@pytest.mark.parametrize("fails", [True, False])
def test_a_batch_that_is_repeated_misses_what_is_gone(
    pair: list[MirroredQueue], opening: Opening, caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    """The driver dies between plan and commit, and others take some before the next one begins: an
    error that names queue, sequences and counts, or the rest with a warning."""
    queue = pair[0]
    queue.put_many([b"x"] * 10).result(120)
    stream = opening(queue=queue.name, failOnDataLoss=fails)
    start = stream.initialOffset()
    end = after(stream, start)
    assert end == {queue.name: {"from": 1, "seq": 11, "id": bulk.identity(queue), "count": 10}}
    assert [one.ranges for one in stream.partitions(start, end)] == [[(1, 10)]]
    stream.stop()
    # Its goodbye is under way: who can have the queue alone is no longer in its way.
    bulk.claim(queue, timeout=120).close()
    taken = [queue.get(timeout=120) for _ in range(3)]
    queue.ack_many(taken).result(120)
    again = opening(queue=queue.name, failOnDataLoss=fails)
    says = rf"3 message\(s\) of queue '{queue.name}' are gone: of 10 within sequences 1 to 10"
    if fails:
        with pytest.raises(DataLossError, match=f"{says}.*7 are left.*set failOnDataLoss to false"):
            again.partitions(start, end)
    else:
        assert [one.ranges for one in again.partitions(start, end)] == [[(4, 10)]]
        assert re.search(says, caplog.text)


def test_what_a_batch_holds_is_counted_within_its_limit(
    pair: list[MirroredQueue], opening: Opening
) -> None:
    """What others have acked within it is no loss: it was not there when the batch was made."""
    queue = pair[0]
    queue.put_many([b"x"] * 10).result(120)
    queue.ack_many([queue.get(timeout=120) for _ in range(4)]).result(120)
    stream = opening(queue=queue.name, maxOffsetsPerTrigger=5)
    start = stream.initialOffset()
    end = after(stream, start)
    assert end == {queue.name: {"from": 1, "seq": 10, "id": bulk.identity(queue), "count": 5}}
    assert [one.ranges for one in stream.partitions(start, end)] == [[(5, 9)]]
    # Nothing new: the offset stays as it is, count and all, or Spark would make an empty batch.
    stream.commit(end)
    last = after(stream, end)
    assert last == {queue.name: {"from": 1, "seq": 11, "id": bulk.identity(queue), "count": 1}}
    assert stream.latestOffset(last) == last


def test_an_explicit_start_is_checked_when_a_stream_begins(
    pair: list[MirroredQueue], opening: Opening
) -> None:
    """Sequences that are gone, as failOnDataLoss says; beyond the end, and of queues that are not
    read, an error always."""
    queue = pair[0]
    queue.put_many([b"x"] * 6).result(120)
    queue.ack_many([queue.get(timeout=120) for _ in range(4)]).result(120)
    with pytest.raises(DataLossError, match=r"2 message\(s\).*sequences 3 to 4.*startingOffsets 3"):
        opening(queue=queue.name, startingOffsets=3).initialOffset()
    lenient = opening(queue=queue.name, startingOffsets=3, failOnDataLoss=False, mode="browse")
    assert lenient.initialOffset() == {
        queue.name: {"from": 3, "seq": 3, "id": bulk.identity(queue)}
    }
    with pytest.raises(mirrorq.ConfigError, match=r"startingOffsets is 8, but the next .* be 7"):
        opening(queue=queue.name, startingOffsets=8, mode="browse").initialOffset()
    given = f'{{"{queue.name}": 5, "other": 1}}'
    with pytest.raises(mirrorq.ConfigError, match="startingOffsets names 'other', which is not"):
        opening(queue=queue.name, startingOffsets=given, mode="browse").initialOffset()


def test_after_a_restart_spark_before_4_2_is_told_no_earlier_offset(
    pair: list[MirroredQueue], opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not tell where it is. So what the queue cannot be asked at first is asked until it
    answers, and a batch that would be too small is told: else Spark would begin anew."""
    queue = pair[0]
    queue.put_many([b"x"] * 3).result(120)
    ask, failed = stream_driver.Held.ask, []

    def ask_in_vain(held: stream_driver.Held) -> object:
        if not failed:
            failed.append(held)
            raise mirrorq.QueueDown("no master")
        return ask(held)

    monkeypatch.setattr(stream_driver.Held, "ask", ask_in_vain)
    stream = opening(queue=queue.name, minOffsetsPerTrigger=10)
    assert stream.latestOffset() == {queue.name: {"from": 1, "seq": 4, "id": bulk.identity(queue)}}
    assert failed


def test_a_claim_that_is_lost_names_who_has_the_queue(
    pair: list[MirroredQueue], opening: Opening, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another consumer came first after a change of master: what is committed waits for
    claimTimeout, then the error says who it is and what to do."""
    queue = pair[0]
    queue.put_many([b"x"] * 3).result(120)
    stream = opening(queue=queue.name, claimTimeout="1s")
    start = stream.initialOffset()
    end = after(stream, start)
    assert stream._driver is not None
    claim = stream._driver.held[queue.name].claim
    assert claim is not None
    claim.close()
    message = queue.get(timeout=120)
    with pytest.raises(mirrorq.PreconditionFailed, match=r"could not be had alone.*claimTimeout"):
        stream.commit(end)
    assert bulk.extent(queue, 120).messages == 3
    message.nack().result(120)
    stream.commit(end)
    assert bulk.extent(queue, 120).messages == 0


def test_a_stream_is_told_what_has_become_of_its_queue(
    pair: list[MirroredQueue], client: Client, opening: Opening
) -> None:
    """Its queue was deleted, its driver disconnected: the error names the queue, why, and what to
    do."""
    with client.queue(f"gone-{next(_numbers)}", timeout=60) as queue:
        stream = opening(queue=queue.name)
        start = stream.initialOffset()
        queue.delete()
        with pytest.raises(mirrorq.ShutDown, match=rf"'{queue.name}' .*deleted.*new checkpoint"):
            idle(stream, start)
    queue = pair[0]
    stream = opening(queue=queue.name)
    start = stream.initialOffset()
    assert stream._driver is not None
    client.disconnect(stream._driver.client.name, "maintenance")
    says = rf"'{queue.name}' .*maintenance.*start the query again"
    with pytest.raises(mirrorq.ShutDown, match=says):
        idle(stream, start)


STREAM = """
import sys
from pyspark_mirrorq.options import parse
from pyspark_mirrorq.stream_reader import QueueStream

endpoints, queue = sys.argv[1:]
stream = QueueStream(parse({"endpoints": endpoints, "queue": queue, "mode": "drain"}), ["sequence"])
print(stream.initialOffset(), flush=True)
sys.stdin.read()
"""


@pytest.mark.soak
def test_a_dead_drivers_claim_ends_with_its_connection(
    pair: list[MirroredQueue], opening: Opening, client: Client
) -> None:
    """The next stream waits for it within claimTimeout."""
    queue = pair[0]
    queue.put(b"x").result(120)
    driver = subprocess.Popen(
        [sys.executable, "-c", STREAM, ",".join(client.endpoints), queue.name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert driver.stdout is not None
        assert queue.name in driver.stdout.readline()
        with pytest.raises(mirrorq.PreconditionFailed, match=f"process {driver.pid} on .*mode ="):
            opening(queue=queue.name, claimTimeout="0s").initialOffset()
        driver.kill()
        stream = opening(queue=queue.name, claimTimeout="120s")
        assert stream.initialOffset() == {
            queue.name: {"from": 1, "seq": 1, "id": bulk.identity(queue)}
        }
    finally:
        driver.kill()
        driver.communicate()


def idle(stream: QueueStream, start: Offset) -> None:
    """Look for news until it raises."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        assert stream.latestOffset(start) == start


@pytest.mark.parametrize("option", [{"endingOffsets": 5}, {"endingTimestamp": 5}, {"sequences": 5}])
def test_a_stream_has_no_end(opening: Opening, option: dict[str, object]) -> None:
    """What only a batch can do is refused by name."""
    with pytest.raises(mirrorq.ConfigError, match=f"option {next(iter(option))} is of batch reads"):
        opening(queue="x", **option)
