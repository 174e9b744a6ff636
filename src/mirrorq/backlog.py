"""Messages that a handle has fetched ahead: runs of chunks, not messages.

Callers take from the left, on their threads, and the host's thread adds and takes back on the
right. A `Message` is made when a call takes it, so what goes back costs nothing for each message.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from mirrorq.message import Chunk, Message, Run, messages_in

__all__ = ["Backlog"]


class Backlog:
    """In the order in which they came; from any thread."""

    def __init__(self) -> None:
        self.count = 0
        """How many messages are here."""
        self._runs: deque[Run] = deque()
        """None of them empty, none of them anybody else's."""
        self._lock = threading.Lock()

    def add(self, chunks: Sequence[Chunk]) -> None:
        """All of these, behind what is here."""
        with self._lock:
            for chunk in chunks:
                if chunk.count:
                    self._runs.append(Run(chunk, 0, chunk.count))
                    self.count += chunk.count

    def take(self, count: int) -> list[Message]:
        """The first ones, as many as there are up to `count`."""
        if not self.count:
            return []
        with self._lock:
            taken = self._take(count)
        return messages_in(taken)

    def take_one(self) -> Message | None:
        """The first one, if there is one."""
        if not self.count:
            return None
        lock = self._lock
        lock.acquire()  # `with` costs twice as much
        try:
            if not self.count:
                return None
            run = self._runs[0]
            place = run.start
            run.start = after = place + 1
            self.count -= 1
            if after == run.stop:
                self._runs.popleft()
        finally:
            lock.release()
        return Message(run.chunk, place)

    def _take(self, count: int) -> list[Run]:
        taken: list[Run] = []
        while self._runs and count > 0:
            run = self._runs[0]
            if run.stop - run.start <= count:
                self._runs.popleft()
            else:
                run = Run(run.chunk, run.start, run.start + count)
                self._runs[0].start = run.stop
            taken.append(run)
            count -= run.stop - run.start
            self.count -= run.stop - run.start
        return taken

    def shrink(self, keep: int) -> list[Run]:
        """Take out all but the first `keep`; in order."""
        gone: list[Run] = []
        with self._lock:
            while (excess := self.count - keep) > 0:
                run = self._runs[-1]
                if run.stop - run.start <= excess:
                    self._runs.pop()
                else:
                    run = Run(run.chunk, run.stop - excess, run.stop)
                    self._runs[-1].stop = run.start
                gone.append(run)
                self.count -= run.stop - run.start
        gone.reverse()
        return gone

    def take_out(self, sequence: int, delivery_count: int) -> Message | None:
        """This one delivery, if it is here."""
        with self._lock:
            for at, run in enumerate(self._runs):
                place = sequence - run.chunk.first
                if run.start <= place < run.stop and run.chunk.handout.count == delivery_count:
                    del self._runs[at]
                    if place + 1 < run.stop:
                        self._runs.insert(at, Run(run.chunk, place + 1, run.stop))
                    if run.start < place:
                        self._runs.insert(at, Run(run.chunk, run.start, place))
                    self.count -= 1
                    return Message(run.chunk, place)
        return None
