"""mirrorq for asyncio: the same names, awaited.

    from mirrorq import aio

    async with aio.connect("tcp://127.0.0.1:7400") as client:
        orders = await client.queue("orders")
        confirmation = await orders.send(b"order 1")    # accepted
        sequence = await confirmation                   # on disk on every member in sync
        async for message in orders:
            await work(message.body)
            message.ack()                               # awaited, ack may raise AckRefused

An opening call (`connect`, `Node.open`, `MirroredQueue.open`, `queue`, `exchange`) can be awaited:
the caller must close the result. Or entered: `async with client.queue("orders") as orders` closes.

Calls here wait in the loop: no call has a thread of its own. The exceptions are rare calls
(opening, declaring, binding, deleting, redriving, closing, administration), which run in a thread
of the loop's default executor. `Confirmation` and `Settlement` are the classes of `mirrorq`: both
can be awaited directly.

*Cancellation*: a cancelled call loses nothing. A `get` takes a message only at the moment of its
return. A cancelled `put`, `publish`, `ack_and_put` or transaction was not accepted, and messages to
ack are still the caller's. A call in a thread may still take effect, but waits for no majority any
more; anything opened by the thread is closed again.

*Threads*: an object of this module belongs to the loop in which the object was made; the handle
below (`queue.handle`) may be used from any thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from mirrorq.aio.consumer import Consumer
from mirrorq.aio.exchange import Exchange
from mirrorq.aio.hosts import Client, Node, SpoolClient, connect
from mirrorq.aio.queue import MirroredQueue
from mirrorq.aio.spooled import SpooledQueue
from mirrorq.aio.steps import Transaction
from mirrorq.api.confirmation import (
    Confirmation,
    ReturnWhen,
    Settlement,
    Waited,
    checked_wait,
    parted,
)

__all__ = [
    "Client",
    "Consumer",
    "Exchange",
    "MirroredQueue",
    "Node",
    "SpoolClient",
    "SpooledQueue",
    "Transaction",
    "connect",
    "wait",
]


async def wait(
    confirmations: Iterable[Confirmation | Settlement],
    timeout: float | None = None,
    return_when: ReturnWhen = "ALL_COMPLETED",
) -> Waited:
    """Wait until all have ended, or `timeout` seconds; return (done, not_done).

    Args:
        return_when: as in `mirrorq.wait`.
    """
    items = checked_wait(confirmations, return_when)

    async def outcome(one: Confirmation | Settlement) -> None:
        await one

    waits = {asyncio.ensure_future(outcome(one)): one for one in items}
    try:
        if waits:
            await asyncio.wait(waits, timeout=timeout, return_when=return_when)
    finally:
        for task in waits:
            if not task.cancel():
                task.exception()  # what went wrong is told by the confirmation
    return parted(waits.values())
