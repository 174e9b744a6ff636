"""Rules of the lease that are left out, and of who counts as dead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from harness.mutations.registry import Patch, Real, instead, named
from mirrorq.cluster.controller.agenda import Agenda
from mirrorq.cluster.controller.failure_detector import FailureDetector
from mirrorq.cluster.controller.leases import Leading, LeaseGrantor, LeaseHolder
from mirrorq.engine.hosting import Hosting


@instead("lease before an entry of the own term", LeaseGrantor, "answers")
def _lease_early(real: Real, self: LeaseGrantor, now_ms: int, leading: Leading) -> Any:
    return real(self, now_ms, replace(leading, own_term_applied=True))


@instead("lease without the commit index", LeaseHolder, "valid_until_ms")
def _lease_any_catalog(real: Real, self: LeaseHolder, applied_index: int) -> Any:
    return real(self, 1 << 62)


@named("lease from the grant's receipt")
def _lease_from_receipt() -> Sequence[Patch]:
    """The holder has no clock at the receipt: when it was asked last stands for it."""
    real_poll, real_answer = LeaseHolder.poll, LeaseHolder.on_answer

    def poll(self: LeaseHolder, now_ms: int, needed: bool) -> Any:
        self._now_ms = now_ms  # type: ignore[attr-defined]
        return real_poll(self, now_ms, needed)

    def on_answer(self: LeaseHolder, answer: Any) -> None:
        for number in self._sent:
            self._sent[number] = self._now_ms  # type: ignore[attr-defined]
        real_answer(self, answer)

    return [(LeaseHolder, "poll", poll), (LeaseHolder, "on_answer", on_answer)]


@instead("lease without the new leader's wait", LeaseGrantor, "elected")
def _lease_no_wait(real: Real, self: LeaseGrantor, now_ms: int) -> None:
    real(self, now_ms)
    self._elected_free_ms = now_ms


@named("dead on a refused probe alone")
def _dead_on_refusal() -> Sequence[Patch]:
    def refused(self: FailureDetector, node: str, number: int) -> None:
        for peer in self._peers.values():
            if peer.member.node == node:
                peer.dead_ms = self._last_ms

    def is_agreed(self: FailureDetector, peer: Any) -> bool:
        return True

    return [
        (FailureDetector, "on_probe_refused", refused),
        (FailureDetector, "_is_agreed", is_agreed),
    ]


@named("ops from the rail put off")
def _rail_put_off() -> Sequence[Patch]:
    """Their copies wait for their turn, as others do."""
    return [(Hosting, "post_at_once", Hosting.post)]


@instead("portion of judgements left out", Agenda, "take")
def _portion_left_out(real: Real, self: Agenda, now_ms: int) -> Any:
    """What is not taken at once is forgotten."""
    taken = real(self, now_ms)
    for queues in (self._urgent, self._changed, self._swept):
        queues.clear()
    return taken
