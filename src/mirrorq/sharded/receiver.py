"""`get` on a sharded queue: takes from all shards in turn, and waits for any of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirrorq.message import Message
from mirrorq.receiver import Receiver
from mirrorq.sharded.shard import share

if TYPE_CHECKING:
    from mirrorq.sharded.queue import ShardedQueue
    from mirrorq.sharded.shard import Shard

__all__ = ["ShardedReceiver"]


class ShardedReceiver(Receiver):
    """The gets of a handle on a sharded queue.

    Each call begins with the shard after the one with which the last call began, so none is left
    out while another is always full. A shard that had nothing when it was its turn is asked for
    one message: it will have one when its turn comes again.
    """

    def __init__(self, queue: ShardedQueue) -> None:
        super().__init__(queue)
        self._sharded = queue
        self._turn = 0
        for part in queue._parts:
            part._receiver.listeners.append(self.notify)

    @property
    def _parts(self) -> list[Shard]:
        return self._sharded._parts

    @property
    def buffered(self) -> int:
        """Messages here that no call has returned."""
        return sum(part._receiver.buffered for part in self._parts)

    @property
    def refused(self) -> str:
        """Why some master did not take get() as a consumer, "" when all did."""
        return next((why for p in self._parts if (why := p._receiver.refused)), "")

    def want(self, count: int) -> None:
        """So many messages more (less, when negative) are waited for, wherever they come from."""
        each = share(abs(count), self._sharded.shards)
        for part in self._parts:
            part._receiver.want(each if count > 0 else -each)

    def take_buffered(self, count: int) -> list[Message]:
        """Take up to `count` messages that are here, from all shards in turn."""
        parts, turn = self._parts, self._turn
        self._turn = (turn + 1) % len(parts)
        found: list[Message] = []
        empty: list[Shard] = []
        for part in (*parts[turn:], *parts[:turn]):
            taken = part._receiver.take_buffered(count - len(found))
            # What is fetched ahead of such calls is divided over the shards, too.
            part._receiver.asked = share(count, len(parts))
            found += taken
            if not taken:
                empty.append(part)
            if len(found) == count:
                break
        if found:
            # Where nothing is found the caller waits, and wants of all.
            for part in empty:
                part._receiver.hint()
        return found

    def take_one(self) -> Message | None:
        found = self.take_buffered(1)
        return found[0] if found else None

    def _pop(self, count: int) -> list[Message]:
        return self.take_buffered(count)
