"""Data on the way between a client and its entry node, and the room for further data.

Each side counts the data bytes sent and received. A report of received bytes goes with the signs of
life, on a separate connection, and after each quarter of a window. So data on the way is bounded
without waits: a sign of life never stands behind data, and a confirm waits behind at most a window.

`Window` is the count of one side. `Outflow` holds the waiting requests of a client, each handle's
in order and the handles in turn. An entry node limits the deliveries of masters to a consumer of a
client by the size in each Credit on its way through.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

Parts = Sequence[bytes | bytearray | memoryview]
"""A message, encoded."""

REPORTS = 4
"""A report is due after this part of a window since the last report."""
SHARES = 4
"""A consumer is granted at most this part of a window's remaining bytes."""
LOST_WINDOWS = 4
"""With so many windows on the way the other side does not read: further messages are dropped.
Credits keep slow readers far below the limit."""


class Window:
    """Both directions of a connection, as counted by one side."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.reset()

    def reset(self) -> None:
        """A new connection: nothing is on the way."""
        self._sent = self._acknowledged = 0
        self.received = 0
        self._told = 0

    @property
    def on_way(self) -> int:
        """Bytes sent and not yet reported as received."""
        return self._sent - self._acknowledged

    @property
    def is_open(self) -> bool:
        """Return true if another message may be sent, of any size."""
        return self.on_way < self.size

    @property
    def is_overrun(self) -> bool:
        """Return true if the other side does not read."""
        return self.on_way >= LOST_WINDOWS * self.size

    def on_sent(self, size: int) -> None:
        self._sent += size

    def on_lost(self, size: int) -> None:
        """Uncount sent bytes which have not left the process."""
        self._sent = max(self._sent - size, self._acknowledged)

    def on_told(self, received: int) -> None:
        """Note the other side's report. Impossible numbers are cut to the possible."""
        self._acknowledged = max(self._acknowledged, min(received, self._sent))

    def on_received(self, size: int) -> None:
        self.received += size

    @property
    def is_report_due(self) -> bool:
        """Return true if the other side should hear now how much has come."""
        return self.received - self._told >= self.size // REPORTS

    def report(self) -> int:
        """Return the report for the other side."""
        self._told = self.received
        return self.received


class Outflow:
    """Requests of a client's handles which wait for the window, in turn.

    The limit of unconfirmed messages of each handle bounds the waiting requests; the handle keeps
    the bodies anyway until the confirm.
    """

    def __init__(self, window: Window, send: Callable[[Parts], None]) -> None:
        self._window = window
        self._send = send
        self._waiting: dict[int, deque[Parts]] = {}
        """Waiting requests by handle, in the order of turns."""

    @property
    def count(self) -> int:
        """Number of waiting messages."""
        return sum(map(len, self._waiting.values()))

    def offer(self, handle: int, parts: Parts) -> None:
        """Send, or wait for the window behind earlier requests of the handle."""
        waiting = self._waiting.get(handle)
        if waiting is not None:
            waiting.append(parts)
        elif self._window.is_open:
            self._send(parts)
        else:
            self._waiting[handle] = deque((parts,))

    def continue_sending(self) -> None:
        """The window may have room again."""
        while self._waiting and self._window.is_open:
            handle = next(iter(self._waiting))
            waiting = self._waiting.pop(handle)
            self._send(waiting.popleft())
            if waiting:
                self._waiting[handle] = waiting

    def forget(self, handle: int) -> None:
        """Drop the handle's requests: a new session repeats the necessary requests."""
        self._waiting.pop(handle, None)

    def clear(self) -> None:
        """All handles begin anew, at another node as a rule."""
        self._waiting.clear()
