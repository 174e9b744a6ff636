"""Finds clients that have been silent for too long.

Time counts as silence only while the node listened. A client is not silent while the thread stood
still, or had not read each connection yet (`Transport.takes_turns`).
"""

from __future__ import annotations

from attrs import define

from mirrorq import clock
from mirrorq.transport.patience import Patience

JUDGE_MS = 50
"""Interval at which silent clients are looked for, in milliseconds."""
SILENT_MAX = 1024
"""Limit on remembered clients that were ended for silence."""


@define(eq=False)
class _Signs:
    """Signs of life of one client."""

    heard_ms: int
    expiry_ms: int
    """Silence in milliseconds after which the client is gone, multiplied by its patience."""
    patience: int = 100
    """The last promised patience in percent."""
    patience_before: int = 100
    """The promise before, because the client may not have received the last promise yet."""


class IdleTimeouts:
    """When each client of one node was last heard, and how long the node waits for each.

    The gateway owns the object. Node thread only.

    Args:
        heartbeat_ms: the thread stood still in a round that took longer.
    """

    def __init__(self, heartbeat_ms: int) -> None:
        self._heartbeat_ms = heartbeat_ms
        self._signs: dict[bytes, _Signs] = {}
        self._late: dict[bytes, tuple[int, int]] = {}
        """Clients recently ended for silence: (silence, expiry), in milliseconds."""
        self._patience = Patience()
        self._listened_ms = self._judged_ms = clock.now_ms()
        """When each client last had a turn to be read, and when silence was last judged."""

    def watch(self, identity: bytes, expiry_ms: int) -> None:
        """Begin with a new client."""
        self._signs[identity] = _Signs(clock.now_ms(), expiry_ms)

    def forget(self, identity: bytes) -> None:
        """Forget a client that is gone."""
        del self._signs[identity]

    def on_heard(self, identity: bytes) -> None:
        """Note a message of a client."""
        now_ms = clock.now_ms()
        signs = self._signs[identity]
        # Silence counts up to the last turn: since then the client may have spoken.
        silence_ms = self._listened_ms - signs.heard_ms
        if silence_ms > 0:
            self._patience.on_heard(now_ms, silence_ms, signs.expiry_ms)
        signs.heard_ms = now_ms

    def on_stranger(self, identity: bytes) -> None:
        """Note a message from a connection without a client. If the client was ended for silence,
        it was only late: wait longer next time."""
        waited_ms, expiry_ms = self._late.pop(identity, (0, 0))
        if waited_ms:
            self._patience.on_heard(clock.now_ms(), waited_ms, expiry_ms)

    def promise(self, identity: bytes, now_ms: int) -> int:
        """Return the patience for a client, in percent of its expiry, to send to the client."""
        signs = self._signs[identity]
        signs.patience_before = signs.patience
        signs.patience = self._patience.percent(now_ms, len(self._signs))
        return signs.patience

    def overdue(self, now_ms: int) -> list[tuple[bytes, int]]:
        """Return overdue clients and their silence in ms. Called after each client had a turn."""
        stood_ms = max(now_ms - self._listened_ms - self._heartbeat_ms, 0)
        self._listened_ms = now_ms
        if stood_ms:
            for signs in self._signs.values():
                signs.heard_ms = min(signs.heard_ms + stood_ms, now_ms)
        if now_ms - self._judged_ms < min(JUDGE_MS, self._heartbeat_ms):
            return []
        self._judged_ms = now_ms
        percent = self._patience.percent(now_ms, len(self._signs))
        found = []
        for identity, signs in self._signs.items():
            silence_ms = now_ms - signs.heard_ms
            patience = max(signs.patience, signs.patience_before, percent)
            if silence_ms * 100 >= signs.expiry_ms * patience:
                found.append((identity, silence_ms))
                self._late[identity] = (silence_ms, signs.expiry_ms)
        while len(self._late) > SILENT_MAX:
            del self._late[next(iter(self._late))]
        return found
