"""Which clients have been silent for too long.

Time counts against a client only when this node listened: while the thread stood still, or did not
get round to reading each connection, nobody was silent (`Transport.takes_turns`).
"""

from __future__ import annotations

from attrs import define

from mirrorq import clock
from mirrorq.transport.patience import Patience

JUDGE_MS = 50
"""How often it is looked for clients that are silent."""
SILENT_MAX = 1024
"""Clients taken for gone that are remembered."""


@define(eq=False)
class _Signs:
    """Of one client's life."""

    heard_ms: int
    expiry_ms: int
    """IdleTimeouts after which it is gone, times its patience."""
    patience: int = 100
    """Percent, the last that it was told."""
    patience_before: int = 100
    """It may not have heard the last yet."""


class IdleTimeouts:
    """When each client of one node was last heard, and for how long it is waited for.

    The gateway has it; the node thread's.

    Args:
        heartbeat_ms: a round that took longer than this stood still.
    """

    def __init__(self, heartbeat_ms: int) -> None:
        self._heartbeat_ms = heartbeat_ms
        self._signs: dict[bytes, _Signs] = {}
        self._late: dict[bytes, tuple[int, int]] = {}
        """Clients taken for gone of late: for how long they were waited for, and their expiry."""
        self._patience = Patience()
        self._listened_ms = self._judged_ms = clock.now_ms()
        """When each client had had its turn to be read, and when it was looked who is silent."""

    def begin(self, identity: bytes, expiry_ms: int) -> None:
        """A client has come."""
        self._signs[identity] = _Signs(clock.now_ms(), expiry_ms)

    def end(self, identity: bytes) -> None:
        """It is gone."""
        del self._signs[identity]

    def on_heard(self, identity: bytes) -> None:
        """A client lives."""
        now_ms = clock.now_ms()
        signs = self._signs[identity]
        # Up to the last time that it was listened for: since then it may have spoken at any time.
        silence_ms = self._listened_ms - signs.heard_ms
        if silence_ms > 0:
            self._patience.on_heard(now_ms, silence_ms, signs.expiry_ms)
        signs.heard_ms = now_ms

    def on_stranger(self, identity: bytes) -> None:
        """Somebody speaks who is no client. If he was taken for gone for his silence, he was only
        late: wait longer next time."""
        waited_ms, expiry_ms = self._late.pop(identity, (0, 0))
        if waited_ms:
            self._patience.on_heard(clock.now_ms(), waited_ms, expiry_ms)

    def promise(self, identity: bytes, now_ms: int) -> int:
        """For how long a client will be waited for: percent of its expiry, to tell it now."""
        signs = self._signs[identity]
        signs.patience_before = signs.patience
        signs.patience = self._patience.percent(now_ms, len(self._signs))
        return signs.patience

    def overdue(self, now_ms: int) -> list[tuple[bytes, int]]:
        """Each client has had its turn to be read: who is gone, and was silent for how many ms."""
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
