"""dramatiq and taskiq over three nodes, while nodes and workers are killed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from shop import DEADLINE_S, DRAMATIQ, TASKIQ, Shop, until
from test_celery_faults import Nodes

import mirrorq


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path)
    yield made
    made.end()


@pytest.fixture
def shop(nodes: Nodes, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(nodes.url, tmp_path)
    yield made
    made.end()


Sent = Callable[[int], object]


def send_dramatiq(url: str, count: int, sent: Sent) -> None:
    """Each is on disk before the next is sent."""
    dramatiq = pytest.importorskip("dramatiq")
    from mirrorq.contrib.dramatiq import MirrorQBroker

    broker = MirrorQBroker(url, middleware=[])
    broker.declare_queue("default")
    for number in range(count):
        broker.enqueue(
            dramatiq.Message(
                queue_name="default", actor_name="mark", args=(number,), kwargs={}, options={}
            )
        )
        sent(number)
    broker.close()


def send_taskiq(url: str, count: int, sent: Sent) -> None:
    taskiq = pytest.importorskip("taskiq")
    from mirrorq.contrib.taskiq import MirrorQBroker

    async def send() -> None:
        broker = MirrorQBroker(url)
        broker.id_generator = iter(f"taskiq.results.nobody:{n}" for n in range(count)).__next__
        await broker.startup()
        for number in range(count):
            await taskiq.kicker.AsyncKicker("mark", broker, {}).kiq(number)
            sent(number)
        await broker.shutdown()

    asyncio.run(send())


@pytest.mark.parametrize(
    "count",
    [pytest.param(300, id="300"), pytest.param(20_000, id="20000", marks=pytest.mark.scale)],
)
@pytest.mark.parametrize(
    ("send", "command", "queue"),
    [(send_dramatiq, DRAMATIQ, "default"), (send_taskiq, TASKIQ, "taskiq")],
    ids=["dramatiq", "taskiq"],
)
def test_nodes_and_workers_are_killed(
    nodes: Nodes,
    shop: Shop,
    send: Callable[[str, int, Sent], None],
    command: tuple[str, ...],
    queue: str,
    count: int,
) -> None:
    """The queue's master and a worker with its children are killed while tasks are sent and done:
    each is done at least once, and nothing is left."""
    pytest.importorskip(command[0])
    sent: list[int] = []
    failures: list[BaseException] = []

    def publish() -> None:
        try:
            send(nodes.url, count, sent.append)
        except BaseException as error:
            failures.append(error)

    def came(part: int) -> None:
        until(lambda: failures or len(set(shop.done())) >= part, DEADLINE_S + count / 20)
        assert failures == []

    def master() -> str | None:
        with mirrorq.connect(nodes.peers) as client, client.queue(queue) as handle:
            return handle.status().master

    first = shop.start(command)
    shop.start(command)
    publisher = threading.Thread(target=publish)
    publisher.start()
    came(count // 6)
    until(master)
    name = master()
    assert name is not None
    nodes.kill(name)
    came(count // 3)
    shop.kill(first)
    nodes.start(name)
    came(count // 2)
    shop.start(command)
    came(count)
    publisher.join()
    assert sent == list(range(count))
    with mirrorq.connect(nodes.peers) as client, client.queue(queue) as handle:
        until(lambda: handle.status().messages == 0)
    assert set(shop.done()) == set(range(count))
    print(f"{count} tasks, {len(shop.done()) - count} of them again")
