"""Spools for asyncio: the promises of `SpooledQueue`, awaited in a loop that never stands still."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.kit import DEADLINE_S

import mirrorq
from mirrorq import aio

pytestmark = pytest.mark.real


def run(body: Coroutine[Any, Any, None]) -> None:
    """Run a test's body in a loop, bounded."""

    async def bounded() -> None:
        async with asyncio.timeout(2 * DEADLINE_S):
            await body

    asyncio.run(bounded())


def test_a_put_is_on_the_disk_when_it_returns(endpoint: str, tmp_path: Path) -> None:
    """Without a cluster: a later process finds it, and sends it once a node answers."""

    async def before() -> None:
        async with aio.connect(endpoint, spool=tmp_path / "spool") as client:
            orders = await client.queue("orders")
            confirmation = await orders.put(b"1", timeout=DEADLINE_S)
            assert (confirmation.is_accepted, confirmation.done()) == (True, False)
            many = await orders.put_many([b"2", b"3"], timeout=DEADLINE_S)
            assert many.is_accepted
            while orders.status().messages != 3:  # it follows the disk
                await asyncio.sleep(0.01)
            assert client.spooled()["orders"].messages == 3
            with pytest.raises(mirrorq.Full, match="3 messages are spooled"):
                await orders.wait_for_confirms(1)
            with pytest.raises(mirrorq.NoQuorum):
                await orders.get(timeout=1)

    async def after() -> None:
        async with aio.connect(endpoint, spool=tmp_path / "spool") as client:
            orders = await client.queue("orders")
            sequence = await (await orders.put(b"4"))
            await orders.wait_for_confirms(DEADLINE_S)
            assert sequence == 4
            bodies = []
            for _ in range(4):
                message = await orders.get(timeout=DEADLINE_S)
                bodies.append(message.body)
                await message.ack()
            assert bodies == [b"1", b"2", b"3", b"4"]
            queue = await orders.replicated()
            assert await queue.qsize() == 0
            assert [one.name for one in await (await client.client()).queues()] == ["orders"]

    run(before())
    with mirrorq.Node("n", path=tmp_path / "n", listen=endpoint):
        run(after())


def test_many_puts_are_on_their_way_at_once(tmp_path: Path) -> None:
    """`send` waits for room alone; `flush` for the disk, and each confirmation for the queue."""

    async def body() -> None:
        async with aio.Node.open("n", path=tmp_path / "n") as node:
            async with node.queue("orders", spool=True) as orders:
                accepted: list[int] = []
                sent = [
                    await orders.send(b"%d" % one, on_accept=lambda _: accepted.append(1))
                    for one in range(100)
                ]
                await orders.flush(DEADLINE_S)
                assert all(one.is_accepted for one in sent)
                assert [await one for one in sent] == list(range(1, 101))
                assert await orders.put_nowait(b"x") == 101
                assert (await orders.set_aside(), await orders.drop_set_aside()) == ([], 0)
            assert (await node.spooled())["orders"].messages == 0
            plain = await node.queue("orders")
            assert await plain.qsize() == 101

    run(body())


def test_a_full_spool_lets_the_loop_go_on(endpoint: str, tmp_path: Path) -> None:
    """A put waits for room in its turn, raises Full in time, and stops no other task."""
    config = mirrorq.Config(spool_bytes_max=1 << 20)
    ticks: list[int] = []

    async def tick() -> None:
        while True:
            ticks.append(1)
            await asyncio.sleep(0.01)

    async def fill(orders: aio.SpooledQueue) -> None:
        while True:
            await orders.put(bytes(100_000), timeout=0.5)

    async def body() -> None:
        ticking = asyncio.create_task(tick())
        async with aio.connect(endpoint, spool=tmp_path / "spool", config=config) as client:
            orders = await client.queue("orders")
            with pytest.raises(mirrorq.Full, match="spool_bytes_max is 1048576"):
                await fill(orders)
            waiting = asyncio.create_task(orders.put(b"first" * 20_000))
            await asyncio.sleep(0.05)
            with pytest.raises(mirrorq.Full, match="earlier puts wait"):
                orders.put_nowait(b"second")
            with pytest.raises(mirrorq.Full, match="earlier puts wait"):
                await orders.send(b"second", block=False)
            with pytest.raises(mirrorq.Full, match="earlier puts wait"):
                await orders.send(b"second", timeout=0.05)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            count = orders.status().messages
            await orders.flush(DEADLINE_S)
            assert orders.status().messages == count
        ticking.cancel()

    run(body())
    assert len(ticks) > 1


def test_blocking_calls_of_a_spool_in_a_loop_are_refused(endpoint: str, tmp_path: Path) -> None:
    """They say at once what to await instead."""
    with mirrorq.connect(endpoint, spool=tmp_path / "spool") as client:
        orders = client.queue("orders")

        async def body() -> None:
            confirmation = orders.put(b"1")
            for call in (confirmation.result, orders.wait_for_confirms):
                with pytest.raises(RuntimeError, match="stop the event loop"):
                    call(5)

        run(body())
