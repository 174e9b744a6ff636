"""Rules about damaged bytes that are left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.mutations.registry import Patch, Real, answer, instead, named
from mirrorq.cluster.controller.node_states import NodeStates
from mirrorq.containers.ranges import Range, RangeSet
from mirrorq.replication.master.ready_messages import ReadyMessages
from mirrorq.replication.transfer import Transfer
from mirrorq.wire import frames
from mirrorq.wire.frames import Frame


@instead("frames served unchecked", frames, "check")
def _unchecked(real: Real, frame: Frame) -> object:
    return frames.header(frame)


@instead("damaged frame not fetched", Transfer, "on_damage")
def _not_fetched(real: Real, self: Transfer, now_ms: int, pieces: Iterable[Range]) -> list[Range]:
    """It is handed out and taken back for ever."""
    return []


@instead("awaited message overtaken", ReadyMessages, "set_front_aside")
def _overtaken(real: Real, self: ReadyMessages, level: RangeSet) -> bool:
    """It is set aside, and ready again when its body has come."""
    first, last, _ = self.front(level)
    low, high, shift = next(self._origins(first, last))
    _, end = self._bodies.missing.first_run(low, high)
    self._set_aside(RangeSet(((first, end + shift),)))
    return True


@instead("awaited message overtaken", Transfer, "_remove")
def _overtaken_remove(real: Real, self: Transfer, first: int, last: int) -> None:
    real(self, first, last)
    self.judged.append((RangeSet(((first, last),)), False))


@named("lost message waited for")
def _waited_for() -> Sequence[Patch]:
    return [(Transfer, "is_complete", property(lambda self: not self.missing))]


answer("copy that cannot be read leads", NodeStates, "is_broken", False)
