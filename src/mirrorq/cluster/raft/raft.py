"""The consensus core of one node: `effects = raft.step(now_ms, event)`.

Raft (Ongaro: Consensus, Bridging Theory and Practice, 2014) with pre-vote (9.6), leader stickiness
and check-quorum (6.2, 6.4.2), snapshots (5) and one-at-a-time changes of the voters (4.1). Pure:
the core never blocks, reads no clock, and never raises on remote input.

Guarantees, when the driver carries effects out in the order of their fields:

1. One leader in a term, and a leader's log holds every entry committed before.
2. All nodes apply the same entries in the same order, each entry once in a process's life. The
   caller chooses how many entries to take at a time (`take_committed`).
3. No message rests on an unsynced term, vote or entry. So the leader counts its own log only
   up to the last `Persisted`.
4. A change of voters holds as soon as the log has the entry. A second change is refused until
   the first is committed, and until the leader has committed an entry of its own term.

The timers run at a `RaftTick` only, after all arrived messages. Otherwise a node with little CPU
time would stand although heartbeats wait for it, or lose waiting votes. For the same reason silence
does not count while the node did not run (`Late`). A pre-candidate keeps granted pre-votes when it
asks again. Votes of the present term always count.

The core does not detect dead nodes, and gives no lease. `majority_contact_ms` and
`own_term_applied` are the inputs of a lease.

A store without voters (not founded, not admitted) is passive: the store never stands for election,
but votes, and takes entries and snapshots from a leader.
"""

from __future__ import annotations

from enum import Enum

from mirrorq.cluster.raft import messages
from mirrorq.cluster.raft.election_timer import ElectionTimer
from mirrorq.cluster.raft.log import RaftLog
from mirrorq.cluster.raft.replication import Replication
from mirrorq.cluster.raft.snapshot_pages import IncomingSnapshot
from mirrorq.config import Config
from mirrorq.protocol.effects import (
    Persisted,
    RaftEntry,
    RaftImage,
    RaftSnapshot,
    RaftState,
    RaftWrite,
    SnapshotPage,
)
from mirrorq.protocol.identities import StoreId
from mirrorq.protocol.raft import (
    AppendAnswer,
    AppendRequest,
    InstallSnapshot,
    RaftMessage,
    SnapshotAnswer,
    VoteAnswer,
    VoteRequest,
)

UNAPPLIED_COUNT_MAX = 10_000
"""Limit of accepted proposals not applied at the leader yet; further proposals are refused."""


class Role(Enum):
    """The role of a replica in its term. A pre-candidate asks for pre-votes and has entered no new
    term."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class Raft:
    """One replica: a voter, or a store which may become a voter."""

    def __init__(self, store: StoreId, image: RaftImage, config: Config, seed: int) -> None:
        """Continue from the state on disk.

        Args:
            store: The identity of this store; the node's name does not count.
            image: The synced state. The caller has loaded the catalog of its snapshot.
            config: `heartbeat_ms`, `election_ms`, `election_spread_ms` are used.
            seed: Seed of the spread of elections; should differ between nodes.
        """
        self.store = store
        self.role = Role.FOLLOWER
        self.leader: StoreId | None = None
        self.term = image.state.term
        self.vote = image.state.vote
        self.founding = image.state.founding
        self._log = RaftLog(image)
        self.commit_index = self._log.snapshot_index
        self.applied_index = self._log.snapshot_index
        self._config = config
        self._now_ms = 0
        self._written_state = image.state
        self._write_number = 0
        # As follower or candidate:
        self._election = ElectionTimer(config, seed)
        self._heard_ms = 0
        self._dead: tuple[StoreId, int, int] | None = None
        """(store, term, until): a dead leader's last messages may still arrive."""
        self._pre_votes: dict[StoreId, bool] = {}
        self._votes: dict[StoreId, bool] = {}
        """Votes of the present term."""
        self._late_ms = 0
        """Time without running since the last contact with the leader or a majority."""
        self._incoming: IncomingSnapshot | None = None
        self._made: tuple[int, list[bytes]] = (0, [])
        """(index, pages) of the snapshot in the making."""
        # As leader:
        self._own_applied = -1
        """A term with an entry applied here."""
        self._elected_ms = 0
        self._changed_ms = 0
        """When the voters last changed: a new voter has answered no round yet."""
        self._heartbeat_at_ms = 0
        # Effects of the present step:
        self._send: list[tuple[StoreId, RaftMessage]] = []
        self._replication = Replication(store, self._log, config, self._send)
        self._install: RaftSnapshot | None = None
        self._accepted: list[tuple[int, int, int]] = []
        self._rejected: list[int] = []

    # --- What others may ask --------------------------------------------------------------

    @property
    def voters(self) -> tuple[StoreId, ...]:
        """Voters, sorted. () on a store neither founded nor admitted."""
        return self._log.voters

    @property
    def is_founded(self) -> bool:
        return self._log.snapshot is not None

    @property
    def committed_voters(self) -> tuple[StoreId, ...]:
        """The last voters known here to be committed."""
        return self._log.voters_at(self.commit_index)

    @property
    def is_admitted(self) -> bool:
        """Return true if an entry known to be committed makes this store a voter. A voter by the
        word of one leader alone may be unknown to later leaders."""
        return self.store in self.committed_voters

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    @property
    def is_changing_voters(self) -> bool:
        """Return true if the last change of voters is not committed yet."""
        return self._log.change_index > self.commit_index

    @property
    def is_sending_snapshot(self) -> bool:
        """Return true if a replica takes snapshot pages now: keep the snapshot."""
        return self._replication.is_sending_pages(self._now_ms)

    @property
    def last_index(self) -> int:
        return self._log.last_index

    @property
    def snapshot_index(self) -> int:
        return self._log.snapshot_index

    @property
    def own_term_applied(self) -> bool:
        """Return true if this leader has handed out an entry of its own term for applying."""
        if self.role is not Role.LEADER:
            return False
        if self._own_applied != self.term and self._log.term_at(self.applied_index) == self.term:
            self._own_applied = self.term
        return self._own_applied == self.term

    @property
    def majority_contact_ms(self) -> int | None:
        """Send time, on the local clock, of the last round answered by a majority.

        This node counts as answering now. None when this node is not the leader or no majority has
        answered yet.
        """
        if not self.is_leader:
            return None
        return self._replication.majority_contact_ms(self.voters, self._now_ms)

    @property
    def heard_ms(self) -> int:
        """When this node last heard its leader or, as leader, a majority."""
        if self.role is not Role.LEADER:
            return self._heard_ms
        heard_ms = self._replication.majority_heard_ms(self._log.voters, self._now_ms)
        return max(self._elected_ms, self._changed_ms, heard_ms or 0)

    @property
    def has_committed(self) -> bool:
        """Return true if `take_committed` has an entry."""
        return self.applied_index < self.commit_index

    # --- Stepping -------------------------------------------------------------------------

    def take_committed(self) -> RaftEntry | None:
        """Return the next committed entry, or None. The entry counts as applied from now on."""
        if not self.has_committed:
            return None
        self.applied_index += 1
        return self._log.entry(self.applied_index)

    def step(self, now_ms: int, event: messages.RaftEvent) -> messages.RaftEffects:
        """Take one event and return its effects."""
        if now_ms > self._now_ms:
            self._now_ms = now_ms
        if self._election.at_ms is None:
            self._restart_election_timer()
        getattr(self, _HANDLERS[type(event)])(event)
        if isinstance(event, messages.RaftTick | messages.Found):
            self._run_timers()
        return self._take_effects()

    def _take_effects(self) -> messages.RaftEffects:
        persist = self._take_write()
        effects = messages.RaftEffects(
            persist=persist,
            write_number=self._write_number if persist is not None else 0,
            send=tuple(self._send),
            install=self._install,
            accepted=tuple(self._accepted),
            rejected=tuple(self._rejected),
            wake_at_ms=self._wake_at_ms(),
        )
        self._send.clear()
        self._install = None
        self._accepted.clear()
        self._rejected.clear()
        return effects

    def _take_write(self) -> RaftWrite | None:
        written = self._written_state
        is_new_state = (
            self.term != written.term
            or self.vote != written.vote
            or self.founding != written.founding
        )
        if not is_new_state and not self._log.has_changes:
            return None
        self._written_state = state = RaftState(self.term, self.vote, self.founding)
        self._write_number += 1
        self._log.writing(self._write_number)
        return self._log.take_changes(state if is_new_state else None)

    def _wake_at_ms(self) -> int | None:
        if self.is_leader:
            return min(self._heartbeat_at_ms, self._quorum_lost_at_ms)
        return self._election.at_ms if self._may_stand else None

    def _run_timers(self) -> None:
        if self.is_leader:
            if self._now_ms >= self._quorum_lost_at_ms:
                self._become_follower(self.term, None)
            elif self._now_ms >= self._heartbeat_at_ms:
                self._send_heartbeats()
        elif self._may_stand and self._election.is_due(self._now_ms):
            self._ask_pre_votes()

    # --- Local events ---------------------------------------------------------------------

    def _on_tick(self, event: messages.RaftTick) -> None:
        """The timers run in `step`, after all earlier events."""

    def _on_late(self, event: messages.Late) -> None:
        self._late_ms += event.by_ms
        self._election.postpone(event.by_ms)

    def _on_persisted(self, event: Persisted) -> None:
        self._log.written(event.number)
        if self.is_leader:
            self._advance_commit()
            # Sent here and not at the proposal: entries of one commit travel together.
            self._replication.send_entries(self.commit_index, self._now_ms)

    def _on_propose(self, event: messages.Propose) -> None:
        if not self.is_leader or self._is_congested:
            self._rejected.append(event.number)
            return
        self._append_own(event.number, messages.KIND_COMMAND, event.data)

    def _on_propose_voters(self, event: messages.ProposeVoters) -> None:
        new, old = tuple(sorted(event.voters)), self.voters
        changed = [v for v in new if v not in old] + [v for v in old if v not in new]
        allowed = self.own_term_applied and not self.is_changing_voters
        if not allowed or not new or len(changed) != 1:
            self._rejected.append(event.number)
            return
        self._append_own(event.number, messages.KIND_VOTERS, messages.encode_voters(new))
        self._replication.add(new)
        self._changed_ms = self._now_ms
        # A new voter's first refusal reports its last index.
        self._send_heartbeats()

    def _append_own(self, number: int, kind: int, data: bytes) -> None:
        index = self._log.last_index + 1
        self._log.append([RaftEntry(index, self.term, kind, data)])
        self._accepted.append((number, index, self.term))

    def _on_peer_dead(self, event: messages.PeerDead) -> None:
        if self.role is Role.FOLLOWER and self.leader == event.store:
            self._dead = (event.store, self.term, self._now_ms + self._config.heartbeat_ms)
            self._stand_soon()

    def _stand_soon(self) -> None:
        """The leader is gone for certain: stand in turn, without waiting for silence."""
        others = [voter for voter in self.voters if voter != self.leader]
        self.leader = None
        if self.store in others:
            turn = others.index(self.store)
            self._election.wait_for_turn(self._now_ms, turn, len(others))

    def _on_contact(self, event: messages.Contact) -> None:
        if self.is_leader:
            self._send_heartbeats()

    def _on_compact(self, event: messages.Compact) -> None:
        index = event.index
        if not self.snapshot_index < index <= self.applied_index:
            return
        if event.number == 0:
            self._made = index, []
        made, pages = self._made
        if (made, len(pages)) != (index, event.number):
            return
        self._log.write_page(SnapshotPage(index, event.number, event.page))
        pages.append(event.page)
        if event.is_last:
            self._made = 0, []
            term = self._log.term_at(index)
            assert term is not None, "an applied index above the snapshot is in the log"
            self._log.compact(RaftSnapshot(index, term, self._log.voters_at(index), tuple(pages)))

    def _on_promise(self, event: messages.Promise) -> None:
        self.founding = event.founding

    def _on_found(self, event: messages.Found) -> None:
        if self.is_founded or not event.voters:
            return
        # All voters start from an equal log, so no leader has to send the voters.
        self._log.reset(RaftSnapshot(1, 1, tuple(sorted(event.voters)), ()))
        self.commit_index = self.applied_index = 1
        if self.term == 0:
            self.term = 1
        self._restart_election_timer()

    # --- Elections ------------------------------------------------------------------------

    @property
    def _quorum(self) -> int:
        return len(self.voters) // 2 + 1

    @property
    def _may_stand(self) -> bool:
        # A voter under removal still stands until the commit: without its candidacy the change may
        # be on too few of the remaining voters for any to win (thesis, 4.2.2).
        return self.store in self.voters or (
            self.is_changing_voters and self.store in self._log.voters_at(self.commit_index)
        )

    @property
    def _hears_leader(self) -> bool:
        """Return true if a leader is at work, so no other node should become leader."""
        if self.is_leader:
            return True
        silence_ms = self._now_ms - self._heard_ms - self._late_ms
        return self.leader is not None and silence_ms < self._config.election_ms

    def _restart_election_timer(self) -> None:
        if self.voters == (self.store,) and self.leader is None:
            self._election.stand_now(self._now_ms)
        else:
            self._election.wait_for_silence(self._now_ms)

    def _ask_pre_votes(self) -> None:
        if self.role is not Role.PRE_CANDIDATE:
            self._pre_votes = {self.store: True}
        self.role = Role.PRE_CANDIDATE
        self.leader = None
        self._election.try_again_later(self._now_ms)
        if self._is_quorum(self._pre_votes):
            self._stand()
        else:
            self._ask_votes(self.term + 1, pre=True)

    def _stand(self) -> None:
        self.role = Role.CANDIDATE
        self.term += 1
        self.vote = self.store
        self._votes = {self.store: True}
        if self._is_quorum(self._votes):
            self._become_leader()
        else:
            self._ask_votes(self.term, pre=False)

    def _is_quorum(self, votes: dict[StoreId, bool]) -> bool:
        return sum(voter in votes for voter in self.voters) >= self._quorum

    def _ask_votes(self, term: int, *, pre: bool) -> None:
        request = VoteRequest(term, pre, self._log.last_index, self._log.last_term)
        for voter in self.voters:
            if voter != self.store:
                self._send.append((voter, request))

    def _on_vote_request(self, sender: StoreId, request: VoteRequest) -> None:
        is_fit = self._log.is_covered_by(request.last_index, request.last_term)
        if request.pre:
            granted = request.term > self.term and is_fit and not self._hears_leader
            term = request.term if granted else self.term
            self._send.append((sender, VoteAnswer(term, True, granted)))
            if granted:
                self._give_way(sender)
            return
        if request.term > self.term:
            if self._hears_leader:
                # Stickiness: a node after a partition cannot depose a working leader.
                return
            self._become_follower(request.term, None)
        granted = request.term == self.term and is_fit and self.vote in (None, sender)
        if granted:
            self.vote = sender
            self._restart_election_timer()
        self._send.append((sender, VoteAnswer(self.term, False, granted)))

    def _give_way(self, sender: StoreId) -> None:
        """The lowest store of rival candidates goes first."""
        if self.role is Role.PRE_CANDIDATE and sender < self.store:
            self.role = Role.FOLLOWER
        if self.role is Role.FOLLOWER:
            self._election.give_way(self._now_ms)

    def _on_vote_answer(self, sender: StoreId, answer: VoteAnswer) -> None:
        if answer.pre and answer.granted:
            if self.role is Role.PRE_CANDIDATE and answer.term == self.term + 1:
                self._pre_votes[sender] = True
                if self._is_quorum(self._pre_votes):
                    self._stand()
        elif answer.term > self.term:
            self._become_follower(answer.term, None)
        elif answer.pre or not answer.granted or answer.term < self.term or not self._votes:
            return
        elif self.role in (Role.CANDIDATE, Role.PRE_CANDIDATE):
            self._votes[sender] = True
            if self._is_quorum(self._votes):
                self._become_leader()

    def _become_follower(self, term: int, leader: StoreId | None) -> None:
        assert term >= self.term
        if term > self.term:
            self.term = term
            self.vote = None
            self._votes.clear()
            self._incoming = None
        was_leader = self.is_leader
        self.role = Role.FOLLOWER
        self.leader = leader
        if was_leader:
            self._replication.begin_term(term, ())
            self._restart_election_timer()

    def _become_leader(self) -> None:
        self.role = Role.LEADER
        self.leader = self.store
        self._votes.clear()
        self._late_ms = 0
        self._elected_ms = self._now_ms
        replicas = self.voters
        if self.is_changing_voters:
            replicas += self._log.voters_at(self.commit_index)
        self._replication.begin_term(self.term, replicas)
        # Entries of earlier terms are committed only by a later entry of the present term.
        nothing = RaftEntry(self._log.last_index + 1, self.term, messages.KIND_NOTHING, b"")
        self._log.append([nothing])
        self._send_heartbeats()

    # --- As leader ------------------------------------------------------------------------

    @property
    def _is_congested(self) -> bool:
        return self._log.last_index - self.applied_index >= UNAPPLIED_COUNT_MAX

    @property
    def _quorum_lost_at_ms(self) -> int:
        return self.heard_ms + self._late_ms + self._config.election_ms

    def _send_heartbeats(self) -> None:
        self._heartbeat_at_ms = self._now_ms + self._config.heartbeat_ms
        self._replication.send_round(self.commit_index, self._now_ms)

    def _on_append_answer(self, sender: StoreId, answer: AppendAnswer) -> None:
        if answer.term > self.term:
            self._become_follower(answer.term, None)
            return
        if not self.is_leader or answer.term < self.term:
            return
        if self._replication.take_answer(sender, answer, self._now_ms):
            self._advance_commit()
        self._on_answered(sender)

    def _on_snapshot_answer(self, sender: StoreId, answer: SnapshotAnswer) -> None:
        if answer.term > self.term:
            self._become_follower(answer.term, None)
        elif self.is_leader and answer.term == self.term:
            self._replication.take_page_answer(sender, answer, self._now_ms)
            self._on_answered(sender)

    def _on_answered(self, sender: StoreId) -> None:
        if self.heard_ms == self._now_ms:
            self._late_ms = 0
        self._replication.send_entries_to(sender, self.commit_index, self._now_ms)

    def _advance_commit(self) -> None:
        """Commit entries of this term that a majority holds (Raft, section 5.4.2)."""
        index = self._replication.majority_index(self.voters)
        if index <= self.commit_index or self._log.term_at(index) != self.term:
            return
        was_changing = self.is_changing_voters
        self.commit_index = index
        # Followers apply only entries known as committed: send the new commit index at once.
        self._replication.send_round(self.commit_index, self._now_ms)
        if was_changing and not self.is_changing_voters:
            self._end_change()

    def _end_change(self) -> None:
        """The change of voters is committed, and each removed voter was informed once."""
        self._replication.keep_only(self.voters)
        if self.store not in self.voters:
            self._become_follower(self.term, None)

    # --- As follower ----------------------------------------------------------------------

    def _follow(self, sender: StoreId, term: int) -> bool:
        """Take the sender for the leader of `term`. Return true if the sender can be leader."""
        if term == self.term and self.leader not in (None, sender):
            return False
        if term > self.term or self.role is not Role.FOLLOWER:
            self._become_follower(term, None)
        if self._dead is not None:
            dead, dead_term, until_ms = self._dead
            if (dead, dead_term) == (sender, term) and self._now_ms < until_ms:
                # The dead leader's last messages count, but do not make it leader again.
                return True
            self._dead = None
        self.leader = sender
        self._heard_ms = self._now_ms
        self._late_ms = 0
        self._restart_election_timer()
        return True

    def _on_append_request(self, sender: StoreId, request: AppendRequest) -> None:
        if request.term < self.term:
            self._refuse(sender, request.sent_ms, request.previous_index, None)
            return
        if not _is_well_formed(request) or not self._follow(sender, request.term):
            return
        previous = request.previous_index
        last = previous + len(request.entries)
        if previous > self.snapshot_index:
            is_match = self._log.term_at(previous) == request.previous_term
        else:
            # The snapshot's entries are committed, so the leader's log agrees with them.
            is_match = self.is_founded
        if not is_match:
            self._refuse(sender, request.sent_ms, previous, request.previous_term)
            return
        if not self._take_entries(request.entries):
            return
        self._commit_as_follower(min(request.commit_index, last))
        self._send.append(
            (sender, AppendAnswer(self.term, True, last, 0, previous, request.sent_ms))
        )

    def _take_entries(self, entries: tuple[RaftEntry, ...]) -> bool:
        """Append new entries and cut conflicting ones. Return false for a false leader."""
        for place, entry in enumerate(entries):
            if entry.index <= self.snapshot_index:
                continue
            held = self._log.term_at(entry.index)
            if held == entry.term:
                continue
            if entry.index <= self.commit_index:
                return False
            if held is not None:
                self._log.truncate(entry.index)
            self._log.append(entries[place:])
            return True
        return True

    def _refuse(
        self, sender: StoreId, sent_ms: int, previous: int, previous_term: int | None
    ) -> None:
        """The request is of an old term (no `previous_term`), or the logs do not meet."""
        index, index_term = 0, 0
        if previous_term is not None:
            index, index_term = self._log.agreement(previous, previous_term)
        self._send.append(
            (sender, AppendAnswer(self.term, False, index, index_term, previous, sent_ms))
        )

    def _commit_as_follower(self, index: int) -> None:
        if index <= self.commit_index:
            return
        was_changing = self.is_changing_voters
        self.commit_index = index
        if was_changing and not self.is_changing_voters and self.leader not in self.voters:
            # A leader outside the new voters has stepped down with this very commit.
            self._stand_soon()

    def _on_install_snapshot(self, sender: StoreId, message: InstallSnapshot) -> None:
        sent_ms = message.sent_ms
        if message.term < self.term:
            self._refuse(sender, sent_ms, message.index, None)
            return
        if not _is_snapshot(message) or not self._follow(sender, message.term):
            return
        if self._log.term_at(message.index) == message.index_term:
            # All entries up to the index are held: only their commit is news.
            self._commit_as_follower(message.index)
        elif message.index > self.commit_index:
            incoming = self._take_page(message)
            if not incoming.is_whole:
                answer = SnapshotAnswer(self.term, message.index, len(incoming.pages), sent_ms)
                self._send.append((sender, answer))
                return
            self._log.reset(incoming.snapshot())
            self.commit_index = self.applied_index = message.index
            self._install = self._log.snapshot
        self._incoming = None
        index = min(message.index, self.commit_index)
        self._send.append((sender, AppendAnswer(self.term, True, index, 0, message.index, sent_ms)))

    def _take_page(self, message: InstallSnapshot) -> IncomingSnapshot:
        """Take the page that comes next; a page of another snapshot begins anew."""
        incoming = self._incoming
        if incoming is None or not incoming.is_of(message):
            incoming = self._incoming = IncomingSnapshot(message)
        if incoming.add_page(message):
            page = SnapshotPage(message.index, message.number, message.page)
            self._log.write_page(page)
        return incoming

    def _on_received(self, event: messages.Received) -> None:
        handler = _MESSAGE_HANDLERS.get(type(event.message))
        if handler is not None and event.sender != self.store:
            getattr(self, handler)(event.sender, event.message)


KIND_MAX = 2**32 - 1
"""Upper limit of the store's kind field; the next free kind is 3."""


def _is_well_formed(request: AppendRequest) -> bool:
    """Return true if an honest leader can have sent the request."""
    if request.previous_index < 1 or request.previous_term > request.term:
        return False
    index, term = request.previous_index, request.previous_term
    for entry in request.entries:
        index += 1
        if entry.index != index or not term <= entry.term <= request.term:
            return False
        if entry.kind > KIND_MAX:
            return False
        if entry.kind == messages.KIND_VOTERS and not messages.decode_voters(entry.data):
            return False
        term = entry.term
    return True


def _is_snapshot(page: InstallSnapshot) -> bool:
    is_sorted = page.voters == tuple(sorted(page.voters))
    return page.index >= 1 and page.index_term <= page.term and bool(page.voters) and is_sorted


# By name, so a test can leave a rule out with another method in its place.
_HANDLERS: dict[type, str] = {
    messages.RaftTick: "_on_tick",
    messages.Received: "_on_received",
    messages.Propose: "_on_propose",
    messages.ProposeVoters: "_on_propose_voters",
    Persisted: "_on_persisted",
    messages.PeerDead: "_on_peer_dead",
    messages.Contact: "_on_contact",
    messages.Late: "_on_late",
    messages.Compact: "_on_compact",
    messages.Promise: "_on_promise",
    messages.Found: "_on_found",
}

_MESSAGE_HANDLERS: dict[type, str] = {
    VoteRequest: "_on_vote_request",
    VoteAnswer: "_on_vote_answer",
    AppendRequest: "_on_append_request",
    InstallSnapshot: "_on_install_snapshot",
    SnapshotAnswer: "_on_snapshot_answer",
    AppendAnswer: "_on_append_answer",
}
