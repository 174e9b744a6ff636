"""Stretches of a queue that somebody ends without holding them: purges, and acks by sequence of
who has a claim on the whole queue."""

from __future__ import annotations

from mirrorq.master.reign import Reign
from mirrorq.master.settling import Settling
from mirrorq.messages import AckOp, AckRange, Purge, Purged, PurgeOp, Recall, SessionId
from mirrorq.purges import OpenPurge, Purges
from mirrorq.ranges import RangeSet

__all__ = ["Purging"]


class Purging:
    """One reign's."""

    def __init__(self, reign: Reign, settling: Settling) -> None:
        self.open = Purges()
        """Under way: nothing is handed out meanwhile."""
        self._reign = reign
        self._settling = settling

    def on_purge(self, now_ms: int, session: SessionId, body: Purge) -> None:
        """Ready and delayed messages end, and what handles have fetched that nobody has seen."""
        reign = self._reign
        holders = {
            session: reign.attachments.number_of(session)
            for session, _ in reign.delivery.fetchers()
            if session in reign.attachments
        }
        until_ms = now_ms + reign.config.failure_ms
        number = self.open.begin(session, body.request, until_ms, holders)
        for holder in holders:
            reign.reply(holder, Recall(0, number))

    def on_recalled(self, session: SessionId, number: int) -> None:
        """A handle has given back what nobody had seen."""
        self.open.on_recalled(session, number)

    def run(self, now_ms: int) -> None:
        """Carry out the purges that wait for nobody any more."""
        for purge in self.open.take_due(now_ms, self._reign.attachments):
            self._purge(purge)

    def _purge(self, purge: OpenPurge) -> None:
        reign = self._reign
        ended = RangeSet((*reign.delivery.take_ready(), *reign.delays.take_all()))
        if ended:
            reign.log.propose(PurgeOp(tuple(ended)))
        self._settling.answer_purge(purge.session, purge.request, ended.count)

    def on_ack_range(self, session: SessionId, body: AckRange) -> None:
        """Who holds a claim has read these elsewhere. Told when stable, as any ack; asked again,
        it ends what is left."""
        reign = self._reign
        claim = reign.delivery.claim()
        if claim is None or claim.key != (session, body.number):
            why = f"{claim.who} holds the queue" if claim else "nobody holds the queue exclusively"
            reign.reply(session, Purged(body.request, 0, f"the claim has ended: {why}"))
            return
        first, last = max(body.first, 1), min(body.last, reign.state.next_sequence - 1)
        delayed = reign.delays.take(first, last)
        taken = reign.delivery.take_out(RangeSet(((first, last),)))
        ended = RangeSet((*taken, *reign.delivery.take_aside(first, last), *delayed))
        if ended:
            reign.log.propose(AckOp(tuple(ended)))
        self._settling.answer_purge(session, body.request, ended.count)
