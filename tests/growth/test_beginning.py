"""A master's term begins by portions, whatever lives in its queue.

Each message is a stretch of its own: of a priority, delayed, at another place than its own, or
given back with a delay. No step of the promotion costs more for 10^4 of them than for 10^3.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from core.entries import CODEC, QUEUE, A, view
from mirrorq.config import Config
from mirrorq.containers.time_buckets import BUCKET_BITS
from mirrorq.protocol.effects import Persisted, ReplicaEffects
from mirrorq.protocol.ops import DueOp
from mirrorq.replication.events import Tick, ViewInstalled
from mirrorq.replication.master.delays import ENTER_COUNT
from mirrorq.replication.master.term import Lease
from mirrorq.replication.replica import Replica
from mirrorq.replication.state.priorities import PriorityLevel
from mirrorq.replication.state.queue_state import QueueState
from mirrorq.testing.disk import QueueFiles

from .work import work_of

FEW, MANY = 1_000, 10_000
GROWTH_MAX = 2.0
STEPS = 8
"""So many are counted, the first ones: in them all would be done that does not go by portions."""
NOW_MS = 1000
DUE_US = 1_700_000_000_000_000
LATER_US = ((DUE_US >> BUCKET_BITS) + 60 << BUCKET_BITS) - 1
"""A minute later, at the end of a bucket."""

Shape = Callable[[QueueState, int], None]


def prioritised(state: QueueState, count: int) -> None:
    """As many of each of two priorities, and none beside one of its own."""
    state.levels = {priority: PriorityLevel(horizon=count) for priority in (3, 7)}
    for number in range(1, 2 * count, 4):
        state.levels[3].members.add(number, number)
        state.levels[7].members.add(number + 2, number + 2)
    state.live.add(count + 1, 2 * count)
    state.columns.append(count + 1, 2 * count, 10, DUE_US // 1000, 0)
    state.next_sequence = 2 * count + 1


def delayed(state: QueueState, count: int) -> None:
    """Each is due at another moment, all of them one after the other."""
    for number in range(1, count + 1):
        state.delayed.add(number, number, DUE_US + 1000 * number)


def due_at_once(state: QueueState, count: int) -> None:
    """All of them in one second, the last message first."""
    for number in range(1, count + 1):
        state.delayed.add(number, number, LATER_US - number)


def moved(state: QueueState, count: int) -> None:
    """Each was delayed, and stands behind the one that was behind it."""
    place = state.next_sequence
    for number in range(1, count + 1):
        state.places.enter(number, number, place + (number ^ 1))
    state.next_sequence = place + count + 2


def resting(state: QueueState, count: int) -> None:
    """Each was given back, to come again at another moment."""
    for number in range(1, count + 1):
        state.returned.put(number, number, 1, 1)
        state.resting.put(number, number, DUE_US + 1000 * number)


def promoted(shape: Shape, count: int) -> tuple[Replica, list[int]]:
    """A new master of such a queue, which serves it, and what its first steps have cost."""
    state = QueueState()
    state.live.add(1, count)
    state.columns.append(1, count, 10, DUE_US // 1000, 0)
    state.next_sequence = count + 1
    shape(state, count)
    state.applied = 1
    state.history = [(1, 1)]
    files = QueueFiles(state=state.encode(), state_lsn=1, stable=1)
    image, lease = files.image(QUEUE), Lease(until_ms=1 << 60)
    replica = Replica(A, QUEUE, Config(), CODEC, image, lease)
    costs: list[int] = []
    event: ViewInstalled | Persisted | Tick = ViewInstalled(view(2, "a", master_epoch=2))
    effects = ReplicaEffects()

    def step() -> None:
        nonlocal effects
        effects = replica.step(NOW_MS, 0, event)

    while not replica.is_serving:
        if len(costs) < STEPS:
            costs.append(work_of(step).count)
        else:
            step()
        if effects.write is not None:
            event = Persisted(effects.write_number)
        elif not replica.is_serving:
            assert effects.wake_at_ms is not None
            assert effects.wake_at_ms <= NOW_MS
            event = Tick()
    return replica, costs


@pytest.mark.parametrize(
    "shape", [prioritised, delayed, pytest.param(moved, marks=pytest.mark.slow), resting]
)
def test_no_step_of_a_promotion_grows(shape: Shape) -> None:
    """Of ten times as many stretches; and all of them are where they belong in the end."""
    (_, few), (replica, many) = promoted(shape, FEW), promoted(shape, MANY)
    assert max(many) < GROWTH_MAX * max(few)
    assert replica.master is not None
    is_away = shape in (delayed, resting)
    ready, delays = replica.master.dispatch.ready.levels, replica.master.delays
    assert delays.is_waiting == is_away
    assert delays.count == (MANY if is_away else 0)
    levels = [ready.level(priority).count for priority in ready.priorities]
    if shape is prioritised:
        assert levels == [MANY // 2, MANY // 2, MANY]
    else:
        assert levels == [0 if is_away else MANY]


@pytest.mark.slow
def test_however_much_is_due_in_one_second_an_op_ends_a_portion() -> None:
    """In the order in which it is due."""
    found = []
    for count in (2 * ENTER_COUNT, MANY):
        replica, _ = promoted(due_at_once, count)
        found.append(work_of(lambda: replica.step(NOW_MS, LATER_US, Tick())).count)  # noqa: B023
        due = replica.ring.log.entries[-1].payload
        assert isinstance(due, DueOp)
        assert due.entering == tuple((n, n) for n in range(count, count - ENTER_COUNT, -1))
    assert found[1] < GROWTH_MAX * found[0]
