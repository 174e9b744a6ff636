"""Rules of a branch and of its merge that are left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from harness import branch, explore_branch
from harness.branch import Branch, Merge
from harness.explore_branch import Record, State
from harness.explore_process import Process
from harness.mutations.registry import Patch, named
from mirrorq.containers.ranges import Range
from mirrorq.protocol.copy_page import Piece
from mirrorq.replication.master.log_tail import Highest


@named("merge applied twice")
def _twice() -> Sequence[Patch]:
    real = explore_branch.World._lose

    def lose(self: Any, state: State) -> State:
        """What was on its way is sent under other numbers."""
        if not state.flights:
            return real(self, state)
        return real(self, state)._replace(base=state.base + state.flights)

    return [(explore_branch.World, "_lose", lose)]


@named("portion of a merge skipped")
def _skipped() -> Sequence[Patch]:
    def merge_step(record: Record) -> Merge | None:
        return None if record.is_put else Merge((), 0, record.handed)

    return [(explore_branch, "merge_step", merge_step)]


@named("branch log cut before its merge is confirmed")
def _cut_early() -> Sequence[Patch]:
    return [(explore_branch, "cut_of", lambda line: len(line.flights))]


@named("branch hands out what is not stable")
def _unstable() -> Sequence[Patch]:
    def ready_in(process: Process) -> list[Piece]:
        replica = process.replica
        assert replica is not None
        coming = [
            (e.header.first_sequence, e.header.last_sequence, 1)
            for e in replica.ring.log
            if e.lsn > replica.state.applied and e.payload is None and e.step is None
        ]
        return [(a, b, 1) for a, b in replica.state.live] + coming

    return [
        (explore_branch, "ready_in", ready_in),
        (Branch, "may_read", lambda *_: True),
    ]


@named("branch reads a copy that lacks its merge")
def _stale() -> Sequence[Patch]:
    return [(Branch, "may_read", lambda *_: True)]


@named("branch's delivery without its flag")
def _unflagged() -> Sequence[Patch]:
    real = Branch.pick

    def pick(self: Branch, pieces: Iterable[Piece], count_max: int) -> list[Piece]:
        return [(a, b, count - 1) for a, b, count in real(self, pieces, count_max)]

    return [(Branch, "pick", pick)]


@named("branch's hand-outs not merged")
def _uncounted() -> Sequence[Patch]:
    def merge_step(record: Record) -> Merge | None:
        return None if record.is_put else Merge(record.acked)

    return [(explore_branch, "merge_step", merge_step)]


@named("what the branch has acked is handed out there again")
def _again() -> Sequence[Patch]:
    def note(self: Branch, handed: Iterable[Range], acked: Iterable[Range]) -> None:
        for piece in handed:
            self._count(*piece, 1)

    return [(Branch, "note", note)]


@named("merged ack of what is held leaves it held")
def _held() -> Sequence[Patch]:
    return [(branch, "end_elsewhere", lambda *_: None)]


@named("merged ack of what is on its way back comes back")
def _back() -> Sequence[Patch]:
    return [(branch, "without_ending", lambda _, ranges: ranges)]


@named("numbers of merges forgotten by the master")
def _forgotten() -> Sequence[Patch]:
    real = Highest.get

    def get(self: Highest, producer: int) -> int | None:
        return 0 if producer == explore_branch.SPOOL else real(self, producer)

    return [(Highest, "get", get)]


@named("spooled message acked alone is sent all the same")
def _sent() -> Sequence[Patch]:
    return [(explore_branch, "ack_put", lambda state, _: state)]


@named("spooled message acked on its way is dropped")
def _dropped() -> Sequence[Patch]:
    def ack_put(state: State, record: Record) -> State:
        records = tuple(one for one in state.records if one.ordinal != record.ordinal)
        return state._replace(records=records, flights=min(state.flights, len(records)))

    return [(explore_branch, "ack_put", ack_put)]
