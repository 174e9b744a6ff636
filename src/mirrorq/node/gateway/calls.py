"""Calls of one client, or of the node's own process, that have no answer yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec.structs import replace

from mirrorq.engine.events import Answer
from mirrorq.errors import ConfigError, MirrorQError, ShutDown
from mirrorq.protocol import clients
from mirrorq.protocol.commands import CatalogCommand
from mirrorq.protocol.identities import SessionId, client_handle
from mirrorq.protocol.policy import declared_by

if TYPE_CHECKING:
    from mirrorq.node.driver import Driver
    from mirrorq.node.permissions import Permits

COMMAND_BYTES_MAX = 256 * 1024
"""Size limit of one catalog command: every node keeps the command."""
CALLS_MAX = 256
"""Limit on open declarations and questions of one client."""
WATCHES_MAX = 16_384
"""Limit on exchanges with open handles of one client: some 500 bytes each."""


def refused(number: int, error: MirrorQError) -> clients.ClientAnswer:
    """Return the answer that raises an error at the caller."""
    return clients.ClientAnswer(number, 0, type(error).__name__, str(error), b"")


class Requester(Protocol):
    """Source of calls and receiver of answers: the link to a client, or the node's own process."""

    @property
    def identity(self) -> bytes:
        """Identity of the connection; b"" for the node's own process."""
        ...

    @property
    def permits(self) -> Permits | None:
        """Rights of the requester; None: everything is allowed."""
        ...

    @property
    def connection(self) -> str:
        """Connection to which the requester's handles belong."""
        ...

    def send(self, message: clients.ClientAnswer) -> None: ...


class Calls:
    """Calls of one requester, by the requester's numbers. Node thread only.

    Args:
        requester: source of the calls.
        driver: sends catalog commands and keeps the waits.
        owner: returns the session that will own an exclusive queue, by the requester's number.
        note_done: for the node's own process: called with the partial outcome of a call.
    """

    def __init__(
        self,
        requester: Requester,
        driver: Driver,
        owner: Callable[[int], SessionId],
        note_done: Callable[[clients.ClientAnswer], None] | None = None,
    ) -> None:
        self.owner = owner
        self._requester = requester
        self._driver = driver
        self._note_done = note_done
        self._open: dict[int, int] = {}
        """number -> token of the catalog command, 0 while there is none."""
        self._watches: dict[int, None] = {}
        """Calls that watch an exchange. They wait for long and do not count as calls."""

    @property
    def permits(self) -> Permits | None:
        """Rights of the requester; None: everything is allowed."""
        return self._requester.permits

    @property
    def connection(self) -> str:
        """Connection to which the requester's handles belong."""
        return self._requester.connection

    def in_own_name(self, call: clients.ClientDeclare) -> clients.ClientDeclare:
        """Return a client's declaration with the client itself as owner."""
        if self.is_own:
            return call
        connection = self._requester.connection
        handle = client_handle(connection, call.session) if call.exclusive else ""
        arguments = declared_by(call.arguments, connection, handle)
        return replace(call, arguments=arguments)

    @property
    def is_own(self) -> bool:
        """Whether the calls come from the node's own process."""
        return self._note_done is not None

    def admit(self, message: clients.ClientCall) -> bool:
        """Return true if a client's call is to be served. A refused call is answered here."""
        number, requester = message.number, self._requester
        if number in self._open:
            return False
        why = self._too_many(message)
        if why:
            requester.send(refused(number, MirrorQError(why)))
            return False
        self.begin_call(number)
        if isinstance(message.call, clients.ClientWatch):
            self._watches[number] = None
        return True

    def _too_many(self, message: clients.ClientCall) -> str:
        """Return why a client may not open one more call; "": allowed."""
        if isinstance(message.call, clients.ClientWatch):
            if len(self._watches) < WATCHES_MAX:
                return ""
            return f"one client may use {WATCHES_MAX} exchanges at a time: close some"
        if len(self._open) - len(self._watches) < CALLS_MAX:
            return ""
        return f"more than {CALLS_MAX} calls of one client at a time: wait for some"

    def begin_call(self, number: int) -> None:
        """Take a call that is to be served."""
        self._open[number] = 0

    def answer(self, answer: clients.ClientAnswer) -> None:
        """Answer and end a call."""
        self._open.pop(answer.number, None)
        self._watches.pop(answer.number, None)
        self._driver.waits.remove(self._key(answer.number))
        self._requester.send(answer)

    def note_done(self, answer: clients.ClientAnswer) -> None:
        """Report a partial outcome of a call that continues."""
        if self._note_done is not None:
            self._note_done(answer)

    def wait_known(self, number: int, go_on: Callable[[], None]) -> None:
        """Continue a call as soon as the node has applied the catalog up to its own start."""
        key, engine = self._key(number), self._driver.engine
        self._driver.waits.add(
            key, lambda: engine.is_registered or None, lambda _: go_on(), on_catalog=True
        )

    def wait_for(
        self,
        number: int,
        look: Callable[[], clients.ClientAnswer | None],
        *,
        on_catalog: bool = False,
    ) -> None:
        """Answer a call now, or as soon as `look` returns an answer.

        Args:
            on_catalog: only a change of the catalog can bring the answer.
        """
        answer = look()
        if answer is not None:
            self.answer(answer)
            return

        def at_end() -> None:
            # A closing node sends no answer to clients: they ask another node.
            if self.is_own:
                self.answer(refused(number, ShutDown("the node is closed")))

        self._driver.waits.add(
            self._key(number),
            look,
            self.answer,
            at_end=at_end,
            on_catalog=on_catalog,
            is_clients=not self.is_own,
        )

    def ask(
        self, number: int, command: CatalogCommand, answered: Callable[[clients.ClientAnswer], None]
    ) -> None:
        """Request a catalog command; `answered` is called with the outcome."""
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
                answered(clients.ClientAnswer(number, answer.value, answer.error, answer.text, b""))

        token = self._open[number] = self._driver.ask(command, if_awaited)

    def forget(self, number: int) -> None:
        """Drop a call: the requester wants no answer any more."""
        self._driver.waits.remove(self._key(number))
        token = self._open.pop(number, 0)
        self._watches.pop(number, None)
        if token:
            self._driver.forget(token)

    def drop_all(self) -> None:
        """Drop all calls: the requester is gone."""
        for number in list(self._open):
            self.forget(number)

    def _key(self, number: int) -> tuple[bytes, int]:
        return self._requester.identity, number
