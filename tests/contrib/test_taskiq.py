"""The broker and the result backend of taskiq, with workers that are processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

taskiq = pytest.importorskip("taskiq")

from shop import DEADLINE_S, TASKIQ, Shop  # noqa: E402
from taskiq.exceptions import ResultGetError, SendTaskError  # noqa: E402
from tests.kit import until  # noqa: E402

import mirrorq  # noqa: E402
from mirrorq import bulk  # noqa: E402
from mirrorq.contrib.taskiq import PREFIX, MirrorQBroker, MirrorQResultBackend  # noqa: E402


@pytest.fixture
def shop(url: str, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(url, tmp_path)
    yield made
    made.end()


Use = Callable[[MirrorQBroker], Coroutine[Any, Any, object]]


def use(url: str, work: Use) -> None:
    """Run something with a broker that asks for tasks."""

    async def run() -> None:
        broker = MirrorQBroker(url).with_result_backend(MirrorQResultBackend(url))
        await broker.startup()
        try:
            await work(broker)
        finally:
            await broker.shutdown()

    asyncio.run(run())


def kicker(broker: MirrorQBroker, name: str, **labels: Any) -> Any:
    return taskiq.kicker.AsyncKicker(name, broker, labels)


def test_results_and_errors(url: str, shop: Shop) -> None:
    """They come to who asked, to two at once; a delay is the queue's."""
    shop.start(TASKIQ)

    async def work(broker: MirrorQBroker) -> None:
        tasks = [await kicker(broker, "mark").kiq(number) for number in range(5)]
        later = await kicker(broker, "mark", delay=0.1, priority=3).kiq(7)
        results = [await one.wait_result(timeout=DEADLINE_S) for one in [*tasks, later]]
        assert [one.return_value for one in results] == [0, 1, 2, 3, 4, 7]
        failed = await kicker(broker, "fail").kiq("no tea")
        result = await failed.wait_result(timeout=DEADLINE_S)
        assert result.is_err
        with pytest.raises(ValueError, match="no tea"):
            result.raise_for_error()
        with pytest.raises(ResultGetError):
            await broker.result_backend.get_result("another")

    async def two(broker: MirrorQBroker) -> None:
        async def other() -> None:
            second = MirrorQBroker(url).with_result_backend(MirrorQResultBackend(url))
            await second.startup()
            await work(second)
            await second.shutdown()

        await asyncio.gather(work(broker), other())

    use(url, two)
    assert sorted(shop.done()) == sorted([0, 1, 2, 3, 4, 7] * 2)


def test_a_task_that_is_due_later_is_on_no_worker(url: str, node: mirrorq.Node) -> None:
    async def work(broker: MirrorQBroker) -> None:
        await kicker(broker, "mark", delay=3600).kiq(1)
        await kicker(broker, "mark").kiq(2)
        listening = broker.listen()
        first = await anext(listening)
        assert b'"args":[2]' in first.data.replace(b" ", b"")
        await listening.aclose()

    use(url, work)
    until(lambda: node.queue("taskiq").status().messages == 2)  # not acked, it has gone back


def test_who_has_gone_gets_no_result(url: str, node: mirrorq.Node, shop: Shop) -> None:
    """Its queue has ended with it, and the task is done all the same."""

    async def work(broker: MirrorQBroker) -> None:
        await kicker(broker, "mark").kiq(1)
        with pytest.raises(ValueError, match="has an id that this broker did not give"):
            await broker.result_backend.set_result("mine", None)

    use(url, work)
    until(lambda: not [one for one in node.queues() if one.name.startswith(PREFIX)])
    shop.start(TASKIQ)
    until(lambda: shop.done() == [1])
    until(lambda: node.queue("taskiq").status().messages == 0)


def test_deleted_queues_are_declared_again(url: str, node: mirrorq.Node, shop: Shop) -> None:
    """The queue of the tasks, and that of the results: it ends while its process is frozen."""
    shop.start(TASKIQ)

    async def work(broker: MirrorQBroker) -> None:
        for number in range(3):
            task = await kicker(broker, "mark").kiq(number)
            assert (await task.wait_result(timeout=DEADLINE_S)).return_value == number
            await asyncio.to_thread(delete_all)

    def identities() -> dict[str, str]:
        queues = [node.queue(one.name, passive=True) for one in node.queues()]
        return {queue.name: bulk.identity(queue) for queue in queues}

    def delete_all() -> None:
        known = identities()
        for name in known:
            node.queue(name, passive=True).delete()

        def is_anew() -> bool:
            found = identities()
            return found.keys() == known.keys() and not set(found.values()) & set(known.values())

        until(is_anew)

    use(url, work)
    assert shop.done() == [0, 1, 2]


def test_a_broker_that_was_not_started() -> None:
    async def kick() -> None:
        await kicker(MirrorQBroker("mirrorq://127.0.0.1:1"), "mark").kiq(1)

    with pytest.raises(SendTaskError) as raised:
        asyncio.run(kick())
    assert "await broker.startup()" in str(raised.value.__cause__)


def test_a_killed_worker(url: str, node: mirrorq.Node, shop: Shop) -> None:
    """What it was at comes again, to the next one."""
    path = str(shop.path / "once")

    async def work(broker: MirrorQBroker) -> None:
        await kicker(broker, "hang").kiq(path)

    use(url, work)
    assert shop.start(TASKIQ).wait(DEADLINE_S) == -9
    assert shop.done() == []
    shop.start(TASKIQ)
    until(lambda: shop.done() == [-1])
    until(lambda: node.queue("taskiq").status().messages == 0)
