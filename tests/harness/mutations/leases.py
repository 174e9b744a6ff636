"""Rules of the lease that are left out, and of who counts as dead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from harness.mutations.registry import Patch, named
from mirrorq.cluster.controller.agenda import Agenda
from mirrorq.cluster.controller.failure_detector import FailureDetector
from mirrorq.cluster.controller.leases import Leading, LeaseGrantor, LeaseHolder
from mirrorq.engine.hosting import Hosting


@named("lease before an entry of the own term")
def _lease_early() -> Sequence[Patch]:
    real = LeaseGrantor.answers

    def answers(self: LeaseGrantor, now_ms: int, leading: Leading) -> Any:
        return real(self, now_ms, replace(leading, own_term_applied=True))

    return [(LeaseGrantor, "answers", answers)]


@named("lease without the commit index")
def _lease_any_catalog() -> Sequence[Patch]:
    real = LeaseHolder.valid_until_ms

    def valid_until(self: LeaseHolder, applied_index: int) -> int:
        return real(self, 1 << 62)

    return [(LeaseHolder, "valid_until_ms", valid_until)]


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


@named("lease without the new leader's wait")
def _lease_no_wait() -> Sequence[Patch]:
    real = LeaseGrantor.elected

    def elected(self: LeaseGrantor, now_ms: int) -> None:
        real(self, now_ms)
        self._elected_free_ms = now_ms

    return [(LeaseGrantor, "elected", elected)]


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


@named("portion of judgements left out")
def _portion_left_out() -> Sequence[Patch]:
    """What is not taken at once is forgotten."""
    real = Agenda.take

    def take(self: Agenda, now_ms: int) -> list[int]:
        taken = real(self, now_ms)
        for queues in (self._urgent, self._changed, self._swept):
            queues.clear()
        return taken

    return [(Agenda, "take", take)]
