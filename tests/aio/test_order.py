"""Puts of tasks: in the order of their calls, and woken by what makes room."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mirrorq import aio
from mirrorq.aio import bell
from mirrorq.aio.bell import Line
from mirrorq.errors import Full

from .conftest import run

pytestmark = pytest.mark.real


@pytest.fixture
def no_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits looks by himself after an hour: he is woken, or never goes on."""
    monkeypatch.setattr(bell, "LOOK_S", 3600.0)


@pytest.mark.parametrize("shards", [None, 2])
async def test_no_put_overtakes_another(tmp_path: Path, shards: int | None) -> None:
    """The first put of a fresh handle waits for the master's first word: those that came after it
    wait behind it. All have sequences in the order of their calls, with each new handle."""
    async with aio.Node.open("a", path=tmp_path) as node:
        for _ in range(10):
            async with node.queue("orders", **({"shards": shards} if shards else {})) as queue:
                tasks = [asyncio.create_task(queue.send(b"x", key="k")) for _ in range(10)]
                confirmations = [await task for task in tasks]
                sequences = [await one for one in confirmations]
                assert sequences == sorted(sequences)


async def test_a_put_that_is_blocked_goes_on_when_there_is_room(
    tmp_path: Path, no_looks: None
) -> None:
    """Room by what this very handle takes, and by another: nobody looks by himself, and those
    that wait go in their order."""
    async with (
        aio.Node.open("a", path=tmp_path) as node,
        node.queue("orders") as queue,
        node.queue("orders") as other,
    ):
        await node.set_policy("short", "", {"max-length": 2})
        await queue.put_many([b"0", b"1"])
        tasks = [asyncio.create_task(queue.send(b"%d" % n)) for n in range(2, 8)]
        with pytest.raises(Full):
            await queue.send(b"late", block=False)
        with pytest.raises(Full):
            queue.put_nowait(b"late")
        with pytest.raises(Full):
            await queue.send(b"late", timeout=0.01)
        bodies = []
        for taker in (queue, other) * 4:
            message = await taker.get()
            bodies.append(message.body)
            await message.ack()
        sequences = [await (await task) for task in tasks]
        assert sequences == sorted(sequences)
        assert sorted(bodies) == [b"%d" % n for n in range(8)]


def test_gets_are_served_in_the_order_of_their_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though each looks by itself again and again meanwhile, at times of its own."""
    monkeypatch.setattr(bell, "LOOK_S", 0.01)
    served: list[int] = []

    async def main() -> None:
        async with aio.Node.open("a", path=tmp_path) as node, node.queue("orders") as queue:

            async def taking(number: int) -> None:
                message = await queue.get()
                served.append(number)
                await message.ack()

            async with asyncio.TaskGroup() as tasks:
                for number in range(5):
                    tasks.create_task(taking(number))
                    await asyncio.sleep(0.013)
                for number in range(5):
                    await queue.put(b"%d" % number)
                    while len(served) == number:
                        await asyncio.sleep(0)

    run(main())
    assert served == [0, 1, 2, 3, 4]


async def test_a_line_goes_on_past_who_is_cancelled() -> None:
    """Whoever gives up before, at or after its turn holds up nobody and lets nobody in twice."""
    line, passed = Line(), []

    async def call(name: str, hold: asyncio.Event | None = None) -> None:
        await line.enter()
        try:
            passed.append(name)
            if hold is not None:
                await hold.wait()
        finally:
            line.leave()

    hold = asyncio.Event()
    tasks = {"a": asyncio.create_task(call("a", hold))}
    for name in "bcdef":
        tasks[name] = asyncio.create_task(call(name))
    await asyncio.sleep(0)
    assert not line.is_free
    tasks["b"].cancel()
    tasks["d"].cancel()
    with pytest.raises(TimeoutError):
        await line.enter(0)
    tasks["e"].cancel()
    hold.set()
    await asyncio.gather(*tasks.values(), return_exceptions=True)
    assert passed == ["a", "c", "f"]
    assert line.is_free
    # Cancelled in the very moment in which its turn has come.
    await line.enter()
    waiting = asyncio.create_task(call("g"))
    after = asyncio.create_task(call("h"))
    await asyncio.sleep(0)
    line.leave()
    waiting.cancel()
    await asyncio.gather(waiting, after, return_exceptions=True)
    assert passed[-1] == "h"
    assert line.is_free
