"""Rules of Raft that are left out: votes, commits, snapshots, changes of voters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from harness.mutations.registry import MUTATIONS, Patch, Real, answer, instead, named
from mirrorq.cluster.raft import replication
from mirrorq.cluster.raft.log import RaftLog
from mirrorq.cluster.raft.messages import KIND_VOTERS, ProposeVoters, encode_voters
from mirrorq.cluster.raft.raft import Raft, Role
from mirrorq.cluster.raft.replication import Replication
from mirrorq.cluster.raft.snapshot_pages import IncomingSnapshot, OutgoingSnapshot
from mirrorq.protocol.effects import RaftEntry, RaftSnapshot, SnapshotPage
from mirrorq.protocol.identities import StoreId
from mirrorq.protocol.raft import AppendRequest, InstallSnapshot, VoteAnswer, VoteRequest

answer("vote for a log that is behind", RaftLog, "is_covered_by", True)


@instead("half the voters are a majority", Raft, "_quorum")
def _half_is_enough(real: Real, self: Raft) -> int:
    return len(self.voters) // 2


@named("half the voters keep a leader")
def _half_goes_on() -> Sequence[Patch]:
    """They elect one, too, commit its entries, and answer for its leases."""

    def of_majority(times_ms: list[int | None], count: int) -> int | None:
        reached = sorted((time for time in times_ms if time is not None), reverse=True)
        return reached[count // 2 - 1] if len(reached) >= count // 2 else None

    def majority_index(self: Replication, voters: tuple[StoreId, ...]) -> int:
        held = sorted(
            self._log.durable_index if voter == self._store else self._progress[voter].match_index
            for voter in voters
        )
        return held[len(voters) // 2]

    return [
        *MUTATIONS["half the voters are a majority"](),
        (replication, "_of_majority", of_majority),
        (Replication, "majority_index", majority_index),
    ]


@instead("two votes in one term", Raft, "_on_vote_request")
def _votes_twice(real: Real, self: Raft, sender: StoreId, request: VoteRequest) -> None:
    kept = self.vote
    if not request.pre and self.role is Role.FOLLOWER:
        self.vote = None
    real(self, sender, request)
    if self.vote is None and self.term == request.term:
        self.vote = kept


@instead("votes of an older term counted", Raft, "_on_vote_answer")
def _old_votes(real: Real, self: Raft, sender: StoreId, answer: VoteAnswer) -> None:
    if answer.granted and not answer.pre:
        answer = replace(answer, term=max(answer.term, self.term))
    real(self, sender, answer)


@instead("entries of an older term committed by counting", Raft, "_advance_commit")
def _old_entries_counted(real: Real, self: Raft) -> None:
    index = self._replication.majority_index(self.voters)
    if index > self.commit_index:
        self.commit_index = index
        self._replication.send_round(self.commit_index, self._now_ms)
        self._end_change()


@instead("log cut to the end of each request", Raft, "_take_entries")
def _cut_to_request(real: Real, self: Raft, entries: tuple[RaftEntry, ...]) -> Any:
    taken = real(self, entries)
    if taken and entries and entries[-1].index > self.snapshot_index:
        self._log.truncate(entries[-1].index + 1)
    return taken


@instead("entry before the new ones not compared", Raft, "_on_append_request")
def _previous_not_compared(real: Real, self: Raft, sender: StoreId, request: AppendRequest) -> None:
    held = self._log.term_at(request.previous_index)
    if held is not None and held < request.previous_term:
        request = replace(request, previous_term=held)
    real(self, sender, request)


@instead("commit index taken beyond the request", Raft, "_on_append_request")
def _commit_beyond(real: Real, self: Raft, sender: StoreId, request: AppendRequest) -> None:
    real(self, sender, request)
    if self.leader == sender and self.term == request.term:
        self._commit_as_follower(min(request.commit_index, self._log.last_index))


@instead("snapshot names an entry too many", RaftLog, "compact")
def _snapshot_too_far(real: Real, self: RaftLog, snapshot: RaftSnapshot) -> None:
    term = self.term_at(snapshot.index + 1)
    if term is not None:
        pages = enumerate(snapshot.pages)
        for page in (SnapshotPage(snapshot.index + 1, n, data) for n, data in pages):
            self.write_page(page)
        snapshot = replace(snapshot, index=snapshot.index + 1, term=term)
    real(self, snapshot)


@instead("page of a snapshot taken twice", IncomingSnapshot, "add_page")
def _page_twice(real: Real, self: IncomingSnapshot, message: InstallSnapshot) -> bool:
    is_taken = message.number <= len(self.pages) < message.count
    if is_taken:
        self.pages.append(message.page)
    return is_taken


@instead("cursor kept for a replica that was restarted", OutgoingSnapshot, "answered")
def _cursor_kept(real: Real, self: OutgoingSnapshot, index: int, count: int, now_ms: int) -> None:
    real(self, index, max(count, self.count), now_ms)


@named("taken in by an entry that was not committed")
def _asks_once() -> Sequence[Patch]:
    """It never asks again, and the next leader does not know of it."""
    return [(Raft, "is_admitted", property(lambda raft: raft.store in raft.voters))]


@named("voters changed while a change is open")
def _two_changes() -> Sequence[Patch]:
    return [(Raft, "_on_propose_voters", _change_voters_if(lambda raft: raft.own_term_applied))]


@named("voters changed before an entry of the own term")
def _early_change() -> Sequence[Patch]:
    return [(Raft, "_on_propose_voters", _change_voters_if(lambda r: not r.is_changing_voters))]


def _change_voters_if(is_allowed: Callable[[Raft], bool]) -> Callable[..., None]:
    def change(self: Raft, event: ProposeVoters) -> None:
        new, old = tuple(sorted(event.voters)), self.voters
        changed = [v for v in new if v not in old] + [v for v in old if v not in new]
        if not self.is_leader or not is_allowed(self) or not new or len(changed) != 1:
            self._rejected.append(event.number)
            return
        self._append_own(event.number, KIND_VOTERS, encode_voters(new))
        self._replication.add(new)
        self._changed_ms = self._now_ms
        self._send_heartbeats()

    return change
