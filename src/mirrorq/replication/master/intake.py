"""Publishes at a master: held while there is no room, judged, refused, or put into the log."""

from __future__ import annotations

from mirrorq.containers.fifo import Fifo
from mirrorq.containers.ranges import RangeSet
from mirrorq.containers.run_length import sizes_of
from mirrorq.containers.timers import FOREVER_MS
from mirrorq.errors import ProtocolError
from mirrorq.protocol import ops
from mirrorq.protocol.identities import SessionId
from mirrorq.protocol.policy import Definition
from mirrorq.protocol.sessions import Publish
from mirrorq.replication.disk_budget import SMALL_BYTES
from mirrorq.replication.master.attachments import Attachment
from mirrorq.replication.master.courier import is_courier
from mirrorq.replication.master.departures import Departures
from mirrorq.replication.master.endings import Endings
from mirrorq.replication.master.length_limit import LengthLimit
from mirrorq.replication.master.limits import Depth, Limit, Verdict, judge
from mirrorq.replication.master.producers import Producers
from mirrorq.replication.master.rate_limit import Pace, has_same_pace, pace_of
from mirrorq.replication.master.term import Term
from mirrorq.replication.state.unique_keys import holder_of

HELD_COUNT = 64
"""`held` is cleared of void publishes when it is twice as long as after the last time, plus
`HELD_COUNT`."""
HELD_MS = 50
"""Time after which publishes that wait for room are looked at again."""

Item = tuple[SessionId, int, Publish, ops.Header]
"""(session, number of its attachment, publish, header of the publish's frame)."""


class Intake:
    """Takes publishes into the log, holds or refuses them. A part of `Master`."""

    def __init__(
        self,
        term: Term,
        producers: Producers,
        length_limit: LengthLimit,
        endings: Endings,
        departures: Departures,
    ) -> None:
        self.held_by = ""
        """Why a limit holds the first of the held publishes, or ""."""
        self._term = term
        self._producers = producers
        self._length_limit = length_limit
        self._endings = endings
        self._departures = departures
        self.held: Fifo[Item] = Fifo()
        """Publishes that wait for room, in order."""
        self._held_max = HELD_COUNT
        self._pace: Pace | None = None
        self.look = term.timers.new()
        """Wakes the master to look at held publishes again."""

    def define(self, before: Definition) -> None:
        """Take in a change of the policy."""
        if not has_same_pace(self._term.definition, before):
            self._pace = pace_of(self._term.definition)

    # --- Held publishes -------------------------------------------------------------------

    def on_publish(self, now_ms: int, item: Item) -> None:
        """Take a publish of a handle. Frames with FLAG_STAGED go to `stages`."""
        self.held.append(item)
        if len(self.held) == 1:
            self.admit_held(now_ms)
        elif len(self.held) > self._held_max:
            self.held = Fifo.of(filter(self._is_current, self.held))
            self._held_max = 2 * len(self.held) + HELD_COUNT

    def _is_current(self, item: Item) -> bool:
        """Return true if the publish belongs to the session's present attachment."""
        return self._term.attachments.number_of(item[0]) == item[1]

    def admit_held(self, now_ms: int) -> None:
        """Admit publishes that waited for stable ops, for room on the disk, or for the length limit
        or the rate limit."""
        held = self.held
        self.held_by = ""
        while held and not self.held_by:
            if self._pace is not None and not self._pace.is_open(now_ms):
                self.held_by = self._pace.text
                return
            session, number, body, header = item = held[0]
            attachment = self._term.attachments.get(session)
            is_current = attachment is not None and attachment.number == number
            if is_current and not self._takes(session, body):
                if not self._cut_first():
                    return
                continue
            held.popleft()
            if attachment is not None and is_current:
                is_bounded = attachment.told.flow is not None
                known = self._next_of(header) if is_bounded else 0
                self._admit(item, attachment)
                if is_bounded:
                    # The handle counts all numbers, of refused and repeated messages too.
                    sizes = sizes_of(self._term.codec.offsets(body.frame), header.count)
                    attachment.told.size_since += sum(sizes[known : self._next_of(header)])

    def _next_of(self, header: ops.Header) -> int:
        """Index of the first message of a frame whose number is not in the log."""
        return max((self._term.log.highest.get(header.producer) or 0) + 1 - header.first_number, 0)

    def _takes(self, session: SessionId, body: Publish) -> bool:
        """Return true if a publish may go on: R10, and a store that can still be drained."""
        term = self._term
        if self._is_impossible(session, body):
            return True  # It is refused.
        return not self._is_unstable_full and term.room.has(len(body.frame))

    @property
    def _is_unstable_full(self) -> bool:
        term = self._term
        return term.ring.log.unstable_bytes >= term.config.unstable_bytes_max

    def _cut_first(self) -> bool:
        """Cut a held batch that does not fit as a whole: small pieces may find room."""
        codec = self._term.codec
        session, number, body, header = self.held[0]
        size, count = len(body.frame), header.count
        if body.whole or count == 1 or size <= SMALL_BYTES or self._is_unstable_full:
            return False
        step = max(1, count * SMALL_BYTES // (2 * size))
        self.held.popleft()
        for start in reversed(range(0, count, step)):
            frame = codec.cut(body.frame, start, min(start + step, count))
            item = (session, number, Publish(frame, False), codec.header(frame))
            self.held.appendleft(item)
        return True

    def _is_impossible(self, session: SessionId, body: Publish) -> bool:
        """Return true if the publish could never fit. A courier would ignore the refusal."""
        return not self._term.room.is_possible(len(body.frame)) and not is_courier(session)

    def _hold(self, item: Item, reason: str) -> None:
        """Hold a publish again as the first."""
        self.held_by = reason
        self.held.appendleft(item)

    @property
    def blocked_by(self) -> str:
        """Why publishes wait, "" when they do not."""
        if self.held_by and self.held:
            return self.held_by
        full = self._length_limit.full_text
        if full or not self.held:
            return full
        term = self._term
        if not term.room.has(len(self.held[0][2].frame)):
            return term.room.full_text
        return (
            f"{term.ring.log.unstable_bytes} bytes are not yet on every member in sync; the bound "
            f"is unstable_bytes_max {term.config.unstable_bytes_max}"
        )

    def set_timer(self, now_ms: int) -> None:
        """Set the timer for the next look at held publishes."""
        look_ms = now_ms + HELD_MS if self.held and not self.held_by else FOREVER_MS
        if self.held and self._pace is not None:
            opens_ms = self._pace.opens_at_ms(now_ms)
            if opens_ms is not None:
                look_ms = min(look_ms, opens_ms)
        self.look.set(look_ms)

    # --- Admitted publishes ---------------------------------------------------------------

    def _admit(self, item: Item, attachment: Attachment) -> None:
        session, number, body, header = item
        first = self._producers.first_new(session, attachment, header, body.whole)
        if not first:
            return
        if self._is_impossible(session, body):
            self._producers.refuse(header, self._term.room.impossible_text(len(body.frame)))
            return
        if header.flags & ops.FLAG_STEP:
            self._take_step(item)
            return
        frame = self._term.codec.cut(body.frame, first - header.first_number, header.count)
        if header.flags & ops.FLAG_UNIQUE:
            why = self._keys_error(frame, is_bounded=not is_courier(session))
            if why:
                self._producers.refuse(self._term.codec.header(frame), why)
                return
        if self._length_limit.limit is None or self._only_repeats(header, frame):
            self.store(frame)
        else:
            self._take_in(session, number, Publish(frame, body.whole), self._length_limit.limit)

    def _keys_error(self, frame: bytes, *, is_bounded: bool) -> str:
        """Why messages with these unique keys cannot be taken, "" when they can.

        Args:
            is_bounded: `unique-max` applies: the keys are this queue's, and its producer is told.
        """
        term = self._term
        try:
            term.codec.keys(frame)
        except ProtocolError as error:
            return str(error)
        count, count_max = len(term.state.producers), term.definition.unique_max
        if count < count_max or not is_bounded:
            return ""
        if self._only_repeats(term.codec.header(frame), frame):
            return ""
        return (
            f"the queue remembers {count} unique keys and producers; the bound is unique-max "
            f"{count_max} of its policy: raise it, or have keys remembered for a shorter time"
        )

    def _only_repeats(self, header: ops.Header, frame: bytes) -> bool:
        """Return true if all messages of a frame repeat stored messages, by their unique keys."""
        if not header.flags & ops.FLAG_UNIQUE:
            return False
        known, time_us = self._term.state.producers, self._term.log.time_us
        keys = self._term.codec.keys(frame)[1 if header.flags & ops.FLAG_STEP else 0 :]
        return all(key is not None and holder_of(known, key, time_us) for key in keys)

    def _take_in(self, session: SessionId, number: int, body: Publish, limit: Limit) -> None:
        """Store, refuse or hold a producer's new messages, according to the queue's limit."""
        codec, length_limit = self._term.codec, self._length_limit
        frame: bytes = body.frame
        waits = length_limit.wait_text()
        if waits:
            self._hold((session, number, body, codec.header(frame)), waits)
            return
        while True:
            header = codec.header(frame)
            count = header.count
            depth = length_limit.depth()
            sizes = sizes_of(codec.offsets(frame), count)
            verdict = judge(limit, depth, sizes, body.whole)
            if verdict.action == "refuse" and is_courier(session):
                # A courier ignores a refusal, and the message would be lost.
                self.store(frame)
                return
            if verdict.action == "hold":
                self._hold((session, number, Publish(frame, body.whole), header), verdict.reason)
                return
            piece = codec.cut(frame, 0, verdict.count)
            if verdict.action == "refuse":
                self._producers.refuse(codec.header(piece), verdict.reason)
            elif limit.overflow == "drop-head":
                self._store_dropping(piece, depth, verdict)
            else:
                self.store(piece)
            if verdict.count == count:
                return
            frame = codec.cut(frame, verdict.count, count)

    def _store_dropping(self, frame: bytes, depth: Depth, verdict: Verdict) -> None:
        """Make room, store, and drop the oldest messages of a batch above the limit."""
        excess = self._length_limit.excess_with(depth, verdict)
        is_all_older = verdict.keep < verdict.count
        self._endings.drop_head(Depth(depth.count, 0) if is_all_older else excess)
        self.store(frame)
        self._endings.drop_head(Depth(verdict.count - verdict.keep, 0))

    def store(self, frame: bytes) -> None:
        """Put a producer's messages into the log."""
        term = self._term
        term.room.reserve(len(frame))
        entry = term.log.publish(frame)
        if self._pace is not None:
            # The first body of a step is no message.
            first = 1 if entry.header.flags & ops.FLAG_STEP else 0
            sizes = sizes_of(entry.offsets, entry.header.count)[first:]
            self._pace.count_messages(len(sizes), sum(sizes))
        if entry.header.flags & ops.FLAG_PRIORITY:
            term.horizons.announce(entry.header.priority)

    # --- Steps ----------------------------------------------------------------------------

    def _take_step(self, item: Item) -> None:
        """Take acks and puts as one op: store all, refuse all, or wait."""
        session, _, body, header = item
        step = self._step_of(body)
        why = self._step_error(session, body, step)
        if not why and header.flags & ops.FLAG_UNIQUE:
            why = self._keys_error(body.frame, is_bounded=step is not None and not step.target)
        if step is None or why:
            self._producers.refuse(header, why)
            return
        if step.target and not self._departures.is_known:
            self._departures.ask()
            self._hold(item, "the catalog is to know first that the queue sends to another")
            return
        has_place = step.target or header.count == 1 or self._only_repeats(header, body.frame)
        if has_place or self._has_room(item):
            for piece in body.deliveries:
                self._term.dispatch.close_piece(session, piece)
            self.store(body.frame)

    def _step_of(self, body: Publish) -> ops.Step | None:
        try:
            step = self._term.codec.read_step(body.frame)
        except ProtocolError:
            return None
        return step if isinstance(step, ops.Step) else None

    def _has_room(self, item: Item) -> bool:
        """Return true if a step's messages go in now. Otherwise the step is held or refused."""
        length_limit = self._length_limit
        _, _, body, header = item
        if length_limit.limit is None:
            return True
        waits = length_limit.wait_text()
        if waits:
            self._hold(item, waits)
            return False
        depth = length_limit.depth()
        sizes = sizes_of(self._term.codec.offsets(body.frame), header.count)[1:]
        verdict = judge(length_limit.limit, depth, sizes, True)
        if verdict.action == "hold":
            self._hold(item, verdict.reason)
        elif verdict.action == "refuse":
            self._producers.refuse(header, verdict.reason)
        else:
            length_limit.make_room(depth, verdict)
        return verdict.action == "store"

    def _step_error(self, session: SessionId, body: Publish, step: ops.Step | None) -> str:
        """Why no part of a step can be done, "" when all parts can."""
        if step is None or not body.whole or is_courier(session):
            return "it is no step"
        acked = RangeSet((piece.first, piece.last) for piece in body.deliveries)
        if acked != RangeSet(step.ranges):
            return "the deliveries that it acks are not those of its op"
        if sum(piece.last - piece.first + 1 for piece in body.deliveries) != acked.count:
            return f"{ops.NOT_TAKEN}: one was to be acked twice"
        for piece in body.deliveries:
            if not self._term.dispatch.may_take(session, piece):
                return (
                    f"{ops.NOT_TAKEN}: message {piece.first} had gone back to the queue, and comes "
                    "again, or somebody else has it"
                )
        if step.target and not self._departures.may_go_to(step.target):
            return f"queue {step.target}, or this one, is deleted"
        return ""
