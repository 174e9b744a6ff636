"""Rules about damaged bytes that are left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.mutations.registry import Patch, named
from mirrorq.cluster.controller.node_states import NodeStates
from mirrorq.containers.ranges import Range, RangeSet
from mirrorq.protocol.identities import MemberId
from mirrorq.replication.master.dispatch import Dispatch
from mirrorq.replication.transfer import Transfer
from mirrorq.wire import frames
from mirrorq.wire.frames import Frame


@named("frames served unchecked")
def _unchecked() -> Sequence[Patch]:
    def check(frame: Frame) -> object:
        return frames.header(frame)

    return [(frames, "check", check)]


@named("damaged frame not fetched")
def _not_fetched() -> Sequence[Patch]:
    """It is handed out and taken back for ever."""

    def on_damage(self: Transfer, now_ms: int, pieces: Iterable[Range]) -> list[Range]:
        return []

    return [(Transfer, "on_damage", on_damage)]


@named("awaited message overtaken")
def _overtaken() -> Sequence[Patch]:
    """It is set aside, and ready again when its body has come."""
    real = Transfer._remove

    def set_front_aside(self: Dispatch, level: RangeSet) -> bool:
        first, last, _ = self._front(level)
        low, high, shift = next(self._origins(first, last))
        _, end = self._bodies.missing.run(low, high)
        self._set_aside(RangeSet(((first, end + shift),)))
        return True

    def remove(self: Transfer, first: int, last: int) -> None:
        real(self, first, last)
        self.judged.append((RangeSet(((first, last),)), False))

    return [(Dispatch, "_set_front_aside", set_front_aside), (Transfer, "_remove", remove)]


@named("lost message waited for")
def _waited_for() -> Sequence[Patch]:
    return [(Transfer, "is_complete", property(lambda self: not self.missing))]


@named("copy that cannot be read leads")
def _broken_leads() -> Sequence[Patch]:
    def is_broken(self: NodeStates, member: MemberId, queue_id: int) -> bool:
        return False

    return [(NodeStates, "is_broken", is_broken)]
