"""Rules of who may hold messages, and for how long, that are left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.mutations.registry import Patch, named
from mirrorq.replication.master.core import Master
from mirrorq.replication.master.dispatch import Dispatch, Subscription


@named("others served beside a claim")
def _claim_ignored() -> Sequence[Patch]:
    real = Dispatch._next_subscription

    def next_subscription(self: Dispatch, counts: Any, trial_ms: Any) -> Subscription | None:
        seats = [seat for seat in self.consumers.values() if seat.is_claim]
        for seat in seats:
            seat.bare = False
        found = real(self, counts, trial_ms)
        for seat in seats:
            seat.bare = True
        return found

    return [(Dispatch, "_next_subscription", next_subscription)]


@named("claim got beside others")
def _claim_beside() -> Sequence[Patch]:
    """It is given though others hold messages, and their places stay."""
    real = Dispatch.subscribe

    def subscribe(self: Dispatch, seat: Subscription) -> str:
        if not seat.is_claim or self.claim() is not None:
            return real(self, seat)
        if seat.key not in self.consumers:
            self.admit(seat)
        return ""

    return [(Dispatch, "subscribe", subscribe)]


@named("several consumers active at once")
def _several_active() -> Sequence[Patch]:
    real = Dispatch._next_subscription

    def next_subscription(self: Dispatch, counts: Any, trial_ms: Any) -> Subscription | None:
        kept, self.is_single = self.is_single, False
        found = real(self, counts, trial_ms)
        self.is_single = kept
        return found

    return [(Dispatch, "_next_subscription", next_subscription)]


@named("place of a dead handle kept")
def _dead_keep() -> Sequence[Patch]:
    def gone(self: Master, session: Any) -> None:
        pass

    return [(Master, "on_session_gone", gone)]


@named("message handed on while it is held")
def _handed_on() -> Sequence[Patch]:
    """What is handed out stays ready until it is settled."""
    real = Dispatch._take_front

    def take_front(self: Dispatch, seat: Subscription, level: Any, *rest: Any) -> Any:
        piece = real(self, seat, level, *rest)
        if seat.bare:
            self.give_back([(piece.last, piece.last)])
        return piece

    return [(Dispatch, "_take_front", take_front)]
