"""An application's own log handlers: what they raise ends nothing of ours."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

import mirrorq
from mirrorq import aio
from mirrorq.testing import SimulatedCluster


class Broken(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise OSError(f"no room for {record.getMessage()}")


@pytest.fixture(autouse=True)
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A broken handler; and errors of log lines are reported as outside of our tests."""
    monkeypatch.setattr(logging.NullHandler, "handleError", logging.Handler.handleError)
    handler = Broken()
    logging.getLogger("mirrorq").addHandler(handler)
    yield
    logging.getLogger("mirrorq").removeHandler(handler)


def test_a_consumer_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    """Its callback fails, the line about it fails, and the message comes again."""
    bodies: list[bytes] = []

    def work(message: mirrorq.Message) -> None:
        bodies.append(message.body)
        if len(bodies) == 1:
            raise ValueError("no tea")

    with SimulatedCluster(nodes=1) as cluster:
        queue = cluster.queue("orders", on="a")
        queue.put(b"tea").result(30)
        queue.consume(work)
        cluster.run_until(lambda: bodies == [b"tea", b"tea"])
    assert "no room for a callback failed on message 1" in capsys.readouterr().err


def test_a_consumer_in_a_loop_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    """Also on the main thread, where nobody would be told of its end."""
    bodies: list[bytes] = []

    async def work(message: mirrorq.Message) -> None:
        bodies.append(message.body)
        if len(bodies) == 1:
            raise ValueError("no tea")

    async def main(queue: mirrorq.MirroredQueue) -> None:
        loop_queue = aio.MirroredQueue(queue)
        await loop_queue.put(b"tea")
        async with await loop_queue.consume(work):
            while len(bodies) < 2:
                await asyncio.sleep(0.1)

    with SimulatedCluster(nodes=1) as cluster:
        asyncio.run(main(cluster.queue("orders", on="a")))
    assert "no room for a callback failed on message 1" in capsys.readouterr().err


def test_a_client_goes_on_to_the_next_node(capsys: pytest.CaptureFixture[str]) -> None:
    """The line about the lost node fails."""
    with SimulatedCluster() as cluster:
        client = cluster.connect("shop", to="ab")
        queue = client.queue("orders")
        cluster.crash("a")
        assert queue.put(b"tea").result(30) == 1
        assert not client.is_closed
    assert "no room for client shop" in capsys.readouterr().err
