"""A sharded queue has the calls of any queue."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mirrorq import (
    AckRefused,
    ConfigError,
    Empty,
    Full,
    Message,
    MirroredQueue,
    Node,
    PreconditionFailed,
    QueueNotFound,
    ShutDown,
)
from mirrorq.protocol.shard_names import shard_of
from processes.cluster import until

pytestmark = pytest.mark.real

WAIT_S = 60.0


def sharded(node: Node, shards: int = 3, name: str = "orders") -> MirroredQueue:
    queue = node.queue(name, shards=shards)
    assert queue.shards
    return queue


def take(queue: MirroredQueue, count: int) -> list[Message]:
    return [queue.get(timeout=WAIT_S) for _ in range(count)]


# --- Opening --------------------------------------------------------------------------------


def test_who_says_nothing_of_shards_finds_them(node: Node) -> None:
    """Declared by one, opened by others by its name alone, passive or not."""
    with sharded(node, 4) as queue, node.queue("orders") as other:
        assert queue.shards == other.shards == 4
        with node.queue("orders", passive=True) as passive, node.queue("plain") as plain:
            assert (passive.shards, plain.shards) == (4, 0)
        other.put(b"one", key="k").result(WAIT_S)
        assert queue.get(timeout=WAIT_S).body == b"one"


def test_another_number_is_refused_with_both(node: Node) -> None:
    """And so is a sharded queue where a plain one is."""
    with sharded(node, 4), node.queue("plain"):
        with pytest.raises(PreconditionFailed, match="shards=4, not 6"):
            node.queue("orders", shards=6)
        with pytest.raises(PreconditionFailed, match="not sharded"):
            node.queue("plain", shards=2)
        with pytest.raises(PreconditionFailed, match="not exclusive"):
            node.queue("orders", exclusive=True)


def test_what_makes_no_sense_is_refused(node: Node) -> None:
    """Before anything is made."""
    for wrong in ({"exclusive": True}, {"auto_delete": True}):
        with pytest.raises(ConfigError, match="cannot have shards"):
            node.queue("orders", shards=2, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="1 to 256"):
        node.queue("orders", shards=0)
    with pytest.raises(ConfigError, match="that of a shard"):
        node.queue("orders#shard0")
    assert node.queues() == []


def test_the_queue_that_brings_its_node_along(tmp_path: Path) -> None:
    """MirroredQueue(…, shards=) is one too; what it holds is there after a restart."""
    with MirroredQueue("orders", path=tmp_path, shards=3) as queue:
        assert queue.shards == 3
        for number in range(6):
            queue.put(b"%d" % number, key=str(number))
        queue.wait_for_confirms(WAIT_S)
    with MirroredQueue("orders", path=tmp_path) as queue:
        assert queue.shards == 3
        assert sorted(message.body for message in take(queue, 6)) == [b"%d" % n for n in range(6)]


def test_a_shard_is_a_queue_of_its_own(node: Node) -> None:
    """By number or by name: with its sequences, and what only one ring can do."""
    with sharded(node) as queue, queue.shard(1) as shard:
        assert (shard.name, shard.shards) == ("orders#shard1", 0)
        queue.put_many([b"a", b"b"], key=_key_of(1, 3)).result(WAIT_S)
        with node.queue("orders#shard1", passive=True) as named:
            assert [message.body for message in named.browse()] == [b"a", b"b"]
        assert shard.extent().next_sequence == 3
        lease = shard.lease()
        assert lease.ranges
        lease.give_back()
        message = shard.get(timeout=WAIT_S)
        assert (message.queue, message.shard, message.sequence) == ("orders", 1, 1)
        with pytest.raises(PreconditionFailed, match="one of the 3 shards"):
            shard.delete()
        for wrong in (-1, 3, True, "0"):
            with pytest.raises(PreconditionFailed, match="its shards are 0 to 2"):
                queue.shard(wrong)  # type: ignore[arg-type]
        for call in (queue.lease, queue.claim, queue.extent, lambda: queue.read(1, 2)):
            with pytest.raises(PreconditionFailed, match="call it on a shard"):
                call()
    with node.queue("plain") as plain, pytest.raises(PreconditionFailed, match="no shards"):
        plain.shard(0)


def _key_of(shard: int, shards: int) -> str:
    return next(key for key in map(str, range(1000)) if shard_of(key, shards) == shard)


# --- Publishing -----------------------------------------------------------------------------


def test_a_key_has_its_shard_and_its_order(node: Node) -> None:
    """The documented hash; and each key's messages come in the order of their puts."""
    with sharded(node) as queue:
        puts = [(f"k{number % 7}", b"%d" % number) for number in range(140)]
        confirmations = [(key, queue.put(body, key=key)) for key, body in puts]
        for key, confirmation in confirmations:
            assert confirmation.result(WAIT_S) >= 1
            assert confirmation.shard == shard_of(key, 3) == queue.shard_of(key)
        came: dict[Any, list[bytes]] = {}
        for message in take(queue, 140):
            came.setdefault(message.key, []).append(message.body)
        assert came == {key: [b for k, b in puts if k == key] for key, _ in puts}


def test_without_a_key_shards_take_turns(node: Node) -> None:
    """Sequences are the shards' own; a put_many is in one, as one range."""
    with sharded(node) as queue:
        confirmations = [queue.put(b"x") for _ in range(9)]
        assert sorted(c.result(WAIT_S) for c in confirmations) == [1, 1, 1, 2, 2, 2, 3, 3, 3]
        assert Counter(c.shard for c in confirmations) == {0: 3, 1: 3, 2: 3}
        many = queue.put_many([b"a", b"b", b"c"])
        assert many.result(WAIT_S) == range(4, 7)
        assert queue.put_many([]).result(WAIT_S) == range(0)
        assert queue.qsize() == 12


def test_arguments_are_checked_as_ever(node: Node) -> None:
    """Nothing is stored of what is wrong."""
    with sharded(node) as queue:
        with pytest.raises(TypeError):
            queue.put("text")  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            queue.put(b"x", key=7)  # type: ignore[arg-type]
        with pytest.raises(ConfigError):
            queue.put(b"x", priority=99)
        with pytest.raises(TypeError):
            queue.put_many(b"abc")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="timeout"):
            queue.put(b"x", timeout=-1)
        assert queue.empty()


def test_a_full_shard_holds_up_only_its_keys(node: Node) -> None:
    """max-length is each shard's: without a key the others take what comes."""
    node.set_policy("short", "^orders$", {"max-length": 2})
    with sharded(node) as queue:
        key = _key_of(2, 3)
        for _ in range(2):
            queue.put(b"keyed", key=key).result(WAIT_S)
        with pytest.raises(Full):
            queue.put(b"no room", key=key, timeout=0.05)
        shards = [queue.put(b"free").shard for _ in range(4)]
        assert sorted(shards) == [0, 0, 1, 1]  # type: ignore[type-var]
        until(queue.full)
        with pytest.raises(Full, match="none of its 3 shards"):
            queue.put(b"no room", block=False)
        waiting = threading.Thread(target=queue.put, args=(b"waits",))
        waiting.start()
        until(lambda: queue.status().blocked_by)
        queue.get(timeout=WAIT_S, auto_ack=True)
        waiting.join(WAIT_S)
        assert not waiting.is_alive()


def test_listeners_hear_of_every_shard(node: Node) -> None:
    """And wait_for_confirms waits for all, in one thread for all callbacks."""
    with sharded(node) as queue:
        heard: list[tuple[int | None, int]] = []
        threads: list[str] = []

        def listen(confirmation: Any) -> None:
            heard.append((confirmation.shard, confirmation.result(0)))
            threads.append(threading.current_thread().name)

        queue.on_confirm(listen)
        for _ in range(6):
            queue.put(b"x")
        assert queue.wait_for_confirms(WAIT_S)
        until(lambda: len(heard) == 6)
        assert sorted(heard) == [(0, 1), (0, 2), (1, 1), (1, 2), (2, 1), (2, 2)]
        assert len(set(threads)) == 1


# --- Consuming ------------------------------------------------------------------------------


def test_get_leaves_no_shard_out(node: Node) -> None:
    """One shard is always full; what comes to another is taken all the same, soon."""
    with sharded(node) as queue:
        queue.put_many([b"many"] * 3000, key=_key_of(0, 3)).result(WAIT_S)
        queue.get(timeout=WAIT_S).ack()
        queue.put(b"few", key=_key_of(1, 3)).result(WAIT_S)
        bodies = [queue.get(timeout=WAIT_S, auto_ack=True).body for _ in range(2000)]
        assert b"few" in bodies


def test_get_waits_for_any_shard(node: Node) -> None:
    """Whichever is the first to have something."""
    with sharded(node) as queue, node.queue("orders") as producer:
        with pytest.raises(Empty):
            queue.get(timeout=0.05)
        with pytest.raises(Empty):
            queue.get_nowait()
        for shard in (2, 0, 1):
            timer = threading.Timer(0.05, producer.put, (b"x",), {"key": _key_of(shard, 3)})
            timer.start()
            message = queue.get(timeout=WAIT_S)
            assert message.shard == shard
            message.ack().result(WAIT_S)
            timer.join()
        assert queue.get_many(10, timeout=0.05) == []


def test_acks_of_several_shards_have_one_outcome(node: Node) -> None:
    """Done when all are; refused when one is."""
    with sharded(node) as queue, node.queue("orders") as other:
        for _ in range(6):
            queue.put(b"x")
        messages = take(queue, 6)
        queue.ack_many(messages[:3]).result(WAIT_S)
        messages[3].ack().result(WAIT_S)
        with pytest.raises(AckRefused):
            queue.ack_many(messages[3:]).result(WAIT_S)
        assert queue.ack_many([]).result(WAIT_S) is None
        until(lambda: queue.status().messages == 0)
        other.put(b"y").result(WAIT_S)
        with pytest.raises(ValueError, match="not all messages"):
            queue.ack_many([other.get(timeout=WAIT_S)])


def test_what_nobody_takes_goes_back(node: Node) -> None:
    """Fetched ahead of calls that stop: another handle gets it, uncounted."""
    with sharded(node) as queue, node.queue("orders") as other:
        for number in range(60):
            queue.put(b"%d" % number)
        queue.wait_for_confirms(WAIT_S)
        first = queue.get(timeout=WAIT_S)
        rest = take(other, 59)
        assert len({message.body for message in [first, *rest]}) == 60
        assert all(not message.redelivered for message in rest)


def test_a_consumer_has_one_thread_and_all_shards(node: Node) -> None:
    """Its prefetch is divided; it can be changed and cancelled."""
    with sharded(node) as queue:
        seen: list[tuple[int | None, str]] = []

        def work(message: Message) -> None:
            seen.append((message.shard, threading.current_thread().name))
            message.ack()

        consumer = queue.consume(work, prefetch=6)
        for _ in range(30):
            queue.put(b"x")
        until(lambda: len(seen) == 30)
        assert Counter(shard for shard, _ in seen) == {0: 10, 1: 10, 2: 10}
        assert len({thread for _, thread in seen}) == 1
        consumer.prefetch = 30
        assert consumer.prefetch == 30
        until(lambda: queue.status().consumers == 1)
        consumer.cancel()
        assert not consumer.is_active
        queue.put(b"left").result(WAIT_S)
        assert queue.get(timeout=WAIT_S).body == b"left"


def test_a_consumer_holds_its_share_of_each_shard(node: Node) -> None:
    """With 6 of 3 shards at most two of each are unacknowledged."""
    with sharded(node) as queue:
        held: list[Message] = []
        queue.consume(held.append, prefetch=6)
        for _ in range(30):
            queue.put(b"x")
        queue.wait_for_confirms(WAIT_S)
        until(lambda: len(held) == 6)
        assert Counter(message.shard for message in held) == {0: 2, 1: 2, 2: 2}
        held[0].ack().result(WAIT_S)
        until(lambda: len(held) == 7)
        assert held[6].shard == held[0].shard


def test_an_exclusive_consumer_has_all_shards_or_none(node: Node) -> None:
    """A second one is refused, and leaves no seat behind."""
    with sharded(node) as queue, node.queue("orders") as other:
        consumer = queue.consume(lambda _: None, exclusive=True)
        with pytest.raises(PreconditionFailed, match="exclusive"):
            other.consume(lambda _: None)
        consumer.cancel()

        def is_taken() -> bool:
            try:
                other.consume(lambda message: message.ack(), exclusive=True)
            except PreconditionFailed:
                return False
            return True

        until(is_taken)


def test_a_callback_that_fails_gets_its_message_again(node: Node) -> None:
    """As with any consumer, and others are served meanwhile."""
    with sharded(node) as queue:
        counts: list[int] = []

        def work(message: Message) -> None:
            counts.append(message.delivery_count)
            if message.delivery_count == 1:
                raise RuntimeError("not yet")
            message.ack()

        queue.consume(work)
        queue.put(b"x")
        until(lambda: counts == [1, 2])


# --- Questions, steps, ends -------------------------------------------------------------------


def test_browse_and_purge_are_of_all_shards(node: Node) -> None:
    """The oldest first by the masters' clocks, in order in each shard."""
    with sharded(node) as queue:
        for number in range(12):
            queue.put(b"%d" % number).result(WAIT_S)
        found = queue.browse()
        assert sorted(int(m.body) for m in found) == list(range(12))
        for shard in range(3):
            own = [message.sequence for message in found if message.shard == shard]
            assert own == sorted(own) == [1, 2, 3, 4]
        assert len(queue.browse(count_max=5)) == 5
        assert [m.sequence for m in queue.browse(start=4)] == [4, 4, 4]
        assert queue.purge() == 12
        assert queue.empty()


def test_status_is_of_the_whole(node: Node) -> None:
    """Sums in one row; shards on request, in their order."""
    with sharded(node, 11) as queue, node.queue("other"):
        for _ in range(22):
            queue.put(b"x")
        queue.wait_for_confirms(WAIT_S)
        status = queue.status()
        assert (status.name, status.shards, status.master) == ("orders", 11, "a")
        assert (status.state, status.messages_ready) == ("running", 22)
        assert [each.name for each in node.queues()] == ["orders", "other"]
        rows = node.queues(shards=True)
        names = [f"orders#shard{number}" for number in range(11)]
        assert [row.name for row in rows] == ["orders", *names, "other"]
        assert [row.messages for row in rows] == [22, *[2] * 11, 0]


def test_a_transaction_is_of_one_shard(node: Node) -> None:
    """The one of its first ack or key; what is of another is refused before anything is sent."""
    with sharded(node) as queue:
        first, second = _key_of(0, 3), _key_of(1, 3)
        queue.put(b"a", key=first).result(WAIT_S)
        queue.put(b"b", key=second).result(WAIT_S)
        held = {message.shard: message for message in take(queue, 2)}
        with queue.transaction() as step:
            step.put(b"follows")
            step.ack(held[0])
            step.put(b"keyed", key=first)
            with pytest.raises(ValueError, match="one op of one shard"):
                step.put(b"elsewhere", key=second)
            with pytest.raises(ValueError, match="one op of one shard"):
                step.ack(held[1])
        assert len(step.result(WAIT_S)) == 2
        assert step.confirmation.shard == 0
        held[1].ack().result(WAIT_S)
        assert [message.body for message in queue.browse()] == [b"follows", b"keyed"]
        with queue.transaction() as free:
            free.put(b"anywhere")
        assert len(free.result(WAIT_S)) == 1


def test_ack_and_put_into_a_sharded_queue(node: Node) -> None:
    """By its handle or its name, into the shard of the key."""
    with sharded(node) as queue, node.queue("plain") as plain:
        plain.put_many([b"1", b"2"]).result(WAIT_S)
        key = _key_of(2, 3)
        plain.get(timeout=WAIT_S).ack_and_put(queue, b"one", key=key).result(WAIT_S)
        plain.get(timeout=WAIT_S).ack_and_put("orders", b"two", key=key).result(WAIT_S)
        messages = take(queue, 2)
        assert [(message.body, message.shard) for message in messages] == [(b"one", 2), (b"two", 2)]
        messages[0].ack_and_put("plain", b"back").result(WAIT_S)
        assert plain.get(timeout=WAIT_S).body == b"back"


def test_dead_letters_come_and_go(node: Node) -> None:
    """A sharded dead-letter queue takes them; redriven they are in their own shard again."""
    node.set_policy("dead", "^orders$", {"dead-letter-queue": "dead"})
    with sharded(node) as queue, sharded(node, 2, "dead") as dead:
        key = _key_of(1, 3)
        for _ in range(4):
            queue.put(b"x", key=key)
        for message in take(queue, 4):
            message.nack(requeue=False).result(WAIT_S)
        until(lambda: dead.qsize() == 4)
        assert queue.status().warnings == ()
        assert dead.redrive() == 4
        back = take(queue, 4)
        assert [message.shard for message in back] == [1] * 4


def test_staged_writing_is_by_shard(node: Node) -> None:
    """The whole is refused with the name to use; a shard's name works."""
    with sharded(node) as queue:
        refused = node.staged("load", 0, "orders").attempt(0, 0)
        with pytest.raises(PreconditionFailed, match="orders#shard0"):
            refused.put_many([b"x"])
        staged = node.staged("load2", 0, "orders#shard1")
        task = staged.attempt(0, 0)
        task.put_many([b"x", b"y"])
        staged.commit([task.finish(timeout=WAIT_S)], timeout=WAIT_S)
        assert [message.shard for message in take(queue, 2)] == [1, 1]


def test_an_exchange_leads_to_the_shard_of_the_key(node: Node) -> None:
    """Bound as one queue, under its name; the routing key is the message's key."""
    with sharded(node) as queue, node.exchange("events", "topic") as exchange:
        exchange.bind(queue, "#")
        assert exchange.bindings() == [("orders", "#", "")]
        for shard in range(3):
            key = _key_of(shard, 3)
            assert exchange.publish(key, b"x").result(WAIT_S) == {"orders": 1}
        assert Counter(message.shard for message in take(queue, 3)) == {0: 1, 1: 1, 2: 1}
        exchange.unbind("orders", "#")
        assert exchange.publish("k", b"x").result(WAIT_S) == {}


def test_as_queue_is_a_drop_in(node: Node) -> None:
    """put, get, task_done and join are those of queue.Queue."""
    with sharded(node) as queue:
        adapter = queue.as_queue()
        for number in range(6):
            adapter.put(b"%d" % number)
        assert adapter.qsize() == 6
        assert sorted(adapter.get(timeout=WAIT_S) for _ in range(6)) == [
            b"%d" % number for number in range(6)
        ]
        for _ in range(6):
            adapter.task_done()
        adapter.join()
        assert adapter.empty()


def test_shutdown_drains_all_shards(node: Node) -> None:
    """No puts more; gets until nothing is ready anywhere."""
    with sharded(node) as queue:
        for _ in range(6):
            queue.put(b"x")
        queue.wait_for_confirms(WAIT_S)
        queue.shutdown()
        with pytest.raises(ShutDown):
            queue.put(b"y")
        with pytest.raises(ShutDown):
            queue.put(b"y", key="k")
        assert len(take(queue, 6)) == 6
        with pytest.raises(ShutDown):
            queue.get(timeout=WAIT_S)


def test_deleting_ends_all_shards(node: Node) -> None:
    """For every handle; the name is free for another number."""
    ended: list[Any] = []
    with sharded(node) as queue, node.queue("orders") as other:
        other.consume(lambda _: None, on_cancel=ended.append)
        queue.put(b"x").result(WAIT_S)
        with pytest.raises(PreconditionFailed, match="1 consumer"):
            queue.delete(if_unused=True)
        with pytest.raises(PreconditionFailed, match="1 message"):
            queue.delete(if_empty=True)
        queue.delete()
        until(lambda: _raises(ShutDown, lambda: queue.put(b"y")))
        until(lambda: len(ended) == 1)
        with pytest.raises(ShutDown):
            queue.get(timeout=WAIT_S)
    with pytest.raises(QueueNotFound):
        node.queue("orders", passive=True)
    with sharded(node, 5) as again:
        assert again.put(b"z").result(WAIT_S) == 1


def _raises(kind: type[Exception], function: Callable[[], object]) -> bool:
    try:
        function()
    except kind:
        return True
    return False


def test_closing_ends_what_waits(node: Node) -> None:
    """A get that waits is told; a closed handle says so; twice is as once."""
    queue = sharded(node)
    told: list[Exception] = []

    def wait() -> None:
        try:
            queue.get()
        except ShutDown as error:
            told.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    queue.put(b"held").result(WAIT_S)
    waiting.join(WAIT_S)
    waiting = threading.Thread(target=wait)
    waiting.start()
    queue.close()
    queue.close()
    waiting.join(WAIT_S)
    assert len(told) == 1
    for call in (lambda: queue.put(b"x"), queue.get, queue.qsize):
        with pytest.raises(ShutDown):
            call()


def test_puts_gather_while_a_batch_is_on_its_way(node: Node) -> None:
    """Whatever gathers is stored in order; at the handle's end too."""
    with sharded(node) as queue:
        key = _key_of(1, 3)
        confirmations = [queue.put(b"%d" % number, key=key) for number in range(3000)]
        with queue.transaction() as step:
            step.put(b"step", key=key)
        after = queue.put(b"after", key=key)
        queue.close()
        sequences = [confirmation.result(0) for confirmation in confirmations]
        assert sequences == list(range(1, 3001))
        assert step.result(0).start > 3000
        assert after.result(0) > step.result(0).start
    with node.queue("orders#shard1", passive=True) as shard:
        bodies = [message.body for message in shard.browse(count_max=4000)]
        assert bodies == [*(b"%d" % number for number in range(3000)), b"step", b"after"]
