"""mirrorq.aio: transactions, ack_and_put, redrive and exchanges; and what a cancellation leaves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from mirrorq import Config, Full, Message, aio

from .conftest import DEADLINE_S

pytestmark = pytest.mark.real


async def test_publishes_wait_in_the_loop_and_a_cancelled_one_is_in_no_queue(
    tmp_path: Path,
) -> None:
    """Hundreds wait for room at once without a thread each; who is cancelled was not accepted, by
    none of the queues; a time-out says so."""
    config = Config(unconfirmed_count_max=5)
    async with await aio.Node.open("a", path=tmp_path, config=config) as node:
        queues = [await node.queue(name) for name in ("one", "two")]
        events = await node.exchange("events", "fanout")
        for queue in queues:
            await events.bind(queue)
        assert len(await events.publish("", b"first")) == 2
        before = threading.active_count()
        tasks = [asyncio.create_task(events.send("", b"%d" % n)) for n in range(200)]
        await asyncio.sleep(0)
        assert threading.active_count() <= before
        fulls = 0
        for number in range(50):
            try:
                await events.send("", b"now%d" % number, block=False)
            except Full:
                fulls += 1
        assert fulls, "50 in a row without a pause are not all confirmed in between"
        for task in tasks[::3]:
            task.cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        accepted = {
            b"%d" % number
            for number, outcome in enumerate(found)
            if not isinstance(outcome, asyncio.CancelledError)
        }
        assert await events.wait_for_confirms()
        for queue in queues:
            bodies = [m.body for m in await queue.browse()]
            assert {b for b in bodies if b.isdigit()} == accepted
            assert len(bodies) == len(accepted) + 1 + 50 - fulls


CALLS: dict[str, Callable[[aio.MirroredQueue, Message], Coroutine[Any, Any, object]]] = {
    "put": lambda queue, _: queue.put(b"new"),
    "put_many": lambda queue, _: queue.put_many([b"new", b"new"]),
    "get": lambda queue, _: queue.get(),
    "get_nowait": lambda queue, _: queue.get(block=False),
    "get_many": lambda queue, _: queue.get_many(5),
    "ack_and_put": lambda queue, held: queue.ack_and_put(held, queue, b"new"),
    "ack_and_put_by_name": lambda queue, held: queue.ack_and_put(held, "orders", b"new"),
    "consume": lambda queue, _: queue.consume(_ignore),
    "qsize": lambda queue, _: queue.qsize(),
    "browse": lambda queue, _: queue.browse(),
    "purge": lambda queue, _: queue.purge(),
    "redrive": lambda queue, _: queue.redrive(),
    "wait_for_confirms": lambda queue, _: queue.wait_for_confirms(),
    "transaction": lambda queue, held: _step(queue, held),
}
"""Every call that can be cancelled."""


async def _ignore(message: Message) -> None:
    message.nack()


async def _step(queue: aio.MirroredQueue, held: Message) -> None:
    async with queue.transaction() as step:
        step.ack(held)
        step.put(b"new")


@pytest.mark.parametrize("name", CALLS)
async def test_a_cancelled_call_loses_nothing(tmp_path: Path, name: str) -> None:
    """Cancelled at once, a moment later, and later still: what was in the queue is in it or was
    returned, what was held can be settled or has been, and the handle goes on."""
    async with await aio.MirroredQueue.open("orders", path=tmp_path) as queue:
        for steps in (0, 1, 2, 5, 20):
            await queue.put_many([b"old1", b"old2", b"old3"])
            held = await queue.get(timeout=DEADLINE_S)
            task = asyncio.create_task(CALLS[name](queue, held))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            outcome = (await asyncio.gather(task, return_exceptions=True))[0]
            is_done = not isinstance(outcome, BaseException)
            taken: list[Message] = []
            if is_done and name.startswith("get"):
                taken = outcome if isinstance(outcome, list) else [outcome]
            elif is_done and name == "consume":
                await asyncio.to_thread(outcome.cancel)
            assert is_done or isinstance(outcome, asyncio.CancelledError), outcome
            await queue.wait_for_confirms()
            if not held._is_settled:
                taken.append(held)
                assert not is_done or name not in ("transaction", "ack_and_put")
            bodies = [message.body for message in taken]
            await queue.ack_many(taken)
            await _drained(queue, bodies)
            wanted = {b"old1", b"old2", b"old3"}
            if name == "purge":
                wanted = {held.body}
            elif held not in taken:
                wanted.remove(held.body)
            assert wanted <= set(bodies)


async def _drained(queue: aio.MirroredQueue, bodies: list[bytes]) -> None:
    """Take and ack until nothing lives in the queue: not even what is just being returned."""
    while await queue.browse():
        messages = await queue.get_many(10, timeout=0.05)
        bodies += [message.body for message in messages]
        if messages:
            await queue.ack_many(messages)
