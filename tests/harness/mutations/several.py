"""Rules that concern several queues at once, or time, and are left out."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from harness.mutations.registry import Patch, named
from mirrorq.api.fan_out import Gathering
from mirrorq.replication.master.delays import Delays
from mirrorq.replication.state.outbox import Outbox
from mirrorq.replication.state.queue_state import QueueState


@named("step's acks forgotten")
def _step_forgets() -> Sequence[Patch]:
    real = QueueState._take_step

    def take_step(self: QueueState, entry: Any, step: Any) -> Any:
        return real(self, entry, replace(step, ranges=()))

    return [(QueueState, "_take_step", take_step)]


@named("step's message forgotten")
def _step_keeps() -> Sequence[Patch]:
    """The ack is taken, and what was to be put into another queue goes nowhere."""
    real = QueueState._take_step

    def take_step(self: QueueState, entry: Any, step: Any) -> Any:
        if not step.target:
            return real(self, entry, step)
        acked = tuple(piece for one in step.ranges for piece in self.live.within(*one))
        return self._end((*acked, (entry.header.first_sequence, entry.header.last_sequence)))

    return [(QueueState, "_take_step", take_step)]


@named("first queue's outcome told for all")
def _first_outcome() -> Sequence[Patch]:
    real = Gathering.end_one

    def end_one(self: Gathering) -> None:
        if not self._confirmation.done():
            self._ended = itertools.count(self._count)
            real(self)

    return [(Gathering, "end_one", end_one)]


@named("outbox forgets one more than has arrived")
def _outbox_forgets() -> Sequence[Patch]:
    real = Outbox.done

    def done(self: Outbox, target: int, number: int) -> Any:
        return real(self, target, number + 1)

    return [(Outbox, "done", done)]


@named("delay of a put forgotten")
def _delay_forgotten() -> Sequence[Patch]:
    real = Delays.wait

    def wait(self: Delays, first: int, last: int, due_us: int) -> None:
        real(self, first, last, 0)

    return [(Delays, "wait", wait)]


@named("unclean promotion loses in silence")
def _silent_loss() -> Sequence[Patch]:
    real = QueueState._begin_anew

    def begin_anew(self: QueueState, payload: Any) -> Any:
        return real(self, replace(payload, lost_count=0))

    return [(QueueState, "_begin_anew", begin_anew)]
