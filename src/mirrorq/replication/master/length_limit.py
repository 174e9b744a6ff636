"""The length limit of a queue at its master: judges the whole log, and carries decisions out.

`limits` decides about a publish. This module makes room for the publish under `drop-head`, and
informs handles under `block` about the room that is left.
"""

from __future__ import annotations

from mirrorq.protocol.identities import SessionId
from mirrorq.replication.master.attachments import Attachment
from mirrorq.replication.master.endings import Endings
from mirrorq.replication.master.limits import Depth, Verdict, full_text, limit_of
from mirrorq.replication.master.term import Term

ROOM_MS = 100
"""After this time handles learn of all new room, however little."""


class LengthLimit:
    """Depth of the queue, and the effects of its limit. A part of `Master`."""

    def __init__(self, term: Term, endings: Endings) -> None:
        self.limit = limit_of(term.definition)
        self.is_enforcing = False
        """True if there may be too many ready messages: a limit has changed, or an op of unknown
        size is on its way."""
        self.has_told = False
        """True if a handle may know a bound."""
        self._term = term
        self._endings = endings
        self.is_counting = False
        """True while the depth is needed and not known."""
        self._more = term.timers.new()
        """Wakes the master to count the next portion."""
        self._rest = term.timers.new()
        """Wakes the master to tell of new room that was withheld."""

    def define(self) -> None:
        """Take in a change of the policy."""
        limit = limit_of(self._term.definition)
        self.is_enforcing = self.is_enforcing or limit != self.limit
        self.limit = limit

    @property
    def is_known(self) -> bool:
        """True if the depth is known, as far as the limit needs it."""
        limit = self.limit
        return limit is None or not limit.counts_bytes or self._term.dispatch.ready.is_size_known

    def count(self) -> None:
        """Count a portion of the ready messages, until the depth is known."""
        if not self.is_known:
            self._term.dispatch.ready.count_size()
        self.is_counting = not self.is_known
        if not self.is_counting:
            # No step looks here again: a set timer would wake the node without end.
            self._more.clear()

    def count_portion(self, now_ms: int) -> None:
        """Count a portion in each step, until the depth is known."""
        self.count()
        if self.is_counting:
            self._more.set(now_ms)

    def wait_text(self) -> str:
        """Why publishes cannot be judged yet, "" when they can. Excess messages without any publish
        are dropped first, by portions."""
        if self.limit is None:
            return ""
        if not self.is_known:
            return f"what is ready is being counted: its policy says {self.limit.text()}"
        if self.limit.overflow != "drop-head":
            return ""
        excess = self.limit.exceeded_by(self.depth())
        if not excess.count and not excess.size:
            return ""
        self.enforce()
        if not self.is_enforcing:
            return ""
        return f"the oldest messages are being dropped: its policy says {self.limit.text()}"

    def depth(self) -> Depth:
        """Depth of the queue: ready messages and publishes in the log."""
        dispatch = self._term.dispatch
        coming = self._term.log.coming.depth()
        count = dispatch.ready.levels.count + coming.count
        if self.limit is None or not self.limit.counts_bytes:
            return Depth(count, 0)
        return Depth(count, dispatch.ready.size + coming.size)

    @property
    def full_text(self) -> str:
        """Why no put is taken, "" when one may be."""
        limit = self.limit
        if limit is None or limit.overflow != "block" or not self.is_known:
            return ""
        depth = self.depth()
        return full_text(limit, depth) if limit.is_reached(depth) else ""

    # --- drop-head ------------------------------------------------------------------------

    def excess_with(self, depth: Depth, verdict: Verdict) -> Depth:
        """Excess in a queue of this depth when the judged messages get their room."""
        assert self.limit is not None
        need = Depth(depth.count + verdict.room.count, depth.size + verdict.room.size)
        return self.limit.exceeded_by(need)

    def make_room(self, depth: Depth, verdict: Verdict) -> None:
        """Make room for an op of many parts. Excess that is left is dropped after the op."""
        if self.limit is not None and self.limit.overflow == "drop-head":
            self._endings.drop_head(self.excess_with(depth, verdict))
            self.is_enforcing = True

    def enforce(self) -> None:
        """Apply a lowered limit at once by dropping the oldest messages, by portions."""
        self.is_enforcing = not self.is_known
        limit = self.limit
        if limit is not None and limit.overflow == "drop-head" and self.is_known:
            self.is_enforcing = self._endings.drop_portion(limit.exceeded_by(self.depth()))

    # --- block ----------------------------------------------------------------------------

    def tell_all(self, now_ms: int) -> None:
        """Send news to all handles, before confirms: then a confirmed producer knows the bound."""
        wanted_ms = self._rest.at_ms
        is_due = wanted_ms <= now_ms
        self._rest.clear()
        is_bounded = self.limit is not None and self.limit.overflow == "block"
        if not self.is_known or not (is_bounded or self.has_told):
            return
        self.has_told = is_bounded
        depth = self.depth() if is_bounded else Depth(0, 0)
        for session, attachment in self._term.attachments.all():
            if is_bounded or attachment.told.flow is not None:
                self._tell(session, attachment, depth, is_due=is_due)
                if attachment.told.is_withheld:
                    self._rest.set(min(wanted_ms, now_ms + ROOM_MS))

    def tell(self, session: SessionId, attachment: Attachment) -> None:
        """Tell a handle how much room the queue has, if there is news."""
        if self.is_known:
            self._tell(session, attachment, self.depth(), is_due=False)

    def _tell(
        self, session: SessionId, attachment: Attachment, depth: Depth, *, is_due: bool
    ) -> None:
        term = self._term
        producer = attachment.producer
        highest = term.log.highest.get(producer) or 0
        count_max = term.config.unconfirmed_count_max
        flow = attachment.told.news(self.limit, depth, producer, highest, count_max, is_due=is_due)
        if flow is not None:
            self.has_told = True
            term.reply(session, flow)
