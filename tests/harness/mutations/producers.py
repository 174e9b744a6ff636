"""Rules of publishing that are left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.mutations.registry import Patch, named
from mirrorq.replication.master.attachments import Claims
from mirrorq.replication.master.confirms import Confirms
from mirrorq.replication.master.intake import Intake
from mirrorq.replication.master.producers import Producers


@named("dedupe against the applied table only")
def _dedupe_applied() -> Sequence[Patch]:
    real = Producers.first_new

    def first_new(self: Producers, *batch: Any) -> int:
        self._term.log.highest._said.clear()
        return real(self, *batch)

    return [(Producers, "first_new", first_new)]


@named("producer gap accepted")
def _gap_accepted() -> Sequence[Patch]:
    real = Producers.first_new

    def first_new(
        self: Producers, session: Any, attachment: Any, header: Any, is_whole: bool
    ) -> int:
        highest = self._term.log.highest
        known = highest.get(header.producer)
        if known is not None and header.first_number > known + 1:
            highest.raise_to(header.producer, header.first_number - 1)
        return real(self, session, attachment, header, is_whole)

    return [(Producers, "first_new", first_new)]


@named("unknown producer taken as new")
def _unknown_producer() -> Sequence[Patch]:
    real = Producers.first_new

    def first_new(
        self: Producers, session: Any, attachment: Any, header: Any, is_whole: bool
    ) -> int:
        self._term.log.highest.raise_to(header.producer, 0)
        return real(self, session, attachment, header, is_whole)

    return [(Producers, "first_new", first_new)]


@named("refusal that is no op")
def _refusal_no_op() -> Sequence[Patch]:
    def refuse(self: Producers, header: Any, reason: str) -> None:
        self._confirms.refuse(header, reason)

    return [(Producers, "refuse", refuse)]


@named("confirm of an op that is not stable")
def _confirm_unstable() -> Sequence[Patch]:
    real = Intake.store

    def store(self: Intake, frame: bytes) -> None:
        real(self, frame)
        entry = self._term.ring.entry(self._term.log.last)
        assert entry is not None
        header = entry.header
        run = (header.first_number, header.count, header.first_sequence)
        self._producers._confirms.note(header.producer, run)

    return [(Intake, "store", store)]


@named("expired producer goes on")
def _expired_goes_on() -> Sequence[Patch]:
    real = Producers.expire

    def expire(self: Producers, now_ms: int) -> None:
        highest = self._term.log.highest
        known = [number for number in self._term.state.producers if number in highest]
        real(self, now_ms)
        for number in known:
            highest.raise_to(number, 0)

    return [(Producers, "expire", expire)]


@named("outcome told to the last session only")
def _last_session() -> Sequence[Patch]:
    def take(self: Claims, producer: int, session: Any) -> None:
        self._sessions[producer] = (session,)

    return [(Claims, "take", take)]


@named("known number not answered")
def _known_unanswered() -> Sequence[Patch]:
    """What is sent again after a failover, and had been stored, gets no outcome."""

    def answer_known(self: Confirms, session: Any, producer: int, first: int, last: int) -> None:
        return None

    return [(Confirms, "answer_known", answer_known)]
