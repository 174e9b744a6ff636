"""`get` on a sharded queue: takes from all shards in turn, and waits for any of them."""

from __future__ import annotations

from collections.abc import Sequence

from mirrorq.api.channel import Channel
from mirrorq.api.message import Message
from mirrorq.api.publisher import Publishing
from mirrorq.api.receiver import CALLS_AHEAD, MANY, Receiving
from mirrorq.api.sharded.shard import Shard


class ShardedReceiver(Receiving):
    """The gets of a handle on a sharded queue, which holds it. From any thread.

    Each call begins with the shard after the first shard of the last call, so that no shard is left
    out while another is always full. A shard that was empty at its turn fetches as much as is
    fetched ahead from the other shards, at least one message, for its next turn.

    The cost of a message depends on the pieces in which it travels: deliveries, acks, ops. So each
    shard has as much fetched ahead of calls as a ring alone. When calls take many messages, a shard
    keeps its turn for as many calls as it has fetched ahead, while it can serve each call whole. A
    call for fewer than MANY messages always passes the turn to the next shard.
    """

    def __init__(self, channel: Channel, publisher: Publishing, parts: Sequence[Shard]) -> None:
        super().__init__(channel, publisher, [part.receiver for part in parts])
        self._parts = parts
        self._turn = 0
        self._calls_served = 0
        """Number of whole calls that the shard has served in its turn."""
        for part in parts:
            part.receiver.signal.listeners.append(self.signal.notify)

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
