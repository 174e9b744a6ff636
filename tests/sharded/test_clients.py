"""Sharded queues from clients, in a forked child, in the loop, through exchanges."""

from __future__ import annotations

import asyncio
import os
import pickle
from collections import Counter
from collections.abc import Iterator

import pytest

from mirrorq import Client, ConfigError, Empty, Message, Node, PreconditionFailed, aio, connect
from mirrorq.monitoring.health import judge
from mirrorq.protocol.shard_names import shard_of
from processes.cluster import until

pytestmark = pytest.mark.real

WAIT_S = 60.0


@pytest.fixture
def client(node: Node) -> Iterator[Client]:
    with connect(node.listening) as made:
        yield made


def test_a_client_declares_and_finds(node: Node, client: Client) -> None:
    """With shards, without, on the node and from another process's pickle."""
    with client.queue("orders", shards=3) as queue, node.queue("orders") as at_node:
        assert queue.shards
        assert at_node.shards == 3
        for number in range(9):
            assert queue.put(b"%d" % number).result(WAIT_S) >= 1
        with client.queue("orders") as again, client.queue("orders", passive=True) as passive:
            assert again.shards == passive.shards == 3
        with pickle.loads(pickle.dumps(queue)) as there:
            assert there.shards == 3
            bodies = [there.get(timeout=WAIT_S, auto_ack=True).body for _ in range(9)]
        assert sorted(bodies) == [b"%d" % number for number in range(9)]
        with pytest.raises(PreconditionFailed, match="shards=3, not 5"):
            client.queue("orders", shards=5)
        with pytest.raises(ConfigError, match="cannot have shards"):
            client.queue("other", shards=2, exclusive=True)
        with pytest.raises(PreconditionFailed, match="orders#shard0"):
            client.reader("orders")
        with pytest.raises(PreconditionFailed, match="name one of them"):
            client.transfer_master("orders", "a")
        assert client.reader("orders#shard1").live_ranges(1, 100) == []


def test_a_client_sees_rows(client: Client) -> None:
    """One for the queue, with `shards` one more for each; a node's check looks at the shards."""
    with client.queue("orders", shards=2) as queue:
        queue.put_many([b"x", b"y"], key="k").result(WAIT_S)
        until(lambda: queue.status().messages == 2)
        assert [(row.name, row.shards) for row in client.queues()] == [("orders", 2)]
        rows = client.queues(shards=True)
        assert [row.name for row in rows] == ["orders", "orders#shard0", "orders#shard1"]
        assert judge("a", client.nodes(), rows).queue_count == 2
        with queue.shard(1) as shard, pytest.raises(PreconditionFailed, match="2 shards"):
            shard.delete()
        queue.delete()
        until(lambda: client.queues(shards=True) == [])


def test_a_clients_consumer_takes_from_all(client: Client) -> None:
    """And a client's exchange leads to the shard of the key."""
    with client.queue("orders", shards=3) as queue, client.exchange("e", "fanout") as exchange:
        exchange.bind("orders")
        seen: list[Message] = []
        consumer = queue.consume(lambda message: (seen.append(message), message.ack()))
        keys = [str(number) for number in range(12)]
        for key in keys:
            assert list(exchange.publish(key, b"x").result(WAIT_S)) == ["orders"]
        until(lambda: len(seen) == 12)
        assert all(message.shard == shard_of(str(message.key), 3) for message in seen)
        consumer.cancel()
        exchange.publish("", b"no key").result(WAIT_S)
        assert queue.get(timeout=WAIT_S).body == b"no key"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_goes_on(client: Client) -> None:
    """With connections of its own; the parent's handle is untouched."""
    with client.queue("orders", shards=2) as queue:
        queue.put(b"parent", key="a").result(WAIT_S)
        child = os.fork()
        if not child:
            try:
                queue.put(b"child", key="a").result(WAIT_S)
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        queue.put(b"again", key="a").result(WAIT_S)
        bodies = [queue.get(timeout=WAIT_S).body for _ in range(3)]
        assert bodies == [b"parent", b"child", b"again"]


def test_the_loop_has_it_too(node: Node) -> None:
    """Every call of mirrorq.aio, with no thread waiting."""

    async def main() -> None:
        async with await aio.connect(node.listening) as client:
            queue = await client.queue("orders", shards=3)
            assert queue.shards == 3
            for number in range(9):
                await queue.put(b"%d" % number)
            await queue.wait_for_confirms(WAIT_S)
            assert await (await queue.put_many([b"x", b"y"], key="k")) is not None
            assert await queue.qsize() == 11
            assert len(await queue.browse()) == 11
            got = [await queue.get(timeout=WAIT_S) for _ in range(11)]
            assert {message.shard for message in got} == {0, 1, 2}
            await queue.ack_many(got)
            with pytest.raises(Empty):  # Each shard has served this handle by now.
                await queue.get(timeout=0.05)
            waiting = asyncio.ensure_future(queue.get(timeout=WAIT_S))
            await asyncio.sleep(0.05)
            await (await queue.put(b"late", key="k"))
            message = await waiting
            async with queue.transaction() as step:
                step.ack(message)
                step.put(b"next")
            assert step.confirmation.shard == message.shard
            await step.confirmation
            shard = await queue.shard(message.shard or 0)
            assert [each.body for each in await shard.browse()] == [b"next"]
            await shard.close()
            message = await queue.get(timeout=WAIT_S)
            await (await queue.ack_and_put(message, queue, b"on", key="k"))
            assert await queue.get_many(5, timeout=WAIT_S)
            exchange = await client.exchange("e", "fanout")
            await exchange.bind(queue)
            reached = Counter[int | None]()
            for number in range(6):
                await (await exchange.publish("", b"%d" % number))
                reached[(await queue.get(timeout=WAIT_S)).shard] += 1
            assert sum(reached.values()) == 6
            await queue.delete()

    asyncio.run(main())
