"""Rules of publishing that are left out."""

from __future__ import annotations

from typing import Any

from harness.mutations.registry import Real, answer, instead
from mirrorq.replication.master.attachments import Claims
from mirrorq.replication.master.confirms import Confirms
from mirrorq.replication.master.intake import Intake
from mirrorq.replication.master.producers import Producers


@instead("dedupe against the applied table only", Producers, "first_new")
def _dedupe_applied(real: Real, self: Producers, *batch: Any) -> Any:
    self._term.log.highest._said.clear()
    return real(self, *batch)


@instead("producer gap accepted", Producers, "first_new")
def _gap_accepted(
    real: Real, self: Producers, session: Any, attachment: Any, header: Any, is_whole: bool
) -> Any:
    highest = self._term.log.highest
    known = highest.get(header.producer)
    if known is not None and header.first_number > known + 1:
        highest.raise_to(header.producer, header.first_number - 1)
    return real(self, session, attachment, header, is_whole)


@instead("unknown producer taken as new", Producers, "first_new")
def _unknown_producer(
    real: Real, self: Producers, session: Any, attachment: Any, header: Any, is_whole: bool
) -> Any:
    self._term.log.highest.raise_to(header.producer, 0)
    return real(self, session, attachment, header, is_whole)


@instead("confirm of an op that is not stable", Intake, "store")
def _confirm_unstable(real: Real, self: Intake, frame: bytes) -> None:
    real(self, frame)
    entry = self._term.ring.log.entry(self._term.log.last)
    assert entry is not None
    header = entry.header
    run = (header.first_number, header.count, header.first_sequence)
    self._producers._confirms.record_numbers(header.producer, run)


@instead("expired producer goes on", Producers, "expire")
def _expired_goes_on(real: Real, self: Producers, now_ms: int) -> None:
    highest = self._term.log.highest
    known = [number for number in self._term.state.producers if number in highest]
    real(self, now_ms)
    for number in known:
        highest.raise_to(number, 0)


@instead("outcome told to the last session only", Claims, "add")
def _last_session(real: Real, self: Claims, producer: int, session: Any) -> None:
    self._sessions[producer] = (session,)


# What is sent again after a failover, and had been stored, gets no outcome.
answer("known number not answered", Confirms, "answer_known", None)
