"""mirrorq for asyncio: the same names, awaited.

    from mirrorq import aio

    async with aio.connect("tcp://127.0.0.1:7400") as client:
        orders = await client.queue("orders")
        confirmation = await orders.put(b"order 1")     # accepted
        sequence = await confirmation                   # on disk on every member in sync
        async for message in orders:
            await work(message.body)
            message.ack()                               # awaited, it may raise AckRefused

What is opened (`connect`, `Node.open`, `MirroredQueue.open`, `queue`, `exchange`) can be awaited,
and is the caller's then, or entered: `async with client.queue("orders") as orders` closes it.

What waits here waits in the loop: no call has a thread of its own. The exceptions are calls that
seldom happen (opening, declaring, binding, deleting, redriving, closing, administration), which run
in a thread of the loop's default executor. `Confirmation` and `Settlement` are those of `mirrorq`:
they can be awaited as they are.

*Cancellation*: a cancelled call loses nothing. A `get` takes its message in the moment in which
it returns it and not before; a cancelled `put`, `publish`, `ack_and_put` or transaction was not
accepted, and what it would have acked is still the caller's. What runs in a thread may still take
effect, but waits for no majority any more; what it opens is closed again.

*Threads*: an object of this module belongs to the loop in which it was made; the handle below
it (`queue.handle`) may be used from any thread beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

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
    check_return_when,
    parted,
)

__all__ = [
    "Client",
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

    check_return_when(return_when)

    async def outcome(one: Confirmation | Settlement) -> None:
        await one

    waits = {asyncio.ensure_future(outcome(one)): one for one in confirmations}
    try:
        if waits:
            await asyncio.wait(waits, timeout=timeout, return_when=return_when)
    finally:
        for task in waits:
            if not task.cancel():
                task.exception()  # what went wrong is told by the confirmation
    return parted(waits.values())
