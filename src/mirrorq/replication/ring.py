"""One member of one queue's ring: what it sends to the others, and when an op is stable. Pure.

The member's own log is `ring_log`.

Guarantee. The master calls an op *stable* when every member in sync of the view in force has the op
on its disk. The op has the same lsn there, after the same ops. An op that any master of any epoch
called stable is in the log of each later master.

No guarantee. An op that is not stable may vanish, and may come back from another disk. Users hear
nothing from this module: `replica` tells them about stable ops only.

The row. Members stand in a row: m0 is the master, m1 … mj are in sync, joining members follow. A
frame travels right along the row, and each member passes it on before its own disk write. Marks
(`durable`) follow the frames. A mirror passes right the minimum of its own mark and the mark of its
left neighbour. So the mark of mj covers the disks of all mirrors; the master calls ops stable that
are on its own disk too. One op costs two trips and one disk write, whatever the size of the ring,
and a body crosses each link once.

The star. For a small group of ops the trips cost more than the bytes. Then the master sends the
group to all mirrors at once, and each mirror answers the master directly: one trip there, one trip
back. An epoch begins with the row. The star may be used once a mark of the epoch has come round.
The mark says that all mirrors are repaired and take the star. It is used only while nothing is on
its way along the row. A member that misses a frame asks its left neighbour for it.

A change of members. Each change is a *view* with a new epoch, agreed by the catalog. Nothing of the
old epoch counts in the new epoch: marks start from zero, and frames of the old epoch are dropped. A
member takes part only when it is *repaired* (R6). The master's history, pairs of epoch and last lsn
as they were when the epoch began, travels right. Each member cuts its log to the greatest lsn at
which both histories have the same epoch. The length of a log proves nothing: two logs of the same
length may differ.

Lemma 1. A stable op is in the log of every member in sync.
Lemma 2. Two logs with the same epoch at an lsn agree up to that lsn.
Lemma 4. An op that an old master calls stable, whenever it does, is in its successor's log. The old
master needs the mark of every member in sync of its view. A member that has installed the
successor's view sends none, and the marks that it sent before cover ops on its disk.

`durability: replicated`. The view says so. A mark then says what a member has received (`assured`),
as long as its disk is not too far behind. "On the disk" above then reads "in the memory of this
incarnation": such views judge members in sync by incarnation.

Invariants:
1. `durable` and `received` do not grow past the end of the part that repair found equal.
2. only a repaired member accepts, forwards, marks or answers.
3. a joining member that the master waits for (R8) is waited for until the epoch ends.
"""

from __future__ import annotations

from collections.abc import Container
from itertools import islice

from mirrorq.containers.timers import FOREVER_MS, Timers
from mirrorq.protocol import views
from mirrorq.protocol.effects import ReplicaEffects
from mirrorq.protocol.identities import MemberId
from mirrorq.protocol.ops import Entry
from mirrorq.protocol.ring import (
    DIRECT,
    RING,
    STAR,
    Data,
    History,
    HistoryRequest,
    JoinerDurable,
    Mark,
    Repaired,
    ResendFrom,
    TooOld,
    Watermark,
)
from mirrorq.protocol.views import View
from mirrorq.replication.disk_budget import Room
from mirrorq.replication.history import common_lsn
from mirrorq.replication.queue_time import QueueTime
from mirrorq.replication.ring_log import RingLog

RESEND_BYTES = 16 << 20
"""One resend sends at most this much; the receiver's next mark or request brings the rest."""
REPEAT_COUNT = 2
"""Ticks after the last change in which marks are repeated, in case a reconnect without notice lost
them. (On the notice everything is sent again.)"""
STAR_BYTES_MAX = 64 << 10
"""A larger group goes along the row: the master need not send it to each mirror."""
STAR_COUNT_MAX = 64
"""More messages than this, on the way and to be sent, are a stream. No producer waits for single
messages of a stream, so large groups serve a stream better than quick groups."""
STAR_REST_MS = 250
"""After a stream, or a larger group, everything goes along the row for this long. A burst would
take half as long again if its first message went by the star."""
BEHIND_BYTES_MAX = 16 << 20
"""`durability: replicated`: a member with more bytes not on its disk marks only its disk."""


class Ring:
    """One member's exchange of ops and marks with the others. Only `replica` calls its methods."""

    __slots__ = (
        "_asked_from", "_awaits_right", "_durable_left", "_durable_sent", "_early", "_has_waited",
        "_is_direct", "_is_mark_fresh", "_is_repeating", "_is_star_left", "_is_watermark_fresh",
        "_joiner_bytes_max", "_joiner_sent", "_left_heard", "_mark_delay_ms", "_marked",
        "_may_star", "_mirrors", "_right_received", "_room", "_round_mark", "_row_sent",
        "_standing", "_star_from_ms", "complete", "epoch", "gates", "has_joiners", "has_state",
        "in_sync", "is_master", "is_member", "is_placing", "is_stalled", "is_star_heard", "joiners",
        "log", "mark_timer", "me", "out", "queue_id", "refused_bytes", "repaired", "reported",
        "start_history", "start_last", "ticks_left", "time", "view",
    )  # fmt: skip
    """A dict of so many fields is 1.6 kB, for each copy on a node."""

    def __init__(
        self,
        me: MemberId,
        queue_id: int,
        joiner_bytes_max: int,
        room: Room | None = None,
        mark_delay_ms: int = 0,
        time_ahead_us: int = 0,
        timers: Timers | None = None,
        *,
        may_star: bool = False,
    ) -> None:
        self.me = me
        self.queue_id = queue_id
        self.time = QueueTime(time_ahead_us)
        self.log = RingLog(self.time)
        self.out = ReplicaEffects()
        """Effects of the step; the replica takes them at the end."""
        self.view: View | None = None
        self.epoch = 0
        self._stand(views.NOWHERE)
        self.has_joiners = False
        """True if the view has members that are not in sync."""
        self.repaired = False
        self.has_state = True
        """False while a joiner waits for a transferred state: it asks for no resend."""
        self.complete = True
        """False while frames of live messages are not on this disk (R7)."""
        self.is_stalled = False
        """True while stable ops wait for the disk before they are applied. No more ops become
        stable, so the number of waiting ops is bounded."""
        self.is_placing = False
        """True while a received state goes to the disk: later ops wait in memory."""
        self._begin_marks(mark_delay_ms, timers or Timers(), may_star)

        self.reported: dict[MemberId, int] = {}
        """R9: durable of members in sync, reported while ops wait for them."""
        self._room = room or Room()
        self.refused_bytes = 0
        """Bytes of the next frame, if it was refused for want of room; else 0."""
        self._joiner_bytes_max = joiner_bytes_max

    def _begin_marks(self, mark_delay_ms: int, timers: Timers, may_star: bool) -> None:
        """Set the fields of this epoch's exchange with neighbours and joining members."""
        self.start_history: tuple[tuple[int, int], ...] = ()
        self.start_last = 0
        """Last lsn of the history with which this epoch began."""
        self.gates: dict[MemberId, int] = {}
        """R8: joining members that must have an op before it is stable, with their durable."""
        self.joiners: dict[MemberId, int] = {}
        self._durable_left = 0
        """Least durable lsn of all members to the left, as the left has said in this epoch."""
        self._durable_sent = 0
        """The durable lsn that the right was told last."""
        self._may_star = may_star
        """True if this node sends and accepts ops by the star."""
        self._is_star_left = False
        """True if all mirrors up to the left take the star, according to the left's watermark."""
        self._is_direct = False
        """True if marks go directly to the master in this epoch. At the master: if they may."""
        self.is_star_heard = False
        """True if ops have come by the star in this epoch, since the rail last had the queue."""
        self._row_sent = 0
        """At the master: last lsn sent along the row."""
        self._star_from_ms = 0
        """At the master: before this time all ops go along the row."""
        self._round_mark = 0
        """At the master: greatest mark that came round in this epoch."""
        self._joiner_sent = -1
        self._right_received = -1
        """Last lsn sent to the right; -1 until the right reports its repair."""
        self._awaits_right = False
        """True in a new epoch until a tick or a break: the right reports its repair unasked."""
        self._early: tuple[MemberId, History] | None = None
        """History of an epoch that this node does not know yet."""
        self._left_heard = False
        self._marked = (-1, -1)
        self._mark_delay_ms = mark_delay_ms
        self.mark_timer = timers.new()
        """Timer of a mark to the right that only reports `stable`, if no op takes it along."""
        self._has_waited = False
        """True if the left sent a mark in this step: the mark has waited for an op already."""
        self._is_watermark_fresh = False
        """True if sent since the last tick: the next tick need not repeat it."""
        self._is_mark_fresh = False
        self._is_repeating = False
        """True if this step repeats marks: they are not fresh at the next tick."""
        self.ticks_left = REPEAT_COUNT
        """Number of ticks that still repeat marks."""
        self._asked_from = 0

    # --- Start --------------------------------------------------------------------------

    def install(self, view: View) -> None:
        """Enter a newer epoch (R4: never an older epoch)."""
        is_first = self.view is None
        self.view = view
        self.epoch = view.epoch
        self._stand(views.standing(view, self.me))
        self.has_joiners = not all(member.in_sync for member in view.members)
        self.repaired = False
        self._durable_left = self._durable_sent = self._round_mark = 0
        self._is_star_left = self._is_direct = self.is_star_heard = False
        self._row_sent = self.log.received
        self.log.mark_at_receipt(is_at_receipt=view.durability == "replicated")
        self._joiner_sent = -1
        self._right_received = -1
        self._awaits_right = True
        self._left_heard = False
        self.refused_bytes = 0
        self._marked = (-1, -1)
        self.mark_timer.clear()
        self.ticks_left = REPEAT_COUNT
        self._asked_from = 0
        self.time.install(is_master=self.is_master)
        self.gates = {}
        self.joiners = {}
        self.reported = {}
        if self.is_master:
            self.repaired = True
            # The log of a master from an unclean promotion is the queue from here on.
            self.has_state = True
            self.log.forget_lost_marks()
            self.start_history = tuple(self.log.history)
            self.start_last = self.log.received
            self._send_history()
        elif is_first and (left := self._left()) is not None:
            # The history may have come before there was a copy here to keep it (`keep_early`).
            self._send(left, HistoryRequest(self.queue_id, view.epoch))

    def _stand(self, standing: views.Standing) -> None:
        self._standing = standing
        self.is_master = standing.is_master
        self.is_member = standing.is_member
        self.in_sync = standing.in_sync
        self._mirrors = () if self.view is None else views.in_sync_ids(self.view)[1:]

    # --- Queries ------------------------------------------------------------------------

    @property
    def assured(self) -> int:
        """Last lsn in this member's marks: on its disk, or received in a `replicated` view."""
        is_enough = self.log.is_at_receipt and self.log.behind_bytes <= BEHIND_BYTES_MAX
        here = self.log.received if is_enough else self.log.durable
        return min(here, self.log.stable) if self.is_stalled else here

    @property
    def is_settling(self) -> bool:
        return self.view is not None and self.view.durability == "settling"

    @property
    def is_settled(self) -> bool:
        """Return true if all ops confirmed in memory before this settling epoch are on the disks of
        all members in sync. The first history of the epoch holds the ops (see R8). The epoch's
        marks, which report disks, must have passed it."""
        return self.is_settling and self.is_master and self._round_mark >= self.start_last

    # --- The master ---------------------------------------------------------------------

    def append(self, entry: Entry) -> None:
        """Append the next op, at the master."""
        assert self.is_master
        assert entry.lsn == self.log.received + 1
        self._accept(entry)

    def admit_joiners(self, excluded: Container[MemberId] = ()) -> tuple[MemberId, ...]:
        """R8: joining members that may be counted in now; stable waits for them from here.

        The ops that this master knows to be stable are not enough. Its predecessor may have
        confirmed more, all within the history with which this epoch began.
        """
        if self.view is None or not self.is_master:
            return ()
        for joiner, durable in self.joiners.items():
            if joiner in excluded:
                continue
            if durable >= self.log.stable and durable >= self.start_last:
                self.gates.setdefault(joiner, durable)
        return tuple(self.gates)

    # --- Messages -----------------------------------------------------------------------

    def keep_early(self, sender: MemberId, message: History) -> None:
        """Keep a history of an epoch unknown to this node, so that no request is needed."""
        kept = 0 if self._early is None else self._early[1].epoch
        if message.epoch > max(self.epoch, kept):
            self._early = (sender, message)

    def take_early(self) -> tuple[MemberId, History] | None:
        """Return the kept history of the epoch that has just begun, or None."""
        if self._early is None or self._early[1].epoch > self.epoch:
            return None
        early, self._early = self._early, None
        return early if early[1].epoch == self.epoch else None

    def on_history(self, sender: MemberId, message: History) -> bool:
        """R6. Returns True when this member has just become repaired."""
        if self.repaired or sender != self._left() or message.epoch != self.epoch:
            return False
        self.start_history = message.history
        self.start_last = message.history[-1][1] if message.history else 0
        self.log.cut(common_lsn(self.log.history, message.history))
        self.time.hear(message.time_us)
        self.log.forget_lost_marks()
        self.repaired = True
        self._send_history()
        return True

    def on_history_request(self, sender: MemberId, message: HistoryRequest) -> None:
        if self.repaired and message.epoch == self.epoch and sender == self._right():
            self._send_history()

    def on_repaired(self, sender: MemberId, message: Repaired) -> None:
        if message.epoch == self.epoch and sender == self._right():
            self._right_received = message.received
            self._awaits_right = False
            # A watermark that came before its repair was dropped there.
            self._durable_sent = 0
            self._serve_right(always=True)

    def on_resend(self, sender: MemberId, message: ResendFrom) -> None:
        if message.epoch == self.epoch and sender == self._right():
            self._right_received = min(message.lsn - 1, self.log.received)
            self._serve_right(always=True)

    def on_data(self, sender: MemberId, message: Data) -> None:
        is_straight = message.mode == STAR and self._is_from_master(sender, message.epoch)
        if not self._from_left(sender, message.epoch) and not is_straight:
            return
        if message.mode != RING and not self._is_direct:
            self._go_direct()
        before = self.log.received
        for entry in message.entries:
            if entry.lsn == self.log.received + 1:
                if self._has_to_place:
                    break
                if entry.payload is None and not self._room.reserve(len(entry.frame)):
                    self.refused_bytes = len(entry.frame)
                    break  # The store is full: asked for again when there is room.
                self.refused_bytes = 0
                self._accept(entry)
            elif entry.lsn > self.log.received:
                self._ask_again()
                break
        self.time.hear(message.time_us)
        self._learn_stable(message.stable)
        if is_straight:
            self.is_star_heard = True
            self._note_star(before)

    def on_railed(self, message: Data, *, is_marked: bool) -> None:
        """Append ops that the rail has acknowledged to the master: they must be in the log."""
        assert message.epoch == self.epoch
        before = self.log.received
        for entry in message.entries:
            assert entry.lsn == self.log.received + 1
            if entry.payload is None:
                self._room.reserve(len(entry.frame))
            self._accept(entry)
        if is_marked:
            self._durable_sent = max(self._durable_sent, self.log.received)
        self.time.hear(message.time_us)
        self._learn_stable(message.stable)
        self._note_star(before)

    @property
    def steady_master(self) -> MemberId | None:
        """The master, if it sends by the star and nothing is unusual; else None. This disk must
        have the log as far as the view requires."""
        is_still = not self.refused_bytes and self.complete and not self.is_far_behind
        is_still = is_still and (self.log.is_at_receipt or self.log.durable == self.log.received)
        if not (is_still and self.is_star_heard and self.repaired and self.in_sync):
            return None
        return None if self.is_settling or self.has_joiners else self._standing.master

    @property
    def is_far_behind(self) -> bool:
        """`durability: replicated`: return true if the disk is half way to `BEHIND_BYTES_MAX`
        behind. The rail must not take more ops then."""
        return self.log.behind_bytes > BEHIND_BYTES_MAX // 2

    def _go_direct(self) -> None:
        """Report marks to the master from now on. Report again what only the right was told."""
        self._is_direct = True
        self._durable_sent = 0

    def _note_star(self, before: int) -> None:
        """Note that the master has sent the same ops to the right, if the right is a mirror."""
        if self._standing.is_last_in_sync or self._right_received != before:
            return
        self._right_received = self.log.received
        self._marked = (self.log.stable, self.log.received)

    @property
    def _has_to_place(self) -> bool:
        """Return true if the waiting ops reach the bound of the left's memory. Later ops are
        requested again after the state is on the disk."""
        return self.is_placing and self.log.bytes >= self._joiner_bytes_max

    def on_placing(self, *, is_placing: bool) -> None:
        """Note at the end of a step if a received state is on its way to the disk."""
        was_placing, self.is_placing = self.is_placing, is_placing
        if was_placing and not is_placing:
            self._asked_from = 0
            self._ask_again()

    def look_for_room(self) -> None:
        """Request refused ops again as soon as there is room."""
        if self.refused_bytes and self._room.has(self.refused_bytes):
            self.refused_bytes = self._asked_from = 0
            self._ask_again()

    def on_mark(self, sender: MemberId, message: Mark) -> None:
        if not self._from_left(sender, message.epoch):
            return
        if message.received > self.log.received:
            self._ask_again()
        self.time.hear(message.time_us)
        self._learn_stable(message.stable)
        self._has_waited = True

    def on_watermark(self, sender: MemberId, message: Watermark) -> None:
        if not self.repaired or message.epoch != self.epoch or self.view is None:
            return
        if self.is_master:
            expected = self._standing.last_in_sync
        else:
            expected = self._left() if self.in_sync else None
        if sender == expected:
            self._durable_left = max(self._durable_left, message.lsn)
            self._is_star_left = message.star
            if self.is_master:
                self._is_direct = message.star and self._may_star

    def on_joiner_durable(self, sender: MemberId, message: JoinerDurable) -> None:
        if not self.is_master or message.epoch != self.epoch or self.view is None:
            return
        member = views.find(self.view, sender)
        if member is None:
            return
        if member.in_sync:
            self.reported[sender] = max(self.reported.get(sender, 0), message.lsn)
            return
        self.joiners[sender] = max(self.joiners.get(sender, 0), message.lsn)
        if sender in self.gates:
            self.gates[sender] = self.joiners[sender]

    def on_link_lost(self, node: str) -> None:
        """Repeat all messages to `node` that may be lost, and no messages to other nodes. (The node
        itself repeats its messages: it has lost its connection, too.)"""
        if not self.is_concerned(node):
            return
        left, right, to = self._left(), self._right(), self._watermark_to()
        master = self._standing.master
        if right is not None and right.node == node:
            self._right_received = -1
            self._awaits_right = False
            self._marked = (-1, -1)
        if to is not None and to.node == node:
            self._durable_sent = 0
        if left is not None and left.node == node:
            self._left_heard = False
            self._ask_left()
        if master is not None and master.node == node:
            self._joiner_sent = -1
            self._report_behind()
            if self._is_direct and left is not None and left != master:
                self._asked_from = 0
                self._ask_again()
        self.ticks_left = REPEAT_COUNT

    def is_concerned(self, node: str) -> bool:
        """Return true if this member sends to the node: a neighbour's node, or the master's."""
        standing = self._standing
        around = (standing.left, standing.right, standing.master)
        return self.is_member and any(one is not None and one.node == node for one in around)

    def on_tick(self) -> None:
        """Repeat messages that may be lost and are waited for."""
        if self.view is None or not self.is_member:
            return
        self._awaits_right = False
        self._ask_left()
        self._report_behind()
        if self.ticks_left > 0 or self.log.stable < self.log.received:
            self._repeat()

    def _ask_left(self) -> None:
        """Ask again for all that the left has not begun to send."""
        self._asked_from = 0
        left = self._left()
        if left is not None and not self.repaired:
            self._send(left, HistoryRequest(self.queue_id, self.epoch))
        elif left is not None and self.has_state and not self._left_heard:
            self._send(left, Repaired(self.queue_id, self.epoch, self.log.received))

    def _report_behind(self) -> None:
        """R9: while ops wait, report this disk to the master. A member that refused ops for want of
        room reports, too."""
        is_behind = self.log.stable < self.log.received or self.refused_bytes > 0
        if is_behind and self.in_sync and not self.is_master:
            self._report_durable()

    def _repeat(self) -> None:
        """Make each kind of mark due again that was not sent since the last tick."""
        if not (self._is_watermark_fresh or self._is_mark_fresh):
            self.ticks_left -= 1
        if not self._is_watermark_fresh:
            self._durable_sent = 0
        if not self._is_mark_fresh:
            self._marked = (-1, -1)
        self._joiner_sent = -1
        self._is_watermark_fresh = self._is_mark_fresh = False
        self._is_repeating = True

    @property
    def is_waiting(self) -> bool:
        """Return true if an answer is still to come, here or at a neighbour."""
        if self.log.stable < self.log.received or self.refused_bytes > 0:
            return True
        if not self.is_master and not (self.repaired and self._left_heard):
            return True
        return 0 <= self._right_received < self.log.received

    def announce(self) -> None:
        """Ask the left for later ops: the joiner has its state now."""
        left = self._left()
        if left is not None and self.repaired and self.has_state:
            self._send(left, Repaired(self.queue_id, self.epoch, self.log.received))

    def too_old(self, sender: MemberId, message: TooOld) -> bool:
        return message.epoch == self.epoch and sender == self._left() and not self.in_sync

    # --- The end of a step --------------------------------------------------------------

    def settle(self, now_ms: int = 0) -> None:
        """Send marks and frames that this step has made due."""
        if not (self.repaired and self.is_member):
            return
        if 0 <= self._right_received < self.log.received:
            if self._may_go_straight(now_ms):
                self._send_star()
            else:
                self._serve_right(always=False)
        self._pass_watermark()
        if self.is_master:
            self._advance_stable()
        elif not self.in_sync:
            self._report_joiner()
        self._mark_right(now_ms)
        self._has_waited = False
        if self._is_repeating:
            # A repetition is no news, and asks for no further repetition.
            self._is_repeating = self._is_watermark_fresh = self._is_mark_fresh = False

    def trim(self, applied: int) -> None:
        """Forget applied entries that no member will request from this member."""
        self.log.trim(applied, self._joiner_bytes_max if self.has_joiners else 0)

    def reset(self, lsn: int, history: list[tuple[int, int]]) -> None:
        """Begin the log at `lsn`, with a transferred state (R7)."""
        self.log.reset(lsn, history)
        self.refused_bytes = 0

    # --- Inside -------------------------------------------------------------------------

    def _left(self) -> MemberId | None:
        return self._standing.left

    def _right(self) -> MemberId | None:
        return self._standing.right

    def _send(self, to: MemberId, message: object) -> None:
        self.out.send.append((to, message))  # type: ignore[arg-type]

    def _send_history(self) -> None:
        right = self._right()
        if right is not None:
            history = History(self.queue_id, self.epoch, self.start_history, self.time.told_us)
            self._send(right, history)

    def _from_left(self, sender: MemberId, epoch: int) -> bool:
        ready = self.repaired and self.has_state
        if not ready or epoch != self.epoch or sender != self._left():
            return False
        self._left_heard = True
        return True

    def _is_from_master(self, sender: MemberId, epoch: int) -> bool:
        ready = self.repaired and self.has_state and self.in_sync and not self.is_master
        return ready and epoch == self.epoch and sender == self._standing.master

    def _ask_again(self) -> None:
        left = self._left()
        if (
            left is not None
            and self._asked_from != self.log.received + 1
            and not self._has_to_place
        ):
            self._asked_from = self.log.received + 1
            self._send(left, ResendFrom(self.queue_id, self.epoch, self.log.received + 1))

    def _accept(self, entry: Entry) -> None:
        self.log.append(entry)
        self.ticks_left = REPEAT_COUNT

    def _learn_stable(self, stable: int) -> None:
        if self.log.learn_stable(stable):
            self.ticks_left = REPEAT_COUNT

    def _serve_right(self, always: bool) -> None:
        """Send the right all ops that it lacks, including new ops of this step."""
        right = self._right()
        if right is None or self._right_received < 0 or not (self.repaired and self.has_state):
            return
        if self._right_received < self.log.base:
            self._right_received = -1
            self._send(right, TooOld(self.queue_id, self.epoch))
            return
        if not always and self._right_received >= self.log.received:
            return
        sent = 0
        while sent < RESEND_BYTES:
            batch = self.log.batch_after(self._right_received)
            if not batch and not always:
                break
            mode = DIRECT if self._is_direct else RING
            data = Data(self.queue_id, self.epoch, self.log.stable, batch, self.time.told_us, mode)
            self._send(right, data)
            self._marked = (self.log.stable, self.log.received)
            self._is_mark_fresh = True
            if not batch:
                break
            self._right_received = self._row_sent = batch[-1].lsn
            sent += sum(len(entry.frame) for entry in batch)
            always = False

    def _may_go_straight(self, now_ms: int) -> bool:
        """Return true if the next group may take the star. Few ops must be on the way, now and
        lately, and no op sent along the row may come after it."""
        if not (self.is_master and self._is_direct):
            return False
        if self.log.unstable_bytes > STAR_BYTES_MAX or self._is_stream():
            self._star_from_ms = now_ms + STAR_REST_MS
            return False
        if now_ms < self._star_from_ms or self.log.stable < self._row_sent:
            return False
        first = self._right_received - self.log.base
        if first < 0:
            return False
        size = 0
        for index in range(first, len(self.log.entries)):
            size += len(self.log.entries[index].frame)
            if size > STAR_BYTES_MAX:
                return False
        return True

    def _is_stream(self) -> bool:
        """Return true if many messages are not stable, and some are on the way."""
        if self.log.stable >= self._right_received:
            return False
        newest = islice(
            reversed(self.log.entries), min(self.log.received - self.log.stable, STAR_COUNT_MAX + 1)
        )
        return sum(entry.header.count for entry in newest) > STAR_COUNT_MAX

    def _send_star(self) -> None:
        batch = self.log.batch_after(self._right_received)
        data = Data(self.queue_id, self.epoch, self.log.stable, batch, self.time.told_us, STAR)
        for mirror in self._mirrors:
            self._send(mirror, data)
        self._right_received = batch[-1].lsn
        self._marked = (self.log.stable, self.log.received)
        self._is_mark_fresh = True

    def _pass_watermark(self) -> None:
        """R2: pass the running minimum of the mirrors right; the last in sync closes the ring. With
        the star, each mirror reports its own mark to the master.

        The master counts its own disk in `_advance_stable`.
        """
        standing = self._standing
        if not self.in_sync or self.is_master:
            return
        lowest = self.assured
        if lowest <= self.log.stable and not self.is_settling:
            # The mark has come round, or will come round with the master's first op in this epoch.
            # While a view settles, only marks of this epoch count.
            return
        is_first = standing.left == standing.master
        if not (is_first or self._is_direct) and self._durable_left < lowest:
            lowest = self._durable_left
        if lowest <= self._durable_sent:
            return
        to = self._watermark_to()
        if to is not None:
            self._durable_sent = lowest
            self._is_watermark_fresh = True
            if self._is_direct:
                self._send(to, JoinerDurable(self.queue_id, self.epoch, lowest))
            else:
                star = self._may_star and (is_first or self._is_star_left)
                self._send(to, Watermark(self.queue_id, self.epoch, lowest, star))

    def _watermark_to(self) -> MemberId | None:
        standing = self._standing
        if not self.in_sync or self.is_master:
            return None
        is_to_master = standing.is_last_in_sync or self._is_direct
        return standing.master if is_to_master else standing.right

    def _advance_stable(self) -> None:
        """R2 at the master: last lsn on every disk (or in every memory) for which it waits."""
        assert self.view is not None
        lowest = self.assured
        mirrored = self._durable_left
        if self._is_direct:
            mirrored = max(mirrored, min(self.reported.get(one, 0) for one in self._mirrors))
        if mirrored < lowest and not self._standing.is_last_in_sync:
            lowest = mirrored
        if lowest > self._round_mark:
            self._round_mark = lowest
        for durable in self.gates.values():
            lowest = min(lowest, durable)
        self._learn_stable(lowest)

    def _report_joiner(self) -> None:
        """R7: report a joiner's log to the master, only while its copy is complete."""
        if self.in_sync or not (self.has_state and self.complete) or self.view is None:
            return
        if self.assured > self._joiner_sent:
            self._joiner_sent = self.assured
            self._report_durable()

    def _report_durable(self) -> None:
        master = self._standing.master
        if master is not None and self.repaired:
            self._send(master, JoinerDurable(self.queue_id, self.epoch, self.assured))

    def _mark_right(self, now_ms: int) -> None:
        right = self._standing.right
        if right is None or (mark := (self.log.stable, self.log.received)) == self._marked:
            # A mark also goes to a right that has not reported its repair. After a break the report
            # may have come before the news of the break, and only a mark makes the right ask again.
            if self.mark_timer.at_ms != FOREVER_MS:
                self.mark_timer.clear()
            return
        if not self.has_state or self._awaits_right:
            return
        if self._mark_delay_ms and self._marked[1] == self.log.received and not self._has_waited:
            # Only the stable lsn is news, and as a rule the next op takes it along. (The mark waits
            # at the master; mirrors pass on at once a mark that has waited there.)
            if self.mark_timer.at_ms == FOREVER_MS:
                self.mark_timer.set(now_ms + self._mark_delay_ms)
            if now_ms < self.mark_timer.at_ms:
                return
        self.mark_timer.clear()
        self._marked = mark
        self._is_mark_fresh = True
        mark_now = Mark(self.queue_id, self.epoch, *mark, self.time.told_us)
        self._send(right, mark_now)
