"""Staged messages at a master: judges requests, expires runs, answers. Pure.

When a copy *applies* a commit, it decides if the commit succeeds (`staging`): all copies alike. The
master gives the commit the sequences that it needs; a refused commit leaves them unused. The master
refuses a request before it is in the log if the queue or the store is full, or the decision was
made before. Such a refusal is an op of its own, which keeps no body and fences no run.

Staged requests do not wait behind puts that wait for room: a commit may make room.
"""

from __future__ import annotations

from msgspec.structs import replace

from mirrorq.containers.fifo import Fifo
from mirrorq.containers.timers import FOREVER_MS
from mirrorq.errors import ProtocolError
from mirrorq.protocol.identities import SessionId
from mirrorq.protocol.ops import FLAG_PRIORITY, FLAG_STEP, FLAG_TRANSIENT, Entry, Header
from mirrorq.protocol.sessions import Publish
from mirrorq.protocol.staged import DONE, WAIT, AbortOp, AskOp, CommitOp, SealOp, Stage, Staging
from mirrorq.replication.master.attachments import Attachment
from mirrorq.replication.master.confirms import Confirms
from mirrorq.replication.master.courier import is_courier, source_of
from mirrorq.replication.master.departures import Departures
from mirrorq.replication.master.intake import HELD_COUNT, Intake
from mirrorq.replication.master.length_limit import LengthLimit
from mirrorq.replication.master.limits import judge_pieces
from mirrorq.replication.master.producers import Producers
from mirrorq.replication.master.term import Term

LOOKS = 16
"""Number of searches for idle runs in one staged_timeout_ms."""


class Stages:
    """Takes and ends transactions that are staged at this queue. A part of `Master`."""

    def __init__(
        self,
        term: Term,
        producers: Producers,
        confirms: Confirms,
        intake: Intake,
        length_limit: LengthLimit,
        departures: Departures,
    ) -> None:
        self._term = term
        self._producers = producers
        self._confirms = confirms
        self._intake = intake
        self._length_limit = length_limit
        self._departures = departures
        self.held: Fifo[tuple[SessionId, int, Publish]] = Fifo()
        """Requests that wait for unstable ops to become stable (R10)."""
        self._held_max = HELD_COUNT
        self.look_ms = 0
        """Time of the next search for idle runs."""
        self._look = term.timers.new()
        """Timer for the next search, while there are runs."""
        self._is_stalled = False
        """True while requests wait until the catalog knows of the outbox."""

    # --- Requests -----------------------------------------------------------------------

    def on_publish(self, session: SessionId, number: int, body: Publish) -> None:
        """Take a frame with FLAG_STAGED from this attachment of a session."""
        self.held.append((session, number, body))
        self.admit()
        if len(self.held) > self._held_max:
            number_of = self._term.attachments.number_of
            self.held = Fifo.of(one for one in self.held if number_of(one[0]) == one[1])
            self._held_max = 2 * len(self.held) + HELD_COUNT

    def admit(self) -> None:
        """Admit held requests. R10: they wait only for unstable ops to become stable."""
        term = self._term
        bytes_max = term.config.unstable_bytes_max
        self._is_stalled = self._is_stalled and not self._departures.is_known
        while self.held and not self._is_stalled and term.ring.log.unstable_bytes < bytes_max:
            session, number, body = self.held.popleft()
            attachment = term.attachments.get(session)
            if attachment is not None and attachment.number == number:
                self._admit(session, attachment, body)

    def _admit(self, session: SessionId, attachment: Attachment, body: Publish) -> None:
        header = self._term.codec.header(body.frame)
        if not self._producers.first_new(session, attachment, header, body.whole):
            return
        try:
            if not header.flags & FLAG_STEP:
                raise ProtocolError("a frame with FLAG_STAGED has FLAG_STEP, too")
            asked = self._term.codec.staged(body.frame)
        except ProtocolError as error:
            self._producers.refuse(header, str(error))
            return
        if isinstance(asked, Stage):
            self._take_chunk(header, body, asked)
        else:
            self._take_request((session, attachment.number, body), header, asked)

    def _take_chunk(self, header: Header, body: Publish, asked: Stage) -> None:
        why = self._verdict(asked) or self._stage_error(header, body)
        if why:
            self._producers.refuse(header, why)
        else:
            self._intake.store(body.frame)

    def _take_request(
        self, item: tuple[SessionId, int, Publish], header: Header, asked: Staging
    ) -> None:
        session = item[0]
        asked, why = self._told(session, asked) if is_courier(session) else self._asked(asked)
        if why:
            self._producers.refuse(header, why)
        elif _has_to_tell(asked) and not self._departures.is_known:
            self.held.appendleft(item)
            self._stall()
        else:
            self._term.log.propose(
                asked,
                producer=header.producer,
                first_number=header.first_number,
                settled=header.settled,
            )

    def _stall(self) -> None:
        """Ask the catalog to note the outbox, and wait."""
        self._is_stalled = True
        self._departures.ask()

    def _verdict(self, asked: Stage | Staging) -> str:
        staging = self._term.state.staging
        return staging.verdict(asked.transaction, asked.version, asked.run)

    def _told(self, session: SessionId, asked: Staging) -> tuple[Staging, str]:
        """Judge a request of another queue. Such a request never waits for room."""
        if isinstance(asked, AskOp):
            return asked, "" if asked.asker == source_of(session) else "it asks for another queue"
        if not _is_decision(asked):
            return asked, "another queue decides, and does not ask"
        if isinstance(asked, CommitOp):
            self._length_limit.is_enforcing = True
            return self._numbered(asked, self._term.state.staging.count(asked)), ""
        return asked, ""

    def _asked(self, asked: Staging) -> tuple[Staging, str]:
        """Judge a request of a driver."""
        if isinstance(asked, AskOp) or _is_decision(asked):
            return asked, "only another queue says so"
        why = self._verdict(asked)
        if isinstance(asked, AbortOp):
            # An abort of an aborted run changes nothing.
            why = why if why.startswith(DONE) else ""
            if not why:
                asked = replace(asked, others=tuple(filter(self._is_there, asked.others)))
        if why or isinstance(asked, SealOp | AbortOp):
            return asked, why
        gone = [other for other in asked.others if not self._is_there(other)]
        if gone or (asked.others and self._departures.is_ending):
            return asked, f"queue {gone[0] if gone else self._term.ring.queue_id} is deleted"
        return self._sized(asked)

    def _is_there(self, queue_id: int) -> bool:
        return queue_id != self._term.ring.queue_id and self._departures.is_there(queue_id)

    def _stage_error(self, header: Header, body: Publish) -> str:
        if header.count < 2 or not body.whole:
            return "a chunk is at least one message, and is staged whole"
        if header.flags & (FLAG_PRIORITY | FLAG_TRANSIENT) or header.delay_ms or header.ttl_ms:
            return "staged messages have no priority, delay or ttl, and are persistent"
        if not self._term.room.has(len(body.frame)):
            return f"{self._term.room.full_text}, or abort what is staged"
        return ""

    def _sized(self, op: CommitOp) -> tuple[CommitOp, str]:
        """A commit with the sequences for its messages, if there is room."""
        staging, length_limit = self._term.state.staging, self._length_limit
        count = staging.count(op) if not staging.lacking(op) else 0
        if length_limit.limit is not None and count:
            waits = length_limit.wait_text()
            if waits:
                return op, f"{WAIT}: {waits}"
            depth = length_limit.depth()
            pieces, largest = staging.sizes_of(op), staging.largest(op)
            verdict = judge_pieces(length_limit.limit, depth, pieces, largest)
            if verdict.action != "store":
                wait = f"{WAIT}: " if verdict.action == "hold" else ""
                return op, wait + verdict.reason
            length_limit.make_room(depth, verdict)
        return self._numbered(op, count), ""

    def _numbered(self, op: CommitOp, count: int) -> CommitOp:
        """A commit with sequences for `count` messages."""
        return replace(op, sequence=self._term.log.next_sequence, count=count)

    # --- The log --------------------------------------------------------------------------

    def on_applied(self, entry: Entry) -> None:
        """Answer the requesting session."""
        if self.look_ms:
            self.set_timer()
        header, why, payload = entry.header, self._term.state.verdict, entry.payload
        if why:
            self._confirms.refuse(header, why)
            return
        sequence = payload.sequence if isinstance(payload, CommitOp) else header.lsn
        run = (header.first_number, header.count, header.first_sequence or sequence)
        self._confirms.record_numbers(header.producer, run)

    # --- Time -----------------------------------------------------------------------------

    def expire(self, now_ms: int) -> None:
        """Abort runs with silent drivers and tasks, by ops. For old sealed runs, ask the deciding
        queue."""
        config, staging, log = self._term.config, self._term.state.staging, self._term.log
        timeout_ms = config.staged_timeout_ms
        least_ms = min(timeout_ms, config.sealed_timeout_ms)
        self.look_ms = now_ms + max(least_ms // LOOKS, 1)
        for name in list(staging.idle_runs(log.time_us - timeout_ms * 1000)):
            why = f"it has staged nothing for {timeout_ms} ms (staged_timeout_ms)"
            log.propose(AbortOp(*name, why))
        before_us = log.time_us - config.sealed_timeout_ms * 1000
        for transaction, version, run, home in list(staging.sealed_runs(before_us)):
            self._ask((transaction, version, run), home)
        self.set_timer()

    def set_timer(self) -> None:
        """Set the timer for the next search while runs are open."""
        self._look.set(self.look_ms if self._term.state.staging.open else FOREVER_MS)

    def _ask(self, name: tuple[str, int, str], home: int) -> None:
        log, run = self._term.log, self._term.state.staging.staged_run(*name)
        if not self._is_there(home):
            why = f"queue {home}, which was to decide, is deleted"
            log.propose(AbortOp(*name, why, is_decision=True))
        elif run is not None and not run.has_asked:
            if self._departures.is_known:
                log.propose(AskOp(*name, self._term.ring.queue_id))
            else:
                self._stall()


def _is_decision(asked: Staging) -> bool:
    return isinstance(asked, CommitOp | AbortOp) and asked.is_decision


def _has_to_tell(asked: Staging) -> bool:
    """Return true if the request needs tasks for other queues."""
    return isinstance(asked, AskOp) or bool(getattr(asked, "others", ()))
