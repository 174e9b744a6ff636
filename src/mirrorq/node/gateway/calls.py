"""Calls of one client, or of the node's own process, that have no answer yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec.structs import replace

from mirrorq.engine.events import Answer
from mirrorq.errors import ConfigError, MirrorQError, ShutDown
from mirrorq.protocol.clients import (
    ClientAnswer,
    ClientCall,
    ClientDeclare,
    ClientWatch,
)
from mirrorq.protocol.commands import CatalogCommand
from mirrorq.protocol.identities import SessionId, client_handle
from mirrorq.protocol.policy import declared_by

if TYPE_CHECKING:
    from mirrorq.node.driver import Driver
    from mirrorq.node.permissions import Permits

COMMAND_BYTES_MAX = 256 * 1024
"""Of one command of the catalog, which every node keeps."""
CALLS_MAX = 256
"""Declarations and questions of one client under way."""
WATCHES_MAX = 16_384
"""Exchanges that handles of one client are open on: some 500 bytes each."""


def refused(number: int, error: MirrorQError) -> ClientAnswer:
    """The answer that has this raised where the call was made."""
    return ClientAnswer(number, 0, type(error).__name__, str(error), b"")


class Requester(Protocol):
    """Who calls, and where answers go: the link to a client, or the node's own process."""

    @property
    def identity(self) -> bytes:
        """Of the connection, b"" of the node's own process."""
        ...

    @property
    def permits(self) -> Permits | None:
        """What it may do; None: everything."""
        ...

    @property
    def connection(self) -> str:
        """What a client's handles belong to, "" of the node's own process."""
        ...

    def send(self, message: ClientAnswer) -> None: ...


class Calls:
    """Of one requester, each by the number that this one gave it. The node thread's.

    Args:
        requester: who calls.
        driver: asks the catalog, and has what is waited for.
        owner: the session that is to own an exclusive queue, by the requester's number for it.
        note_done: of the node's own process: told what is done already of a call that goes on.
    """

    def __init__(
        self,
        requester: Requester,
        driver: Driver,
        owner: Callable[[int], SessionId],
        note_done: Callable[[ClientAnswer], None] | None = None,
    ) -> None:
        self.owner = owner
        self._requester = requester
        self._driver = driver
        self._note_done = note_done
        self._open: dict[int, int] = {}
        """number -> token of what was asked of the catalog, 0 while there is none."""
        self._watches: dict[int, None] = {}
        """Those of them that watch an exchange: they are no calls, and wait for long."""

    @property
    def permits(self) -> Permits | None:
        """What its requester may do; None: everything."""
        return self._requester.permits

    def in_own_name(self, call: ClientDeclare) -> ClientDeclare:
        """A client's declaration with this client as owner, whichever owner it names."""
        if self.is_own:
            return call
        connection = self._requester.connection
        handle = client_handle(connection, call.session) if call.exclusive else ""
        arguments = declared_by(call.arguments, connection, handle)
        return replace(call, arguments=arguments)

    @property
    def is_own(self) -> bool:
        """Whether they are of the node's own process."""
        return self._note_done is not None

    def admit(self, message: ClientCall) -> bool:
        """Whether a call of a client is to be served; one that must not be is answered here."""
        number, requester = message.number, self._requester
        if number in self._open:
            return False
        why = self._too_many(message)
        if why:
            requester.send(refused(number, MirrorQError(why)))
            return False
        self.begin(number)
        if isinstance(message.call, ClientWatch):
            self._watches[number] = None
        return True

    def _too_many(self, message: ClientCall) -> str:
        """Why a client may not have one more under way, "" when it may."""
        if isinstance(message.call, ClientWatch):
            if len(self._watches) < WATCHES_MAX:
                return ""
            return f"one client may use {WATCHES_MAX} exchanges at a time: close some"
        if len(self._open) - len(self._watches) < CALLS_MAX:
            return ""
        return f"more than {CALLS_MAX} calls of one client at a time: wait for some"

    def begin(self, number: int) -> None:
        """Take a call that is to be served."""
        self._open[number] = 0

    def answer(self, answer: ClientAnswer) -> None:
        """A call is over."""
        self._open.pop(answer.number, None)
        self._watches.pop(answer.number, None)
        self._driver.waits.end(self._key(answer.number))
        self._requester.send(answer)

    def note_done(self, answer: ClientAnswer) -> None:
        """What was asked is done; what is still waited for is more than that."""
        if self._note_done is not None:
            self._note_done(answer)

    def wait_until(self, number: int, holds: Callable[[], bool], go_on: Callable[[], None]) -> None:
        """Go on with a call when the catalog has come so far that this holds."""
        self._driver.waits.begin(
            self._key(number), lambda: holds() or None, lambda _: go_on(), on_catalog=True
        )

    def wait_for(
        self, number: int, look: Callable[[], ClientAnswer | None], *, on_catalog: bool = False
    ) -> None:
        """Answer now, or as soon as the look gives something.

        Args:
            on_catalog: nothing but a change of the catalog can bring it.
        """
        answer = look()
        if answer is not None:
            self.answer(answer)
            return

        def at_end() -> None:
            # A node that closes says nothing to clients: they ask another.
            if self.is_own:
                self.answer(refused(number, ShutDown("the node is closed")))

        self._driver.waits.begin(
            self._key(number),
            look,
            self.answer,
            at_end=at_end,
            on_catalog=on_catalog,
            is_clients=not self.is_own,
        )

    def ask(
        self, number: int, command: CatalogCommand, answered: Callable[[ClientAnswer], None]
    ) -> None:
        """Have a catalog command done, and be called with what came of it."""
        size = len(msgspec.msgpack.encode(command))
        if size > COMMAND_BYTES_MAX:
            text = (
                f"this needs {size} bytes in the catalog, more than {COMMAND_BYTES_MAX}: say it "
                "in less"
            )
            answered(refused(number, ConfigError(text)))
            return

        def if_awaited(answer: Answer) -> None:
            is_told = self.is_own or answer.error != "ShutDown"
            if self._open.get(number) == token and is_told:
                self._open[number] = 0
                answered(ClientAnswer(number, answer.value, answer.error, answer.text, b""))

        token = self._open[number] = self._driver.ask(command, if_awaited)

    def forget(self, number: int) -> None:
        """The requester wants no answer any more."""
        self._driver.waits.end(self._key(number))
        token = self._open.pop(number, 0)
        self._watches.pop(number, None)
        if token:
            self._driver.forget(token)

    def end(self) -> None:
        """The requester is gone."""
        for number in list(self._open):
            self.forget(number)

    def _key(self, number: int) -> tuple[bytes, int]:
        return self._requester.identity, number
