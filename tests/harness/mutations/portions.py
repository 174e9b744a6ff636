"""Deliberate bugs in how what the cluster has agreed on is applied in portions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from harness.mutations.registry import Patch, named
from mirrorq.cluster.raft.raft import Raft
from mirrorq.engine.engine import Engine
from mirrorq.engine.follower import Follower
from mirrorq.engine.hosting import Hosting
from mirrorq.protocol.effects import RaftEntry, RaftSnapshot
from mirrorq.replication.events import ReplicaEvent


@named("committed entry left out between two portions")
def _entry_left_out() -> Sequence[Patch]:
    """Of many that are committed one is passed over."""
    real = Raft.take_committed

    def take_committed(self: Raft) -> RaftEntry | None:
        if self.commit_index > self.applied_index + 3:
            self.applied_index += 1
        return real(self)

    return [(Raft, "take_committed", take_committed)]


@named("committed entry applied in two portions")
def _entry_applied_twice() -> Sequence[Patch]:
    """Of many that are committed the first is given a second time."""
    real = Raft.take_committed

    def take_committed(self: Raft) -> RaftEntry | None:
        entry = real(self)
        if entry is not None and self.commit_index == self.applied_index + 3:
            self.applied_index -= 1
        return entry

    return [(Raft, "take_committed", take_committed)]


@named("entries overtake the snapshot before them")
def _snapshot_overtaken() -> Sequence[Patch]:
    """They are applied while its pages are being read."""
    real: Callable[[Engine, int], None] = Engine._apply_portion

    def apply_portion(self: Engine, now_ms: int) -> None:
        if self._consensus.raft.has_committed:
            self._follower.apply_portion(now_ms, self._consensus.raft)
        else:
            real(self, now_ms)

    return [(Engine, "_apply_portion", apply_portion)]


@named("lease counts before the snapshot is read")
def _lease_too_early() -> Sequence[Patch]:
    """What Raft has agreed on is taken for applied."""
    real = Follower.restore

    def restore(self: Follower, snapshot: RaftSnapshot) -> None:
        known = self.applied_max
        real(self, snapshot)
        self.applied_max = known

    return [(Follower, "restore", restore)]


@named("copies that are not told at once never are")
def _copies_not_told() -> Sequence[Patch]:
    """A portion of what has changed is forgotten."""
    real = Hosting.note_changed

    def note_changed(self: Hosting, queues: Iterable[int]) -> None:
        # Of every other change the step has told its portion before.
        self.tells_left = min(self.tells_left, len(self.replicas) % 2)
        real(self, queues)
        self.changed.clear()

    return [(Hosting, "note_changed", note_changed)]


@named("copy stepped with an old view")
def _old_picture() -> Sequence[Patch]:
    """What comes for it goes before what the catalog says of it."""

    def post(self: Hosting, queue_id: int, event: ReplicaEvent) -> None:
        if queue_id in self.replicas:
            self.inbox.setdefault(queue_id, []).append(event)

    def take_portion(self: Hosting) -> dict[int, list[ReplicaEvent]]:
        inbox, self.inbox = self.inbox, {}
        return inbox

    return [(Hosting, "post", post), (Hosting, "_take_portion", take_portion)]
