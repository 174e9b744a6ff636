"""What `ha-partition: serve` would add to mirrorq, as far as a model of it needs.

It is not built (docs/decisions.md, "Spools"); what is known of it is kept here, so that it is run.

`Branch` is what a node has done alone with one queue. While a node has no contact with a majority
it would hand out what its own copy has applied. Each hand-out and each ack is a record of the
queue's line in the spool, on the disk before the consumer sees what came of it. When the cut has
healed the records go to the queue as puts do, each once and in order: one op (`Merge`) that ends
what was acked, wherever it is by then, and raises the delivery counts of what was handed out.

`served` puts the master's part of it into the real modules while it lasts.

Messages are named by their sequences. What a copy has applied is stable, so its sequence is that
message's in every past that goes on from there; an unclean promotion gives out none of them again.

Invariants of a branch:
1. what was acked here is handed out here no more: while its record is in the file by `acked`, and
   after that because no copy is read that has not applied the record's op (`merged_to`).
2. a message is held once here.
3. each delivery of a branch says a count above 1: somebody else may have had it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from mirrorq.containers.range_map import RangeMap
from mirrorq.containers.ranges import Range, RangeSet
from mirrorq.protocol.copy_page import Piece
from mirrorq.protocol.ops import Entry, Step
from mirrorq.replication.master.core import Master
from mirrorq.replication.master.dispatch import Dispatch
from mirrorq.replication.master.intake import Intake
from mirrorq.replication.state.queue_state import QueueState

__all__ = ["Branch", "Merge", "end_elsewhere", "served", "without_ending"]


class Branch:
    """One queue's branch on one node.

    Args:
        merged_to: the greatest sequence that the op of a merged record has.
    """

    def __init__(self, merged_to: int = 0) -> None:
        self.merged_to = merged_to
        self.acked = RangeSet()
        """By records that are in the file."""
        self._handed = RangeMap(1)
        """How often, by records that are in the file."""
        self._held = RangeSet()
        """By consumers of this process."""

    def may_read(self, next_sequence: int) -> bool:
        """Whether a copy whose next message has this sequence knows of all that was merged."""
        return next_sequence > self.merged_to

    def pick(self, pieces: Iterable[Piece], count_max: int) -> list[Piece]:
        """What of a copy's ready messages is free here, the first so many, as neighbours of one
        delivery count: (first, last, count of this delivery). Nothing changes."""
        found: list[Piece] = []
        for first, last, count in pieces:
            for low, high in self._free(first, last):
                for start, end, often in self._counted(low, high):
                    upto = min(end, start + count_max - 1)
                    if upto < start:
                        return found
                    found.append((start, upto, count + often + 1))
                    count_max -= upto - start + 1
        return found

    def _free(self, first: int, last: int) -> RangeSet:
        free = RangeSet(((first, last),))
        for taken in (self.acked, self._held):
            for piece in taken.within(first, last):
                free.remove(*piece)
        return free

    def _counted(self, first: int, last: int) -> list[Piece]:
        """first to last, cut where they were handed out differently often."""
        found: list[Piece] = []
        for low, high, (often,) in list(self._handed.walk(first, last)):
            if first < low:
                found.append((first, low - 1, 0))
            found.append((low, high, often))
            first = high + 1
        if first <= last:
            found.append((first, last, 0))
        return found

    # --- Records --------------------------------------------------------------------------

    def note(self, handed: Iterable[Range], acked: Iterable[Range]) -> None:
        """A record is in the file."""
        for piece in handed:
            self._count(*piece, 1)
        for first, last in acked:
            self.acked.add(first, last)

    def on_merged(self, handed: Iterable[Range], acked: Iterable[Range], sequence: int) -> None:
        """A record leaves the file: the queue has it, as the op of this sequence."""
        self.merged_to = max(self.merged_to, sequence)
        for piece in handed:
            self._count(*piece, -1)
        for first, last in acked:
            self.acked.remove(first, last)

    def _count(self, first: int, last: int, change: int) -> None:
        for low, high, often in self._counted(first, last):
            self._handed.remove(low, high)
            if often + change > 0:
                self._handed.put(low, high, often + change)

    # --- Consumers ------------------------------------------------------------------------

    def hold(self, ranges: Iterable[Range]) -> None:
        """These are handed out; the record is in the file."""
        for first, last in ranges:
            self._held.add(first, last)

    def held(self, first: int, last: int) -> list[Range]:
        """What of these is held here."""
        return self._held.within(first, last)

    def let_go(self, ranges: Iterable[Range]) -> None:
        """These are held no more: acked, by a record that is in the file, or given back."""
        for first, last in ranges:
            self._held.remove(first, last)

    @property
    def held_count(self) -> int:
        """Messages that consumers hold."""
        return self._held.count


# --- The master's part --------------------------------------------------------------------


class Merge(Step, frozen=True, gc=False):
    """What a record says. It names messages that its sender may not hold, or that have ended."""

    handed: tuple[Range, ...] = ()
    """Each one's delivery count grows by one."""


@contextmanager
def served() -> Iterator[None]:
    """Have masters and states take merges."""
    with ExitStack() as undo:
        for where, name, value in (
            (QueueState, "_take_step", _applied(QueueState._take_step)),
            (Intake, "_take_step", _admitted(Intake._take_step)),
            (Dispatch, "__init__", _begun(Dispatch.__init__)),
            (Dispatch, "give_back", _given_back(Dispatch.give_back)),
            (Master, "_on_published", _told(Master._on_published)),
        ):
            undo.callback(setattr, where, name, where.__dict__[name])
            setattr(where, name, value)
        yield


def _applied(real: Any) -> Any:
    def take_step(self: QueueState, entry: Entry, step: Step) -> Any:
        if isinstance(step, Merge):
            self._return(step.handed, entry.header.lsn)
        return real(self, entry, step)

    return take_step


def _admitted(real: Any) -> Any:
    def take_step(self: Intake, item: Any) -> None:
        step = self._step_of(item[2])
        if not isinstance(step, Merge):
            real(self, item)
            return
        end_elsewhere(self._term.dispatch, step.ranges)
        self.store(item[2].frame)

    return take_step


def end_elsewhere(dispatch: Any, ranges: Iterable[Range]) -> None:
    """These were acked in a branch, and the op that says so is in the log: they are ready no more,
    whoever holds one holds it no more, and what of them is on its way back does not come."""
    ended = RangeSet(piece for one in ranges for piece in dispatch._state.live.within(*one))
    for first, last in ended:
        dispatch.ending.add(first, last)
        dispatch.take_aside(first, last)
    dispatch.take_out(ended)
    for number in list(dispatch.open):
        delivery = dispatch.open[number]
        held = [one for low, high in delivery.left for one in ended.within(low, high)]
        for first, last in held:
            dispatch.unacknowledged -= delivery.left.remove(first, last)
        if held and not delivery.left and dispatch.is_held(number, delivery.key[0]):
            dispatch._close(number)


def _begun(real: Any) -> Any:
    def init(self: Any, *arguments: Any) -> None:
        real(self, *arguments)
        self.ending = RangeSet()
        """See `end_elsewhere`: their op is not applied yet."""

    return init


def _given_back(real: Any) -> Any:
    def give_back(self: Any, ranges: list[Range]) -> None:
        real(self, without_ending(self.ending, ranges))

    return give_back


def without_ending(ending: RangeSet, ranges: list[Range]) -> list[Range]:
    """What of these may be ready again."""
    left = RangeSet(ranges)
    for first, last in ranges:
        for piece in ending.within(first, last):
            left.remove(*piece)
    return list(left)


def _told(real: Any) -> Any:
    def on_published(self: Any, entry: Entry) -> None:
        if isinstance(entry.step, Merge):
            for first, last in entry.step.ranges:
                self._term.dispatch.ending.remove(first, last)
        real(self, entry)

    return on_published
