"""Signs of life between a client and its entry node, as the client counts them. Pure.

A client gives signs of life, and leaves a node that is silent or cut off from the majority. The
client's thread may stand still meanwhile: other threads of its process have the interpreter, or
other processes the machine. During a standstill the client asks nothing and reads nothing, so this
time is not the node's silence. Silence counts only up to the last read of the socket: later
messages are still unread.

Leaving a node costs the held messages, and work on both sides. Where nodes get too little time, a
move to the next node makes the shortage worse. So a client that gave nodes up, and was not served
since, doubles its wait for each next node.
"""

from __future__ import annotations

from mirrorq.config import Config
from mirrorq.containers.timers import FOREVER_MS
from mirrorq.transport.patience import PATIENCE_MAX

PINGS_PER_EXPIRY = 4
"""Signs of life within the time after which the node considers the client gone."""
DOUBLINGS_MAX = 4
"""More doublings would exceed PATIENCE_MAX."""


class Keepalive:
    """Times of signs of life between one client and its entry node. For the client's thread.

    Args:
        config: times.
        spread: 0 to 1, different for each client: a crowd does not leave a node at once.
    """

    def __init__(self, config: Config, spread: float = 0.0) -> None:
        self.patience = 100
        """Percent, as the entry node reports; see `patience_ms`."""
        self._spread = spread
        self._failure_ms = config.failure_ms
        self._heartbeat_ms = config.heartbeat_ms
        self._is_connected = False
        self._welcome_ms: int | None = None
        """Time since which the node serves this client."""
        self._paused_ms: int | None = None
        """Time since which the node is cut off."""
        self._given_up = 0
        """Nodes given up in a row. A node that serves for `patience_ms` resets the count."""
        self._ping_ms = config.heartbeat_ms
        self._given_ms = 0
        self._heard_ms = 0
        self._read_ms = 0
        """Time of the last read of the socket."""

    @property
    def patience_ms(self) -> int:
        """Return how long a node may be silent, or cut off, before the client leaves."""
        grown = max(self.patience, 100 << min(self._given_up, DOUBLINGS_MAX))
        if grown > 100:
            grown += int(grown * self._spread)
        return self._failure_ms * min(grown, PATIENCE_MAX) // 100

    @property
    def pause_ms(self) -> int:
        """Between two signs of life."""
        return self._ping_ms * self.patience // 100

    # --- Events ---------------------------------------------------------------------------

    def on_connected(self, now_ms: int) -> None:
        """A node is to answer."""
        self._begin()
        self._is_connected = True
        self._heard_ms = now_ms

    def on_welcome(self, now_ms: int, expiry_ms: int) -> None:
        """Note that the node serves this client. The node drops a client silent for `expiry_ms`."""
        self._begin()
        self._is_connected = True
        self._welcome_ms = self._heard_ms = now_ms
        self._ping_ms = max(min(self._heartbeat_ms, expiry_ms // PINGS_PER_EXPIRY), 1)

    def on_left(self) -> None:
        """Note that no node serves this client now."""
        self._begin()

    def on_given_up(self) -> None:
        """Note that this client's patience ended, not the connection."""
        self._given_up += 1

    def _begin(self) -> None:
        self._is_connected, self._welcome_ms, self._paused_ms = False, None, None
        self.patience = 100

    def on_heard(self, now_ms: int) -> None:
        """The node has said something."""
        self._heard_ms = now_ms

    def on_pong(self, now_ms: int, paused: bool, patience: int) -> None:
        """The node says whether it is cut off, and how much more time, in percent, both take.

        Nonsense is cut.
        """
        self.patience = min(max(patience, 100), PATIENCE_MAX)
        if paused:
            self._paused_ms = now_ms if self._paused_ms is None else self._paused_ms
            return
        self._paused_ms = None
        if self._welcome_ms is not None and now_ms - self._welcome_ms >= self.patience_ms:
            self._given_up = 0

    def on_read(self, now_ms: int, waited_ms: int) -> None:
        """Note a read of the socket after a wait of up to `waited_ms`.

        Time of a round beyond the wait, and some work, is time without a listener.
        """
        stood_ms = now_ms - self._read_ms - waited_ms - self._heartbeat_ms
        self._read_ms = now_ms
        if stood_ms <= 0:
            return
        self._heard_ms = min(self._heard_ms + stood_ms, now_ms)
        if self._paused_ms is not None:
            self._paused_ms = min(self._paused_ms + stood_ms, now_ms)

    def on_given(self, now_ms: int) -> None:
        """A sign of life has been given."""
        self._given_ms = now_ms

    # --- Questions ------------------------------------------------------------------------

    def is_due(self, now_ms: int) -> bool:
        """Return true if a sign of life is due."""
        return self._welcome_ms is not None and now_ms - self._given_ms >= self.pause_ms

    @property
    def silence_ms(self) -> int:
        """How long the node had been silent when the socket was last read."""
        return max(self._read_ms - self._heard_ms, 0) if self._is_connected else 0

    @property
    def is_silent(self) -> bool:
        """True if the client must leave the node for its silence."""
        return self._is_connected and self.silence_ms >= self.patience_ms

    @property
    def is_cut_off(self) -> bool:
        """True if the node is useless: no contact with a majority for too long."""
        since_ms = self._paused_ms
        return since_ms is not None and self._read_ms - since_ms >= self.patience_ms

    @property
    def wake_at_ms(self) -> int:
        """Latest time of the next read of the socket, or of the next sign of life."""
        if not self._is_connected:
            return FOREVER_MS
        wake = self._heard_ms + self.patience_ms
        return wake if self._welcome_ms is None else min(wake, self._given_ms + self.pause_ms)
