"""A store that has no place for a checkpoint is drained by acks: the log goes on without one."""

from __future__ import annotations

import pytest

from mirrorq.config import Config
from mirrorq.protocol.sessions import AckRange, Purged, Subscribe
from mirrorq.replication.disk_budget import OVERHEAD_BYTES
from mirrorq.replication.events import Tick
from mirrorq.replication.state import pages
from mirrorq.replication.state.pages import COLUMNS
from mirrorq.replication.state.queue_state import QueueState
from mirrorq.replication.writes import QUIET_MS
from mirrorq.testing.disk import QueueFiles

from .test_master import ONE, Queue

COUNT = 5000
PLACE = OVERHEAD_BYTES + 20_000
"""Less than the state takes, which is a run of sizes a message, and more than that of a few."""


class Full:
    """A queue of messages that differ in size, on a store that takes no large value."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(pages.ENTRIES_MAX, COLUMNS, 256)
        state = QueueState()
        state.live.add(1, COUNT)
        for number in range(1, COUNT + 1):
            state.columns.append(number, number, number % 7, 1, 0)
        state.next_sequence, state.applied, state.history = COUNT + 1, 1, [(1, 1)]
        files = QueueFiles(state=state.encode(), state_lsn=1, stable=1)
        self.queue = Queue(files, epoch=2, config=Config(checkpoint_ops=2))
        self.place = self.least = PLACE
        self._begin_round()
        self.queue.sync()
        self.queue.attach(ONE)
        self.queue.ask(ONE, Subscribe(1, 1, exclusive=True, bare=True))
        self.queue.sync()
        self.queue.heard()

    def _begin_round(self) -> None:
        """As the driver does: what the store takes in the commit of this round."""
        room = self.queue.replica.room
        self.least = min(self.least, room.draining)
        room.draining = self.place

    @property
    def checkpoint_lsn(self) -> int:
        return self.queue.files.state_lsn

    def ack(self, first: int, last: int) -> None:
        """By who has the queue alone; it is told when it is stable."""
        self._begin_round()
        self.queue.ask(ONE, AckRange(first, 1, first, last))
        self.queue.sync()
        assert self.queue.heard() == [Purged(first, last - first + 1)]

    def rest(self) -> None:
        """Nothing comes for long."""
        for _ in range(100):
            self._begin_round()
            self.queue.now_ms += QUIET_MS
            self.queue.step(Tick())
            self.queue.sync()


def test_acks_go_on_while_no_checkpoint_has_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is written and told; when what is left is small, a checkpoint frees the rest."""
    full = Full(monkeypatch)
    for first in range(1, 3001, 100):
        full.ack(first, first + 99)
    full.rest()
    assert full.checkpoint_lsn == 1
    assert full.queue.files.ops
    for first in range(3001, 4801, 100):
        full.ack(first, first + 99)
    full.rest()
    assert full.checkpoint_lsn == full.queue.replica.state.applied
    assert not full.queue.files.ops


def test_a_queue_that_waits_for_a_place_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks again now and then, and does not step at once for ever."""
    full = Full(monkeypatch)
    full.ack(1, 1)
    full.rest()
    full.queue.step(Tick())
    assert full.queue.wake_at_ms is not None
    assert full.queue.wake_at_ms >= full.queue.now_ms + QUIET_MS // 2


def test_queues_share_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one of them writes in a commit is not there for the next one."""
    full = Full(monkeypatch)
    full.place = full.queue.replica.room.draining = full.least = 1 << 30
    full.ack(1, 100)
    full.rest()
    assert full.checkpoint_lsn > 1
    assert full.least < (1 << 30) - 16 * 4000
