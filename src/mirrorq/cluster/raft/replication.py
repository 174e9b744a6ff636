"""A leader's other replicas: what each has, what to send it, and when they answered."""

from __future__ import annotations

from collections.abc import Iterable

from mirrorq.cluster.raft.log import RaftLog
from mirrorq.cluster.raft.progress import Progress, ProgressMode
from mirrorq.config import Config
from mirrorq.protocol.effects import RaftEntry
from mirrorq.protocol.identities import StoreId
from mirrorq.protocol.raft import AppendAnswer, AppendRequest, InstallSnapshot, RaftMessage

APPEND_BYTES_MAX = 1024 * 1024
"""Entries of one append request: large beside a command, small beside a heartbeat time."""

ALWAYS_MS = 1 << 62
"""Send time of the newest round that this store itself has answered."""


class Replication:
    """Empty on a node that does not lead. What is to be sent goes to the list given."""

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
        """(voters, contact, heard): what `_others_ms` says of them, until an answer comes."""

    # --- Who ------------------------------------------------------------------------------

    def begin(self, term: int, replicas: Iterable[StoreId]) -> None:
        """Lead these in `term`, knowing nothing of their logs."""
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
        """Return the highest index that a majority has on disk."""
        held = sorted(
            self._log.durable_index if voter == self._store else self._progress[voter].match_index
            for voter in voters
        )
        return held[(len(voters) - 1) // 2]

    def majority_contact_ms(self, voters: tuple[StoreId, ...], now_ms: int) -> int | None:
        """Return the send time of the last round that a majority has answered."""
        contact_ms = self._others_ms(voters)[1]
        return now_ms if contact_ms == ALWAYS_MS else contact_ms

    def majority_heard_ms(self, voters: tuple[StoreId, ...], now_ms: int) -> int | None:
        """Return when a majority had last answered anything, this store answering always."""
        heard_ms = self._others_ms(voters)[2]
        return now_ms if heard_ms == ALWAYS_MS else heard_ms

    def _others_ms(
        self, voters: tuple[StoreId, ...]
    ) -> tuple[tuple[StoreId, ...], int | None, int | None]:
        """The same without the time, this store answering always."""
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
        """Send each replica at least one request: a sign of life, and the commit."""
        for replica, progress in self._progress.items():
            self._send_to(replica, progress, commit_index, now_ms, is_round=True)

    def send_entries(self, commit_index: int, now_ms: int) -> None:
        """Send each replica what it has not been sent and may be."""
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
        if self._needs_snapshot(progress, now_ms):
            snapshot = self._log.snapshot
            assert snapshot is not None, "a leader has voters, and its first come by a snapshot"
            self._send.append((replica, InstallSnapshot(self._term, snapshot, now_ms)))
            progress.sent_snapshot(snapshot.index, now_ms)
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

    def _needs_snapshot(self, progress: Progress, now_ms: int) -> bool:
        if progress.mode is ProgressMode.SNAPSHOT:
            # Sent whole, so not again before an answer may be taken for lost.
            return now_ms >= progress.snapshot_sent_ms + self._config.election_ms
        return progress.next_index <= self._log.snapshot_index

    # --- Answers --------------------------------------------------------------------------

    def take_answer(self, sender: StoreId, answer: AppendAnswer, now_ms: int) -> bool:
        """Note an answer of this term. Returns whether more may be committed now."""
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
    """Return the latest time that most of so many voters have reached."""
    reached = sorted((time for time in times_ms if time is not None), reverse=True)
    quorum = count // 2 + 1
    return reached[quorum - 1] if len(reached) >= quorum else None
