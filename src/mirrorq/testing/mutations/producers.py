"""Rules of publishing that are left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mirrorq.claims import Claims
from mirrorq.master import Master
from mirrorq.messages import Refused
from mirrorq.testing.mutations.registry import Patch, named


@named("dedupe against the applied table only")
def _dedupe_applied() -> Sequence[Patch]:
    real = Master._admit

    def admit(self: Master, now_ms: int, session: Any, attachment: Any, body: Any) -> None:
        for number, producer in self._state.producers.items():
            self._highest[number] = producer.highest
        real(self, now_ms, session, attachment, body)

    return [(Master, "_admit", admit)]


@named("producer gap accepted")
def _gap_accepted() -> Sequence[Patch]:
    real = Master._admit

    def admit(self: Master, now_ms: int, session: Any, attachment: Any, body: Any) -> None:
        header = self._codec.header(body.frame)
        known = self._highest.get(header.producer)
        if known is not None and header.first_number > known + 1:
            self._highest[header.producer] = header.first_number - 1
        real(self, now_ms, session, attachment, body)

    return [(Master, "_admit", admit)]


@named("unknown producer taken as new")
def _unknown_producer() -> Sequence[Patch]:
    real = Master._admit

    def admit(self: Master, now_ms: int, session: Any, attachment: Any, body: Any) -> None:
        self._highest.setdefault(self._codec.header(body.frame).producer, 0)
        real(self, now_ms, session, attachment, body)

    return [(Master, "_admit", admit)]


@named("refusal that is no op")
def _refusal_no_op() -> Sequence[Patch]:
    def refuse(self: Master, now_ms: int, header: Any, reason: str) -> None:
        answer = Refused(header.producer, header.first_number, header.count, reason)
        for session in self._claims.of(header.producer):
            self._reply(session, answer)

    return [(Master, "refuse", refuse)]


@named("confirm of an op that is not stable")
def _confirm_unstable() -> Sequence[Patch]:
    real = Master._append

    def append(self: Master, entry: Any) -> None:
        real(self, entry)
        header = entry.header
        run = (header.first_number, header.count, header.first_sequence)
        for session in self._claims.of(header.producer) if entry.payload is None else ():
            self._confirms.setdefault((session, header.producer), []).append(run)

    return [(Master, "_append", append)]


@named("expired producer goes on")
def _expired_goes_on() -> Sequence[Patch]:
    real = Master._expire_producers

    def expire(self: Master, now_ms: int) -> None:
        known = tuple(self._highest)
        real(self, now_ms)
        for number in known:
            self._highest.setdefault(number, 0)

    return [(Master, "_expire_producers", expire)]


@named("outcome told to the last session only")
def _last_session() -> Sequence[Patch]:
    def take(self: Claims, producer: int, session: Any) -> None:
        self._sessions[producer] = (session,)

    return [(Claims, "take", take)]
