"""The length limit of a queue at its master: judges the whole log, and carries decisions out.

`limits` decides about a publish. This module makes room for it under `drop-head`, and tells handles
under `block` how much room is left.
"""

from __future__ import annotations

from mirrorq.protocol.identities import SessionId
from mirrorq.replication.master.attachments import Attachment
from mirrorq.replication.master.endings import Endings
from mirrorq.replication.master.limits import Depth, Verdict, full_text, limit_of
from mirrorq.replication.master.term import Term


class LengthLimit:
    """Knows how full the queue is, and what its limit does about it. A part of `Master`."""

    def __init__(self, term: Term, endings: Endings) -> None:
        self.limit = limit_of(term.definition)
        self.is_enforcing = False
        """A limit has changed, or what comes is not known before it is there: what is ready may
        be too much."""
        self.has_told = False
        """Some handle may believe in a bound."""
        self._term = term
        self._endings = endings
        self.is_counting = False
        """How full it is is to be known, and is not."""
        self._more = term.timers.new()
        """More is to be counted, and nothing comes that would step the queue."""

    def define(self) -> None:
        """The policy in force is another one."""
        limit = limit_of(self._term.definition)
        self.is_enforcing = self.is_enforcing or limit != self.limit
        self.limit = limit

    @property
    def is_known(self) -> bool:
        """Whether it is known how full the queue is, as far as the limit is concerned."""
        limit = self.limit
        return limit is None or not limit.counts_bytes or self._term.dispatch.is_size_known

    def count(self) -> None:
        """Find out a little more of how full it is."""
        if not self.is_known:
            self._term.dispatch.count_size()
        self.is_counting = not self.is_known
        if not self.is_counting:
            # No step looks here again: left as it is, it would wake the node without end.
            self._more.clear()

    def go_on(self, now_ms: int) -> None:
        """The same in each step, until it is known."""
        self.count()
        if self.is_counting:
            self._more.set(now_ms)

    def wait_text(self) -> str:
        """Why what comes cannot be judged yet, "" when it can. What is too much by itself, with
        nothing that comes, goes by portions first."""
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
        """What is ready or on its way there, judged on the whole log."""
        dispatch = self._term.dispatch
        coming = self._term.log.coming.depth()
        count = dispatch.ready.count + coming.count
        if self.limit is None or not self.limit.counts_bytes:
            return Depth(count, 0)
        return Depth(count, dispatch.ready_size + coming.size)

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
        """What is too much when there is to be room for what was judged at this depth."""
        assert self.limit is not None
        need = Depth(depth.count + verdict.room.count, depth.size + verdict.room.size)
        return self.limit.exceeded_by(need)

    def make_room(self, depth: Depth, verdict: Verdict) -> None:
        """What comes is an op of many parts: what of it is too much is dropped when it is there."""
        if self.limit is not None and self.limit.overflow == "drop-head":
            self._endings.drop_head(self.excess_with(depth, verdict))
            self.is_enforcing = True

    def enforce(self) -> None:
        """A limit that has become lower holds at once where the oldest messages go."""
        self.is_enforcing = not self.is_known
        limit = self.limit
        if limit is not None and limit.overflow == "drop-head" and self.is_known:
            self.is_enforcing = self._endings.drop_portion(limit.exceeded_by(self.depth()))

    # --- block ----------------------------------------------------------------------------

    def tell_all(self) -> None:
        """Before the confirms: who sees one and puts again knows that the queue is full."""
        is_bounded = self.limit is not None and self.limit.overflow == "block"
        if not self.is_known or not (is_bounded or self.has_told):
            return
        self.has_told = is_bounded
        depth = self.depth() if is_bounded else Depth(0, 0)
        for session, attachment in self._term.attachments.all():
            if is_bounded or attachment.told.flow is not None:
                self._tell(session, attachment, depth)

    def tell(self, session: SessionId, attachment: Attachment) -> None:
        """How much the queue takes before puts wait, when the handle should know."""
        if self.is_known:
            self._tell(session, attachment, self.depth())

    def _tell(self, session: SessionId, attachment: Attachment, depth: Depth) -> None:
        term = self._term
        producer = attachment.producer
        highest = term.log.highest.get(producer) or 0
        count_max = term.config.unconfirmed_count_max
        flow = attachment.told.news(self.limit, depth, producer, highest, count_max)
        if flow is not None:
            self.has_told = True
            term.reply(session, flow)
