"""Writes of a copy to the disk: ops, fetched bodies, checkpoints, and when they are due."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mirrorq.config import Config
from mirrorq.containers.ranges import Range, RangeSet
from mirrorq.containers.timers import FOREVER_MS, Timers
from mirrorq.protocol.effects import Page, QueueWrite, ReplicaEffects
from mirrorq.protocol.ops import Entry
from mirrorq.replication.checkpoints import Checkpoints, Open, Place
from mirrorq.replication.disk_budget import PLENTY, Room, cost
from mirrorq.replication.ring import Ring
from mirrorq.replication.state.queue_state import QueueState
from mirrorq.replication.transfer import Transfer

# Times at which the state of a quiet queue is written.
QUIET_MS = 1000
"""A queue is checkpointed after at least this quiet time, so that its store is drained. A queue
with a large state waits longer."""
CHEAP_BYTES = 256 * 1024
"""A state of this size is written without further conditions."""
QUIET_MS_MAX = 60_000


def quiet_ms(state_bytes: int) -> int:
    """Time in ms for which a queue with a state of this size must be quiet.

    A deep queue with messages of many sizes or ages has a state of megabytes. Without this rule, a
    queue with a put now and then would write all of it after each message.
    """
    return min(QUIET_MS * max(1, state_bytes // CHEAP_BYTES), QUIET_MS_MAX)


WRITE_BEHIND_MS = 50
"""`durability: replicated`: ops go to the store at multiples of this time, for all queues of a node
in one commit. Bounds the loss when the power of all members fails at once."""
WRITE_BEHIND_COST = 4 << 20
"""Ops also go to the store when their messages take this much room on the disk."""
QUIET_TICKS = 4
"""Heartbeats from one look at a quiet queue to the next. Due checkpoints are written at these
times, for all queues of a node in one commit."""
RELEASED_MAX = 256
"""Dead stretches that one write removes from the disk after a received state."""
LOW_ROOM_OPS = 32
"""Least number of ops between two checkpoints, while there is little room in the store."""


def quiet_tick_ms(config: Config, at_ms: int) -> int:
    """First quiet tick at or after this time: the same for all queues of a node."""
    return at_ms + -at_ms % (QUIET_TICKS * config.heartbeat_ms)


class Writes:
    """The writes of one copy of one queue.

    Args:
        room: knows if a frame waits for room that a checkpoint would release.
        timers: wake the copy when a write is due without an event.
    """

    def __init__(
        self,
        ring: Ring,
        transfer: Transfer,
        config: Config,
        room: Room,
        checkpoints: Checkpoints,
        timers: Timers,
    ) -> None:
        self.chunk: tuple[Entry, ...] = ()
        """Bodies fetched in this step."""
        self._ring = ring
        self._transfer = transfer
        self._config = config
        self._room = room
        self._checkpoints = checkpoints
        self._release: tuple[Range, ...] = ()
        """Ranges to be released with the head of the open checkpoint."""
        self._needed = RangeSet()
        """Needed sequences of a received state. Other frames are released by portions."""
        self._dead_from, self._dead_to = 1, 0
        """Sequences still to be searched for such frames."""
        self._part_number = 0
        """Number of the last write with pages, until it is on the disk; else 0."""
        self._ended = RangeSet()
        """Messages that ended since the last checkpoint was begun."""
        self._ops_since = 0
        self._bytes_since = 0
        self._applied_ms = 0
        self._look_ms = 0
        """Time of the next look for room for a checkpoint."""
        self._reset = False
        self.has_state_come = False
        """True from the arrival of a state until the head of its checkpoint is written."""
        self._judged_ops = -1
        """Number of ops at which no checkpoint was due; -1: not judged."""
        self._judgement: bool | None = None
        """True if a checkpoint is due in this step; None: not judged in this step."""
        self._is_behind = True
        """True if writes may be held back where the view allows it, until the node's end."""
        self._behind = timers.new()
        """Timer at which held ops go to the disk."""
        self._quiet = timers.new()
        """Timer at which the queue may have been quiet for long enough."""
        self._judged_ms = -QUIET_MS
        """Ops that are applied before this time do not set the timer again."""

    # --- Events ---------------------------------------------------------------------------

    def on_applied(self, now_ms: int, entry: Entry, ended: Iterable[tuple[int, int]]) -> None:
        """Note an applied op, and the messages that ended with it."""
        for first, last in ended:
            self._ended.add(first, last)
        self._ops_since += 1
        self._bytes_since += len(entry.frame)
        self._applied_ms = now_ms
        if now_ms > self._judged_ms:
            # Too early for a large state, and set again then: the state need not be measured now.
            quiet_ms = quiet_tick_ms(self._config, now_ms + QUIET_MS)
            self._judged_ms = quiet_ms - QUIET_MS
            self._quiet.set(quiet_ms)

    def start_over(self) -> None:
        """Forget the content of the disk: the copy begins again."""
        self._reset = True
        self._ended = RangeSet()
        self._checkpoints.reset()
        self._forget_dead()
        self.chunk = ()

    def stage(self, number: int, pages: list[Page]) -> None:
        """Take pages of the requested state with this number."""
        if pages:
            self._checkpoints.stage(number, pages)

    def retained(self) -> Mapping[Place, Page] | None:
        """Pages on the disk of incomplete states; None while pages are on their way to the disk."""
        checkpoints = self._checkpoints
        if checkpoints.is_staging and (self._part_number or checkpoints.has_arrived):
            return None
        return checkpoints.retain()

    def drop_retained(self) -> None:
        """Drop retained pages: no state is requested any more."""
        self._checkpoints.retain()
        self._checkpoints.drop_retained()

    def on_state(self, old: QueueState, new: QueueState, last: int) -> None:
        """Take a state from another member as the applied state.

        Args:
            last: last message that may be on this disk.
        """
        self._checkpoints.replace(old, new)
        self.has_state_come = True
        self._ended = RangeSet()
        self._dead_from, self._dead_to = 1, min(last, new.next_sequence - 1)
        self._needed = new.needed_set([(1, self._dead_to)] if self._dead_to else [])
        self._release = self._next_dead()
        self._note_begun()

    def on_persisted(self, now_ms: int, number: int, state: QueueState) -> None:
        """Note that this write and all before are on disk."""
        if 0 < self._part_number <= number:
            self._part_number = 0
            self._transfer.on_staged(now_ms, self._checkpoints.staged_count)
            if not self._checkpoints.is_open:
                state.release()
            if self._ops_since and not self._checkpoints.is_busy:
                self._quiet.set(quiet_tick_ms(self._config, self._applied_ms + QUIET_MS))

    @property
    def _is_making(self) -> bool:
        """Return true if a checkpoint, or the removal of its old pages, is on its way to the disk.
        Each part on the disk calls for the next part."""
        return self._part_number > 0 or self._checkpoints.is_busy

    @property
    def _is_void(self) -> bool:
        """Return true if the applied state is about to be replaced: no checkpoint is made."""
        return not self._ring.has_state and self._is_brought

    @property
    def _is_brought(self) -> bool:
        """Return true if a coming state may use pages on this disk."""
        transfer = self._transfer
        return transfer.is_receiving or (transfer.is_asking and self._checkpoints.has_retained)

    @property
    def is_placing(self) -> bool:
        """Return true if a received state goes to the disk over several commits. Writes that depend
        on the state wait."""
        return self.has_state_come and self._part_number > 0

    def end_behind(self) -> None:
        """Hold no writes back any more."""
        self._is_behind = False

    # --- The write ------------------------------------------------------------------------

    def make(self, now_ms: int, state: QueueState, out: ReplicaEffects) -> None:
        """End a step: make its one write, if anything is due."""
        if now_ms >= self._quiet.at_ms and not self._is_due(now_ms, state):
            if self._is_void:
                self._look_ms = quiet_tick_ms(self._config, now_ms + QUIET_MS)
            self._quiet.set(self._idle_ms(state) if self._is_awaited else FOREVER_MS)
        self._write(now_ms, state, out)
        if self._quiet.at_ms == FOREVER_MS and self._is_awaited:
            # A coming state has been dropped: no write of its pages wakes the copy.
            self._quiet.set(self._idle_ms(state))
        self._judgement = None

    def _write(self, now_ms: int, state: QueueState, out: ReplicaEffects) -> None:
        ring = self._ring
        if not self._has_to_write(now_ms, state) or self._holds_back(now_ms):
            ring.trim(state.applied)
            return
        pages, checkpoint = self._next_part(now_ms, state)
        if self.has_state_come and checkpoint is None:
            self._place(pages, out)
            return
        cut, entries = ring.log.take_write()
        number = 0
        if self.chunk:
            number = ring.log.note_write()
            self._transfer.on_writing(number, self.chunk)
        lacking = self._transfer.take_lacking()
        release = self._release if checkpoint else ()
        if self._dead_to and not (self._part_number or self.has_state_come):
            release += self._next_dead()
        needed = cut is not None or entries or checkpoint or self.chunk or self._reset
        needed = needed or bool(pages) or bool(release)
        if not needed and lacking is None and not ring.time.is_due:
            ring.trim(state.applied)
            return
        out.write_number = number or ring.log.note_write()
        out.write = QueueWrite(
            ring.queue_id,
            reset=self._reset,
            truncate_to=cut,
            append=entries,
            fetched=self.chunk,
            pages=tuple(pages),
            state=checkpoint.head if checkpoint else None,
            state_lsn=checkpoint.lsn if checkpoint else 0,
            release=release,
            lacking=lacking,
            stable=min(ring.log.stable, ring.log.received),
            time_ahead_us=ring.time.keep() if ring.time.is_due or self._reset else None,
        )
        if pages or release:
            self._part_number = out.write_number
        if checkpoint:
            self.has_state_come = False
            self._release = ()
        self.chunk = ()
        self._reset = False
        ring.trim(state.applied)

    def _place(self, pages: list[Page], out: ReplicaEffects) -> None:
        """Write a part of a received state, without writes that depend on it."""
        ring = self._ring
        if not pages and not self._reset:
            return
        out.write_number = self._part_number = ring.log.note_write(has_log=False)
        out.write = QueueWrite(
            ring.queue_id,
            reset=self._reset,
            pages=tuple(pages),
            time_ahead_us=ring.time.keep() if self._reset else None,
        )
        self._reset = False

    def _next_part(self, now_ms: int, state: QueueState) -> tuple[list[Page], Open | None]:
        """Pages that go to the disk now, and the checkpoint when its head goes along."""
        checkpoints = self._checkpoints
        if self._part_number:
            return [], None  # one part at a time is on its way to the disk
        is_due = self._is_due(now_ms, state)
        wanted = _bytes_wanted(state) if is_due and self._room.draining != PLENTY else 0
        if is_due and self._is_brought:
            self._transfer.drop_state()
        if is_due and checkpoints.begin_checkpoint(state):
            self._take_room(wanted)
            self._release = self._released(state)
            self._note_begun()
            return checkpoints.part(state)
        pages, checkpoint = checkpoints.part(state)
        if checkpoints.is_staging or self.has_state_come:
            self._take_room(sum(len(page.data or b"") for page in pages))
        return pages, checkpoint

    def _take_room(self, size: int) -> None:
        """Subtract room, so that writes of other queues in the same commit have a place, too."""
        if self._room.draining != PLENTY:
            self._room.draining -= cost(size)

    def _note_begun(self) -> None:
        """Count ops for the next checkpoint from here on."""
        self._ops_since = self._bytes_since = 0
        self._judged_ops = -1
        self._judged_ms = -QUIET_MS
        self._quiet.clear()

    def _next_dead(self) -> tuple[Range, ...]:
        """A portion of the stretches that are not needed, and may be on this disk."""
        found: list[Range] = []
        while self._dead_from <= self._dead_to and len(found) < RELEASED_MAX:
            first, last = self._needed.first_run(self._dead_from, self._dead_to)
            if self._dead_from < first:
                found.append((self._dead_from, min(first - 1, self._dead_to)))
            self._dead_from = max(first, last) + 1
        if self._dead_from > self._dead_to:
            self._forget_dead()
        return tuple(found)

    def _forget_dead(self) -> None:
        self._needed = RangeSet()
        self._dead_from, self._dead_to = 1, 0

    def _has_to_write(self, now_ms: int, state: QueueState) -> bool:
        """Return true if anything is to be written. Most steps are about marks only."""
        ring = self._ring
        if ring.log.has_write or self.chunk or self.has_state_come or self._reset:
            return True
        if self._transfer.lacking_changed or self._behind.at_ms != FOREVER_MS or self._dead_to:
            return True
        if ring.time.is_due or self._checkpoints.is_busy:
            return True
        return self._may_be_due(now_ms) and self._is_due(now_ms, state)

    def _holds_back(self, now_ms: int) -> bool:
        """Return true if this step's write may wait: confirms do not depend on it.

        A change of the copy's past is written at once, with all waiting ops.
        """
        ring = self._ring
        is_urgent = bool(self.chunk) or self._reset or self.has_state_come or ring.log.has_cut
        is_behind = ring.log.is_at_receipt and self._is_behind and ring.log.has_append
        if not is_behind or is_urgent or self._transfer.lacking_changed:
            self._behind.clear()
            return False
        if self._behind.at_ms == FOREVER_MS:
            self._behind.set(now_ms + WRITE_BEHIND_MS - now_ms % WRITE_BEHIND_MS)
        if now_ms < self._behind.at_ms and ring.log.append_cost < WRITE_BEHIND_COST:
            if self._quiet.at_ms <= now_ms:
                self._quiet.set(self._behind.at_ms)  # A checkpoint that is due waits as well.
            return True
        self._behind.clear()
        return False

    @property
    def _is_awaited(self) -> bool:
        """Return true if a checkpoint is due after a quiet time."""
        return self._ops_since > 0 and not self._is_making

    def _may_be_due(self, now_ms: int) -> bool:
        """Return true if a checkpoint may have become due since the last look. Most steps apply
        nothing, and neither time nor want of room has come."""
        is_judged = self._ops_since == self._judged_ops and self._room.is_ample
        return not is_judged or now_ms >= self._applied_ms + QUIET_MS

    def _is_due(self, now_ms: int, state: QueueState) -> bool:
        """Return true if a checkpoint is due: judged once a step, since the state is measured."""
        if self._judgement is None:
            self._judgement = self._checkpoint_due(now_ms, state)
        return self._judgement

    def _checkpoint_due(self, now_ms: int, state: QueueState) -> bool:
        if not self._ops_since or self._part_number or self._checkpoints.is_busy:
            return False
        if not self._ring.has_state and self._is_brought:
            return False
        if self._room.draining != PLENTY and not self._has_place(state):
            self._look_ms = quiet_tick_ms(self._config, now_ms + QUIET_MS)
            return False
        if self._is_room_short() and self._ended and self._is_cheap():
            return True
        if state.is_heavy:
            return True
        config = self._config
        due = (
            self._ops_since >= config.checkpoint_ops or self._bytes_since >= config.checkpoint_bytes
        )
        if due and self._bytes_since < 4 * self._checkpoints.size:
            # A state of many ranges is dear to write: wait until the checkpoint pays.
            due = self._ops_since >= 16 * config.checkpoint_ops
        if due or now_ms < self._applied_ms + QUIET_MS:
            # No state is small enough to be due earlier: a busy queue's state is not measured.
            self._judged_ops = -1 if due else self._ops_since
            return due
        return now_ms >= self._idle_ms(state)

    def _has_place(self, state: QueueState) -> bool:
        """Return true if the store is sure to take a checkpoint. Otherwise the log is kept: acks go
        on, and make the state smaller."""
        state.columns.sweep()
        return cost(_bytes_wanted(state)) <= self._room.draining

    def _is_room_short(self) -> bool:
        """Return true if a frame waits for room that a checkpoint would release, or soon will."""
        room = self._room
        return room.wanted > 0 or (self._ops_since >= LOW_ROOM_OPS and room.is_low)

    def _is_cheap(self) -> bool:
        """Return true if a checkpoint costs little beside the room that it may release."""
        bytes_max = max(CHEAP_BYTES, self._bytes_since // 4)
        return self._checkpoints.size <= bytes_max

    def _idle_ms(self, state: QueueState) -> int:
        idle_ms = self._applied_ms + quiet_ms(state.changed_bytes_about)
        return max(quiet_tick_ms(self._config, idle_ms), self._look_ms)

    def _released(self, state: QueueState) -> tuple[tuple[int, int], ...]:
        """The widest dead ranges around messages that ended since the last checkpoint."""
        dead = RangeSet()
        for piece in state.dead_around(self._ended):
            dead.add(*piece)
        self._ended = RangeSet()
        return tuple(dead)


def _bytes_wanted(state: QueueState) -> int:
    """Approximate bytes in the store for the next checkpoint."""
    return state.changed_bytes_about * 5 // 4
