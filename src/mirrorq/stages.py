"""What a master does with staged messages: judges what is asked, expires, answers. Pure.

Whether a commit succeeds is worked out where it is *applied*, on every copy alike (`staging`); here
it gets the sequences that it will need, which nobody uses if it is refused. What can be refused
before it is in the log is refused by an op of its own that keeps no body, and fences nobody: a
queue that is full, a store that is, something that was decided already.

What is asked of staged messages does not stand behind puts that wait for room: a commit may be
what makes it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from attrs import evolve

from mirrorq.courier import is_courier
from mirrorq.errors import ProtocolError
from mirrorq.limits import Depth, judge
from mirrorq.messages import (
    FLAG_PRIORITY,
    FLAG_STEP,
    FLAG_TRANSIENT,
    Entry,
    Header,
    Publish,
    Refused,
    SessionId,
)
from mirrorq.messages.staged import WAIT, AbortOp, AskOp, CommitOp, SealOp, Stage
from mirrorq.queue_state import QueueState

if TYPE_CHECKING:
    from mirrorq.master import Master

__all__ = ["Stages"]

LOOKS = 16
"""Idle runs are looked for so often in one staged_timeout_ms."""


class Stages:
    """One reign's. Called by the master."""

    def __init__(self, master: Master, state: QueueState) -> None:
        self._master = master
        self._state = state
        self._held: deque[tuple[SessionId, int, Publish]] = deque()
        self._look_ms = 0

    # --- Requests -----------------------------------------------------------------------

    def on_publish(self, now_ms: int, session: SessionId, number: int, body: Publish) -> None:
        """A frame with FLAG_STAGED, from this attachment of a session."""
        self._held.append((session, number, body))
        self.admit(now_ms)

    def admit(self, now_ms: int) -> None:
        """R10: they wait for unstable ops to become stable, and for nothing else."""
        master = self._master
        bytes_max = master._config.unstable_bytes_max
        while self._held and master._ring.unstable_bytes < bytes_max:
            session, number, body = self._held.popleft()
            attachment = master.attachments.get(session)
            if attachment is not None and attachment.number == number:
                master._admit(now_ms, session, attachment, body)

    def take(self, now_ms: int, session: SessionId, header: Header, body: Publish) -> None:
        """One whose numbers are next: it becomes an op."""
        master = self._master
        try:
            if not header.flags & FLAG_STEP:
                raise ProtocolError("a frame with FLAG_STAGED has FLAG_STEP, too")
            asked = master._codec.staged(body.frame)
        except ProtocolError as error:
            master.refuse(now_ms, header, str(error))
            return
        why = self._state.staging.verdict(asked.transaction, asked.version, asked.run)
        if isinstance(asked, Stage):
            why = why or self._stage_error(header, body)
            if not why:
                master._store(body.frame)
                return
        elif is_courier(session) != (isinstance(asked, AskOp) or _is_decision(asked)):
            why = "only another queue decides, and only a driver asks"
        elif isinstance(asked, CommitOp) and not why:
            asked, why = self._sized(now_ms, asked)
        if why and not _is_decision(asked):
            master.refuse(now_ms, header, why)
            return
        assert not isinstance(asked, Stage)
        master._propose(
            now_ms,
            asked,
            producer=header.producer,
            first_number=header.first_number,
            settled=header.settled,
        )

    def _stage_error(self, header: Header, body: Publish) -> str:
        if header.count < 2 or not body.whole:
            return "a chunk is at least one message, and is staged whole"
        if header.flags & (FLAG_PRIORITY | FLAG_TRANSIENT) or header.delay_ms or header.ttl_ms:
            return "staged messages have no priority, delay or ttl, and are persistent"
        if not self._master._room.has(len(body.frame)):
            return (
                "the master's store is full: consume and ack, abort what is staged, or raise "
                "store_bytes_max"
            )
        return ""

    def _sized(self, now_ms: int, op: CommitOp) -> tuple[CommitOp, str]:
        """A commit with the sequences that it needs, if there is room for its messages."""
        master, staging = self._master, self._state.staging
        runs = staging.size_runs(op) if not staging.lacking(op) else []
        count = sum(count for count, _ in runs)
        limit = master._limit
        if limit is not None and count:
            depth = master._depth()
            sizes = [size for count, size in runs for _ in range(count)]
            verdict = judge(limit, depth, sizes, True)
            if verdict.action != "store":
                wait = f"{WAIT}: " if verdict.action == "hold" else ""
                return op, wait + verdict.reason
            if limit.overflow == "drop-head":
                need = Depth(depth.count + verdict.room.count, depth.size + verdict.room.size)
                master._drop_head(now_ms, limit.exceeded_by(need))
                master._is_enforcing = True
        return evolve(op, sequence=master._next_sequence, count=count), ""

    # --- The log --------------------------------------------------------------------------

    def runs_of(self, op: CommitOp) -> list[tuple[int, int]]:
        """(messages, bytes of each) that a commit in the log will bring, as far as known now."""
        runs = self._state.staging.size_runs(op)
        is_known = sum(count for count, _ in runs) == op.count
        return runs if is_known else [(op.count, 0)] * bool(op.count)

    def on_applied(self, entry: Entry) -> None:
        """Tell who asked."""
        header, why, payload = entry.header, self._state.verdict, entry.payload
        sequence = payload.sequence if isinstance(payload, CommitOp) else header.lsn
        run = (header.first_number, header.count, header.first_sequence or sequence)
        for session in self._master._claims.of(header.producer):
            if why:
                refused = Refused(header.producer, header.first_number, header.count, why)
                self._master._reply(session, refused)
            else:
                key = (session, header.producer)
                self._master._confirms.setdefault(key, []).append(run)

    # --- Time -----------------------------------------------------------------------------

    def expire(self, now_ms: int, wall_us: int, timeout_ms: int) -> None:
        """Runs whose driver and tasks have been silent for long are given up, by ops."""
        if now_ms < self._look_ms:
            return
        self._look_ms = now_ms + max(timeout_ms // LOOKS, 1)
        before_us = wall_us - timeout_ms * 1000
        for transaction, version, run in list(self._state.staging.idle_runs(before_us)):
            why = f"it has staged nothing for {timeout_ms} ms (staged_timeout_ms)"
            self._master._propose(now_ms, AbortOp(transaction, version, run, why))

    def wake_at_ms(self) -> int | None:
        """When to look again."""
        return self._look_ms if self._state.staging.staged else None


def _is_decision(asked: Stage | SealOp | CommitOp | AbortOp | AskOp) -> bool:
    return isinstance(asked, CommitOp | AbortOp) and asked.is_decision
