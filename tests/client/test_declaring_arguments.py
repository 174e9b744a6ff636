"""Queues that are declared with arguments: by a node, by a client, in a loop."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import mirrorq
from conftest import Connecting
from mirrorq import ConfigError, Full, NotConfirmed, PreconditionFailed, aio
from mirrorq.node.node import Node

WAIT_S = 60
GIVEN: dict[str, Any] = {
    "expires": timedelta(days=1),
    "message_ttl": 3600,
    "max_length": 3,
    "max_length_bytes": 10_000,
    "overflow": "reject-publish",
    "dead_letter_queue": "dead",
    "delivery_limit": 5,
    "consumer_timeout": 0,
}
SHOWN = {
    "consumer-timeout": 0,
    "dead-letter-queue": "dead",
    "delivery-limit": 5,
    "expires": 24 * 3600 * 1000,
    "max-length": 3,
    "max-length-bytes": 10_000,
    "message-ttl": 3600 * 1000,
    "overflow": "reject-publish",
}


@pytest.fixture(params=["node", "client"])
def host(request: pytest.FixtureRequest, node: Node, connecting: Connecting) -> Any:
    return node if request.param == "node" else connecting(node.listening)


def test_a_queue_is_made_with_arguments_and_shows_them(host: Any) -> None:
    """They hold: a fourth message is refused, and what is rejected goes to the queue named."""
    with host.queue("dead") as dead, host.queue("orders", **GIVEN) as orders:
        assert orders.status().arguments == SHOWN
        orders.put_many([b"%d" % number for number in range(3)]).result(WAIT_S)
        with pytest.raises(NotConfirmed):
            orders.put(b"one more").result(WAIT_S)
        orders.get(timeout=WAIT_S).reject().result(WAIT_S)
        assert dead.get(timeout=WAIT_S).body == b"0"
        with host.queue("orders") as again, host.queue("orders", passive=True, max_length=9):
            assert again.status().arguments == SHOWN
        with host.queue("orders", **GIVEN):
            pass


def test_other_arguments_are_refused_by_name(host: Any) -> None:
    with host.queue("orders", max_length=3):
        with pytest.raises(PreconditionFailed, match="max-length=3, not 4: declare it with equal"):
            host.queue("orders", max_length=4)
        with pytest.raises(PreconditionFailed, match="expires=None, not 1000"):
            host.queue("orders", expires=1)
    with host.queue("many", shards=2, max_length=3) as many:
        assert many.status().arguments == {"max-length": 3}
        with pytest.raises(PreconditionFailed, match="max-length=3, not 4"):
            host.queue("many", shards=2, max_length=4)
        with pytest.raises(PreconditionFailed, match="max-length=3, not 4"):
            host.queue("many", max_length=4)


@pytest.mark.parametrize(
    "wrong",
    [
        {"expires": 0},
        {"expires": -1},
        {"expires": "1 h"},
        {"max_length": 1.5},
        {"max_length": -1},
        {"overflow": "drop"},
        {"dead_letter_queue": ""},
        {"delivery_limit": True},
        {"consumer_timeout": timedelta(seconds=-1)},
    ],
)
def test_what_is_no_argument_is_refused_before_anything_is_asked(
    node: Node, wrong: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError):
        node.queue("orders", **wrong)
    with pytest.raises(TypeError):
        node.queue("orders", ha_mode="all")  # type: ignore[call-overload]
    assert node.queues() == []


def test_a_policy_and_an_argument(host: Any) -> None:
    """The lesser number holds; a queue without room says so to a put that does not wait."""
    host.set_policy("short", "^orders$", {"max-length": 1})
    with host.queue("orders", max_length=5, overflow="block") as orders:
        orders.put(b"one").result(WAIT_S)
        with pytest.raises(Full):
            orders.put(b"two", timeout=0.2)
        host.clear_policy("short")
        for body in (b"2", b"3", b"4", b"5"):
            orders.put(body).result(WAIT_S)
        with pytest.raises(Full):
            orders.put(b"six", timeout=0.2)


def test_arguments_are_there_after_a_restart(tmp_path: Path) -> None:
    with (
        mirrorq.Node("b", path=tmp_path / "b") as node,
        node.queue("orders", max_length=3, message_ttl=60) as orders,
    ):
        before = orders.status().arguments
    with mirrorq.MirroredQueue("orders", path=tmp_path / "b", node="b", max_length=3) as orders:
        assert orders.status().arguments == before == {"max-length": 3, "message-ttl": 60_000}
        with pytest.raises(PreconditionFailed, match="max-length=3, not 4"):
            orders.node.queue("orders", max_length=4)  # type: ignore[attr-defined]


def test_a_spool_declares_a_queue_as_it_is(tmp_path: Path) -> None:
    wrong = "max_length=3 does not go with a spool"
    with mirrorq.Node("b", path=tmp_path / "b") as node, pytest.raises(ConfigError, match=wrong):
        node.queue("orders", spool=True, max_length=3)  # type: ignore[call-overload]


def test_in_a_loop(node: Node) -> None:
    async def main() -> None:
        async with asyncio.timeout(WAIT_S), aio.connect(node.listening or "") as client:
            async with client.queue("orders", max_length=3, expires=timedelta(hours=1)) as orders:
                assert orders.status().arguments == {"expires": 3_600_000, "max-length": 3}
            with pytest.raises(PreconditionFailed, match="max-length=3, not 4"):
                await client.queue("orders", max_length=4)

    asyncio.run(main())
