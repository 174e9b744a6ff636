"""Confirms and refusals: outcomes of producers' numbers, sent to the publishing sessions.

A run of numbers is noted when its op is stable and applied (R3), and confirmed at the end of the
step. Confirms are withheld while the view lacks members, the disks lag behind the policy, or the
node has lost the majority. They are also withheld if another master may lack the messages.
"""

from __future__ import annotations

from mirrorq.protocol.identities import SessionId
from mirrorq.protocol.ops import Header
from mirrorq.protocol.sessions import Confirmed, Refused
from mirrorq.protocol.views import in_sync_ids
from mirrorq.replication.master.term import LEASE_IDLE_MS, Term
from mirrorq.replication.state.producer import LOST, REFUSED
from mirrorq.replication.state.unique_keys import REPEATED

Run = tuple[int, int, int]
"""(first number, how many, sequence of the first)."""


class Confirms:
    """Outcomes to be sent at the end of the step, and reasons to withhold them."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self.runs: dict[tuple[SessionId, int], list[Run]] = {}
        """(session, producer) -> runs to confirm."""
        self.repeats: dict[tuple[SessionId, int], list[Run]] = {}
        """(session, producer) -> runs of repeated messages."""
        self.lease_wanted_until_ms = -LEASE_IDLE_MS
        """End of the need for the lease: some time after the last confirm that needed it."""

    def record_numbers(self, producer: int, run: Run) -> None:
        """Note the numbers of a stable and applied op."""
        for session in self._term.claims.of(producer):
            self.runs.setdefault((session, producer), []).append(run)

    def note_each(self, header: Header) -> None:
        """Note the numbers of a publish with unique keys, among which may be repeats."""
        for session in self._term.claims.of(header.producer):
            self.answer_known(session, header.producer, header.first_number, header.last_number)

    def refuse(self, header: Header, reason: str) -> None:
        """Send the stable refusal of an op's numbers."""
        refused = Refused(header.producer, header.first_number, header.count, reason)
        for session in self._term.claims.of(header.producer):
            self._term.reply(session, refused)

    def answer_known(self, session: SessionId, producer: int, first: int, last: int) -> None:
        """Answer numbers in the log: applied numbers now, other numbers when they are stable."""
        known = self._term.state.producers.find(producer)
        if known is None:
            return
        for number, count, sequence, reason in known.outcomes_of(first, last):
            if sequence <= REFUSED:
                refused = Refused(producer, number, count, reason, sequence == LOST)
                self._term.reply(session, refused)
            else:
                told = self.repeats if reason == REPEATED else self.runs
                told.setdefault((session, producer), []).append((number, count, sequence))

    def forget(self, session: SessionId) -> None:
        """Forget the outcomes for a session that is gone."""
        for told in (self.runs, self.repeats):
            for key in [key for key in told if key[0] == session]:
                del told[key]

    def flush(self, now_ms: int) -> None:
        """Send all noted outcomes, unless a reason withholds them."""
        if self._term.lease.paused:
            return
        if self._lacks_members() or self._lacks_disks() or self._lacks_lease(now_ms):
            return
        repeats, self.repeats = self.repeats, {}
        for (session, producer), runs in self.runs.items():
            repeated = repeats.pop((session, producer), ())
            self._term.reply(session, Confirmed(producer, tuple(runs), tuple(repeated)))
        self.runs.clear()
        for (session, producer), runs in repeats.items():
            self._term.reply(session, Confirmed(producer, (), tuple(runs)))

    # --- Reasons to withhold confirms -----------------------------------------------------

    @property
    def withheld_by(self) -> str:
        """Why the policy allows no confirm, "" when it does."""
        return self._lacks_members() or self._lacks_disks()

    def _lacks_members(self) -> str:
        """`min-in-sync`: why no confirm may be given in the present view, "" when it may.

        A stable op is on the disk of all members in sync of the view, whenever it became stable
        (R8, Lemma 1). The number of members now decides, for old ops too.
        """
        least, view = self._term.definition.min_in_sync, self._term.ring.view
        if least <= 1 or view is None:
            return ""
        in_sync = [one.node for one in in_sync_ids(view)]
        if len(in_sync) >= least:
            return ""
        return f"min-in-sync {least}, have {len(in_sync)}: {', '.join(in_sync)}"

    def _lacks_lease(self, now_ms: int) -> bool:
        """Return true if another master may be at work without these messages.

        Whatever the policy says here: the leader may know a later one, which allows an unclean
        promotion.
        """
        term = self._term
        view = term.ring.view
        if view is None or len(in_sync_ids(view)) > 1:
            return False
        self.lease_wanted_until_ms = now_ms + LEASE_IDLE_MS
        return now_ms >= term.lease.until_ms

    def _lacks_disks(self) -> str:
        """`durability`: why no confirm may be given on the way from replicated to fsync.

        Once this master knows the policy, no confirm rests on memory.
        """
        ring = self._term.ring
        view = ring.view
        if self._term.definition.durability != "fsync":
            return ""
        if view is None or view.durability == "fsync" or ring.is_settled:
            return ""
        return "durability is fsync from now on: what was confirmed in memory goes to disk first"
