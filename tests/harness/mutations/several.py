"""Rules that concern several queues at once, or time, and are left out."""

from __future__ import annotations

import itertools
from typing import Any

from msgspec.structs import replace

from harness.mutations.registry import Real, instead
from mirrorq.api.fan_out import Gathering
from mirrorq.replication.master.delays import Delays
from mirrorq.replication.state.outbox import Outbox
from mirrorq.replication.state.queue_state import QueueState


@instead("step's acks forgotten", QueueState, "_take_step")
def _step_forgets(real: Real, self: QueueState, entry: Any, step: Any) -> Any:
    return real(self, entry, replace(step, ranges=()))


@instead("step's message forgotten", QueueState, "_take_step")
def _step_keeps(real: Real, self: QueueState, entry: Any, step: Any) -> Any:
    """The ack is taken, and what was to be put into another queue goes nowhere."""
    if not step.target:
        return real(self, entry, step)
    acked = tuple(piece for one in step.ranges for piece in self.live.within(*one))
    return self._end((*acked, (entry.header.first_sequence, entry.header.last_sequence)))


@instead("first queue's outcome told for all", Gathering, "end_one")
def _first_outcome(real: Real, self: Gathering) -> None:
    if not self._confirmation.done():
        self._ended = itertools.count(self._count)
        real(self)


@instead("outbox forgets one more than has arrived", Outbox, "done")
def _outbox_forgets(real: Real, self: Outbox, target: int, number: int) -> Any:
    return real(self, target, number + 1)


@instead("delay of a put forgotten", Delays, "wait")
def _delay_forgotten(real: Real, self: Delays, first: int, last: int, due_us: int) -> None:
    real(self, first, last, 0)


@instead("unclean promotion loses in silence", QueueState, "_begin_anew")
def _silent_loss(real: Real, self: QueueState, payload: Any) -> Any:
    return real(self, replace(payload, lost_count=0))
