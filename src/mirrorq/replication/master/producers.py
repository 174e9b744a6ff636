"""Producers' ids at a master: who opened them, which number is next, when they expire.

A producer is judged on the whole log, unstable ops too: what is at or below its highest number
there is known, and is confirmed when its op is stable. A batch is cut at the first new number.
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
"""Idle producer ids are looked for so often in one expiry time."""
KEYS_LOOK_MS = 60_000
"""Where the queue remembers unique keys, those whose time has ended are looked for after this."""


class Producers:
    """Who publishes to the queue: attaches, numbers, forgets producers. A part of `Master`."""

    def __init__(self, term: Term, confirms: Confirms) -> None:
        self.look_at_ms = 0
        """Idle ids are looked for again at this time."""
        self.look_from: int | None = None
        """Ids from this one on are still to be looked at, some in each step."""
        self._term = term
        self._confirms = confirms
        self._openers: dict[int, SessionId] = {}
        """lsn of an id's op -> who asked for it."""
        self.senders: dict[int, tuple[int, ...]] = {}
        """Another queue -> its ids here, one for each past that it had."""
        self.doubtful: dict[int, None] = {}
        """Other queues that may be deleted; at first all."""
        for producer in term.log.highest.outboxes():
            self._note_sender(producer)
        self.look_at_senders(None)

    # --- Opening --------------------------------------------------------------------------

    def open(self, session: SessionId) -> None:
        """Give the session an id of its own; it is told when that is stable."""
        log = self._term.log
        log.propose(ProducerOp(f"{session.node}/{session.number}"))
        self._openers[log.last] = session

    def on_applied(self, lsn: int, payload: ProducerOp) -> None:
        """An id has been given, or ids have expired."""
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
        """The session goes on under an id that it had before."""
        if self._owns(session, attachment, producer):
            self._claim(session, attachment, producer)

    def _owns(self, session: SessionId, attachment: Attachment, producer: int) -> bool:
        """Whether what a session publishes may go under this id."""
        if is_key(producer):
            return False
        if is_outbox(producer) != is_courier(session):
            return False
        claims = self._term.claims
        is_new = producer not in self._term.log.highest
        return is_new or claims.admits(producer, attachment.owner)

    def _claim(self, session: SessionId, attachment: Attachment, producer: int) -> None:
        attachment.producer = producer
        self._term.claims.take(producer, session)

    def drop(self, session: SessionId, attachment: Attachment) -> None:
        """The session is gone."""
        self._term.claims.drop(attachment.producer, session)

    # --- Numbers --------------------------------------------------------------------------

    def first_new(
        self, session: SessionId, attachment: Attachment, header: Header, is_whole: bool
    ) -> int:
        """The first number of a batch that the log does not hold; 0: nothing of it is to be taken.

        Whoever is to hear something of the numbers before it is answered.
        """
        term = self._term
        highest, producer, last = term.log.highest, header.producer, header.last_number
        if is_outbox(producer) and is_courier(session):
            # It does not expire while that queue lives: who is not known has published nothing.
            self._admit_sender(producer)
        elif is_spool(producer):
            # It is kept for as long as a spool may come back with what it has sent before.
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
        """Whether a spool sends what was settled before: an old copy of it does. Nobody knows the
        outcome any more, and nobody may wait for it."""
        if not is_spool(producer):
            return False
        known = self._term.state.producers.find(producer)
        return known is not None and header.first_number <= known.settled

    def refuse(self, header: Header, reason: str) -> None:
        """A refusal is an op: it uses the numbers, and is told when it is stable."""
        self._term.log.propose(
            RefusalOp(reason),
            count=header.count,
            producer=header.producer,
            first_number=header.first_number,
            settled=header.settled,
        )

    # --- Other queues ---------------------------------------------------------------------

    def _admit_sender(self, producer: int) -> None:
        """Another queue's id needs no op to begin. One that is deleted has nothing to say any
        more: all that it had was confirmed before, and what comes is a repetition."""
        sender = sender_of(producer)
        if producer in self._term.log.highest or self._term.targets.serving(sender) is None:
            return
        self._term.log.highest.raise_to(producer, 0)
        self._note_sender(producer)

    def _note_sender(self, producer: int) -> None:
        sender = sender_of(producer)
        self.senders[sender] = (*self.senders.get(sender, ()), producer)

    def look_at_senders(self, queues: tuple[int, ...] | None) -> None:
        """These queues (None: perhaps all) may be no more."""
        looked = self.senders if queues is None else queues
        self.doubtful.update((sender, None) for sender in looked if sender in self.senders)

    def end_senders(self) -> None:
        """The ids of queues that are deleted end by an op."""
        doubtful, self.doubtful = self.doubtful, {}
        gone = [one for one in doubtful if self._term.targets.serving(one) is None]
        self._end(tuple(number for one in gone for number in self.senders.pop(one)))

    def _end(self, producers: tuple[int, ...]) -> None:
        """These ids are unknown from here on."""
        if producers:
            self._term.log.propose(ProducerOp("", producers))
        for number in producers:
            self._term.log.highest.end(number)
            self._term.claims.forget(number)

    # --- Expiry ---------------------------------------------------------------------------

    def expire(self, now_ms: int) -> None:
        """Ids that were idle for long end by an op; from here on they are unknown."""
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
        """The queue remembers unique keys: it is looked soon for those whose time has ended."""
        self.look_at_ms = min(self.look_at_ms, now_ms + KEYS_LOOK_MS)

    def _may_expire(self, producer: int) -> bool:
        """Another queue's id does not: what that queue sends again must be known here."""
        return producer in self._term.log.highest and not is_outbox(producer)
