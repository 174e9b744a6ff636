"""Requests of a node to the catalog's leader that have no answer yet. Pure.

A request goes to the current leader, and again when no answer comes. Its number tells the catalog a
repeat from a second request. Success is seen when the command is applied here; a refusal comes as
an answer.

A user's request ends when the user stops waiting. A request of the node itself has no recipient for
its outcome. The node opens it once, even if it wants the same again while there is no leader. A
view change replaces an unsent view change for the same queue.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from attrs import define

from mirrorq.containers.timers import FOREVER_MS, Deadlines
from mirrorq.engine.events import Answer
from mirrorq.protocol.commands import CatalogCommand, ChangeView, DropCopy

ASK_AGAIN_MS = 500
"""A catalog request without an outcome is sent again after so many milliseconds."""
RETRY_MS = 20
"""The same delay after the leader has answered "not yet"."""
SENT_MAX = 64
"""Maximum number of requests sent in one step."""
NOBODY = 0
"""Token of a request whose answer is not delivered to any caller."""


@define
class PendingRequest:
    """A request without an answer yet, and when it was last sent."""

    number: int
    token: int
    command: CatalogCommand
    sent_ms: int = 0


class CatalogRequests:
    """Open requests of the node by number; numbers grow. The engine owns the object."""

    def __init__(self) -> None:
        self._open: dict[int, PendingRequest] = {}
        self._again = Deadlines()
        """When to send each request again."""
        self._wishes: dict[Hashable, int] = {}
        """Subject of each request of the node itself -> number."""
        self.is_busy = False
        """True if requests were added and the engine has not yet seen all outcomes."""
        self.newest = 0
        """Number of the newest request."""
        self._endings: list[tuple[int, int, PendingRequest, Answer]] = []
        """(queue, until, request, answer) of deletions that wait for an outbox."""

    def __bool__(self) -> bool:
        return bool(self._open)

    def __len__(self) -> int:
        return len(self._open)

    def add(self, token: int, command: CatalogCommand) -> None:
        """Add a user's request. The outcome is reported under the token."""
        self.is_busy = True
        self.newest += 1
        self._open[self.newest] = PendingRequest(self.newest, token, command)
        self._again.set(self.newest, 0)

    def wish(self, command: CatalogCommand) -> None:
        """Add a request of the node itself, unless an equal request is open. An older request on
        the same subject is replaced."""
        about = _about(command)
        number = self._wishes.get(about)
        if number is not None and self._open[number].command == command:
            return
        if number is not None:
            self.finish(number)
        self.add(NOBODY, command)
        self._wishes[about] = self.newest

    def finish(self, number: int) -> PendingRequest | None:
        """End a request: its outcome is known, or no longer wanted."""
        ask = self._open.pop(number, None)
        if ask is not None:
            self._again.set(number, None)
            if ask.token == NOBODY:
                self._wishes.pop(_about(ask.command), None)
        return ask

    def take_all(self, token: int) -> list[PendingRequest]:
        """End the requests of a token because their caller has stopped waiting."""
        numbers = [number for number, ask in self._open.items() if ask.token == token]
        return [ask for ask in map(self.finish, numbers) if ask is not None]

    def is_open(self, kind: type[CatalogCommand]) -> bool:
        return any(isinstance(ask.command, kind) for ask in self._open.values())

    def is_about(self, number: int, kind: type[CatalogCommand]) -> bool:
        """Return true if a request is open and asks for a command of the given kind."""
        ask = self._open.get(number)
        return ask is not None and isinstance(ask.command, kind)

    @property
    def oldest(self) -> int:
        """Number of the oldest open request: lower numbers are not repeated any more."""
        return next(iter(self._open))

    def due(self, now_ms: int) -> list[PendingRequest]:
        """Return the requests to send now and count them as sent, at most `SENT_MAX` in a step."""
        found = [self._open[number] for number in self._again.take_due(now_ms, SENT_MAX)]
        for ask in found:
            ask.sent_ms = now_ms
            self._again.set(ask.number, now_ms + ASK_AGAIN_MS)
        return found

    def retry(self, number: int) -> None:
        """Send a request again soon: the leader cannot do the command yet."""
        waiting = self._open.get(number)
        if waiting is not None:
            self._again.set(number, waiting.sent_ms + RETRY_MS)

    # --- Deletions whose queue still has an outbox ----------------------------------------

    def await_end(self, queue_id: int, until_ms: int, ask: PendingRequest, answer: Answer) -> None:
        """Keep the answer to a deletion until the queue is gone, or until a deadline."""
        self.is_busy = True
        self._endings.append((queue_id, until_ms, ask, answer))

    def ended(
        self, now_ms: int, is_gone: Callable[[int], bool]
    ) -> list[tuple[PendingRequest, Answer]]:
        """Return deletions that have ended, or whose deadline has passed."""
        found = [e for e in self._endings if now_ms >= e[1] or is_gone(e[0])]
        if found:
            self._endings = [ending for ending in self._endings if ending not in found]
        return [(ask, answer) for _, _, ask, answer in found]

    @property
    def has_endings(self) -> bool:
        """Whether a deletion waits for its queue to be gone."""
        return bool(self._endings)

    def next_ms(self, has_leader: bool) -> int:
        """Return the time of the next action if no event comes. Called at the end of a step."""
        self.is_busy = bool(self._open or self._endings)
        until_ms = min((ending[1] for ending in self._endings), default=FOREVER_MS)
        return min(until_ms, self._again.next_ms) if has_leader else until_ms


def _about(command: CatalogCommand) -> Hashable:
    """Return the subject of a request. A command for an epoch has its queue as the subject, so a
    later command replaces it. Other commands are their own subjects."""
    if isinstance(command, ChangeView | DropCopy):
        return type(command), command.queue_id
    return command
