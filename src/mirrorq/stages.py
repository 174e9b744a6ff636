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

from msgspec.structs import replace

from mirrorq.columns import SizedPiece, Sizes
from mirrorq.courier import is_courier, source_of
from mirrorq.errors import ProtocolError
from mirrorq.limits import Depth, judge
from mirrorq.messages import (
    FLAG_PRIORITY,
    FLAG_STEP,
    FLAG_TRANSIENT,
    Entry,
    Header,
    NoteOutbox,
    Publish,
    Refused,
    SessionId,
)
from mirrorq.messages.staged import (
    DONE,
    WAIT,
    AbortOp,
    AskOp,
    CommitOp,
    SealOp,
    Stage,
    Staging,
)
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
        self._is_stalled = False
        """The catalog is to know first that the queue has something to tell others."""

    # --- Requests -----------------------------------------------------------------------

    def on_publish(self, now_ms: int, session: SessionId, number: int, body: Publish) -> None:
        """A frame with FLAG_STAGED, from this attachment of a session."""
        self._held.append((session, number, body))
        self.admit(now_ms)

    def admit(self, now_ms: int) -> None:
        """R10: they wait for unstable ops to become stable, and for nothing else."""
        master = self._master
        bytes_max = master._config.unstable_bytes_max
        self._is_stalled = self._is_stalled and not master.has_outbox
        while self._held and not self._is_stalled and master._ring.unstable_bytes < bytes_max:
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
        if isinstance(asked, Stage):
            why = self._verdict(asked) or self._stage_error(header, body)
            if why:
                master.refuse(now_ms, header, why)
            else:
                master._store(body.frame)
            return
        if is_courier(session):
            asked, why = self._told(session, asked)
        else:
            asked, why = self._asked(now_ms, asked)
        if why:
            master.refuse(now_ms, header, why)
        elif _has_to_tell(asked) and not master.has_outbox:
            attachment = master.attachments.get(session)
            if attachment is not None:
                self._held.appendleft((session, attachment.number, body))
                self._stall()
        else:
            master._propose(
                now_ms,
                asked,
                producer=header.producer,
                first_number=header.first_number,
                settled=header.settled,
            )

    def _stall(self) -> None:
        """Have the catalog know that the queue is not to be deleted over what it has to tell."""
        self._is_stalled = True
        if not self._master._has_asked:
            self._master._has_asked = True
            self._master.commands.append(NoteOutbox(self._master._ring.queue_id))

    def _verdict(self, asked: Stage | Staging) -> str:
        return self._state.staging.verdict(asked.transaction, asked.version, asked.run)

    def _told(self, session: SessionId, asked: Staging) -> tuple[Staging, str]:
        """Another queue says or asks something. Nobody there waits for room here."""
        if isinstance(asked, AskOp):
            return asked, "" if asked.asker == source_of(session) else "it asks for another queue"
        if not _is_decision(asked):
            return asked, "another queue decides, and does not ask"
        if isinstance(asked, CommitOp):
            count = self._state.staging.count(asked)
            self._master._is_enforcing = True
            return replace(asked, sequence=self._master._next_sequence, count=count), ""
        return asked, ""

    def _asked(self, now_ms: int, asked: Staging) -> tuple[Staging, str]:
        """A driver asks."""
        if isinstance(asked, AskOp) or _is_decision(asked):
            return asked, "only another queue says so"
        why = self._verdict(asked)
        if isinstance(asked, AbortOp):
            # To give up what was given up before changes nothing.
            why = why if why.startswith(DONE) else ""
            if not why:
                asked = replace(asked, others=tuple(filter(self._is_there, asked.others)))
        if why or isinstance(asked, SealOp | AbortOp):
            return asked, why
        gone = [other for other in asked.others if not self._is_there(other)]
        if gone or (asked.others and self._master.is_ending):
            return asked, f"queue {gone[0] if gone else self._master._ring.queue_id} is deleted"
        return self._sized(now_ms, asked)

    def _is_there(self, queue_id: int) -> bool:
        master = self._master
        is_other = queue_id != master._ring.queue_id
        return is_other and master._targets.serving(queue_id) is not None

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
        count = staging.count(op) if not staging.lacking(op) else 0
        limit = master._limit
        if limit is not None and count:
            depth = master._depth()
            sizes = [size for count, size in staging.size_runs(op) for _ in range(count)]
            verdict = judge(limit, depth, sizes, True)
            if verdict.action != "store":
                wait = f"{WAIT}: " if verdict.action == "hold" else ""
                return op, wait + verdict.reason
            if limit.overflow == "drop-head":
                need = Depth(depth.count + verdict.room.count, depth.size + verdict.room.size)
                master._drop_head(now_ms, limit.exceeded_by(need))
                master._is_enforcing = True
        return replace(op, sequence=master._next_sequence, count=count), ""

    # --- The log --------------------------------------------------------------------------

    def sizes_of(self, op: CommitOp) -> list[SizedPiece]:
        """Those of the messages that a commit in the log will bring, as far as known now."""
        staging = self._state.staging
        if staging.count(op) == op.count:
            return staging.sizes_of(op)
        return [(1, op.count, Sizes())] if op.count else []

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

    def expire(self, now_ms: int, wall_us: int) -> None:
        """Runs whose driver and tasks have been silent for long are given up, by ops; sealed ones
        ask the queue that decides."""
        if now_ms < self._look_ms:
            return
        config, staging = self._master._config, self._state.staging
        timeout_ms = config.staged_timeout_ms
        least_ms = min(timeout_ms, config.sealed_timeout_ms)
        self._look_ms = now_ms + max(least_ms // LOOKS, 1)
        for name in list(staging.idle_runs(wall_us - timeout_ms * 1000)):
            why = f"it has staged nothing for {timeout_ms} ms (staged_timeout_ms)"
            self._master._propose(now_ms, AbortOp(*name, why))
        before_us = wall_us - config.sealed_timeout_ms * 1000
        for transaction, version, run, home in list(staging.sealed_runs(before_us)):
            self._ask(now_ms, (transaction, version, run), home)

    def _ask(self, now_ms: int, name: tuple[str, int, str], home: int) -> None:
        master, run = self._master, self._state.staging.run(*name)
        if not self._is_there(home):
            why = f"queue {home}, which was to decide, is deleted"
            master._propose(now_ms, AbortOp(*name, why, is_decision=True))
        elif run is not None and not run.has_asked:
            if master.has_outbox:
                master._propose(now_ms, AskOp(*name, master._ring.queue_id))
            else:
                self._stall()

    def wake_at_ms(self) -> int | None:
        """When to look again."""
        return self._look_ms if self._state.staging.open else None


def _is_decision(asked: Staging) -> bool:
    return isinstance(asked, CommitOp | AbortOp) and asked.is_decision


def _has_to_tell(asked: Staging) -> bool:
    """Whether other queues are to hear of it."""
    return isinstance(asked, AskOp) or bool(getattr(asked, "others", ()))
