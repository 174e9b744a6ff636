"""Rules of who may hold messages, and for how long, that are left out."""

from __future__ import annotations

from typing import Any

from harness.mutations.registry import Real, answer, instead
from mirrorq.replication.master.consumers import Subscription
from mirrorq.replication.master.dispatch import Dispatch
from mirrorq.replication.master.master import Master


@instead("others served beside a claim", Dispatch, "_next_subscription")
def _claim_ignored(real: Real, self: Dispatch, counts: Any, trial_ms: Any) -> Any:
    seats = [seat for seat in self.consumers.by_key.values() if seat.is_claim]
    for seat in seats:
        seat.bare = False
    found = real(self, counts, trial_ms)
    for seat in seats:
        seat.bare = True
    return found


@instead("claim got beside others", Dispatch, "subscribe")
def _claim_beside(real: Real, self: Dispatch, seat: Subscription) -> Any:
    """It is given though others hold messages, and their places stay."""
    if not seat.is_claim or self.consumers.claim() is not None:
        return real(self, seat)
    if seat.key not in self.consumers.by_key:
        self.consumers.add(seat)
    return ""


@instead("several consumers active at once", Dispatch, "_next_subscription")
def _several_active(real: Real, self: Dispatch, counts: Any, trial_ms: Any) -> Any:
    kept, self.is_single = self.is_single, False
    found = real(self, counts, trial_ms)
    self.is_single = kept
    return found


answer("place of a dead handle kept", Master, "on_session_gone", None)


@instead("message handed on while it is held", Dispatch, "_take_front")
def _handed_on(real: Real, self: Dispatch, seat: Subscription, level: Any, *rest: Any) -> Any:
    """What is handed out stays ready until it is settled."""
    piece = real(self, seat, level, *rest)
    if seat.bare:
        self.ready.give_back([(piece.last, piece.last)])
    return piece
