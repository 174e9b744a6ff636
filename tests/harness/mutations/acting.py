"""Rules of pauses, and of messages that are named by their sequences, left out."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from harness.mutations.registry import Real, instead
from mirrorq.replication.master.master import Master
from mirrorq.replication.master.purging import Purging


@instead("pause forgotten by the next master", Master, "_activate")
def _forgotten(real: Real, self: Master, now_ms: int) -> None:
    self._state.is_paused = False
    real(self, now_ms)


@instead("range of a deletion ignored", Purging, "on_purge")
def _ignored(real: Real, self: Purging, now_ms: int, session: Any, body: Any) -> None:
    real(self, now_ms, session, replace(body, first=1, last=2**63 - 1))
