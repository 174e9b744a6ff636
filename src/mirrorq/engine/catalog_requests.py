"""What this node has asked of the catalog's leader and has no answer to. Pure.

An ask goes to whoever leads, and again when nothing came of it; its number tells the catalog a
repeat from a second wish. What was done is seen when the command is applied here, a refusal
comes as an answer.

What users ask ends when they wait no longer. What the node itself wants, of which nobody hears
the outcome, is asked once, however often it comes to want it while there is no leader to ask; a
change of a view takes the place of one that was to be asked for the same queue before.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from attrs import define

from mirrorq.containers.timers import FOREVER_MS, Deadlines
from mirrorq.engine.events import Answer
from mirrorq.protocol.commands import CatalogCommand, ChangeView, DropCopy

ASK_AGAIN_MS = 500
"""A catalog request that nothing came of is sent again after this."""
RETRY_MS = 20
"""The same when the leader said that it cannot do it yet."""
SENT_MAX = 64
"""Requests that are sent in one step."""
NOBODY = 0
"""Token of an ask whose answer nobody waits for."""


@define
class PendingRequest:
    """One that has no answer yet, and when it was last sent."""

    number: int
    token: int
    command: CatalogCommand
    sent_ms: int = 0


class CatalogRequests:
    """Requests of this node that have no answer, by number; numbers grow. The engine has it."""

    def __init__(self) -> None:
        self._open: dict[int, PendingRequest] = {}
        self._again = Deadlines()
        """When to send each of them."""
        self._wishes: dict[Hashable, int] = {}
        """What those of the node's own are about -> number."""
        self.is_busy = False
        """Something was asked, and the engine has not seen yet that all of it has its outcome."""
        self.newest = 0
        """Number of the last one that was added."""
        self._endings: list[tuple[int, int, PendingRequest, Answer]] = []
        """(queue, until, ask, answer) of deletions that wait for an outbox."""

    def __bool__(self) -> bool:
        return bool(self._open)

    def __len__(self) -> int:
        return len(self._open)

    def add(self, token: int, command: CatalogCommand) -> None:
        """What a user of the node wants, who is told what came of it."""
        self.is_busy = True
        self.newest += 1
        self._open[self.newest] = PendingRequest(self.newest, token, command)
        self._again.set(self.newest, 0)

    def wish(self, command: CatalogCommand) -> None:
        """What the node itself wants, unless it is asked for already; in place of what it wanted
        before and is of no use beside it."""
        about = _about(command)
        number = self._wishes.get(about)
        if number is not None and self._open[number].command == command:
            return
        if number is not None:
            self.take(number)
        self.add(NOBODY, command)
        self._wishes[about] = self.newest

    def take(self, number: int) -> PendingRequest | None:
        """End an ask: it has its outcome, or nobody wants one."""
        ask = self._open.pop(number, None)
        if ask is not None:
            self._again.set(number, None)
            if ask.token == NOBODY:
                self._wishes.pop(_about(ask.command), None)
        return ask

    def take_all(self, token: int) -> list[PendingRequest]:
        """End the requests that somebody waits for no longer."""
        numbers = [number for number, ask in self._open.items() if ask.token == token]
        return [ask for ask in map(self.take, numbers) if ask is not None]

    def is_open(self, kind: type[CatalogCommand]) -> bool:
        return any(isinstance(ask.command, kind) for ask in self._open.values())

    def is_about(self, number: int, kind: type[CatalogCommand]) -> bool:
        """Whether this request is open and asks for such a command."""
        ask = self._open.get(number)
        return ask is not None and isinstance(ask.command, kind)

    @property
    def oldest(self) -> int:
        """Number of the oldest open ask: nothing below it is repeated any more."""
        return next(iter(self._open))

    def due(self, now_ms: int) -> list[PendingRequest]:
        """Those to be sent now, which counts as done: so many in one step."""
        found = [self._open[number] for number in self._again.take_due(now_ms, SENT_MAX)]
        for ask in found:
            ask.sent_ms = now_ms
            self._again.set(ask.number, now_ms + ASK_AGAIN_MS)
        return found

    def retry(self, number: int) -> None:
        """The leader cannot do it yet."""
        waiting = self._open.get(number)
        if waiting is not None:
            self._again.set(number, waiting.sent_ms + RETRY_MS)

    # --- Deletions whose queue still has an outbox ----------------------------------------

    def await_end(self, queue_id: int, until_ms: int, ask: PendingRequest, answer: Answer) -> None:
        """Keep the answer to a deletion until the queue is gone, or for so long."""
        self.is_busy = True
        self._endings.append((queue_id, until_ms, ask, answer))

    def ended(
        self, now_ms: int, is_gone: Callable[[int], bool]
    ) -> list[tuple[PendingRequest, Answer]]:
        """Deletions that have ended, or that take long: their outbox is not empty."""
        found = [e for e in self._endings if now_ms >= e[1] or is_gone(e[0])]
        if found:
            self._endings = [ending for ending in self._endings if ending not in found]
        return [(ask, answer) for _, _, ask, answer in found]

    @property
    def has_endings(self) -> bool:
        """Whether some deletion waits for its queue to be gone."""
        return bool(self._endings)

    def next_ms(self, has_leader: bool) -> int:
        """When there is something to do next, if nothing comes. Called at the end of a step."""
        self.is_busy = bool(self._open or self._endings)
        until_ms = min((ending[1] for ending in self._endings), default=FOREVER_MS)
        return min(until_ms, self._again.next_ms) if has_leader else until_ms


def _about(command: CatalogCommand) -> Hashable:
    """What a wish is about. One that names an epoch is about its queue: it is of no use beside a
    later one. Others stand for themselves."""
    if isinstance(command, ChangeView | DropCopy):
        return type(command), command.queue_id
    return command
