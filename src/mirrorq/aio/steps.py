"""Acks and puts that are one op, for asyncio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType

from mirrorq.api import transactions
from mirrorq.api.channel import Channel
from mirrorq.api.confirmation import Confirmation
from mirrorq.api.waits import Waits

Accepting = Callable[[Callable[[], Waits[Confirmation]]], Awaitable[Confirmation]]


class Transaction(transactions.Transaction):
    """As `mirrorq.api.transactions.Transaction`: `async with queue.transaction() as t:`, then
    `await t.confirmation`.

    The end of the block waits for room, in the loop. Who is cancelled there has sent nothing, and
    the messages are still the caller's to settle.
    """

    def __init__(self, channel: Channel, accepting: Accepting) -> None:
        super().__init__(channel)
        self._accepting = accepting

    async def __aenter__(self) -> Transaction:
        self._begin()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over = True
        if kind is None:
            self._confirmation = await self._accepting(self._sending)
