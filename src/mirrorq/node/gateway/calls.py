"""What one client has asked for and was not answered yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mirrorq.engine.events import Answer
from mirrorq.errors import AuthenticationError, MirrorQError
from mirrorq.protocol.clients import ClientAnswer, ClientCall
from mirrorq.protocol.commands import CatalogCommand

if TYPE_CHECKING:
    from mirrorq.node.driver import Driver
    from mirrorq.node.gateway.link import Link
    from mirrorq.node.gateway.waits import Look, Waits

__all__ = ["Calls", "refused"]

CALLS_MAX = 256
"""Declarations and questions of one client under way."""


def refused(number: int, error: MirrorQError) -> ClientAnswer:
    """The answer that has this raised where the call was made."""
    return ClientAnswer(number, 0, type(error).__name__, str(error), b"")


class Calls:
    """Of one client, each by the number that the client gave it.

    Args:
        link: where answers go.
        driver: asks the catalog.
        waits: the node's, of all clients.
        hurry: has the waits looked at soon.
    """

    def __init__(
        self, link: Link, driver: Driver, waits: Waits, hurry: Callable[[], None]
    ) -> None:
        self._link = link
        self._driver = driver
        self._waits = waits
        self._hurry = hurry
        self._open: dict[int, int] = {}
        """number -> token of what was asked of the catalog, 0 while there is none."""

    def admit(self, message: ClientCall) -> bool:
        """Whether a call is to be served; one that must not be is answered here."""
        number, link = message.number, self._link
        if number in self._open:
            return False
        if len(self._open) >= CALLS_MAX:
            text = f"more than {CALLS_MAX} calls of one client at a time: wait for some"
            link.send(refused(number, MirrorQError(text)))
            return False
        why = "" if link.permits is None else link.permits.refusal_of_call(message)
        if why:
            link.send(refused(number, AuthenticationError(why)))
            return False
        self._open[number] = 0
        return True

    def answer(self, answer: ClientAnswer) -> None:
        """A call is over."""
        self._open.pop(answer.number, None)
        self._waits.end((self._link.identity, answer.number))
        self._link.send(answer)

    def wait_for(self, number: int, look: Look, *, on_catalog: bool = False) -> None:
        """Answer now, or as soon as the look gives something.

        Args:
            on_catalog: nothing but a change of the catalog can bring it.
        """
        answer = look()
        if answer is not None:
            self.answer(answer)
            return
        key = (self._link.identity, number)
        self._waits.begin(key, look, self.answer, on_catalog=on_catalog)
        if not on_catalog:
            self._hurry()

    def ask(
        self, number: int, command: CatalogCommand, answered: Callable[[ClientAnswer], None]
    ) -> None:
        """Have a catalog command done, and be called with what came of it."""

        def if_awaited(answer: Answer) -> None:
            # A node that closes answers too; its clients ask another.
            if self._open.get(number) == token and answer.error != "ShutDown":
                self._open[number] = 0
                answered(ClientAnswer(number, answer.value, answer.error, answer.text, b""))

        token = self._open[number] = self._driver.ask(command, if_awaited)

    def forget(self, number: int) -> None:
        """The client wants no answer any more."""
        self._waits.end((self._link.identity, number))
        token = self._open.pop(number, 0)
        if token:
            self._driver.forget(token)

    def end(self) -> None:
        """The client is gone."""
        for number in list(self._open):
            self.forget(number)
