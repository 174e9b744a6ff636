"""One message that reaches several queues through an exchange: their outcomes as one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from mirrorq.api.completion import Outcomes
from mirrorq.api.confirmation import Confirmation
from mirrorq.errors import ConfirmUnknown, Full, MirrorQError, NotConfirmed, ShutDown

__all__ = ["Gathering", "Part", "Reached"]


class Reached(Protocol):
    """What is asked of a handle on a queue that the message reaches."""

    _outcomes: Outcomes
    _queue_name: str
    """Of a shard: that of the whole queue."""
    _is_deleted: bool

    @property
    def name(self) -> str: ...


class Gathering:
    """The outcomes of one message in all the queues that it reaches, as one."""

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
        """Parts, and one for as long as messages are put."""
        self._ended = itertools.count(1)
        """Counted by hosts' threads and by the user's: by one operation."""
        self._sequences: dict[str, int] = {}
        self._errors: dict[str, MirrorQError] = {}

    def part(self, handle: Reached) -> Part:
        """The outcome of one queue."""
        return Part(handle._outcomes, _tell=partial(self.end, handle))

    def end(self, handle: Reached, value: Any, error: MirrorQError | None) -> None:
        """One queue has an outcome. On the host's thread: short."""
        if error is None:
            self._sequences[handle._queue_name] = value
        elif not handle._is_deleted:
            self._errors[handle.name] = error
        self.end_one()

    def end_one(self) -> None:
        """A part has ended, or the last one was put."""
        if next(self._ended) == self._count:
            error = self._error()
            self._confirmation._finish(None if error else self._sequences, error)
            self._on_ended(self)

    def give_up(self) -> None:
        """The user was interrupted while it was put: nobody has its confirmation."""
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


class Part(Confirmation):
    """One queue's part of it: nobody waits for it, it tells the whole."""

    _tell: Callable[[Any, MirrorQError | None], None] | None = None

    def _finish(self, value: Any, error: MirrorQError | None) -> None:
        super()._finish(value, error)
        if self._tell is not None:
            self._tell(value, error)
