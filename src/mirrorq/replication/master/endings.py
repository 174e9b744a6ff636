"""Messages that end without an ack: expired, dropped, rejected, returned too often.

`Endings.end_messages` is the one place where they end, except for a purge. Ended messages go to the
dead-letter queue of the policy, if the policy names a queue.
"""

from __future__ import annotations

from collections.abc import Iterable

from mirrorq.containers.ranges import Range, RangeSet
from mirrorq.protocol.ops import DiscardOp, DropHeadOp, ExpiryOp, OutboxOp
from mirrorq.replication.master.departures import Departures
from mirrorq.replication.master.expiry import Expiry
from mirrorq.replication.master.limits import Depth
from mirrorq.replication.master.term import PORTION, Term

EXPIRY_LOOK_MS = 60_000
"""Greatest time between two looks at the deadlines of messages."""


class Endings:
    """Ends messages without an ack, or sends them to the dead-letter queue. A part of `Master`."""

    def __init__(self, term: Term, departures: Departures) -> None:
        self.counts: dict[str, int] = {}
        """Messages of this term that ended without an ack, by reason."""
        self.expiry = Expiry(term.state)
        """Deadlines of ready messages."""
        self._term = term
        self._expiry_lsn = self._drop_lsn = 0
        """Lsns of the last portions."""
        self._departures = departures
        self.look = term.timers.new()
        """Wakes the master when the next message may expire."""
        self._missing_target = ""
        """The dead-letter queue that did not exist at the last look."""

    def collect_deadlines(self) -> None:
        """Note all deadlines again: at the start of a term, or after a change of the policy."""
        term = self._term
        # Messages that are not ready are noted, too, and looked up in vain.
        self.expiry.restart(term.definition.message_ttl, ((1, term.state.next_sequence - 1),))

    def end_messages(self, ranges: Iterable[Range], reason: str) -> None:
        """End messages on every copy, by an op. The messages must not be ready or held any more.

        Args:
            reason: expired, maxlen, rejected or delivery_limit, as RabbitMQ calls them.
        """
        ending = RangeSet(ranges)
        if not ending:
            return
        self.counts[reason] = self.counts.get(reason, 0) + ending.count
        named, log = tuple(ending), self._term.log
        target = self._dead_letter_target(ending.count)
        match reason:
            case _ if target:
                log.propose(OutboxOp(named, target, reason))
            case "expired":
                log.propose(ExpiryOp(named))
            case "maxlen":
                log.propose(DropHeadOp(named))
            case _:
                log.propose(DiscardOp(named, reason))
        if reason == "delivery_limit":
            limit = self._term.definition.delivery_limit
            text = (
                f"{ending.count} message(s), the first of them {ending.first}, were returned "
                f"more than delivery-limit {limit} times and have ended"
            )
            self._term.notice("delivery limit", text)

    def _dead_letter_target(self, count: int) -> int:
        """Id of the dead-letter queue; 0: messages end without a target."""
        name = self._term.definition.dead_letter_queue
        if name is None or self._departures.is_ending:
            return 0
        target = self._term.targets.find(name)
        if not target:
            self.counts["no_dead_letter_queue"] = self.counts.get("no_dead_letter_queue", 0) + count
            if self._missing_target != name:
                text = (
                    f"dead-letter-queue {name!r} does not exist: {count} message(s) have ended "
                    "and went nowhere, and so will others. Declare it"
                )
                self._term.notice("dead letters lost", text)
        self._missing_target = "" if target else name
        return target

    def drop_head(self, excess: Depth) -> None:
        """End the oldest messages. Messages that are not applied yet come last."""
        ranges, excess = self._term.dispatch.ready.drop_oldest(excess)
        if excess.count or excess.size:
            more, _ = self._term.log.coming.drop_oldest(excess)
            ranges += more
        self.end_messages(ranges, "maxlen")

    def drop_portion(self, excess: Depth) -> bool:
        """End as many of the oldest messages as one step may; return true if more are to end."""
        dispatch, state = self._term.dispatch, self._term.state
        if state.applied < self._drop_lsn:
            return True
        ranges, left = dispatch.ready.drop_oldest(excess, PORTION)
        self.end_messages(ranges, "maxlen")
        self._drop_lsn = self._term.log.last
        if (left.count or left.size) and not dispatch.ready.levels:
            self.drop_head(left)
            return False
        return bool(left.count or left.size)

    # --- Time -----------------------------------------------------------------------------

    def expire(self) -> None:
        """End ready messages that have outlived their time."""
        dispatch = self._term.dispatch
        if dispatch.ready.came_back:
            self.expiry.add_ready(dispatch.ready.came_back)
            dispatch.ready.came_back = []
        if self._term.state.applied < self._expiry_lsn:
            return
        over = self.expiry.due(self._term.log.time_us // 1000)
        if over:
            self.end_messages(dispatch.ready.take_out(over), "expired")
            self._expiry_lsn = self._term.log.last

    def set_timer(self, now_ms: int) -> None:
        """Set the timer for the next message that may expire, by the queue's time."""
        expiry_ms = self.expiry.next_ms
        if expiry_ms is None:
            self.look.clear()
            return
        # The queue's time may go a little faster than the clock: look again before long.
        left_ms = expiry_ms - self._term.log.time_us // 1000
        self.look.set(now_ms + min(max(left_ms, 1), EXPIRY_LOOK_MS))
