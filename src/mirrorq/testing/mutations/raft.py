"""Rules of Raft that are left out: votes, commits, snapshots, changes of voters."""

from __future__ import annotations

from collections.abc import Sequence

from mirrorq.effects import RaftEntry, RaftWrite
from mirrorq.raft.core import Raft
from mirrorq.raft.log import RaftLog
from mirrorq.testing.mutations.registry import Patch, named


@named("term not written")
def _term_forgotten() -> Sequence[Patch]:
    real = Raft._take_write

    def take(self: Raft) -> RaftWrite | None:
        kept = self.term, self.vote
        self.term, self.vote = self._written_state.term, None
        write = real(self)
        self.term, self.vote = kept
        return write

    return [(Raft, "_take_write", take)]


@named("vote for a log that is behind")
def _vote_behind() -> Sequence[Patch]:
    def covered(self: RaftLog, last_index: int, last_term: int) -> bool:
        return True

    return [(RaftLog, "is_covered_by", covered)]


@named("half the voters are a majority")
def _half_is_enough() -> Sequence[Patch]:
    def quorum(self: Raft) -> int:
        return len(self.voters) // 2

    return [(Raft, "_quorum", property(quorum))]


@named("conflicting entries are kept")
def _conflict_kept() -> Sequence[Patch]:
    real = Raft._take_entries

    def take(self: Raft, entries: tuple[RaftEntry, ...]) -> bool:
        new = tuple(e for e in entries if self._log.term_at(e.index) is None)
        return real(self, new)

    return [(Raft, "_take_entries", take)]
