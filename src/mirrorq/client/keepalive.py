"""Signs of life between a client and its entry node, as the client counts them. Pure.

A client gives a sign of life every now and then, and leaves a node that is silent, or that is cut
off from the majority. Its thread may stand still meanwhile: other threads of its process have the
interpreter, or other processes the machine. Then nothing was asked of the node and nothing that it
said was read, so that time is not the node's silence. And silence counts only up to the moment at
which the socket was last read: what has come since is still to be read.

To leave costs what the client held, and both processes work. Where nodes get too little time, going
on to the next one makes that worse: so each time that a client gave a node up and was not served
since, it waits for the next one twice as long.
"""

from __future__ import annotations

from mirrorq.config import Config
from mirrorq.containers.timers import FOREVER_MS
from mirrorq.transport.patience import PATIENCE_MAX

PINGS_PER_EXPIRY = 4
"""Signs of life that fit into the time after which the node takes the client for gone."""
DOUBLINGS_MAX = 4
"""More would be beyond PATIENCE_MAX."""


class Keepalive:
    """When one client was heard by its entry node and heard of it. The client's thread's.

    Args:
        config: times.
        spread: 0 to 1, another for each client: a crowd does not leave a node at once.
    """

    def __init__(self, config: Config, spread: float = 0.0) -> None:
        self.patience = 100
        """Percent, as the entry node says: see `patience`."""
        self._spread = spread
        self._failure_ms = config.failure_ms
        self._heartbeat_ms = config.heartbeat_ms
        self._is_connected = False
        self._welcome_ms: int | None = None
        """Since when the node serves this client."""
        self._paused_ms: int | None = None
        """Since when it is cut off."""
        self._given_up = 0
        """Nodes in a row, without having been served since for as long as it waits for the next."""
        self._ping_ms = config.heartbeat_ms
        self._given_ms = 0
        self._heard_ms = 0
        self._read_ms = 0
        """When the socket was last read."""

    @property
    def patience_ms(self) -> int:
        """For so long a node may be silent, or cut off, before it is left."""
        grown = max(self.patience, 100 << min(self._given_up, DOUBLINGS_MAX))
        if grown > 100:
            grown += int(grown * self._spread)
        return self._failure_ms * min(grown, PATIENCE_MAX) // 100

    @property
    def pause_ms(self) -> int:
        """Between two signs of life."""
        return self._ping_ms * self.patience // 100

    # --- What happens ---------------------------------------------------------------------

    def on_connected(self, now_ms: int) -> None:
        """A node is to answer."""
        self._begin()
        self._is_connected = True
        self._heard_ms = now_ms

    def on_welcome(self, now_ms: int, expiry_ms: int) -> None:
        """It serves this client, and takes it for gone after so much silence."""
        self._begin()
        self._is_connected = True
        self._welcome_ms = self._heard_ms = now_ms
        self._ping_ms = max(min(self._heartbeat_ms, expiry_ms // PINGS_PER_EXPIRY), 1)

    def on_left(self) -> None:
        """No node serves this client now."""
        self._begin()

    def on_given_up(self) -> None:
        """It was not the connection that ended, but this client's patience."""
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
        """The socket has been read, after it was waited for up to `waited_ms`.

        What a round took beyond that wait, and some work, is time in which nobody listened.
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
        """Whether a sign of life is to be given now."""
        return self._welcome_ms is not None and now_ms - self._given_ms >= self.pause_ms

    @property
    def silence_ms(self) -> int:
        """How long the node had been silent when the socket was last read."""
        return max(self._read_ms - self._heard_ms, 0) if self._is_connected else 0

    @property
    def is_silent(self) -> bool:
        """Whether the node is to be left for its silence."""
        return self._is_connected and self.silence_ms >= self.patience_ms

    @property
    def is_cut_off(self) -> bool:
        """Whether the node is of no use: it has had no contact with a majority for too long."""
        since_ms = self._paused_ms
        return since_ms is not None and self._read_ms - since_ms >= self.patience_ms

    @property
    def wake_at_ms(self) -> int:
        """When the socket is to be read, or a sign of life to be given, at the latest."""
        if not self._is_connected:
            return FOREVER_MS
        wake = self._heard_ms + self.patience_ms
        return wake if self._welcome_ms is None else min(wake, self._given_ms + self.pause_ms)
