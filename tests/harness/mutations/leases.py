"""Rules of the lease that are left out, and of who counts as dead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.mutations.registry import Patch, Real, instead, named
from mirrorq.cluster.controller.agenda import Agenda
from mirrorq.cluster.controller.failure_detector import FailureDetector
from mirrorq.cluster.controller.leases import LeaseHolder
from mirrorq.engine.hosting import Hosting


@instead("lease without the commit index", LeaseHolder, "valid_until_ms")
def _lease_any_catalog(real: Real, self: LeaseHolder, applied_index: int) -> Any:
    return real(self, 1 << 62)


@instead("lease from the grant's receipt", LeaseHolder, "poll")
def _lease_from_receipt(real: Real, self: LeaseHolder, now_ms: int, needed: bool) -> Any:
    """The holder has no clock at the receipt: when it was asked last stands for it."""
    self._now_ms = now_ms  # type: ignore[attr-defined]
    return real(self, now_ms, needed)


@instead("lease from the grant's receipt", LeaseHolder, "on_answer")
def _lease_from_receipt_on_answer(real: Real, self: LeaseHolder, answer: Any) -> None:
    for number in self._sent:
        self._sent[number] = self._now_ms  # type: ignore[attr-defined]
    real(self, answer)


@instead("dead on a refused probe alone", FailureDetector, "on_probe_refused")
def _dead_on_refusal(real: Real, self: FailureDetector, node: str, number: int) -> None:
    for peer in self._peers.values():
        if peer.member.node == node:
            peer.dead_ms = self._last_ms


@instead("dead on a refused probe alone", FailureDetector, "_is_agreed")
def _dead_on_refusal_is_agreed(real: Real, self: FailureDetector, peer: Any) -> bool:
    return True


@named("ops from the rail put off")
def _rail_put_off() -> Sequence[Patch]:
    """Their copies wait for their turn, as others do."""
    return [(Hosting, "post_at_once", Hosting.post)]


@instead("portion of judgements left out", Agenda, "take_portion")
def _portion_left_out(real: Real, self: Agenda, now_ms: int) -> Any:
    """What is not taken at once is forgotten."""
    taken = real(self, now_ms)
    for queues in (self._urgent, self._changed, self._swept):
        queues.clear()
    return taken
