"""`get` on a sharded queue: takes from all shards in turn, and waits for any of them."""

from __future__ import annotations

from collections.abc import Sequence

from mirrorq.api.channel import Channel, share
from mirrorq.api.message import Message
from mirrorq.api.publisher import Publishing
from mirrorq.api.receiver import CALLS_AHEAD, Demand, Receiving
from mirrorq.api.sharded.shard import Shard

MANY = 64
"""A call for fewer messages always passes the turn to the next shard."""


class ShardedReceiver(Receiving):
    """The gets of a handle on a sharded queue, which holds it. From any thread.

    Each call begins with the shard after the first shard of the last call, so that no shard is left
    out while another is always full. A shard that was empty at its turn fetches as much as is
    fetched ahead from the other shards, at least one message, for its next turn.

    The cost of a message depends on the pieces in which it travels: deliveries, acks, ops. So each
    shard has as much fetched ahead of calls as a ring alone. When calls take many messages, a shard
    keeps its turn for as many calls as it has fetched ahead, while it can serve each call whole.
    """

    def __init__(self, channel: Channel, publisher: Publishing, parts: Sequence[Shard]) -> None:
        super().__init__(channel, publisher)
        self._parts = parts
        self._turn = 0
        self._calls_served = 0
        """Number of whole calls that the shard has served in its turn."""
        for part in parts:
            part.receiver.signal.listeners.append(self.signal.notify)

    @property
    def has_had_some(self) -> bool:
        return any(part.receiver.has_had_some for part in self._parts)

    @property
    def buffered(self) -> int:
        return sum(part.receiver.buffered for part in self._parts)

    @property
    def went_back(self) -> int:
        return sum(part.receiver.went_back for part in self._parts)

    @property
    def refused(self) -> str:
        return next((why for part in self._parts if (why := part.receiver.refused)), "")

    @property
    def has_waiting(self) -> bool:
        return any(part.receiver.has_waiting for part in self._parts)

    def want(self, demand: Demand) -> None:
        """Add a demand at each shard, until `unwant`.

        A small demand is divided over the shards. A large demand is placed whole at each shard,
        within the handle's limit on fetched messages: six pieces cost six times as much as one.
        Remaining messages are for the next call, or go back.
        """
        each = demand.count
        if each < MANY:
            each = share(each, len(self._parts))
        demand.parts = [Demand(each) for _ in self._parts]
        for part, wanted in zip(self._parts, demand.parts, strict=True):
            part.receiver.want(wanted)

    def unwant(self, demand: Demand) -> None:
        """Remove the demand of an ended call."""
        for part, wanted in zip(self._parts, demand.parts, strict=False):
            part.receiver.unwant(wanted)

    def take_buffered(self, found: list[Message], count: int) -> None:
        """Take up to `count` messages that are here, from all shards in turn."""
        parts, turn = self._parts, self._turn
        self._calls_served += 1
        is_whole = count >= MANY and parts[turn].receiver.buffered >= count
        if not is_whole or self._calls_served >= CALLS_AHEAD:
            self._turn, self._calls_served = (turn + 1) % len(parts), 0
        empty: list[Shard] = []
        for part in (*parts[turn:], *parts[:turn]):
            before = len(found)
            part.receiver.take_buffered(found, count - before)
            part.receiver.asked = count
            if len(found) == before:
                empty.append(part)
            if len(found) == count:
                break
        if found:
            # If nothing is found, the caller waits, with a demand at all shards.
            ahead = max(part.receiver.ahead for part in parts) if empty else 0
            for part in empty:
                part.receiver.hint(max(ahead, 1))

    @property
    def next_part(self) -> Shard:
        """The shard with the next turn."""
        return self._parts[self._turn]

    def take_one(self, found: list[Message]) -> None:
        parts, turn = self._parts, self._turn
        parts[turn].receiver.take_one(found)
        if found:
            self._turn, self._calls_served = (turn + 1) % len(parts), 0
        else:
            self.take_buffered(found, 1)

    def take_more(self, found: list[Message], count: int) -> None:
        self.take_buffered(found, count)
