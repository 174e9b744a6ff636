"""How long messages may be held, on a node, by a client, and in a loop."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from conftest import Connecting
from mirrorq import AckRefused, aio
from mirrorq.node.node import Node

WAIT_S = 60
SHORT_MS = 700


@pytest.mark.parametrize("kind", ["node", "client"])
def test_a_message_is_held_for_as_long_as_it_is_extended(
    node: Node, connecting: Connecting, kind: str
) -> None:
    """Beyond the queue's consumer-timeout, by any handle; what is not extended goes back."""
    host = node if kind == "node" else connecting(node.listening)
    with host.queue("orders") as orders, node.queue("orders") as others:
        orders.put_many([b"kept", b"late"]).result(WAIT_S)
        kept, late = orders.get(timeout=WAIT_S), orders.get(timeout=WAIT_S)
        kept.extend(timedelta(hours=1)).result(WAIT_S)
        node.set_policy("short", "^orders$", {"consumer-timeout": SHORT_MS})
        again = others.get(timeout=WAIT_S)
        assert (again.body, again.redelivered) == (b"late", True)
        assert isinstance(late.extend(5).exception(WAIT_S), AckRefused)
        kept.ack().result(WAIT_S)
        assert others.status().policy == "short"


def test_in_a_loop(node: Node) -> None:
    """Messages of asyncio's handles are the same; an extension is awaited as an ack is."""

    async def main() -> None:
        async with asyncio.timeout(WAIT_S):
            host = await aio.connect(node.listening or "")
            async with host, host.queue("orders") as orders:
                await (await orders.put(b"one"))
                message = await orders.get()
                await message.extend(5)
                await message.reject()
                with pytest.raises(AckRefused):
                    await message.extend(5)

    asyncio.run(main())
