"""mirrorq.aio: the calls await, no thread a call, and a cancelled call loses nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path

import pytest

from mirrorq import (
    Config,
    Confirmation,
    Message,
    Node,
    ShutDown,
    StoreError,
    aio,
)

from .conftest import DEADLINE_S, run

pytestmark = pytest.mark.real


async def test_what_is_opened_can_be_entered_awaited_or_made_a_task(tmp_path: Path) -> None:
    async with (
        aio.Node.open("a", path=tmp_path) as node,
        node.queue("orders") as first,
    ):
        with pytest.raises(AttributeError):
            node.endpoint  # noqa: B018
        second = await asyncio.create_task(node.queue("orders"))
        await first.put(b"one")
        assert (await second.get(timeout=DEADLINE_S)).body == b"one"
    with pytest.raises(ShutDown):
        await first.put(b"two")
    with pytest.raises(ShutDown):
        await second.put(b"two")
    with pytest.raises(StoreError, match="belongs to node 'a'"):
        async with aio.MirroredQueue.open("orders", path=tmp_path):
            pass


async def test_wait_ends_as_it_is_asked_to(tmp_path: Path) -> None:
    async with await aio.MirroredQueue.open("orders", path=tmp_path) as queue:
        done, open_ = await aio.wait([await queue.send(b"x") for _ in range(5)])
        assert len(done) == 5
        assert not open_
        first = [await queue.send(b"x"), Confirmation(queue.handle._handle.outcomes)]
        done, open_ = await aio.wait(first, return_when="FIRST_COMPLETED")
        assert (done, open_) == ({first[0]}, {first[1]})
        with pytest.raises(ValueError, match="return_when is 'SOON'"):
            await aio.wait(first, return_when="SOON")  # type: ignore[arg-type]


async def test_a_thousand_calls_wait_without_a_thread_each(tmp_path: Path) -> None:
    async with await aio.MirroredQueue.open("orders", path=tmp_path) as queue:
        before = threading.active_count()
        gets = [asyncio.create_task(queue.get()) for _ in range(1000)]
        await asyncio.sleep(0)
        assert threading.active_count() <= before
        await queue.put_many([b"%d" % i for i in range(1000)])
        found = await asyncio.gather(*gets)
        assert {m.body for m in found} == {b"%d" % i for i in range(1000)}
        await queue.ack_many(found)


@pytest.mark.parametrize("seed", range(5))
async def test_cancelled_gets_lose_no_message(tmp_path: Path, seed: int) -> None:
    async with await aio.MirroredQueue.open("orders", path=tmp_path) as queue:
        seen: list[bytes] = []

        async def take() -> None:
            message = await queue.get()
            seen.append(message.body)
            assert not message.redelivered
            message.ack()

        tasks: list[asyncio.Task[None]] = []
        for i in range(300):
            await queue.send(b"%d" % i)
            tasks.append(asyncio.create_task(take()))
            if (i + seed) % 3 == 0:
                await asyncio.sleep(0.001 * (seed % 2))
            if (i + seed) % 2 == 0:
                tasks[(i * 7 + seed) % len(tasks)].cancel()
        for task in tasks:
            if not task.done():
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await queue.wait_for_confirms()
        while len(seen) < 300:
            await take()
        assert sorted(map(int, seen)) == list(range(300))


async def test_a_put_waits_for_room_and_a_cancelled_one_was_not_accepted(tmp_path: Path) -> None:
    config = Config(unconfirmed_count_max=10)
    async with await aio.MirroredQueue.open("orders", path=tmp_path, config=config) as queue:
        puts = [asyncio.create_task(queue.send(b"%d" % i)) for i in range(200)]
        confirmations = await asyncio.gather(*puts)
        assert sorted([await c for c in confirmations]) == list(range(1, 201))
        accepted = 0
        for _ in range(50):
            task = asyncio.create_task(queue.send(b"x"))
            await asyncio.sleep(0)
            task.cancel()
            outcome = (await asyncio.gather(task, return_exceptions=True))[0]
            accepted += not isinstance(outcome, asyncio.CancelledError)
        await queue.wait_for_confirms()
        assert await queue.qsize() == 200 + accepted


async def test_a_coroutine_consumes(tmp_path: Path) -> None:
    async with await aio.MirroredQueue.open("orders", path=tmp_path) as queue:
        seen: list[bytes] = []
        all_came = asyncio.Event()

        async def work(message: Message) -> None:
            await asyncio.sleep(0)
            seen.append(message.body)
            await message.ack()
            if len(seen) == 20:
                all_came.set()

        consumer = await queue.consume(work, prefetch=3)
        await queue.put_many([b"%d" % i for i in range(20)])
        await all_came.wait()
        assert seen == [b"%d" % i for i in range(20)]
        assert not [one for one in threading.enumerate() if "consumer" in one.name]
        await asyncio.to_thread(consumer.cancel)
        assert not consumer.is_active


async def test_a_consumer_has_the_context_of_who_began_it(tmp_path: Path) -> None:
    name: ContextVar[str] = ContextVar("name", default="none")
    seen: list[str] = []
    came = asyncio.Event()

    async def work(_: Message) -> None:
        seen.append(name.get())
        came.set()

    async with await aio.MirroredQueue.open("orders", path=tmp_path) as queue:
        name.set("caller")
        async with await queue.consume(work):
            name.set("later")
            await queue.put(b"1")
            await came.wait()
    assert seen == ["caller"]


async def test_a_consumer_ends_when_its_callback_has(tmp_path: Path) -> None:
    """`cancel` in the loop does not wait, leaving does; what was not begun goes back uncounted."""
    async with await aio.MirroredQueue.open("orders", path=tmp_path) as queue:
        is_begun, may_end = asyncio.Event(), asyncio.Event()
        done: list[bytes] = []

        async def work(message: Message) -> None:
            is_begun.set()
            await may_end.wait()
            await consumer.wait_cancelled()  # its own end is not waited for
            done.append(message.body)
            await message.ack()

        await queue.put_many([b"1", b"2"])
        async with await queue.consume(work) as consumer:
            await is_begun.wait()
            consumer.cancel()
            assert done == []
            may_end.set()
        assert done == [b"1"]
        rest = await queue.get(timeout=DEADLINE_S)
        assert (rest.body, rest.delivery_count) == (b"2", 1)


async def test_what_a_callback_fails_on_comes_again(tmp_path: Path) -> None:
    """Others are served meanwhile; one whose task is cancelled gives back what it is at."""
    async with await aio.MirroredQueue.open("orders", path=tmp_path) as queue:
        seen: list[tuple[bytes, int]] = []
        all_came = asyncio.Event()

        async def work(message: Message) -> None:
            seen.append((message.body, message.delivery_count))
            if message.body == b"bad" and not message.redelivered:
                raise asyncio.CancelledError  # its own doing, and no end of the consumer
            if len(seen) == 3:
                all_came.set()
                await asyncio.Event().wait()
            await message.ack()

        consumer = await queue.consume(work)
        await queue.put_many([b"bad", b"good"])
        await all_came.wait()
        assert seen == [(b"bad", 1), (b"good", 1), (b"bad", 2)]
        assert consumer._task is not None
        consumer._task.cancel()
        assert (await queue.get(timeout=DEADLINE_S)).delivery_count == 3
        assert not consumer.is_active


async def test_who_is_cancelled_again_while_closing_leaves_nothing_open(tmp_path: Path) -> None:
    """As anyio's scopes do, at each wait: here before a thread of the executor is free."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    async with aio.Node.open("a", path=tmp_path) as node, node.queue("orders") as orders:
        await orders.put(b"1")
        entered, may_go_on = asyncio.Event(), threading.Event()

        async def use() -> None:
            async with node.queue("orders") as handle:
                await handle.get()
                entered.set()
                await asyncio.sleep(3600)

        task = asyncio.create_task(use())
        await entered.wait()
        busy = loop.run_in_executor(None, may_go_on.wait)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0.01)
        assert task.cancelled()
        may_go_on.set()
        await busy
        assert (await orders.get()).redelivered, "the closed handle has given it back"


async def test_what_nobody_would_await_is_refused(tmp_path: Path) -> None:
    async def work(message: Message) -> None: ...

    async def told(error: BaseException) -> None: ...

    async def give(message: Message) -> AsyncIterator[None]:
        yield

    async with aio.MirroredQueue.open("orders", path=tmp_path) as orders:
        with pytest.raises(TypeError, match="leave yield out"):
            await orders.consume(give)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="on_cancel is a coroutine function"):
            await orders.consume(work, on_cancel=told)


async def test_a_wait_for_the_next_message_may_time_out(tmp_path: Path) -> None:
    """The loop over the messages goes on, and ends with its handle."""
    async with aio.MirroredQueue.open("orders", path=tmp_path) as orders:
        messages = aiter(orders)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(messages), 0.01)
        await orders.put(b"late")
        assert (await anext(messages)).body == b"late"
    with pytest.raises(StopAsyncIteration):
        await anext(messages)


def test_whoever_is_cancelled_while_opening_leaves_nothing_open(tmp_path: Path) -> None:
    async def main() -> None:
        task = asyncio.create_task(aio.MirroredQueue.open("orders", path=tmp_path))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())
    # The store is free: the executor's threads have ended with the loop. A handle would share a
    # node that is still there; a node finds that it is.
    with Node("node", path=tmp_path) as node:
        assert node.queue("orders").put(b"x").result(DEADLINE_S) == 1


def test_another_loop_is_told_so(tmp_path: Path) -> None:
    """While its own loop runs, and while that rests; also of a call that need not wait."""

    async def taken(queue: aio.MirroredQueue) -> Message:
        return await queue.get(timeout=DEADLINE_S)

    async def main() -> None:
        async with aio.MirroredQueue.open("orders", path=tmp_path) as queue:
            with pytest.raises(RuntimeError, match=r"another event loop.*mirrorq\.connect"):
                await asyncio.to_thread(lambda: asyncio.run(taken(queue)))
            await queue.put(b"one")
            assert (await taken(queue)).body == b"one"

    run(main())
    loop = asyncio.new_event_loop()
    queue = loop.run_until_complete(_opened(tmp_path))
    try:
        loop.run_until_complete(queue.put(b"two"))
        for call in (taken(queue), queue.put(b"three"), queue.send(b"three"), queue.qsize()):
            with pytest.raises(RuntimeError, match="another event loop"):
                asyncio.run(_awaited(call))
        with pytest.raises(RuntimeError, match="another event loop"):
            queue.put_nowait(b"three")
    finally:
        loop.run_until_complete(queue.close())
        loop.close()


async def _awaited(call: Awaitable[object]) -> None:
    await call


async def _opened(path: Path) -> aio.MirroredQueue:
    return await aio.MirroredQueue.open("orders", path=path)
