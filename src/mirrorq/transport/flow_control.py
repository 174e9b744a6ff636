"""What is on the way between a client and its entry node, and how much more may be sent.

Each side counts the bytes of data that it has sent and that have come; what has come is told to
the other with the signs of life, which travel on a connection of their own, and whenever a quarter
of the window has come since. So data on its way is bounded without anybody waiting for it: a sign
of life never stands behind data, and a confirm behind no more than a window.

`Window` is one side's count. `Outflow` is where a client's requests wait, each handle's in order
and the handles in turn. `Seat` is how an entry node bounds what masters hand out to one consumer
of a client: by the size in each Credit that it passes on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

Parts = Sequence[bytes | bytearray | memoryview]
"""One message, encoded."""

REPORTS = 4
"""What has come is told when this part of a window has come since the last time."""
SHARES = 4
"""A consumer is granted at most this part of what a window has left."""
LOST_WINDOWS = 4
"""So many windows on the way, and the other side does not read: what comes then is dropped. Credits
keep who reads slowly far below it."""


class Window:
    """Both directions of one connection, as one side counts them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.begin()

    def begin(self) -> None:
        """A new connection: nothing is on the way."""
        self._sent = self._acknowledged = 0
        self.received = 0
        self._told = 0

    @property
    def on_way(self) -> int:
        """Bytes sent that the other side has not said to have."""
        return self._sent - self._acknowledged

    @property
    def is_open(self) -> bool:
        """Whether one more message may be sent, whatever its size."""
        return self.on_way < self.size

    @property
    def is_overrun(self) -> bool:
        """Whether the other side does not read."""
        return self.on_way >= LOST_WINDOWS * self.size

    def on_sent(self, size: int) -> None:
        self._sent += size

    def on_lost(self, size: int) -> None:
        """What was sent has not left this process."""
        self._sent = max(self._sent - size, self._acknowledged)

    def on_told(self, received: int) -> None:
        """The other side says how much has come. Nonsense is cut to what is possible."""
        self._acknowledged = max(self._acknowledged, min(received, self._sent))

    def on_received(self, size: int) -> None:
        self.received += size

    @property
    def is_report_due(self) -> bool:
        """Whether the other side should hear now how much has come."""
        return self.received - self._told >= self.size // REPORTS

    def report(self) -> int:
        """What to tell the other side now."""
        self._told = self.received
        return self.received


class Outflow:
    """Requests of a client's handles that wait for the window, in turn.

    What waits is bounded by what each handle may have unconfirmed; the bodies are those that the
    handle keeps anyway until they are confirmed.
    """

    def __init__(self, window: Window, send: Callable[[Parts], None]) -> None:
        self._window = window
        self._send = send
        self._waiting: dict[int, deque[Parts]] = {}
        """By handle, in the order of their turns."""

    @property
    def count(self) -> int:
        """Messages that wait."""
        return sum(map(len, self._waiting.values()))

    def offer(self, handle: int, parts: Parts) -> None:
        """Send, or wait for the window: behind what waits of the same handle."""
        waiting = self._waiting.get(handle)
        if waiting is not None:
            waiting.append(parts)
        elif self._window.is_open:
            self._send(parts)
        else:
            self._waiting[handle] = deque((parts,))

    def go_on(self) -> None:
        """The window may have room again."""
        while self._waiting and self._window.is_open:
            handle = next(iter(self._waiting))
            waiting = self._waiting.pop(handle)
            self._send(waiting.popleft())
            if waiting:
                self._waiting[handle] = waiting

    def forget(self, handle: int) -> None:
        """The handle begins anew: it says again what matters."""
        self._waiting.pop(handle, None)

    def clear(self) -> None:
        """All handles begin anew, at another node as a rule."""
        self._waiting.clear()
