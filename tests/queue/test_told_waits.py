"""Who waits for long is told in the log what for: once, and only then."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

import pytest
from fake_host import FakeHost, wait_until

from mirrorq.aio.bell import Bells
from mirrorq.api import waits
from mirrorq.config import Config

pytestmark = pytest.mark.real


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(waits, "QUIET_S", 0.02)
    caplog.set_level(logging.INFO, "mirrorq")


def _until_told(
    caplog: pytest.LogCaptureFixture, call: Callable[[], object], end: Callable[[], object]
) -> str:
    """What was told of a call that waits until `end` lets it go on."""
    thread = threading.Thread(target=call)
    thread.start()
    wait_until(lambda: bool(caplog.messages))
    end()
    thread.join(20)
    assert not thread.is_alive()
    return caplog.messages[-1]


def test_a_confirmation(caplog: pytest.LogCaptureFixture) -> None:
    with FakeHost() as host, host.queue() as queue:
        host.down()
        confirmation = queue.put(b"x")
        told = _until_told(caplog, confirmation.result, host.up)
        assert "a confirmation has had no outcome" in told
        assert "no master" in told


def test_all_confirms(caplog: pytest.LogCaptureFixture) -> None:
    with FakeHost() as host, host.queue() as queue:
        host.down()
        queue.put_many([b"x", b"y"])
        told = _until_told(caplog, queue.wait_for_confirms, host.up)
        assert "queue 'q': 2 messages are not confirmed yet" in told


def test_a_put_without_room(caplog: pytest.LogCaptureFixture) -> None:
    with FakeHost(Config(unconfirmed_count_max=1)) as host, host.queue() as queue:
        host.down()
        queue.put(b"x")
        told = _until_told(caplog, lambda: queue.put(b"y"), host.up)
        assert told.startswith("put() waits: ")


def test_of_many_who_wait_one_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with FakeHost() as host, host.queue() as queue:
        host.down()
        confirmations = [queue.put(b"x") for _ in range(20)]
        threads = [threading.Thread(target=one.result) for one in confirmations]
        for thread in threads:
            thread.start()
        wait_until(lambda: bool(caplog.messages))
        host.up()
        for thread in threads:
            thread.join(20)
        assert len([one for one in caplog.messages if "no outcome" in one]) == 1


def test_in_a_loop_and_not_when_it_is_quick(caplog: pytest.LogCaptureFixture) -> None:
    with FakeHost() as host, host.queue() as queue:
        queue.put(b"x").result(10)
        assert not caplog.messages
        host.down()
        queue.put(b"y")

        async def flush() -> None:
            await Bells(asyncio.get_running_loop()).run(queue._handle.puts.confirming(None))

        _until_told(caplog, lambda: asyncio.run(flush()), host.up)
