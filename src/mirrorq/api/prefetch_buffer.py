"""Messages that a handle has fetched ahead.

Callers take from the left, on their threads, and the host's thread adds and takes back on the
right: each by one operation, under which a message goes from here into the caller's list, or stays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice, repeat

from mirrorq.api.message import Chunk, Message, Run, runs_of
from mirrorq.waiting import take_back


class Backlog:
    """The messages, in the order in which they came. Held by the handle's receiver; users' threads
    take from the left, its host's thread does the rest."""

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()
        self.count = self._messages.__len__
        """How many messages are here."""
        self.first = iter(self._messages.popleft, None)
        """Takes the next one from the left. Raises IndexError when there is none."""
        self._names: dict[tuple[int, int], Message] | None = None
        """What is here by sequence and delivery count, since somebody asked; the host's."""

    def add(self, chunks: Sequence[Chunk]) -> None:
        """All of these, behind what is here."""
        self._names = None
        for chunk in chunks:
            self._messages.extend(map(Message, repeat(chunk), range(chunk.count)))

    def take_into(self, found: list[Message], count: int) -> None:
        """Add the first ones to a list, as many as there are up to `count`.

        In C from one to the other: what is interrupted here leaves each message in one of them.
        """
        if self._messages:
            try:
                found += islice(self.first, count)
            except IndexError:
                return

    def put_back(self, taken: Sequence[Message]) -> None:
        """What was taken last, before all that is here."""
        self._messages.extendleft(reversed(taken))

    def take_all(self, is_meant: Callable[[Message], bool]) -> list[Message]:
        """Take out those of which this is true."""
        self._names = None
        return [
            one for one in list(self._messages) if is_meant(one) and take_back(self._messages, one)
        ]

    def shrink(self, keep: int) -> list[Run]:
        """Take out all but the first `keep`; in order."""
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
        """This one delivery, if it is here."""
        if self._names is None:
            # After a change of master many are asked for at once, among many.
            here = list(self._messages)
            self._names = {(one.sequence, one.delivery_count): one for one in here}
        found = self._names.pop((sequence, delivery_count), None)
        if found is not None:
            # A call may have taken it.
            return found if take_back(self._messages, found) else None
        return None
