"""Producers' ids at a master: openers, next numbers, expiry.

A producer is judged on the whole log, unstable ops too. A number at or below its highest number in
the log is known, and is confirmed when its op is stable. A batch is cut at the first new number.
"""

from __future__ import annotations

from mirrorq.protocol.identities import KEY_BIT, SessionId, is_key, is_spool
from mirrorq.protocol.ops import Header, ProducerOp, RefusalOp
from mirrorq.protocol.sessions import Detached, ProducerOpened, ProducerUnknown, ResendNumber
from mirrorq.replication.master.attachments import Attachment
from mirrorq.replication.master.confirms import Confirms
from mirrorq.replication.master.courier import is_courier
from mirrorq.replication.master.term import Term
from mirrorq.replication.state.outbox import is_outbox, sender_of

EXPIRY_LOOKS = 16
"""Number of searches for idle producer ids in one expiry time."""
KEYS_LOOK_MS = 60_000
"""Time between two searches for expired unique keys, in a queue that has such keys."""


class Producers:
    """Attaches, numbers and forgets producers. A part of `Master`."""

    def __init__(self, term: Term, confirms: Confirms) -> None:
        self.look_at_ms = 0
        """Time of the next search for idle ids."""
        self.look_from: int | None = None
        """Id at which the search continues, a few pages in each step; None: no search."""
        self._term = term
        self._confirms = confirms
        self._openers: dict[int, SessionId] = {}
        """Lsn of a ProducerOp -> session that asked for the id."""
        self.senders: dict[int, tuple[int, ...]] = {}
        """Another queue -> its producer ids here, an id for each of its pasts."""
        self.doubtful: dict[int, None] = {}
        """Other queues that may be deleted; at first all."""
        for producer in term.log.highest.outboxes():
            self._note_sender(producer)
        self.look_at_senders(None)

    # --- Opening --------------------------------------------------------------------------

    def open(self, session: SessionId) -> None:
        """Give the session its own id; the answer follows when the op is stable."""
        log = self._term.log
        log.propose(ProducerOp(f"{session.node}/{session.number}"))
        self._openers[log.last] = session

    def on_applied(self, lsn: int, payload: ProducerOp) -> None:
        """Take in a new id, or expired ids, of an applied op."""
        term = self._term
        if not payload.expired:
            term.log.highest.raise_to(term.state.producer_id(lsn), 0)
        opener = self._openers.pop(lsn, None)
        if opener is not None:
            opened = term.state.producer_id(lsn)
            attached = term.attachments.get(opener)
            term.claims.open(opened, "" if attached is None else attached.owner)
            term.reply(opener, ProducerOpened(opened))

    def attach(self, session: SessionId, attachment: Attachment, producer: int) -> None:
        """Let the session go on under an id of a former attachment."""
        if self._owns(session, attachment, producer):
            self._claim(session, attachment, producer)

    def _owns(self, session: SessionId, attachment: Attachment, producer: int) -> bool:
        """Return true if the session may publish under this id."""
        if is_key(producer):
            return False
        if is_outbox(producer) != is_courier(session):
            return False
        claims = self._term.claims
        is_new = producer not in self._term.log.highest
        return is_new or claims.admits(producer, attachment.owner)

    def _claim(self, session: SessionId, attachment: Attachment, producer: int) -> None:
        attachment.producer = producer
        self._term.claims.add(producer, session)

    def drop(self, session: SessionId, attachment: Attachment) -> None:
        """Remove the session's claim on its id."""
        self._term.claims.drop(attachment.producer, session)

    # --- Numbers --------------------------------------------------------------------------

    def first_new(
        self, session: SessionId, attachment: Attachment, header: Header, is_whole: bool
    ) -> int:
        """The first number of a batch that the log does not hold; 0: no message is to be taken.

        Answers the session about earlier numbers, gaps and unknown producers.
        """
        term = self._term
        highest, producer, last = term.log.highest, header.producer, header.last_number
        if is_outbox(producer) and is_courier(session):
            # The id lives as long as its queue: an unknown sender has published nothing.
            self._admit_sender(producer)
        elif is_spool(producer):
            # The id is kept for as long as a spool may come back with repeated messages.
            highest.raise_to(producer, 0)
        is_known = producer in highest and not self._is_forgotten(producer, header)
        if not is_known or not self._owns(session, attachment, producer):
            term.reply(session, ProducerUnknown(producer))
            return 0
        self._claim(session, attachment, producer)
        if last <= header.settled:
            return 0
        expected = max(highest.get(producer) or 0, header.settled) + 1
        first = header.first_number
        if first > expected:
            term.reply(session, ResendNumber(producer, expected))
            return 0
        if first < expected:
            self._confirms.answer_known(session, producer, first, min(last, expected - 1))
        if last < expected:
            return 0
        if is_whole and first < expected:
            term.reply(session, Detached())
            return 0
        return expected

    def _is_forgotten(self, producer: int, header: Header) -> bool:
        """Return true if a spool sends settled numbers again, as an old copy of a spool does. Their
        outcomes are forgotten."""
        if not is_spool(producer):
            return False
        known = self._term.state.producers.find(producer)
        return known is not None and header.first_number <= known.settled

    def refuse(self, header: Header, reason: str) -> None:
        """Refuse numbers by an op, which uses them. The answer follows when the op is stable."""
        self._term.log.propose(
            RefusalOp(reason),
            count=header.count,
            producer=header.producer,
            first_number=header.first_number,
            settled=header.settled,
        )

    # --- Other queues ---------------------------------------------------------------------

    def _admit_sender(self, producer: int) -> None:
        """Admit another queue's id, without an op. A deleted queue is not admitted: all its
        messages were confirmed before, and come again."""
        sender = sender_of(producer)
        if producer in self._term.log.highest or self._term.targets.serving(sender) is None:
            return
        self._term.log.highest.raise_to(producer, 0)
        self._note_sender(producer)

    def _note_sender(self, producer: int) -> None:
        sender = sender_of(producer)
        self.senders[sender] = (*self.senders.get(sender, ()), producer)

    def look_at_senders(self, queues: tuple[int, ...] | None) -> None:
        """Check soon if these queues (None: all) have been deleted."""
        looked = self.senders if queues is None else queues
        self.doubtful.update((sender, None) for sender in looked if sender in self.senders)

    def end_senders(self) -> None:
        """End the ids of deleted queues, by an op."""
        doubtful, self.doubtful = self.doubtful, {}
        gone = [one for one in doubtful if self._term.targets.serving(one) is None]
        self._end(tuple(number for one in gone for number in self.senders.pop(one)))

    def _end(self, producers: tuple[int, ...]) -> None:
        """End these ids by an op. They are unknown from here on."""
        if producers:
            self._term.log.propose(ProducerOp("", producers))
        for number in producers:
            self._term.log.highest.end_producer(number)
            self._term.claims.forget(number)

    # --- Expiry ---------------------------------------------------------------------------

    def expire(self, now_ms: int) -> None:
        """End ids that were idle for long, and expired unique keys, by ops."""
        term = self._term
        expiry_ms = term.config.producer_expiry_ms
        if now_ms >= self.look_at_ms and self.look_from is None:
            self.look_at_ms = now_ms + expiry_ms // EXPIRY_LOOKS
            if next(term.state.producers.ids(KEY_BIT, 2 * KEY_BIT - 1), None) is not None:
                self.expect_keys(now_ms)
            self.look_from = 0
        if self.look_from is None:
            return
        least_us = term.log.time_us - expiry_ms * 1000
        least_spool_us = term.log.time_us - term.config.spool_expiry_ms * 1000
        looked, following = term.state.producers.walk(self.look_from)
        self.look_from = following or None
        old = tuple(
            number
            for number, used_us in looked
            if not is_key(number)
            and used_us < (least_spool_us if is_spool(number) else least_us)
            and self._may_expire(number)
        )
        self._end(old)
        over = tuple(n for n, until_us in looked if is_key(n) and until_us <= term.log.time_us)
        if over:
            term.log.propose(ProducerOp("", over))

    def expect_keys(self, now_ms: int) -> None:
        """Plan an early search for expired unique keys."""
        self.look_at_ms = min(self.look_at_ms, now_ms + KEYS_LOOK_MS)

    def _may_expire(self, producer: int) -> bool:
        """Return true for a known id of no queue: a queue's repeats must stay known."""
        return producer in self._term.log.highest and not is_outbox(producer)
