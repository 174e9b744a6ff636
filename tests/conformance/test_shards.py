"""A sharded queue has the calls of any queue: what is of one shard, and what is of all.

The sharded face puts everything into one shard. Here messages go into all of them, on the handles
of a node, of a client and of a loop.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

from conformance.faces import ONE_RING, SHARDS, THREADS, WAIT_S, Stage, case, got, raised
from mirrorq import (
    AckRefused,
    ConfigError,
    Empty,
    Full,
    Message,
    PreconditionFailed,
    QueueNotFound,
    ShutDown,
    bulk,
)
from mirrorq.monitoring.health import judge
from mirrorq.protocol.shard_names import shard_of


def key_of(shard: int) -> str:
    return next(key for key in map(str, range(1000)) if shard_of(key, SHARDS) == shard)


def sharded(stage: Stage, name: str = "orders", shards: int = SHARDS) -> Any:
    queue = stage.queue(name, shards=shards)
    assert queue.shards == shards
    return queue


def put_into_all(queue: Any, each: int) -> None:
    """So many messages for each shard, confirmed."""
    for number in range(each * SHARDS):
        queue.put(b"%d" % number, key=key_of(number % SHARDS))
    queue.wait_for_confirms(WAIT_S)


# --- Opening ------------------------------------------------------------------------------


@case(ONE_RING)
def test_who_says_nothing_of_shards_finds_them(stage: Stage) -> None:
    """Declared by one, opened by others by its name alone, passive or not."""
    queue, other = sharded(stage), stage.queue()
    passive, plain = stage.queue(passive=True), stage.queue("plain")
    assert (other.shards, passive.shards, plain.shards) == (SHARDS, SHARDS, 0)
    other.put(b"one", key="k").result(WAIT_S)
    assert queue.get(timeout=WAIT_S).body == b"one"


@case(ONE_RING)
def test_another_number_is_refused_with_both(stage: Stage) -> None:
    """So is a sharded queue where a plain one is, and what makes no sense: nothing is made."""
    for wrong in ({"exclusive": True}, {"auto_delete": True}):
        with pytest.raises(ConfigError, match="cannot have shards"):
            stage.queue("orders", shards=2, **wrong)
    with pytest.raises(ConfigError, match="1 to 256"):
        stage.queue("orders", shards=0)
    with pytest.raises(ConfigError, match="that of a shard"):
        stage.queue("orders#shard0")
    assert stage.host.queues() == []
    stage.queue("orders", shards=SHARDS, max_length=3)
    stage.queue("plain")
    for options in ({}, {"shards": SHARDS}):
        with pytest.raises(PreconditionFailed, match="max-length=3, not 4"):
            stage.queue("orders", max_length=4, **options)
    with pytest.raises(PreconditionFailed, match="shards=3, not 6"):
        stage.queue("orders", shards=6)
    with pytest.raises(PreconditionFailed, match="not sharded"):
        stage.queue("plain", shards=2)
    with pytest.raises(PreconditionFailed, match="not exclusive"):
        stage.queue("orders", exclusive=True)


@case(ONE_RING)
def test_a_shard_is_a_queue_of_its_own(stage: Stage) -> None:
    """By number or by name, with its sequences."""
    queue = sharded(stage)
    shard = queue.shard(1)
    assert (shard.name, shard.shards) == ("orders#shard1", 0)
    queue.put_many([b"a", b"b"], key=key_of(1)).result(WAIT_S)
    named = stage.queue("orders#shard1", passive=True)
    assert [message.body for message in named.browse()] == [b"a", b"b"]
    message = shard.get(timeout=WAIT_S)
    assert (message.queue, message.shard, message.sequence) == ("orders", 1, 1)
    with pytest.raises(PreconditionFailed, match="one of the 3 shards"):
        shard.delete()
    for wrong in (-1, 3, True, "0"):
        with pytest.raises(PreconditionFailed, match="its shards are 0 to 2"):
            queue.shard(wrong)
    with pytest.raises(PreconditionFailed, match="no shards"):
        stage.queue("plain").shard(0)
    with pytest.raises(PreconditionFailed, match="name one of them"):
        stage.host.transfer_master("orders", "a")


@case(THREADS)
def test_a_shard_is_read_and_leased(stage: Stage) -> None:
    """The whole is refused with the name to use, staged writing too; a shard's name works."""
    queue = sharded(stage)
    put_into_all(queue, 2)
    shard = queue.shard(1)
    assert bulk.extent(shard).next_sequence == 3
    with bulk.lease(shard) as lease:
        assert lease.ranges == ((1, 2),)
    with pytest.raises(PreconditionFailed, match="orders#shard0"):
        bulk.staged(stage.host, "load", 0, "orders").attempt(0, 0).put_many([b"x"])
    staged = bulk.staged(stage.host, "load2", 0, "orders#shard1")
    task = staged.attempt(0, 0)
    task.put_many([b"x", b"y"])
    staged.commit([task.finish(timeout=WAIT_S)], timeout=WAIT_S)
    assert [message.body for message in shard.browse()] == [b"1", b"4", b"x", b"y"]
    if stage.face.name == "client":
        with pytest.raises(PreconditionFailed, match="orders#shard0"):
            bulk.open_reader(stage.host, "orders")
        assert bulk.open_reader(stage.host, "orders#shard1").live_ranges(1, 100) != []


# --- Publishing ---------------------------------------------------------------------------


@case(ONE_RING)
def test_a_key_has_its_shard_and_its_order(stage: Stage) -> None:
    """The documented hash; and each key's messages come in the order of their puts."""
    queue = sharded(stage)
    puts = [(f"k{number % 7}", b"%d" % number) for number in range(140)]
    confirmations = [(key, queue.put(body, key=key)) for key, body in puts]
    for key, confirmation in confirmations:
        assert confirmation.result(WAIT_S) >= 1
        assert confirmation.shard == shard_of(key, SHARDS)
    came: dict[Any, list[bytes]] = {}
    for message in got(queue, 140):
        came.setdefault(message.key, []).append(message.body)
    assert came == {key: [b for k, b in puts if k == key] for key, _ in puts}


@case(ONE_RING)
def test_without_a_key_shards_take_turns(stage: Stage) -> None:
    """Sequences are the shards' own; a put_many is in one, as one range. Listeners hear of all."""
    queue, heard = sharded(stage), []
    queue.add_confirm_listener(lambda put: heard.append((put.shard, threading.get_ident())))
    puts = [queue.put(b"x") for _ in range(9)]
    assert sorted(put.result(WAIT_S) for put in puts) == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert Counter(put.shard for put in puts) == {0: 3, 1: 3, 2: 3}
    stage.until(lambda: len(heard) == 9)
    assert Counter(shard for shard, _ in heard) == {0: 3, 1: 3, 2: 3}
    assert len({thread for _, thread in heard}) == 1
    assert queue.put_many([b"a", b"b", b"c"]).result(WAIT_S) == range(4, 7)
    assert queue.put_many([]).result(WAIT_S) == range(0)
    assert queue.qsize() == 12


@case(ONE_RING)
def test_a_full_shard_holds_up_only_its_keys(stage: Stage) -> None:
    """max-length is each shard's: without a key the others take what comes."""
    stage.host.set_policy("short", "^orders$", {"max-length": 2})
    queue, key = sharded(stage), key_of(2)
    for _ in range(2):
        queue.put(b"keyed", key=key).result(WAIT_S)
    with pytest.raises(Full):
        queue.put(b"no room", key=key, timeout=0.05)
    assert sorted(queue.put(b"free").shard for _ in range(4)) == [0, 0, 1, 1]
    stage.until(queue.full)
    with pytest.raises(Full, match="none of its 3 shards"):
        queue.put(b"no room", block=False)
    waiting = stage.begin(queue.put, b"waits")
    stage.until(lambda: queue.status().blocked_by)
    queue.get(timeout=WAIT_S, auto_ack=True)
    waiting.result(WAIT_S)


# --- Consuming ----------------------------------------------------------------------------


@case(ONE_RING)
def test_get_leaves_no_shard_out(stage: Stage) -> None:
    """One shard is always full; what comes to another is taken all the same, soon."""
    queue = sharded(stage)
    queue.put_many([b"many"] * 3000, key=key_of(0)).result(WAIT_S)
    queue.get(timeout=WAIT_S).ack()
    queue.put(b"few", key=key_of(1)).result(WAIT_S)
    bodies: list[bytes] = []
    while b"few" not in bodies and len(bodies) < 2000:
        messages = queue.get_many(10, timeout=WAIT_S)
        queue.ack_many(messages)
        bodies += [message.body for message in messages]
    assert b"few" in bodies


@case(ONE_RING)
def test_get_waits_for_any_shard(stage: Stage) -> None:
    """Whichever is the first to have something."""
    queue, producer = sharded(stage), stage.queue()
    assert isinstance(raised(queue.get, timeout=0.05), Empty)
    assert isinstance(raised(queue.get_nowait), Empty)
    for shard in (2, 0, 1):
        waiting = stage.begin(queue.get, timeout=WAIT_S)
        producer.put(b"x", key=key_of(shard)).result(WAIT_S)
        message = waiting.result(WAIT_S)
        assert message.shard == shard
        message.ack().result(WAIT_S)
    assert queue.get_many(10, timeout=0.05) == []


@case(ONE_RING)
def test_acks_of_several_shards_have_one_outcome(stage: Stage) -> None:
    """Done when all are; refused when one is."""
    queue, other = sharded(stage), stage.queue()
    put_into_all(queue, 2)
    messages = got(queue, 6)
    queue.ack_many(messages[:3]).result(WAIT_S)
    messages[3].ack().result(WAIT_S)
    with pytest.raises(AckRefused):
        queue.ack_many(messages[3:]).result(WAIT_S)
    assert queue.ack_many([]).result(WAIT_S) is None
    stage.until(lambda: stage.messages() == 0)
    other.put(b"y").result(WAIT_S)
    with pytest.raises(ValueError, match="not all messages"):
        queue.ack_many([other.get(timeout=WAIT_S)])


@case(ONE_RING)
def test_what_no_call_takes_goes_back_to_each_shard(stage: Stage) -> None:
    """Fetched ahead of calls that stop: another handle gets it, uncounted."""
    queue, other = sharded(stage), stage.queue()
    put_into_all(queue, 20)
    first = queue.get(timeout=WAIT_S)
    rest = got(other, 59)
    assert len({message.body for message in [first, *rest]}) == 60
    assert not any(message.redelivered for message in rest)


@case(ONE_RING)
def test_a_consumer_has_its_share_of_each_shard(stage: Stage) -> None:
    """With 6 of 3 shards at most two of each are unacknowledged; it is one consumer, in one
    thread. The prefetch can be changed."""
    queue, held = sharded(stage), []
    consumer = queue.consume(
        lambda m: held.append((m, threading.get_ident())), prefetch=6, ack="manual"
    )
    put_into_all(queue, 10)
    stage.run(1)
    assert Counter(message.shard for message, _ in held) == {0: 2, 1: 2, 2: 2}
    held[0][0].ack().result(WAIT_S)
    stage.until(lambda: len(held) == 7)
    assert held[6][0].shard == held[0][0].shard
    stage.until(lambda: queue.status().consumers == 1)
    consumer.prefetch = 30
    stage.until(lambda: len(held) == 30)
    assert stage.face.name == "aio" or len({thread for _, thread in held}) == 1
    queue.ack_many([message for message, _ in held[1:]]).result(WAIT_S)
    consumer.cancel()
    assert not consumer.is_active
    queue.put(b"left").result(WAIT_S)
    assert queue.get(timeout=WAIT_S).body == b"left"


# --- Questions and steps ------------------------------------------------------------------


@case(ONE_RING)
def test_browse_and_purge_are_of_all_shards(stage: Stage) -> None:
    """The oldest first by the masters' clocks, in order in each shard."""
    queue = sharded(stage)
    put_into_all(queue, 4)
    found = queue.browse()
    assert sorted(int(message.body) for message in found) == list(range(12))
    for shard in range(SHARDS):
        assert [m.sequence for m in found if m.shard == shard] == [1, 2, 3, 4]
    assert len(queue.browse(count_max=5)) == 5
    assert [message.sequence for message in queue.browse(start=4)] == [4, 4, 4]
    assert queue.purge() == 12
    assert queue.empty()


@case(ONE_RING)
def test_status_is_of_the_whole(stage: Stage) -> None:
    """Sums in one row; shards on request, in their order; health looks at the shards."""
    queue = sharded(stage, shards=11)
    stage.queue("other")
    for _ in range(22):
        queue.put(b"x")
    queue.wait_for_confirms(WAIT_S)
    stage.until(lambda: queue.status().messages_ready == 22)
    status = queue.status()
    assert (status.name, status.shards, status.state) == ("orders", 11, "running")
    assert [(row.name, row.shards) for row in stage.host.queues()] == [("orders", 11), ("other", 0)]
    rows = stage.host.queues(shards=True)
    names = [f"orders#shard{number}" for number in range(11)]
    assert [row.name for row in rows] == ["orders", *names, "other"]
    assert [row.messages for row in rows] == [22, *[2] * 11, 0]
    assert judge("a", stage.host.nodes(), rows).queue_count == 12


@case(ONE_RING)
def test_a_transaction_is_of_one_shard(stage: Stage) -> None:
    """The one of its first ack or key; what is of another is refused before anything is sent."""
    queue, first, second = sharded(stage), key_of(0), key_of(1)
    queue.put(b"a", key=first).result(WAIT_S)
    queue.put(b"b", key=second).result(WAIT_S)
    held = {message.shard: message for message in got(queue, 2)}
    with queue.transaction() as step:
        step.put(b"follows")
        step.ack(held[0])
        step.put(b"keyed", key=first)
        for call in (lambda: step.put(b"elsewhere", key=second), lambda: step.ack(held[1])):
            with pytest.raises(ValueError, match="one op of one shard"):
                call()
    assert len(step.confirmation.result(WAIT_S)) == 2
    assert step.confirmation.shard == 0
    held[1].ack().result(WAIT_S)
    assert [message.body for message in queue.browse()] == [b"follows", b"keyed"]
    with queue.transaction() as free:
        free.put(b"anywhere")
    assert len(free.confirmation.result(WAIT_S)) == 1


@case(ONE_RING)
def test_a_unique_key_chooses_the_shard_of_what_comes_by_an_exchange(stage: Stage) -> None:
    """As of what is put: without a key, repeats find the first message."""
    queue, exchange = sharded(stage), stage.exchange("events", "fanout")
    exchange.bind(queue)
    published = [exchange.publish("", b"x", unique="order 17") for _ in range(6)]
    for one in published:
        one.result(WAIT_S)
    assert [one.is_duplicate for one in published] == [False, *[True] * 5]
    assert stage.messages() == 1


@case(ONE_RING)
def test_messages_go_between_queues_with_shards_and_without(stage: Stage) -> None:
    """By ack_and_put and by an exchange, into the shard of the key; as dead letters, and back."""
    queue, dead, plain = sharded(stage), sharded(stage, "dead", 2), stage.queue("plain")
    stage.host.set_policy("dead", "^orders$", {"dead-letter-queue": "dead"})
    plain.put(b"1").result(WAIT_S)
    plain.get(timeout=WAIT_S).ack_and_put("orders", b"one", key=key_of(2)).result(WAIT_S)
    message = queue.get(timeout=WAIT_S)
    assert (message.body, message.shard) == (b"one", 2)
    message.ack_and_put("plain", b"back").result(WAIT_S)
    assert plain.get(timeout=WAIT_S).body == b"back"
    exchange = stage.exchange("events", "topic")
    exchange.bind(queue, "#")
    assert exchange.bindings() == [("orders", "#", "")]
    for shard in range(SHARDS):
        assert list(exchange.publish(key_of(shard), b"x").result(WAIT_S)) == ["orders"]
    messages = got(queue, SHARDS)
    assert sorted((m.shard, shard_of(str(m.key), SHARDS)) for m in messages) == [
        (shard, shard) for shard in range(SHARDS)
    ]
    for _ in range(6):
        assert list(exchange.publish("", b"no key").result(WAIT_S)) == ["orders"]
    assert [(m.body, m.ack().result(WAIT_S)) for m in got(queue, 6)] == [(b"no key", None)] * 6
    exchange.unbind("orders", "#")
    assert exchange.publish("k", b"x").result(WAIT_S) == {}
    for message in messages:
        message.nack(requeue=False).result(WAIT_S)
    stage.until(lambda: dead.qsize() == SHARDS)
    assert queue.status().warnings == ()
    assert dead.redrive() == SHARDS
    back = got(queue, SHARDS)
    assert sorted((m.shard, shard_of(str(m.key), SHARDS)) for m in back) == [
        (shard, shard) for shard in range(SHARDS)
    ]


# --- Ends ---------------------------------------------------------------------------------


@case(ONE_RING)
def test_shutdown_drains_all_shards(stage: Stage) -> None:
    """No puts more; gets until nothing is ready anywhere."""
    queue = sharded(stage)
    put_into_all(queue, 2)
    queue.shutdown()
    for options in ({}, {"key": "k"}):
        with pytest.raises(ShutDown):
            queue.put(b"y", **options)
    assert len(got(queue, 6)) == 6
    with pytest.raises(ShutDown):
        queue.get(timeout=WAIT_S)


@case(ONE_RING)
def test_deleting_ends_all_shards(stage: Stage) -> None:
    """For every handle; the name is free for another number."""
    queue, other, ended = sharded(stage), stage.queue(), []
    other.consume(lambda _: None, ack="manual", on_cancel=ended.append)
    put_into_all(queue, 1)
    with pytest.raises(PreconditionFailed, match="1 consumer"):
        queue.delete(if_unused=True)
    with pytest.raises(PreconditionFailed, match=r"message\(s\)"):
        queue.delete(if_empty=True)
    queue.delete()
    stage.until(lambda: isinstance(raised(queue.put, b"y"), ShutDown))
    stage.until(lambda: len(ended) == 1)
    with pytest.raises(ShutDown):
        queue.get(timeout=WAIT_S)
    with pytest.raises(QueueNotFound):
        stage.queue(passive=True)
    stage.until(lambda: stage.host.queues(shards=True) == [])
    assert sharded(stage, shards=5).put(b"z").result(WAIT_S) == 1


@case(ONE_RING, nodes=3)
def test_a_node_ends_and_its_shards_go_on(stage: Stage) -> None:
    """Masters are on all nodes; each key's messages come in order, every one of them."""
    queue = sharded(stage)
    put_into_all(queue, 1)
    rows = stage.host.queues(shards=True)
    assert {row.master for row in rows if not row.shards} == {"a", "b", "c"}
    stage.run(2)
    puts = []
    for number in range(3, 300):
        puts.append(queue.put(b"%d" % number, key=key_of(number % SHARDS)))
        if number == 150:
            stage.cluster.crash("a")
    assert all(put.result(WAIT_S) for put in puts)
    came: dict[int, list[int]] = {}
    seen: set[bytes] = set()
    while len(seen) < 300:
        message: Message = queue.get(timeout=WAIT_S)
        if message.body not in seen:
            seen.add(message.body)
            came.setdefault(int(message.body) % SHARDS, []).append(int(message.body))
        message.ack()
    assert all(numbers == sorted(numbers) for numbers in came.values())
