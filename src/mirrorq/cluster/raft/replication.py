"""A leader's other replicas: how far each log is, requests to send, and times of answers."""

from __future__ import annotations

from collections.abc import Iterable

from mirrorq.cluster.raft.log import RaftLog
from mirrorq.cluster.raft.progress import Progress
from mirrorq.config import Config
from mirrorq.protocol.effects import RaftEntry
from mirrorq.protocol.identities import StoreId
from mirrorq.protocol.raft import AppendAnswer, AppendRequest, RaftMessage, SnapshotAnswer

APPEND_BYTES_MAX = 1024 * 1024
"""Entries of one append request: large beside a command, small beside a heartbeat time."""

ALWAYS_MS = 1 << 62
"""Contact time of this store: a leader always counts as answering."""


class Replication:
    """Empty on a node without leadership. Messages to send go to the given list."""

    def __init__(
        self,
        store: StoreId,
        log: RaftLog,
        config: Config,
        send: list[tuple[StoreId, RaftMessage]],
    ) -> None:
        self._store = store
        self._log = log
        self._config = config
        self._send = send
        self._progress: dict[StoreId, Progress] = {}
        self._term = 0
        self._majority: tuple[tuple[StoreId, ...], int | None, int | None] | None = None
        """(voters, contact, heard): cached result of `_others_ms`, until an answer comes."""

    # --- Who ------------------------------------------------------------------------------

    def begin_term(self, term: int, replicas: Iterable[StoreId]) -> None:
        """Lead the replicas in `term`, without knowledge of their logs."""
        self._term = term
        self._progress.clear()
        self._majority = None
        self.add(replicas)

    def add(self, replicas: Iterable[StoreId]) -> None:
        for replica in replicas:
            if replica != self._store and replica not in self._progress:
                self._progress[replica] = Progress(self._log.last_index + 1)

    def keep_only(self, replicas: tuple[StoreId, ...]) -> None:
        for replica in list(self._progress):
            if replica not in replicas:
                del self._progress[replica]

    # --- Majorities -----------------------------------------------------------------------

    def majority_index(self, voters: tuple[StoreId, ...]) -> int:
        """Return the highest index held by a majority on disk."""
        held = sorted(
            self._log.durable_index if voter == self._store else self._progress[voter].match_index
            for voter in voters
        )
        return held[(len(voters) - 1) // 2]

    def majority_contact_ms(self, voters: tuple[StoreId, ...], now_ms: int) -> int | None:
        """Return the send time of the last round answered by a majority."""
        contact_ms = self._others_ms(voters)[1]
        return now_ms if contact_ms == ALWAYS_MS else contact_ms

    def majority_heard_ms(self, voters: tuple[StoreId, ...], now_ms: int) -> int | None:
        """Return when a majority had last answered; this store always counts as answering."""
        heard_ms = self._others_ms(voters)[2]
        return now_ms if heard_ms == ALWAYS_MS else heard_ms

    def _others_ms(
        self, voters: tuple[StoreId, ...]
    ) -> tuple[tuple[StoreId, ...], int | None, int | None]:
        """Return (voters, contact, heard) without `now_ms`; this store counts as `ALWAYS_MS`."""
        known = self._majority
        if known is None or known[0] is not voters:
            contacts, heard = [], []
            for voter in voters:
                progress = None if voter == self._store else self._progress[voter]
                contacts.append(ALWAYS_MS if progress is None else progress.contact_ms)
                heard.append(ALWAYS_MS if progress is None else progress.heard_ms)
            count = len(voters)
            known = (voters, _of_majority(contacts, count), _of_majority(heard, count))
            self._majority = known
        return known

    # --- Sending --------------------------------------------------------------------------

    def send_round(self, commit_index: int, now_ms: int) -> None:
        """Send each replica at least one request: a sign of life, and the commit index."""
        for replica, progress in self._progress.items():
            self._send_to(replica, progress, commit_index, now_ms, is_round=True)

    def send_entries(self, commit_index: int, now_ms: int) -> None:
        """Send each replica all unsent entries which its window allows."""
        for replica, progress in self._progress.items():
            self._send_to(replica, progress, commit_index, now_ms)

    def send_entries_to(self, replica: StoreId, commit_index: int, now_ms: int) -> None:
        progress = self._progress.get(replica)
        if progress is not None:
            self._send_to(replica, progress, commit_index, now_ms)

    def _send_to(
        self,
        replica: StoreId,
        progress: Progress,
        commit_index: int,
        now_ms: int,
        *,
        is_round: bool = False,
    ) -> None:
        self._send_pages(replica, progress, now_ms)
        while True:
            entries: tuple[RaftEntry, ...] = ()
            if not progress.is_paused:
                entries = self._log.entries_from(
                    progress.next_index, self._log.last_index, APPEND_BYTES_MAX
                )
            if not entries and not is_round:
                return
            is_round = False
            previous = max(progress.next_index - 1, self._log.snapshot_index)
            term = self._log.term_at(previous)
            assert term is not None, "next_index never passes the end of the log"
            request = AppendRequest(self._term, previous, term, entries, commit_index, now_ms)
            self._send.append((replica, request))
            progress.sent(previous + len(entries), bool(entries))

    def _send_pages(self, replica: StoreId, progress: Progress, now_ms: int) -> None:
        """Send pages of the snapshot to a replica which lacks entries before the snapshot."""
        snapshot, outgoing = self._log.snapshot, progress.outgoing
        assert snapshot is not None, "a leader has voters, and its first come by a snapshot"
        is_other = outgoing is not None and outgoing.snapshot is not snapshot
        if is_other or progress.next_index <= snapshot.index:
            progress.begin_snapshot(snapshot, now_ms)
        outgoing = progress.outgoing
        if outgoing is not None:
            for number in outgoing.due(now_ms, self._config.election_ms):
                self._send.append((replica, outgoing.page(self._term, number, now_ms)))

    def is_sending_pages(self, now_ms: int) -> bool:
        """Return true if a replica has reported new snapshot pages within two election times."""
        under_way = [each.outgoing for each in self._progress.values() if each.outgoing is not None]
        since_ms = now_ms - 2 * self._config.election_ms
        return any(each.count and each.answered_ms > since_ms for each in under_way)

    # --- Answers --------------------------------------------------------------------------

    def take_page_answer(self, sender: StoreId, answer: SnapshotAnswer, now_ms: int) -> None:
        """Note how many pages of the snapshot a replica has."""
        progress = self._progress.get(sender)
        if progress is not None:
            progress.heard(min(answer.sent_ms, now_ms), now_ms)
            self._majority = None
            if progress.outgoing is not None:
                progress.outgoing.answered(answer.index, answer.count, now_ms)

    def take_answer(self, sender: StoreId, answer: AppendAnswer, now_ms: int) -> bool:
        """Note an answer of the leader's term. Return true if more entries may be committed now."""
        progress = self._progress.get(sender)
        if progress is None:
            return False
        progress.heard(min(answer.sent_ms, now_ms), now_ms)
        self._majority = None
        if answer.success:
            return progress.matched(min(answer.index, self._log.last_index))
        agreement, _ = self._log.agreement(answer.index, answer.index_term)
        progress.refused(answer.previous_index, agreement)
        return False


def _of_majority(times_ms: list[int | None], count: int) -> int | None:
    """Return the latest time reached by a majority of `count` voters."""
    reached = sorted((time for time in times_ms if time is not None), reverse=True)
    quorum = count // 2 + 1
    return reached[quorum - 1] if len(reached) >= quorum else None
