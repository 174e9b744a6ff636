"""Celery, Django, dramatiq and taskiq over three nodes, while nodes and workers are killed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from shop import CELERY, DEADLINE_S, DJANGO, DRAMATIQ, TASKIQ, Shop
from tests.kit import until
from tests.processes.cluster import Cluster

import mirrorq

pytestmark = pytest.mark.soak


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    try:
        made.found("abc")
        yield made
    finally:
        made.end()


def url_of(nodes: Cluster) -> str:
    places = ",".join(one.removeprefix("tcp://") for one in nodes.endpoints.values())
    return f"mirrorq://{places}//"


@pytest.fixture
def shop(nodes: Cluster, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(url_of(nodes), tmp_path)
    yield made
    made.end()


Sent = Callable[[int], object]


def send_celery(url: str, count: int, sent: Sent) -> None:
    """Each is on disk before the next is sent."""
    celery = pytest.importorskip("celery")

    app = celery.Celery("shop", broker=url, set_as_current=False)
    for number in range(count):
        app.signature("shop_tasks.mark", args=(number,)).apply_async(ignore_result=True)
        sent(number)
    app.close()


def send_django(url: str, count: int, sent: Sent) -> None:
    from django_shop_tasks import mark
    from django_site import settings_for

    with settings_for(url, Path()):
        task = mark.using(backend="other")
        for number in range(count):
            task.enqueue(number)
            sent(number)


def send_dramatiq(url: str, count: int, sent: Sent) -> None:
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


FRAMEWORKS = {
    "celery": (send_celery, CELERY, "celery"),
    "django": (send_django, (*DJANGO, "--backend", "other", "--threads", "2"), "django.default"),
    "dramatiq": (send_dramatiq, DRAMATIQ, "default"),
    "taskiq": (send_taskiq, TASKIQ, "taskiq"),
}


@pytest.mark.parametrize(
    ("count", "kills"),
    [
        pytest.param(300, 1, id="300"),
        pytest.param(20_000, 10, id="20000", marks=pytest.mark.soak),
    ],
)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_nodes_and_workers_are_killed(
    nodes: Cluster, shop: Shop, framework: str, count: int, kills: int
) -> None:
    """The queue's master and a worker with its children are killed, again and again, while tasks
    are sent and done: each is done at least once, each double says that it may be one, and nothing
    is left."""
    send, command, name = FRAMEWORKS[framework]
    pytest.importorskip("django_site" if framework == "django" else framework)
    sent: list[int] = []
    failures: list[BaseException] = []

    def publish() -> None:
        try:
            send(url_of(nodes), count, sent.append)
        except BaseException as error:
            failures.append(error)

    def came(part: int) -> None:
        until(lambda: failures or len(set(shop.done())) >= part, DEADLINE_S + count / 20)
        assert failures == []

    def master() -> str:
        """Of the queue, when all nodes have it in sync: as one look shows it, for another one may
        ask another node."""
        seen: list[mirrorq.QueueStatus] = []

        def is_whole() -> bool:
            with mirrorq.connect(nodes.endpoints) as client, client.queue(name) as handle:
                seen.append(handle.status())
            return len(seen[-1].synchronised_mirrors) == 2

        until(lambda: failures or is_whole())
        assert failures == []
        found = seen[-1].master
        assert found is not None
        return found

    workers = [shop.start(command) for _ in range(2)]
    publisher = threading.Thread(target=publish)
    publisher.start()
    for kill in range(kills):
        came(count * (2 * kill + 1) // (2 * kills + 1))
        victim = master()
        nodes.kill(victim)
        came(count * (2 * kill + 2) // (2 * kills + 1))
        shop.kill(workers.pop(0))
        nodes.launch(victim)
        workers.append(shop.start(command))
    came(count)
    publisher.join()
    assert failures == []
    assert sent == list(range(count))
    with mirrorq.connect(nodes.endpoints) as client, client.queue(name) as handle:
        until(lambda: handle.status().messages == 0)
    lines = shop.lines()
    assert set(shop.done()) == set(range(count))
    first = [line for line in lines if line.endswith(" first")]
    assert len(first) == len(set(first))
    print(f"{framework}: {count} tasks, {len(lines) - count} of them again, {kills} kills of each")
