"""Messages that a handle has fetched ahead.

Callers take from the left, on their threads. The host's thread adds and takes back on the right.
Each take is one operation: a message moves into the caller's list, or stays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice, repeat

from mirrorq.api.message import Chunk, Message, MessageRun, runs_of
from mirrorq.waiting import take_back


class Backlog:
    """The fetched messages, in the order of arrival. Held by the handle's receiver. Users' threads
    take from the left; the host's thread does the rest."""

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()
        self.count = self._messages.__len__
        """Returns the number of messages."""
        self.first = iter(self._messages.popleft, None)
        """Takes the next message from the left. Raises IndexError when there is none."""
        self._names: dict[tuple[int, int], Message] | None = None
        """Messages by sequence and delivery count, since the first request; host's thread."""

    def add(self, chunks: Sequence[Chunk]) -> None:
        """Append the messages of chunks."""
        self._names = None
        for chunk in chunks:
            self._messages.extend(map(Message, repeat(chunk), range(chunk.count)))

    def take_into(self, found: list[Message], count: int) -> None:
        """Move the first messages to a list, up to `count`.

        The move is done in C: after an interrupt each message is in exactly one place.
        """
        if self._messages:
            try:
                found += islice(self.first, count)
            except IndexError:
                return

    def put_back(self, taken: Sequence[Message]) -> None:
        """Put the messages taken last back in front."""
        self._messages.extendleft(reversed(taken))

    def take_all(self, is_meant: Callable[[Message], bool]) -> list[Message]:
        """Take out the messages for which the function is true."""
        self._names = None
        return [
            one for one in list(self._messages) if is_meant(one) and take_back(self._messages, one)
        ]

    def shrink(self, keep: int) -> list[MessageRun]:
        """Take out all messages after the first `keep`; return them in order."""
        self._names = None
        gone: list[Message] = []
        take = self._messages.pop
        while len(self._messages) > keep:
            try:
                gone.append(take())
            except IndexError:
                break
        gone.reverse()
        return runs_of(gone)

    def take_out(self, sequence: int, delivery_count: int) -> Message | None:
        """Take out one delivery, if it is here."""
        if self._names is None:
            # After a failover many deliveries are requested at once.
            here = list(self._messages)
            self._names = {(one.sequence, one.delivery_count): one for one in here}
        found = self._names.pop((sequence, delivery_count), None)
        if found is not None:
            # A call may have taken it.
            return found if take_back(self._messages, found) else None
        return None
