"""aio's `as_queue()`: what programs for asyncio.Queue rely on, with plain calls that ask nobody."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from mirrorq import ShutDown, aio
from mirrorq.aio.stdlib_queue import QueueAdapter

pytestmark = pytest.mark.real


async def until(condition: Callable[[], bool]) -> None:
    """Give others turns until it holds; the test's deadline is `run`'s."""
    while not condition():
        await asyncio.sleep(0.002)


async def test_plain_calls_tell_of_what_is_here(tmp_path: Path) -> None:
    """`not empty()` says that `get_nowait` returns; what is polled for comes, and stays."""
    async with await aio.MirroredQueue.open("q", path=tmp_path) as handle:
        queue = handle.as_queue(dumps=pickle.dumps, loads=pickle.loads)
        assert (queue.qsize(), queue.empty(), queue.full()) == (0, True, False)
        with pytest.raises(asyncio.QueueEmpty):
            queue.get_nowait()
        for item in (1, "two", None):
            queue.put_nowait(item)
        await until(lambda: queue.qsize() == 3)
        assert [queue.get_nowait(), queue.get_nowait()] == [1, "two"]
        assert not queue.empty()
        assert await queue.get() is None
        assert queue.empty()
        for _ in range(3):
            queue.task_done()
        with pytest.raises(ValueError, match="too many times"):
            queue.task_done()
        await queue.join()
        assert await handle.qsize() == 0


async def test_who_drops_the_adapter_keeps_nothing_here(tmp_path: Path) -> None:
    """What it had fetched ahead goes back to the queue, and to others."""
    async with (
        await aio.MirroredQueue.open("q", path=tmp_path) as handle,
        await aio.MirroredQueue.open("q", path=tmp_path) as other,
    ):
        queue: QueueAdapter[bytes] | None = handle.as_queue()
        await queue.put(b"1")
        await until(lambda: queue.qsize() == 1)
        queue = None
        assert (await other.get(timeout=20)).body == b"1"


async def test_a_put_that_is_blocked_goes_on_when_get_nowait_makes_room(tmp_path: Path) -> None:
    """What the standard library's `test_blocking_put_wait` is about, once the item is here."""
    async with await aio.MirroredQueue.open("q", path=tmp_path) as handle:
        await handle.node.set_policy("one", "", {"max-length": 1})
        queue = handle.as_queue()
        await queue.put(b"1")
        putting = asyncio.create_task(queue.put(b"2"))
        # The first plain call below has the first item fetched, and that makes room already.
        await asyncio.wait({putting}, timeout=0.1)
        assert not putting.done()
        await until(lambda: not queue.empty())
        assert queue.get_nowait() == b"1"
        await putting
        assert await queue.get() == b"2"


async def test_each_task_is_done_with_its_own(tmp_path: Path) -> None:
    """Tasks of one loop share a thread: what they hold they end by task, whoever is first."""
    async with await aio.MirroredQueue.open("q", path=tmp_path) as handle:
        queue = handle.as_queue(ack="task_done")
        await queue.put(b"slow")
        await queue.put(b"quick")
        may_end = asyncio.Event()

        async def work(gate: asyncio.Event | None) -> None:
            await queue.get()
            if gate is not None:
                await gate.wait()
            queue.task_done()

        slow = asyncio.create_task(work(may_end))
        await asyncio.create_task(work(None))
        await until(lambda: handle.handle._handle.is_quiet())
        assert [message.body for message in await handle.browse()] == [b"slow"]
        joining = asyncio.create_task(queue.join())
        may_end.set()
        await slow
        await joining
        assert await handle.browse() == []


async def test_a_cancelled_get_takes_nothing(tmp_path: Path) -> None:
    """As of the handle: the next one has it."""
    async with await aio.MirroredQueue.open("q", path=tmp_path) as handle:
        queue = handle.as_queue()
        waiting = asyncio.create_task(queue.get())
        await until(lambda: handle.handle._handle.receiver.has_waiting)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await queue.put(b"1")
        assert await queue.get() == b"1"
        queue.task_done()
        await queue.join()


async def test_a_poller_hears_of_a_shutdown(tmp_path: Path) -> None:
    """`get_nowait` says so when the master has said that nothing is left."""
    async with await aio.MirroredQueue.open("q", path=tmp_path) as handle:
        queue = handle.as_queue()
        await queue.put(b"1")
        queue.shutdown()
        with pytest.raises(ShutDown):
            await queue.put(b"2")
        found: list[bytes] = []

        async def poll() -> None:
            while True:
                try:
                    found.append(queue.get_nowait())
                except asyncio.QueueEmpty:
                    await asyncio.sleep(0.002)

        with pytest.raises(ShutDown):
            await poll()
        assert found == [b"1"]
        queue.shutdown(immediate=True)
        assert queue.qsize() == 0
