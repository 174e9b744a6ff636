"""Calls of clients and of the node's own process, beside sessions: one call, one answer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from mirrorq.errors import (
    AuthenticationError,
    ConfigError,
    MirrorQError,
    PreconditionFailed,
    ProtocolError,
    QueueNotFound,
)
from mirrorq.node.bans import outcome_of
from mirrorq.node.copy_reader import seek_copy
from mirrorq.node.gateway.calls import Calls, refused
from mirrorq.node.gateway.declarations import Declarations
from mirrorq.node.status import node_statuses, policy_statuses
from mirrorq.protocol import clients, commands
from mirrorq.protocol.copy_page import pack_pieces
from mirrorq.protocol.printable import unprintable
from mirrorq.protocol.routing import exchange_error

if TYPE_CHECKING:
    from mirrorq.node.driver import Driver
    from mirrorq.node.overview import Overview
    from mirrorq.node.permissions import Permits


class RequestHandler:
    """Serves the calls of all clients of one node, and of its own process. Node thread only.

    Args:
        driver: reads copies and asks other nodes; its engine has the catalog.
        overview: the node's knowledge of queues.
    """

    def __init__(self, driver: Driver, overview: Overview) -> None:
        self._driver = driver
        self._overview = overview
        self._declarations = Declarations(driver, overview)

    def serve(self, calls: Calls, message: clients.ClientCall) -> None:
        """Begin an admitted call, if its requester's key allows the call.

        A starting node does not know every queue yet. A call that would be refused waits until the
        node has applied the catalog up to its own start.
        """
        number, permits, engine = message.number, calls.permits, self._driver.engine
        why = "" if permits is None else permits.refusal_of_call(message)
        if permits is None or not why:
            self._serve(calls, number, message.call)
        elif not engine.is_registered:
            calls.wait_known(number, partial(self.serve, calls, message))
        elif (queue_id := getattr(message.call, "queue", 0)) and not permits.is_known(queue_id):
            text = f"no queue has the id {queue_id}: it was never made, as far as this node knows"
            calls.answer(refused(number, QueueNotFound(text)))
        else:
            calls.answer(refused(number, AuthenticationError(why)))

    def _serve(self, calls: Calls, number: int, call: clients.AnyCall) -> None:
        engine = self._driver.engine
        match call:
            case clients.ClientDeclare():
                self._declarations.declare(calls, number, call)
            case clients.ClientDelete():
                self._delete(calls, number, call)
            case clients.ClientLook(what="attendance"):
                self._look_for_attendance(calls, number)
            case clients.ClientLook(what="queues" | "shards" | "policies") if (
                not engine.is_registered
            ):
                # A starting node would tell of none.
                calls.wait_known(number, partial(self._serve, calls, number, call))
            case clients.ClientLook():
                calls.answer(self._look(calls, number, call))
            case clients.ClientAdminister() if wrong := command_error(call.command):
                calls.answer(refused(number, ConfigError(wrong)))
            case clients.ClientAdminister():
                calls.ask(number, call.command, calls.answer)
            case clients.ClientWatch():
                calls.wait_for(number, lambda: self._seen(number, call), on_catalog=True)
            case clients.ClientRead() | clients.ClientSeek():
                calls.wait_for(number, lambda: self._read(number, call))
            case clients.ClientDisconnect():
                self._disconnect(calls, number, call)

    def _delete(self, calls: Calls, number: int, call: clients.ClientDelete) -> None:
        objection = self._overview.objection(
            call.queue, if_empty=call.if_empty, connection=calls.connection
        )
        if objection:
            calls.answer(refused(number, PreconditionFailed(objection)))
        else:
            calls.ask(number, commands.DeleteQueue(call.queue), calls.answer)

    # --- What this node knows -------------------------------------------------------------

    def seen(self, look: clients.ClientLook, permits: Permits | None = None) -> tuple[object, str]:
        """Return the node's current knowledge under the name of a look.

        Args:
            permits: rights of the requester; None: everything is allowed.

        Returns:
            The knowledge; then the name after which the next page begins, "" without one.

        Raises:
            ProtocolError: the name is unknown.
        """
        match look.what:
            case "status":
                return self._overview.status(look.queue), ""
            case "queues" | "shards":
                return self._overview.page(look.after, look.what == "shards", permits)
            case "nodes":
                return node_statuses(self._driver.engine), ""
            case "policies":
                return policy_statuses(self._driver.engine), ""
        raise ProtocolError(f"nothing to look at is called {look.what!r}")

    def _look(self, calls: Calls, number: int, call: clients.ClientLook) -> clients.ClientAnswer:
        try:
            found, following = self.seen(call, calls.permits)
            return _data(number, found, following)
        except ProtocolError as error:
            return refused(number, error)

    def _seen(self, number: int, watch: clients.ClientWatch) -> clients.ClientAnswer | None:
        """Return an exchange, if it differs from the client's version."""
        catalog = self._driver.engine.catalog
        record = catalog.exchange(watch.exchange)
        version = 0 if record is None else record.version
        if version == watch.version or catalog.applied_index < watch.index:
            return None
        names: dict[int, str] = {}
        rings: dict[int, tuple[int, ...]] = {}
        for binding in () if record is None else record.bindings:
            sharded = catalog.sharded(binding.queue_id)
            queue = sharded or catalog.queue(binding.queue_id)
            if queue is not None:
                names[queue.id] = queue.name
            if sharded is not None:
                rings[sharded.id] = sharded.rings
        return _data(number, clients.Seen(version, catalog.applied_index, record, names, rings))

    def _read(
        self, number: int, call: clients.ClientRead | clients.ClientSeek
    ) -> clients.ClientAnswer | None:
        """Read from the local copy; None while the copy has not applied enough ops."""
        try:
            if isinstance(call, clients.ClientSeek):
                found = seek_copy(self._driver.engine, call.queue, call.stamp_ms, call.applied)
                return None if found is None else clients.ClientAnswer(number, found, "", "", b"")
            span = (call.first, call.last)
            page = self._driver.read_copy(call.queue, span, call.bytes_max, call.applied)
        except MirrorQError as error:
            return refused(number, error)
        if page is None:
            return None
        data = pack_pieces(page.pieces)
        return clients.ClientAnswer(number, page.next, "", "", data, page.frames)

    # --- What all nodes are asked ---------------------------------------------------------

    def _look_for_attendance(self, calls: Calls, number: int) -> None:
        queries = self._driver.queries
        asked = queries.ask_attendance()

        def look() -> clients.ClientAnswer | None:
            found = queries.attendance(asked)
            return None if found is None else _data(number, found)

        calls.wait_for(number, look)

    def _disconnect(self, calls: Calls, number: int, call: clients.ClientDisconnect) -> None:
        queries = self._driver.queries
        asked = queries.ask_disconnect(call.name, call.why)

        def look() -> clients.ClientAnswer | None:
            found = queries.disconnected(asked)
            if found is None:
                return None
            error, text = outcome_of(call.name, *found)
            return clients.ClientAnswer(number, found[0], error, text, b"")

        calls.wait_for(number, look)


def _data(number: int, seen: object, text: str = "") -> clients.ClientAnswer:
    return clients.ClientAnswer(number, 0, "", text, msgspec.json.encode(seen))


def command_error(command: commands.Administrative) -> str:
    """Return why a catalog command is refused to everyone, "" when allowed: a client may have left
    its own check out."""
    match command:
        case commands.DeclareExchange():
            return exchange_error(command.name, command.kind, command.alternate)
        case commands.SetPolicy():
            return unprintable("a policy's name", command.name)
    return ""
