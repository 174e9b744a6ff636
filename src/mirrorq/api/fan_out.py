"""Several outcomes as one: of a message that an exchange brings to several queues, of acks in
several shards, and of counts from the masters of several shards.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from mirrorq.api.completion import Outcomes
from mirrorq.api.confirmation import Confirmation, Settlement
from mirrorq.errors import ConfirmUnknown, Full, MirrorQError, NotConfirmed, ShutDown
from mirrorq.protocol.sessions import Counts, Purged

Tell = Callable[[Any, MirrorQError | None], None]


class Part(Confirmation):
    """One queue's part of a message, held by the queue's handle. No caller waits for a part: it
    reports its outcome to the whole, on the host's thread."""

    _tell: Tell | None = None

    def _finish(self, value: Any, error: MirrorQError | None) -> None:
        super()._finish(value, error)
        if self._tell is not None:
            self._tell(value, error)


class PartSettlement(Settlement):
    """One shard's part of a settlement: as `Part`."""

    _tell: Tell | None = None

    def _finish(self, value: Any, error: MirrorQError | None) -> None:
        super()._finish(value, error)
        if self._tell is not None:
            self._tell(value, error)


class Reached(Protocol):
    """A handle on a queue that the message reaches, reduced to the needs of a gathering."""

    name: str
    queue_name: str
    """For a shard the name of the whole queue."""
    outcomes: Outcomes
    is_deleted: bool


class Gathering:
    """The outcomes of one message in all the queues that it reaches, as one. Held by the exchange
    while open; ended by hosts' threads, or by the user's thread after the last put."""

    def __init__(
        self,
        confirmation: Confirmation,
        mandatory: bool,
        count: int,
        on_ended: Callable[[Gathering], None],
    ) -> None:
        self._confirmation = confirmation
        self._mandatory = mandatory
        self._on_ended = on_ended
        self._count = count + 1
        """Number of calls of `end_one`: one for each part, and one for the end of the puts."""
        self._ended = itertools.count(1)
        """Numbers the calls of `end_one`. Several threads call it: each count is one operation."""
        self._sequences: dict[str, int] = {}
        self._errors: dict[str, MirrorQError] = {}
        self._has_stored = False
        """True: a queue has stored the message as new, not as a repeat."""

    def part(self, handle: Reached) -> Part:
        """Return the outcome for one queue."""
        part = Part(handle.outcomes)
        part._tell = partial(self.note_outcome, handle, part)
        return part

    def note_outcome(
        self, handle: Reached, part: Part, value: Any, error: MirrorQError | None
    ) -> None:
        """Note the outcome of one queue. On the host's thread: short."""
        if error is None:
            self._sequences[handle.queue_name] = value
            self._has_stored = self._has_stored or not part._is_duplicate
        elif not handle.is_deleted:
            self._errors[handle.name] = error
        self.end_one()

    def end_one(self) -> None:
        """Count an ended part, or the end of the puts."""
        if next(self._ended) == self._count:
            error = self._error()
            self._confirmation._is_duplicate = bool(self._sequences) and not self._has_stored
            self._confirmation._finish(None if error else self._sequences, error)
            self._on_ended(self)

    def give_up(self) -> None:
        """Drop the gathering: its user was interrupted and has no confirmation."""
        self._on_ended(self)

    def _error(self) -> MirrorQError | None:
        errors = self._errors
        if not errors and (self._sequences or not self._mandatory):
            return None
        if not errors:
            return NotConfirmed("the message reached no queue: bind one, or leave mandatory out")
        text = "; ".join(f"{name}: {error}" for name, error in sorted(errors.items()))
        if self._sequences:
            text += f". Stored in {', '.join(sorted(self._sequences))}"
        if all(isinstance(error, NotConfirmed | Full | ShutDown) for error in errors.values()):
            return NotConfirmed(text)
        return ConfirmUnknown(text)


def settle_together(whole: Settlement, shards: Sequence[Outcomes]) -> list[Settlement]:
    """Return one settlement for each shard, given its outcomes: the whole is done when all are
    done, and failed if any shard has failed."""
    errors: list[MirrorQError] = []
    # Called on the host's thread and, for messages settled before, on the caller's.
    ended = itertools.count(1)

    def tell(_: object, error: MirrorQError | None) -> None:
        if error is not None:
            errors.append(error)
        if next(ended) == len(shards):
            whole._finish(None, _joined(errors))

    return [PartSettlement(outcomes, _tell=tell) for outcomes in shards]


def _joined(errors: Sequence[MirrorQError]) -> MirrorQError | None:
    if len(errors) < 2:
        return errors[0] if errors else None
    return type(errors[0])("; ".join(str(error) for error in errors))


def gathered_reply(replies: Sequence[object]) -> object:
    """Return all shards' replies as one: sums, but the greatest `consumers` and any `waiting`."""
    if isinstance(replies[0], Purged):
        return Purged(0, sum(one.count for one in replies if isinstance(one, Purged)))
    counts = [one for one in replies if isinstance(one, Counts)]
    return Counts(
        0,
        sum(one.ready for one in counts),
        sum(one.unacknowledged for one in counts),
        max((one.consumers for one in counts), default=0),
        0,
        sum(one.ready_bytes for one in counts),
        sum(one.delayed for one in counts),
        waiting=any(one.waiting for one in counts),
    )
