"""Messages that have ended in a queue and are on their way to other queues: applied state. Pure.

An OutboxOp ends messages here and makes them *entries* for another queue, numbered without gaps for
each target. Bodies stay in the frames of this queue, and an entry names their sequences. Frames
with entries are kept, and fetched by joining members, like frames with live messages. `courier`
publishes entries, with their numbers, at the target's master. An OutboxDoneOp ends entries when the
target has confirmed.

The numbers belong to the queue's own producer id, `producer_of`. An unclean promotion begins
another past, in which other messages may get the same numbers. Each past therefore has its own id.

For a target without entries only the next number is kept. For a deleted target nothing is kept
after an OutboxDoneOp that reports the deletion.

Invariants:
1. entries of one target stand in order of number, without gaps, up to its `next_number`.
2. `kept` holds the sequences of all entries. None is live, and none is in two entries.
3. every target outbox has an entry; a target has an outbox or a number in `idle`, never both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec
from attrs import define, evolve, field

from mirrorq.containers.ranges import Range, RangeSet
from mirrorq.protocol.effects import OutboxEntry
from mirrorq.protocol.identities import OUTBOX_BIT, is_spool

GENERATION_SHIFT = 40
TASK = "errand"
"""Reason of an entry that is no message but a task about staged messages (see `staging`). Such an
entry has no sequence."""
PUT = "put"
"""Reason of an entry for a message that was published for the target, and did not end here."""

Image = list[tuple[int, int, list[tuple[int, int, int, str, int]]]]
"""(target, next number, entries) of each target outbox."""


def producer_of(queue_id: int, generation: int) -> int:
    """Producer id under which a queue's entries are published.

    Args:
        generation: number of unclean promotions of the queue. Each generation has its own id.
    """
    return OUTBOX_BIT | generation << GENERATION_SHIFT | queue_id


def is_outbox(producer: int) -> bool:
    """Return true if the producer id belongs to another queue."""
    return bool(producer & OUTBOX_BIT) and not is_spool(producer)


def needs_no_op(producer: int) -> bool:
    """Return true if the producer begins with the first op that names the id."""
    return bool(producer & OUTBOX_BIT)


def sender_of(producer: int) -> int:
    """Id of the queue behind this producer id."""
    return producer & (1 << GENERATION_SHIFT) - 1


@define
class TargetOutbox:
    """Entries on their way to one queue."""

    next_number: int = 1
    entries: deque[OutboxEntry] = field(factory=deque)


class Outbox(msgspec.Struct, gc=False, eq=False):
    """All entries of a queue."""

    target_outboxes: dict[int, TargetOutbox] = msgspec.field(default_factory=dict)
    """Outboxes that have entries, by target id."""
    idle: dict[int, int] = msgspec.field(default_factory=dict)
    """Next number of each target without entries."""
    fresh: dict[int, None] = msgspec.field(default_factory=dict)
    """Targets with new entries that the courier has not seen. Not part of the state, and not read
    on a mirror."""
    kept: RangeSet = msgspec.field(default_factory=RangeSet)
    """Sequences of this queue with bodies needed by entries."""
    _tasks: int = 0
    """Number of entries that are tasks."""

    def messages_for(self, target: int) -> int:
        """Return the number of messages on their way to one queue."""
        target_outbox = self.target_outboxes.get(target)
        entries = target_outbox.entries if target_outbox is not None else ()
        return sum(entry.last - entry.first + 1 for entry in entries if entry.reason != TASK)

    @property
    def count(self) -> int:
        """Number of messages and tasks on their way."""
        return self.kept.count + self._tasks

    @property
    def entry_count(self) -> int:
        """Number of entries. An entry holds one or many messages."""
        return sum(len(target_outbox.entries) for target_outbox in self.target_outboxes.values())

    def __contains__(self, target: object) -> bool:
        """Return true if the next number for the target is known."""
        return target in self.target_outboxes or target in self.idle

    def __bool__(self) -> bool:
        return bool(self.target_outboxes or self.idle)

    def next_number(self, target: int) -> int:
        """Number of the next entry for the target."""
        target_outbox = self.target_outboxes.get(target)
        return self.idle.get(target, 1) if target_outbox is None else target_outbox.next_number

    def _target_outbox(self, target: int) -> TargetOutbox:
        """Return the target's outbox, to which the caller adds an entry."""
        self.fresh[target] = None
        target_outbox = self.target_outboxes.get(target)
        if target_outbox is None:
            target_outbox = self.target_outboxes[target] = TargetOutbox(self.idle.pop(target, 1))
        return target_outbox

    def add(self, target: int, ranges: Iterable[Range], reason: str, stamp_us: int) -> None:
        """Add ended messages as entries that are to be published in the target."""
        for first, last in ranges:
            target_outbox = self._target_outbox(target)
            target_outbox.entries.append(
                OutboxEntry(target_outbox.next_number, first, last, reason, stamp_us)
            )
            target_outbox.next_number += last - first + 1
            self.kept.add(first, last)

    def add_task(self, target: int, stamp_us: int) -> int:
        """Add a task for the target; return its number."""
        target_outbox = self._target_outbox(target)
        number = target_outbox.next_number
        target_outbox.entries.append(OutboxEntry(number, 0, 0, TASK, stamp_us))
        self._tasks += 1
        target_outbox.next_number += 1
        return number

    def done(self, target: int, number: int) -> tuple[Range, ...]:
        """Remove entries up to `number`; return sequences whose bodies are not needed any more."""
        target_outbox = self.target_outboxes.get(target)
        ended: list[Range] = []
        while (
            target_outbox is not None
            and target_outbox.entries
            and target_outbox.entries[0].number <= number
        ):
            entry = target_outbox.entries.popleft()
            last = min(entry.last, entry.first + number - entry.number)
            if entry.reason == TASK:
                self._tasks -= 1
            else:
                ended.append((entry.first, last))
            if last < entry.last:
                rest = evolve(entry, number=number + 1, first=last + 1)
                target_outbox.entries.appendleft(rest)
        for first, last in ended:
            self.kept.remove(first, last)
        if target_outbox is not None and not target_outbox.entries:
            del self.target_outboxes[target]
            self.fresh.pop(target, None)
            self.idle[target] = target_outbox.next_number
        return tuple(ended)

    def forget(self, target: int) -> None:
        """Forget the number of a deleted target. The next such op ends entries that were added
        since the decision."""
        self.idle.pop(target, None)

    def begin_anew(self, lost: Iterable[Range]) -> list[tuple[int, int, int]]:
        """Apply an unclean promotion: drop lost bodies, number entries under another id.

        Returns:
            (target, old number, new number) of each task.
        """
        tasks = []
        gone = RangeSet(lost)
        old, self.target_outboxes, self.kept = self.target_outboxes, {}, RangeSet()
        self.idle, self.fresh = {}, {}
        self._tasks = 0
        for target, target_outbox in old.items():
            for entry in target_outbox.entries:
                if entry.reason == TASK:
                    number = self.add_task(target, entry.stamp_us)
                    tasks.append((target, entry.number, number))
                    continue
                left = RangeSet(((entry.first, entry.last),))
                for first, last in gone.within(entry.first, entry.last):
                    left.remove(first, last)
                self.add(target, left, entry.reason, entry.stamp_us)
        return tasks

    def image(self) -> Image:
        """The outbox as plain data. Equal outboxes give equal data."""
        made: Image = [(target, number, []) for target, number in self.idle.items()]
        made += [
            (
                target,
                target_outbox.next_number,
                [(p.number, p.first, p.last, p.reason, p.stamp_us) for p in target_outbox.entries],
            )
            for target, target_outbox in self.target_outboxes.items()
        ]
        return sorted(made, key=lambda one: one[0])

    @classmethod
    def restore(cls, image: Image, next_sequence: int) -> Outbox:
        """Read the result of `image`. Raises ValueError when the data break an invariant."""
        made = cls()
        for target, next_number, entries in image:
            target_outbox = TargetOutbox(next_number)
            number = entries[0][0] if entries else next_number
            for fields in entries:
                entry = OutboxEntry(*fields)
                is_task = entry.reason == TASK
                is_sound = entry.number == number and entry.first <= entry.last < next_sequence
                if is_task != (entry.last == 0):
                    is_sound = False
                if not is_sound or made.kept.within(entry.first, entry.last):
                    raise ValueError(f"an outbox for queue {target} with a wrong entry {entry}")
                if is_task:
                    made._tasks += 1
                else:
                    made.kept.add(entry.first, entry.last)
                target_outbox.entries.append(entry)
                number = entry.last_number + 1
            if number != next_number:
                raise ValueError(f"an outbox for queue {target} whose next number is {number}")
            if target_outbox.entries:
                made.target_outboxes[target] = target_outbox
            elif next_number > 1:
                made.idle[target] = next_number
        made.target_outboxes = dict(sorted(made.target_outboxes.items()))
        made.fresh = dict.fromkeys(made.target_outboxes)
        return made
