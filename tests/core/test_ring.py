"""Each rule of the ring by itself: what a member keeps, and what it sends for it."""

from __future__ import annotations

from typing import Literal

import pytest
from attrs import evolve
from msgspec.structs import replace

from mirrorq.containers.timers import FOREVER_MS
from mirrorq.protocol.effects import QueueWrite
from mirrorq.protocol.identities import MemberId
from mirrorq.protocol.ops import Entry, HorizonOp
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
from mirrorq.replication.history import common_lsn, cut_history
from mirrorq.replication.ring import (
    BEHIND_BYTES_MAX,
    STAR_BYTES_MAX,
    STAR_COUNT_MAX,
    STAR_REST_MS,
    Ring,
)
from mirrorq.testing.disk import QueueFiles

from .entries import QUEUE, A, B, C, D, op, persist, publish, ring_of, sent, view


def _repaired(ring: Ring, epoch: int, history: tuple[tuple[int, int], ...] = ()) -> Ring:
    """A mirror that has its left's history, and what it sent on the way taken off."""
    left = ring._left()
    assert left is not None
    ring.on_history(left, History(QUEUE, epoch, history))
    sent(ring)
    return ring


def _mirror(entries: int = 0) -> Ring:
    """B between A and C, repaired, with some ops of epoch 1 on disk."""
    ring = ring_of(B, [publish(n, n) for n in range(1, entries + 1)])
    ring.install(view(2, "abc"))
    return _repaired(ring, 2, ((1, entries),) if entries else ())


# --- R1 -------------------------------------------------------------------------------


def test_an_op_is_forwarded_before_it_is_on_disk() -> None:
    """R1: a member sends an op right in the step in which it came, and then writes it."""
    ring = _mirror()
    ring.on_repaired(C, Repaired(QUEUE, 2, 0))
    sent(ring)
    ring.on_data(A, Data(QUEUE, 2, 0, (publish(1, 1, epoch=2),)))
    ring.settle()
    assert ("c", Data(QUEUE, 2, 0, (publish(1, 1, epoch=2),))) in sent(ring)
    assert (ring.log.received, ring.log.durable) == (1, 0)
    assert ring.log.take_write() == (None, (publish(1, 1, epoch=2),))


def test_only_the_left_is_heard() -> None:
    """R1: an op from another member than the left is dropped."""
    ring = _mirror()
    ring.on_data(C, Data(QUEUE, 2, 0, (publish(1, 1, epoch=2),)))
    assert ring.log.received == 0
    assert sent(ring) == []


def test_data_of_another_epoch_is_dropped() -> None:
    """R1: an envelope of an older or a newer epoch changes nothing."""
    ring = _mirror()
    for epoch in (1, 3):
        ring.on_data(A, Data(QUEUE, epoch, 1, (publish(1, 1, epoch=epoch),)))
    assert (ring.log.received, ring.log.stable) == (0, 0)


def test_an_unrepaired_member_accepts_nothing() -> None:
    """R6: before its repair a member takes no op and no stable mark."""
    ring = ring_of(B, [])
    ring.install(view(2, "abc"))
    ring.on_data(A, Data(QUEUE, 2, 1, (publish(1, 1, epoch=2),)))
    ring.on_mark(A, Mark(QUEUE, 2, 1, 1))
    assert (ring.log.received, ring.log.stable) == (0, 0)


def test_a_gap_is_answered_with_a_request() -> None:
    """R1: an op that is not the next one is dropped, and the missing ones are asked for once."""
    ring = _mirror()
    ring.on_data(A, Data(QUEUE, 2, 0, (publish(2, 2, epoch=2),)))
    ring.on_data(A, Data(QUEUE, 2, 0, (publish(3, 3, epoch=2),)))
    assert ring.log.received == 0
    assert sent(ring) == [("a", ResendFrom(QUEUE, 2, 1))]


def test_what_is_there_already_is_not_taken_again() -> None:
    """R1: a repeated op is dropped without a word."""
    ring = _mirror(2)
    ring.on_data(A, Data(QUEUE, 2, 0, (publish(1, 1), publish(2, 2))))
    assert ring.log.received == 2
    assert sent(ring) == []


def test_a_resend_goes_on_from_the_gap() -> None:
    """R1: asked to send again, a member sends everything from there on."""
    ring = _mirror(3)
    ring.on_resend(C, ResendFrom(QUEUE, 2, 2))
    assert sent(ring) == [("c", Data(QUEUE, 2, 0, (publish(2, 2), publish(3, 3))))]


def test_an_op_that_is_no_longer_kept_sends_a_joiner_to_a_transfer() -> None:
    """R7: who asks for less than is kept is told so."""
    ring = ring_of(A, [publish(1, 1), publish(2, 2)], stable=2)
    ring.install(view(2, "ab"))
    ring.trim(2)
    sent(ring)
    ring.on_repaired(B, Repaired(QUEUE, 2, 1))
    assert sent(ring) == [("b", TooOld(QUEUE, 2))]


# --- R2 -------------------------------------------------------------------------------


def test_the_first_mirror_waits_for_no_mark_of_the_master() -> None:
    """R2: the master counts its own disk itself, so it sends no watermark, and the mirror next to
    it passes on what it has."""
    ring = _mirror(2)
    ring.settle()
    assert ("c", Watermark(QUEUE, 2, 2)) in sent(ring)
    master = ring_of(A, [publish(1, 1)])
    master.install(view(2, "abc"))
    master.settle()
    assert not [message for _, message in sent(master) if isinstance(message, Watermark)]


def test_a_mirror_passes_the_minimum_on() -> None:
    """R2: what goes right is the least of the left's mark and the own durable."""
    ring = ring_of(C, [publish(1, 1), publish(2, 2)])
    ring.install(view(2, "abcd"))
    _repaired(ring, 2, ((1, 2),))
    ring.on_watermark(B, Watermark(QUEUE, 2, 1))
    ring.settle()
    assert ("d", Watermark(QUEUE, 2, 1)) in sent(ring)
    ring.on_watermark(B, Watermark(QUEUE, 2, 5))
    ring.settle()
    assert ("d", Watermark(QUEUE, 2, 2)) in sent(ring)


def _waiting(delay_ms: int) -> Ring:
    """B between A and C, with an op that it has passed on, of which it learns that it is stable."""
    ring = Ring(B, QUEUE, 4096, mark_delay_ms=delay_ms)
    ring.install(view(2, "abc"))
    _repaired(ring, 2)
    ring.on_repaired(C, Repaired(QUEUE, 2, 0))
    ring.on_data(A, Data(QUEUE, 2, 0, (publish(1, 1, epoch=2),)))
    ring.settle(1000)
    sent(ring)
    ring.on_data(A, Data(QUEUE, 2, 1, ()))
    ring.settle(1001)
    return ring


def test_what_is_stable_rides_on_the_next_op() -> None:
    """R2: a mark that says only what is stable waits for a moment, and an op takes it along."""
    ring = _waiting(10)
    assert (sent(ring), ring.mark_timer.at_ms) == ([], 1011)
    ring.on_data(A, Data(QUEUE, 2, 1, (publish(2, 2, epoch=2),)))
    ring.settle(1005)
    assert sent(ring) == [("c", Data(QUEUE, 2, 1, (publish(2, 2, epoch=2),)))]
    assert ring.mark_timer.at_ms == FOREVER_MS


def test_what_is_stable_is_told_when_no_op_comes() -> None:
    """R2: and goes on its own when none has come in time; without a delay it goes at once."""
    ring = _waiting(10)
    ring.settle(1010)
    assert sent(ring) == []
    ring.settle(1011)
    assert (sent(ring), ring.mark_timer.at_ms) == ([("c", Mark(QUEUE, 2, 1, 1))], FOREVER_MS)
    assert ("c", Mark(QUEUE, 2, 1, 1)) in sent(_waiting(0))


def test_what_has_waited_at_the_master_goes_on_at_once() -> None:
    """R2: a mark that comes on its own has waited for the next op, and none came."""
    ring = _waiting(10)
    ring.on_data(A, Data(QUEUE, 2, 1, (publish(2, 2, epoch=2),)))
    ring.settle(1005)
    sent(ring)
    ring.on_mark(A, Mark(QUEUE, 2, 2, 2))
    ring.settle(1015)
    assert (sent(ring), ring.mark_timer.at_ms) == ([("c", Mark(QUEUE, 2, 2, 2))], FOREVER_MS)
    ring.on_data(A, Data(QUEUE, 2, 2, (publish(3, 3, epoch=2),)))
    ring.settle(1016)
    sent(ring)
    ring.on_data(A, Data(QUEUE, 2, 3, ()))
    ring.settle(1017)
    assert (sent(ring), ring.mark_timer.at_ms) == ([], 1027)


def test_the_last_mirror_closes_the_ring() -> None:
    """R2: the last member in sync sends the watermark to the master."""
    ring = ring_of(C, [publish(1, 1)])
    ring.install(view(2, "abc"))
    _repaired(ring, 2, ((1, 1),))
    ring.on_watermark(B, Watermark(QUEUE, 2, 1))
    ring.settle()
    assert ("a", Watermark(QUEUE, 2, 1)) in sent(ring)


def test_stable_needs_every_disk() -> None:
    """R2: the master calls stable what the last mirror's mark and its own disk have."""
    ring = ring_of(A, [publish(1, 1)])
    ring.install(view(2, "ab"))
    ring.append(publish(2, 2, epoch=2))
    ring.on_watermark(B, Watermark(QUEUE, 2, 2))
    ring.settle()
    assert ring.log.stable == 1
    persist(ring)
    ring.settle()
    assert ring.log.stable == 2


def test_marks_start_from_nothing_in_a_new_epoch() -> None:
    """R2: a watermark of the epoch before confirms nothing in this one."""
    ring = ring_of(A, [publish(1, 1)])
    ring.install(view(2, "ab"))
    ring.on_watermark(B, Watermark(QUEUE, 2, 1))
    ring.install(view(3, "ab"))
    ring.settle()
    assert ring.log.stable == 0


@pytest.mark.parametrize("epoch", [1, 3])
def test_a_watermark_of_another_epoch_is_dropped(epoch: int) -> None:
    """R2: marks count in their own epoch only."""
    ring = ring_of(A, [publish(1, 1)])
    ring.install(view(2, "ab"))
    ring.on_watermark(B, Watermark(QUEUE, epoch, 1))
    ring.settle()
    assert ring.log.stable == 0


def test_durable_falls_with_a_cut() -> None:
    """R2: what takes the place of cut ops is not on disk because they were."""
    ring = ring_of(B, [publish(n, n) for n in (1, 2, 3)])
    ring.install(view(2, "ab"))
    _repaired(ring, 2, ((1, 1),))
    assert (ring.log.received, ring.log.durable) == (1, 1)
    ring.on_data(A, Data(QUEUE, 2, 0, (publish(2, 2, epoch=2), publish(3, 3, epoch=2))))
    assert (ring.log.received, ring.log.durable) == (3, 1)


def test_a_write_from_before_a_cut_makes_nothing_after_it_durable() -> None:
    """R2: a write that was on its way when the log was cut counts up to the cut only."""
    ring = ring_of(B, [])
    ring.install(view(2, "ab"))
    _repaired(ring, 2)
    ring.on_data(A, Data(QUEUE, 2, 0, (publish(1, 1, epoch=2), publish(2, 2, epoch=2))))
    ring.log.take_write()
    number = ring.log.note_write()
    ring.install(view(3, "ab"))
    _repaired(ring, 3, ((2, 1),))
    ring.on_data(A, Data(QUEUE, 3, 0, (publish(2, 2, epoch=3),)))
    ring.log.on_persisted(number)
    assert (ring.log.received, ring.log.durable) == (2, 1)


# --- R6 -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mine", "theirs", "common"),
    [
        ([(1, 5)], ((1, 5),), 5),
        ([(1, 5)], ((1, 3),), 3),
        ([(1, 3)], ((1, 5), (2, 9)), 3),
        ([(1, 3), (2, 6)], ((1, 3), (3, 6)), 3),
        ([(1, 5), (3, 8)], ((1, 5), (2, 7)), 5),
        ([(2, 4)], ((1, 4),), 0),
        ([], ((1, 4),), 0),
        ([(1, 4)], (), 0),
    ],
)
def test_logs_agree_up_to_the_last_common_epoch(
    mine: list[tuple[int, int]], theirs: tuple[tuple[int, int], ...], common: int
) -> None:
    """R6: the cut is the greatest lsn at which both have the same epoch, not a length."""
    assert common_lsn(mine, theirs) == common


def test_repair_cuts_and_hands_the_history_on() -> None:
    """R6: cut to what agrees, and give the history, as it came, to the right."""
    ring = ring_of(B, [publish(1, 1), publish(2, 2, epoch=2)])
    ring.install(view(3, "abc"))
    assert sent(ring) == [("a", HistoryRequest(QUEUE, 3))]
    history = History(QUEUE, 3, ((1, 4),))
    assert ring.on_history(A, history)
    assert ring.log.received == 1
    assert ring.log.take_write() == (1, ())
    assert sent(ring) == [("c", history)]


@pytest.mark.parametrize("kept", [0, 1])
def test_the_time_of_an_op_that_was_cut_is_forgotten(kept: int) -> None:
    """Its master's clock was wrong, and nobody else had it (the swarm's seed 4707)."""
    ring = ring_of(
        B,
        [
            *(publish(lsn, lsn, timestamp_us=1_000, delay_ms=1) for lsn in range(1, kept + 1)),
            publish(kept + 1, kept + 1, epoch=2, timestamp_us=7_000_000, delay_ms=1),
        ],
    )
    ring.time.begin_step(1_000)
    assert ring.time.now_us == 7_000_000
    ring.install(view(3, "abc"))
    theirs = ((1, kept), (3, 4)) if kept else ((3, 4),)
    assert ring.on_history(A, History(QUEUE, 3, theirs, time_us=2_000))
    assert ring.log.received == kept
    assert ring.time.now_us == 2_000


def test_an_unrepaired_member_answers_nothing() -> None:
    """R6: asked for the history or for ops before its own repair, a member is silent."""
    ring = ring_of(B, [publish(1, 1)])
    ring.install(view(2, "abc"))
    sent(ring)
    ring.on_history_request(C, HistoryRequest(QUEUE, 2))
    ring.on_repaired(C, Repaired(QUEUE, 2, 0))
    ring.on_resend(C, ResendFrom(QUEUE, 2, 1))
    assert sent(ring) == []


def test_a_stale_history_repairs_nobody() -> None:
    """R6: a history of another epoch, or from another member than the left, is dropped."""
    ring = ring_of(B, [publish(1, 1)])
    ring.install(view(2, "abc"))
    assert not ring.on_history(A, History(QUEUE, 1, ()))
    assert not ring.on_history(C, History(QUEUE, 2, ()))
    assert (ring.repaired, ring.log.received) == (False, 1)


def test_a_longer_log_than_the_lefts_is_not_cut() -> None:
    """R6: the left's own length says nothing; only the master's history cuts."""
    ring = _mirror(3)
    ring.on_mark(A, Mark(QUEUE, 2, 0, 1))
    ring.on_data(A, Data(QUEUE, 2, 0, ()))
    assert ring.log.received == 3


def test_the_master_gives_the_history_of_the_epochs_beginning() -> None:
    """R6: ops of the new epoch are no part of the history, however late it is asked for."""
    ring = ring_of(A, [publish(1, 1)])
    ring.install(view(2, "ab"))
    ring.append(publish(2, 2, epoch=2))
    sent(ring)
    ring.on_history_request(B, HistoryRequest(QUEUE, 2))
    assert sent(ring) == [("b", History(QUEUE, 2, ((1, 1),)))]


def test_two_cuts_in_one_step_leave_nothing_of_what_was_cut_first() -> None:
    """R6: when two epochs cut the log before one write, the disk is cut to the lesser lsn.

    Cut to 1, grown to 3 and cut to 2 again, all in one step: the disk still holds the first
    op 2, of another kind, and must not keep it beside the new one.
    """
    files = QueueFiles()
    old = [publish(1, 1), publish(2, 2), publish(3, 3)]
    files.apply(QueueWrite(QUEUE, append=tuple(old)))
    ring = ring_of(B, old)
    ring.install(view(2, "ab"))
    _repaired(ring, 2, ((1, 1),))
    new = op(2, HorizonOp(5), epoch=2)
    ring.on_data(A, Data(QUEUE, 2, 0, (new, publish(3, 2, epoch=2))))
    ring.install(view(3, "ab"))
    _repaired(ring, 3, ((1, 1), (2, 2)))
    cut, appended = ring.log.take_write()
    files.apply(QueueWrite(QUEUE, truncate_to=cut, append=appended))
    assert files.image(QUEUE).entries == (old[0], new)


@pytest.mark.parametrize(
    ("lsn", "left"),
    [(0, []), (2, [(1, 2)]), (3, [(1, 3)]), (4, [(1, 3), (2, 4)]), (9, [(1, 3), (2, 6)])],
)
def test_a_history_is_cut_with_its_log(lsn: int, left: list[tuple[int, int]]) -> None:
    """A cut history ends at the lsn of the cut, in the epoch that is there."""
    assert cut_history([(1, 3), (2, 6)], lsn) == left


# --- R8 -------------------------------------------------------------------------------


def _master_with_joiner(stable: int) -> Ring:
    """A alone in sync with three ops, B joining."""
    ring = ring_of(A, [publish(n, n) for n in (1, 2, 3)], stable=stable)
    ring.install(view(2, "a", "b"))
    return ring


def test_a_joiner_is_counted_in_only_when_it_has_what_is_stable() -> None:
    """R8: a report below the stable lsn opens no gate; one at it does."""
    ring = _master_with_joiner(stable=3)
    ring.on_joiner_durable(B, JoinerDurable(QUEUE, 2, 2))
    assert ring.admit_joiners() == ()
    ring.on_joiner_durable(B, JoinerDurable(QUEUE, 2, 3))
    assert ring.admit_joiners() == (B,)


def test_a_new_master_counts_in_only_beyond_its_inherited_log() -> None:
    """R8: its predecessor may have confirmed all that the epoch began with."""
    ring = _master_with_joiner(stable=1)
    ring.on_joiner_durable(B, JoinerDurable(QUEUE, 2, 2))
    assert ring.admit_joiners() == ()


def test_stable_waits_for_who_is_being_counted_in() -> None:
    """R8: from the check on stable is held by the joiner's disk, whatever becomes of the
    proposal, and until a newer view is installed."""
    ring = _master_with_joiner(stable=3)
    ring.on_joiner_durable(B, JoinerDurable(QUEUE, 2, 3))
    assert ring.admit_joiners() == (B,)
    ring.append(publish(4, 4, epoch=2))
    persist(ring)
    for _ in range(10):
        ring.on_tick()
        ring.settle()
    assert ring.log.stable == 3
    ring.install(view(3, "a"))
    ring.settle()
    assert ring.log.stable == 4


# --- Broken links ---------------------------------------------------------------------


def test_a_left_that_learns_of_a_break_too_late_is_asked_again() -> None:
    """The right's word may come over a new connection before the left hears that the old one
    broke. The left forgets it then, and its next mark makes the right ask for what it lacks."""
    left = ring_of(A, [])
    left.install(view(2, "ab"))
    right = ring_of(B, [])
    right.install(view(2, "ab"))
    _repaired(right, 2)
    right.on_link_lost("a")
    left.on_repaired(B, Repaired(QUEUE, 2, 0))
    right.on_data(A, Data(QUEUE, 2, 0, ()))
    left.on_link_lost("b")
    sent(left), sent(right)
    left.append(publish(1, 1, epoch=2))
    left.settle()
    for _, message in sent(left):
        if isinstance(message, Mark):
            right.on_mark(A, message)
    asked = [m for _, m in sent(right) if isinstance(m, ResendFrom)]
    assert asked == [ResendFrom(QUEUE, 2, 1)]
    left.on_resend(B, asked[0])
    assert ("b", Data(QUEUE, 2, 0, (publish(1, 1, epoch=2),))) in sent(left)


def test_a_break_is_news_for_nobody_but_the_node_behind_it() -> None:
    """To it alone everything is said again; where a thousand queues share a node that died, each
    other word would be one too many for each of them."""
    ring = _mirror(2)
    ring.on_repaired(C, Repaired(QUEUE, 2, 2))
    ring.on_mark(A, Mark(QUEUE, 2, 1, 2))
    ring.settle()
    sent(ring)
    for node, says in (
        ("a", [("a", Repaired(QUEUE, 2, 2)), ("a", JoinerDurable(QUEUE, 2, 2))]),
        ("c", [("c", Watermark(QUEUE, 2, 2)), ("c", Mark(QUEUE, 2, 1, 2))]),
        ("d", []),
    ):
        ring.on_link_lost(node)
        ring.settle()
        assert sent(ring) == says


def test_a_last_mirror_says_its_watermark_again_to_the_master_behind_a_break() -> None:
    ring = ring_of(C, [publish(1, 1)])
    ring.install(view(2, "abc"))
    _repaired(ring, 2, ((1, 1),))
    ring.on_watermark(B, Watermark(QUEUE, 2, 1))
    ring.settle()
    assert ("a", Watermark(QUEUE, 2, 1)) in sent(ring)
    ring.on_link_lost("a")
    ring.settle()
    assert ("a", Watermark(QUEUE, 2, 1)) in sent(ring)


def needs_tick(ring: Ring) -> bool:
    """Whether a tick would still do anything (`Replica._set_timers`)."""
    return ring.is_member and (ring.is_waiting or ring.ticks_left > 0)


def is_quiet(ring: Ring) -> bool:
    """Whether ticks only repeat what is known to all, if nothing was lost."""
    return not (ring.is_waiting or ring.has_joiners)


def test_a_quiet_member_repeats_its_marks_at_two_ticks() -> None:
    """A repetition asks for no further one, and no watermark is repeated that has come round."""
    ring = _mirror(2)
    ring.on_repaired(C, Repaired(QUEUE, 2, 2))
    ring.on_mark(A, Mark(QUEUE, 2, 1, 2))
    ring.settle()
    sent(ring)
    said = []
    for tick in range(8):
        ring.on_tick()
        ring.settle()
        said.append([message for to, message in sent(ring) if to == "c"])
        assert is_quiet(ring) is (tick > 2)
        if tick == 2:
            ring.on_mark(A, Mark(QUEUE, 2, 2, 2))
            ring.settle()
            sent(ring)
    mark, watermark = Mark(QUEUE, 2, 1, 2), Watermark(QUEUE, 2, 2)
    assert said[:3] == [[], [watermark, mark], [watermark, mark]]
    assert said[3:] == [[], [Mark(QUEUE, 2, 2, 2)], [Mark(QUEUE, 2, 2, 2)], [], []]
    assert not needs_tick(ring)


def test_a_joiner_has_quick_ticks_until_it_is_counted_in() -> None:
    """Its report is open until the master has proposed the view, though no op waits."""
    ring = _master_with_joiner(stable=3)
    ring.settle()
    assert needs_tick(ring)
    assert not is_quiet(ring)


# --- A new epoch ----------------------------------------------------------------------


def test_a_history_that_comes_before_its_view_is_kept() -> None:
    """R6: a left that has learned of a view first is not asked for what it has said already."""
    ring = _mirror(2)
    history = History(QUEUE, 4, ((1, 1),))
    for early in (History(QUEUE, 3, ()), history, History(QUEUE, 2, ())):
        ring.keep_early(A, early)
    ring.install(view(3, "abc"))
    assert ring.take_early() is None
    ring.install(view(4, "abc"))
    assert ring.take_early() == (A, history)
    assert ring.take_early() is None
    assert sent(ring) == []


def test_a_history_of_an_epoch_that_was_passed_over_is_dropped() -> None:
    """Views may be learned of in leaps, by a snapshot."""
    ring = _mirror(2)
    ring.keep_early(A, History(QUEUE, 3, ()))
    ring.install(view(4, "abc"))
    assert ring.take_early() is None
    ring.keep_early(A, History(QUEUE, 3, ()))
    ring.install(view(5, "abc"))
    assert ring.take_early() is None


def test_a_history_that_does_not_come_is_asked_for() -> None:
    """At once in this node's first view, before which there was nothing here to keep it; else the
    left says it by itself, and only the tick after a loss asks."""
    ring = ring_of(B, [])
    ring.install(view(2, "ab"))
    assert sent(ring) == [("a", HistoryRequest(QUEUE, 2))]
    ring.install(view(3, "ab"))
    assert sent(ring) == []
    assert needs_tick(ring)
    assert not is_quiet(ring)
    ring.on_tick()
    assert sent(ring) == [("a", HistoryRequest(QUEUE, 3))]
    ring.on_link_lost("a")
    assert sent(ring) == [("a", HistoryRequest(QUEUE, 3))]


def test_in_a_new_epoch_the_right_speaks_first() -> None:
    """A mark before that would only make it ask for what it is about to be sent. Should its word
    be lost, the next tick says the mark."""
    ring = ring_of(A, [])
    ring.install(view(2, "ab"))
    ring.append(publish(1, 1, epoch=2))
    ring.settle()
    assert sent(ring) == [("b", History(QUEUE, 2, ()))]
    ring.on_tick()
    ring.settle()
    assert sent(ring) == [("b", Mark(QUEUE, 2, 0, 1))]


def test_a_watermark_of_what_is_stable_is_not_said_again() -> None:
    """R2: the master of a new epoch knew it, or its first op takes it round. While a view
    settles it is the marks of this epoch that count."""
    ring = _mirror(2)
    ring.settle()
    assert ("c", Watermark(QUEUE, 2, 2)) in sent(ring)
    ring.on_mark(A, Mark(QUEUE, 2, 2, 2))
    ring.install(view(3, "abc"))
    _repaired(ring, 3, ((1, 2),))
    ring.settle()
    assert sent(ring) == []
    ring.on_data(A, Data(QUEUE, 3, 2, (publish(3, 3, epoch=3),)))
    persist(ring)
    ring.settle()
    assert ("c", Watermark(QUEUE, 3, 3)) in sent(ring)
    ring.install(replace(view(4, "abc"), durability="settling"))
    ring.on_history(A, History(QUEUE, 4, ((1, 2), (3, 3))))
    ring.log.stable = 3
    ring.settle()
    assert ("c", Watermark(QUEUE, 4, 3)) in sent(ring)


# --- durability: replicated -----------------------------------------------------------


def _in_memory(epoch: int, durability: Literal["settling", "replicated"]) -> View:
    return replace(view(epoch, "ab"), durability=durability)


def test_a_mark_says_what_is_received_where_the_view_says_so() -> None:
    ring = ring_of(B, [])
    ring.install(_in_memory(2, "replicated"))
    _repaired(ring, 2)
    ring.on_data(A, Data(QUEUE, 2, 0, (publish(1, 1, epoch=2), publish(2, 2, epoch=2))))
    ring.on_watermark(A, Watermark(QUEUE, 2, 2))
    ring.settle()
    assert ("a", Watermark(QUEUE, 2, 2)) in sent(ring)
    assert (ring.log.received, ring.log.durable) == (2, 0)


def test_a_disk_far_behind_is_waited_for() -> None:
    ring = ring_of(B, [])
    ring.install(_in_memory(2, "replicated"))
    _repaired(ring, 2)
    ring.on_data(A, Data(QUEUE, 2, 0, (publish(1, 1, epoch=2),)))
    assert ring.assured == 1
    ring.log.behind_bytes += BEHIND_BYTES_MAX
    assert ring.assured == 0
    ring.log.take_write()
    ring.log.on_persisted(ring.log.note_write())
    assert ring.assured == 1
    assert ring.log.behind_bytes == BEHIND_BYTES_MAX, "what was added here is still taken for there"


def test_what_is_not_on_disk_is_found_in_memory() -> None:
    ring = ring_of(B, [publish(1, 1)])
    ring.install(_in_memory(2, "replicated"))
    _repaired(ring, 2, ((1, 1),))
    new = (publish(2, 2, epoch=2), op(3, HorizonOp(9), epoch=2), publish(4, 3, epoch=2))
    ring.on_data(A, Data(QUEUE, 2, 0, new))
    assert ring.log.behind(1, 9) == [new[0], new[2]]
    assert ring.log.behind(3, 3) == [new[2]]
    ring.log.take_write()
    ring.log.on_persisted(ring.log.note_write())
    assert ring.log.behind(1, 9) == []


def test_a_settling_master_waits_for_the_disks_of_this_epoch() -> None:
    """What was stable in memory is not taken for what is on the disks."""
    ring = ring_of(A, [])
    ring.install(_in_memory(2, "replicated"))
    ring.append(publish(1, 1, epoch=2))
    ring.on_watermark(B, Watermark(QUEUE, 2, 1))
    ring.settle()
    assert (ring.log.stable, ring.log.durable) == (1, 0)
    ring.install(_in_memory(3, "settling"))
    ring.settle()
    assert not ring.is_settled
    ring.log.take_write()
    ring.log.on_persisted(ring.log.note_write())
    ring.settle()
    assert not ring.is_settled, "B's disk is not known yet"
    ring.on_watermark(B, Watermark(QUEUE, 2, 1))
    ring.settle()
    assert not ring.is_settled, "that mark is of another epoch"
    ring.on_watermark(B, Watermark(QUEUE, 3, 1))
    ring.settle()
    assert ring.is_settled


# --- The star -------------------------------------------------------------------------


def _star_master() -> Ring:
    """A with B and C, in a settled epoch in which all can."""
    ring = ring_of(A, [publish(1, 1)])
    ring.install(view(2, "abc"))
    ring._may_star = True
    ring.on_repaired(B, Repaired(QUEUE, 2, 1))
    ring.on_watermark(C, Watermark(QUEUE, 2, 1, True))
    ring.settle()
    sent(ring)
    return ring


def _appended(ring: Ring, entry: Entry, now_ms: int = 0) -> list[tuple[str, object]]:
    ring.append(entry)
    ring.settle(now_ms)
    return sent(ring)


def test_a_small_group_goes_to_each_mirror_at_once() -> None:
    """The star: one message to all mirrors; stable is what each of them has said itself."""
    ring = _star_master()
    entry = publish(2, 2, epoch=2)
    data = Data(QUEUE, 2, 1, (entry,), mode=STAR)
    assert _appended(ring, entry) == [("b", data), ("c", data)]
    persist(ring)
    ring.on_joiner_durable(B, JoinerDurable(QUEUE, 2, 2))
    ring.settle()
    assert ring.log.stable == 1
    ring.on_joiner_durable(C, JoinerDurable(QUEUE, 2, 2))
    ring.settle()
    assert ring.log.stable == 2


def test_a_large_group_goes_along_the_row_and_the_star_waits_for_it() -> None:
    """What went along the row may come later than what goes straight: that waits until it is
    stable; and for a while, for a burst may go on."""
    ring = _star_master()
    large = replace(publish(2, 2, epoch=2), frame=bytes(STAR_BYTES_MAX + 8))
    assert _appended(ring, large) == [("b", Data(QUEUE, 2, 1, (large,), mode=DIRECT))]
    small = publish(3, 3, epoch=2)
    assert _appended(ring, small) == [("b", Data(QUEUE, 2, 1, (small,), mode=DIRECT))]
    persist(ring)
    for mirror in (B, C):
        ring.on_joiner_durable(mirror, JoinerDurable(QUEUE, 2, 3))
    ring.settle()
    sent(ring)
    still = publish(4, 4, epoch=2)
    assert [to for to, _ in _appended(ring, still, STAR_REST_MS - 1)] == ["b"]
    persist(ring)
    for mirror in (B, C):
        ring.on_joiner_durable(mirror, JoinerDurable(QUEUE, 2, 4))
    ring.settle(STAR_REST_MS - 1)
    sent(ring)
    later = publish(5, 5, epoch=2)
    assert [to for to, _ in _appended(ring, later, STAR_REST_MS)] == ["b", "c"]


@pytest.mark.parametrize(("is_waiting", "to"), [(False, ["b"]), (True, ["b", "c"])])
def test_a_stream_of_messages_goes_along_the_row(is_waiting: bool, to: list[str]) -> None:
    """Many messages that come while others are on their way; not those of who has waited."""
    ring = _star_master()
    before = publish(2, 2, epoch=2, count=2)
    assert [mirror for mirror, _ in _appended(ring, before)] == ["b", "c"]
    if is_waiting:
        persist(ring)
        for mirror in (B, C):
            ring.on_joiner_durable(mirror, JoinerDurable(QUEUE, 2, 2))
        ring.settle()
        sent(ring)
    many = publish(3, 4, epoch=2, count=STAR_COUNT_MAX - 1)
    assert [mirror for mirror, _ in _appended(ring, many)] == to
    persist(ring)
    for mirror in (B, C):
        ring.on_joiner_durable(mirror, JoinerDurable(QUEUE, 2, 3))
    ring.settle()
    sent(ring)
    assert ring.log.stable == ring.log.received
    one = publish(4, 3 + STAR_COUNT_MAX, epoch=2)
    assert [mirror for mirror, _ in _appended(ring, one, STAR_REST_MS - 1)] == to


def test_a_ring_with_a_node_that_cannot_has_no_star() -> None:
    """An older node leaves the word out of its watermark, and all to its right, too."""
    ring = _star_master()
    ring.on_watermark(C, Watermark(QUEUE, 2, 1))
    assert [to for to, _ in _appended(ring, publish(2, 2, epoch=2))] == ["b"]
    mirror = _mirror()
    mirror._may_star = True
    mirror._standing = evolve(mirror._standing, left=D)
    mirror.on_data(D, Data(QUEUE, 2, 0, (publish(1, 1, epoch=2),)))
    persist(mirror)
    mirror.on_watermark(D, Watermark(QUEUE, 2, 1, False))
    mirror.settle()
    assert ("c", Watermark(QUEUE, 2, 1, False)) in sent(mirror)


def test_a_mirror_passes_on_nothing_of_the_star_and_marks_straight() -> None:
    """Its right has it from the master; the master has its mark."""
    ring = _mirror()
    ring.on_repaired(C, Repaired(QUEUE, 2, 0))
    ring.settle()
    sent(ring)
    ring.on_data(A, Data(QUEUE, 2, 0, (publish(1, 1, epoch=2),), mode=STAR))
    persist(ring)
    ring.settle()
    assert sent(ring) == [("a", JoinerDurable(QUEUE, 2, 1))]


def test_a_mirror_takes_the_star_from_its_master_alone() -> None:
    ring = ring_of(C, [publish(1, 1)])
    ring.install(view(2, "abc"))
    straight = Data(QUEUE, 2, 0, (publish(2, 2, epoch=2),), mode=STAR)
    ring.on_data(A, straight)
    assert ring.log.received == 1  # it is not repaired
    _repaired(ring, 2, ((1, 1),))
    ring.on_data(A, replace(straight, epoch=1))
    ring.on_data(A, replace(straight, mode=RING))
    ring.on_data(D, straight)
    assert ring.log.received == 1
    ring.on_data(A, straight)
    assert ring.log.received == 2


def test_what_the_star_has_lost_is_asked_of_the_left() -> None:
    """A gap, and a link to the master that broke."""
    ring = ring_of(C, [publish(1, 1)])
    ring.install(view(2, "abc"))
    _repaired(ring, 2, ((1, 1),))
    ring.on_data(A, Data(QUEUE, 2, 0, (publish(3, 3, epoch=2),), mode=STAR))
    assert sent(ring) == [("b", ResendFrom(QUEUE, 2, 2))]
    ring.on_link_lost("a")
    assert ("b", ResendFrom(QUEUE, 2, 2)) in sent(ring)


# --- Bounds of what waits ---------------------------------------------------------------


def test_what_waits_while_a_state_is_placed_is_bounded() -> None:
    """R7: ops that come before the state below them is on the disk wait up to the bound; those
    behind it are asked for when it is."""
    ring = ring_of(C, [])
    ring.install(view(2, "ab", "c"))
    _left_of(ring, B)
    ring.on_placing(is_placing=True)
    entries = tuple(publish(n, n, epoch=2) for n in range(1, 400))
    ring.on_data(B, Data(QUEUE, 2, 0, entries))
    most = ring.log.received
    assert 0 < most < 399
    assert ring.log.bytes - len(entries[0].frame) < 4096 <= ring.log.bytes
    ring.on_data(B, Data(QUEUE, 2, 399, entries[most:]))
    ring.on_mark(B, Mark(QUEUE, 2, 399, 399))
    assert (ring.log.received, ring.log.stable) == (most, 399)
    assert sent(ring) == []
    ring.on_placing(is_placing=False)
    assert sent(ring) == [("b", ResendFrom(QUEUE, 2, most + 1))]
    ring.on_data(B, Data(QUEUE, 2, 399, entries[most:]))
    assert ring.log.received == 399


def _left_of(ring: Ring, left: MemberId) -> None:
    ring.on_history(left, History(QUEUE, ring.epoch, ()))
    ring.announce()
    sent(ring)


def test_marks_of_a_member_that_waits_for_its_disk_say_nothing_new() -> None:
    """R2: so nothing more becomes stable than it will apply, until it goes on."""
    ring = _mirror()
    ring.on_data(A, Data(QUEUE, 2, 0, (publish(1, 1, epoch=2),)))
    persist(ring)
    ring.is_stalled = True
    ring.settle()
    assert not any(isinstance(message, Watermark) for _, message in sent(ring))
    ring.is_stalled = False
    ring.settle()
    assert ("c", Watermark(QUEUE, 2, 1)) in sent(ring)
