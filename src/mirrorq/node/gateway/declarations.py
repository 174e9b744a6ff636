"""Queue declarations of clients and of the node's own process: made, found, or refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

import msgspec

from mirrorq.cluster.catalog.records import QueueRecord, arguments_differing
from mirrorq.cluster.catalog.sharding import ShardedRecord
from mirrorq.errors import ConfigError, MirrorQError, PreconditionFailed, QueueNotFound
from mirrorq.node.gateway.calls import Calls, refused
from mirrorq.protocol import clients, commands
from mirrorq.protocol.policy import arguments_error
from mirrorq.protocol.validation import declaration_error

if TYPE_CHECKING:
    from mirrorq.cluster.catalog.catalog import Catalog
    from mirrorq.node.driver import Driver
    from mirrorq.node.overview import Overview


class Declarations:
    """Declarations of all clients of one node, and of its own process. Node thread only.

    Args:
        driver: its engine has the catalog.
        overview: the node's knowledge of queues.
    """

    def __init__(self, driver: Driver, overview: Overview) -> None:
        self._driver = driver
        self._overview = overview

    @property
    def _catalog(self) -> Catalog:
        return self._driver.engine.catalog

    def declare(self, calls: Calls, number: int, call: clients.ClientDeclare) -> None:
        """Serve one declaration."""
        shards = call.shards or None
        wrong = declaration_error(
            call.name, call.exclusive, call.auto_delete, shards, passive=call.passive
        )
        wrong = wrong or arguments_error(call.arguments)
        if wrong:
            calls.answer(refused(number, ConfigError(wrong)))
            return
        call = calls.in_own_name(call)
        if call.passive:
            calls.wait_for(number, lambda: self._passive(calls, number, call.name))
            return
        known = self._catalog.queue_named(call.name) or self._catalog.sharded_named(call.name)
        permits = calls.permits
        if permits is not None and known is not None and not permits.may_declare(call.name):
            # Not by a command: a command would create the queue again if it was just deleted.
            calls.answer(self._existing(calls, number, known, call))
            return
        if calls.is_own and self._is_as_asked(known, call):
            # The node's own program relies on the local catalog: no other node is asked.
            calls.answer(self._found(calls, clients.ClientAnswer(number, known.id, "", "", b"")))
            return

        def answered(answer: clients.ClientAnswer) -> None:
            if not answer.error:
                calls.note_done(self._found(calls, answer))

            def look() -> clients.ClientAnswer | None:
                is_new = known is None and not answer.error
                if is_new and not self._overview.is_served(answer.value):
                    return None
                return self._found(calls, answer)

            calls.wait_for(number, look)

        calls.ask(number, self._command(calls, call), answered)

    def _is_as_asked(
        self, known: QueueRecord | ShardedRecord | None, call: clients.ClientDeclare
    ) -> TypeGuard[QueueRecord]:
        """Return true if the known queue certainly matches the call, and is neither exclusive nor
        being deleted."""
        return (
            isinstance(known, QueueRecord)
            and not (known.is_ending or call.shards)
            and not arguments_differing(known.arguments, call.arguments)
            and (known.durable, known.auto_delete) == (call.durable, call.auto_delete)
            and not (known.exclusive or call.exclusive)
            and self._overview.is_ready
        )

    def _command(
        self, calls: Calls, call: clients.ClientDeclare
    ) -> commands.DeclareQueue | commands.DeclareShards:
        me, arguments = self._driver.engine.me.node, call.arguments
        if call.shards:
            return commands.DeclareShards(call.name, call.shards, call.durable, me, (), arguments)
        owner = calls.owner(call.session) if call.exclusive else None
        flags = (call.durable, call.exclusive, call.auto_delete)
        return commands.DeclareQueue(call.name, *flags, me, owner, (), arguments)

    def _existing(
        self,
        calls: Calls,
        number: int,
        record: QueueRecord | ShardedRecord,
        call: clients.ClientDeclare,
    ) -> clients.ClientAnswer:
        """Return an existing queue for a client that may not declare queues."""
        asked = (call.durable, call.auto_delete, call.exclusive, call.shards)
        found: tuple[bool, bool, bool, int]
        if isinstance(record, ShardedRecord):
            found = (record.durable, False, False, call.shards and len(record.rings))
        else:
            found = (record.durable, record.auto_delete, record.exclusive, 0)
        is_equal = not arguments_differing(record.arguments, call.arguments)
        if asked == found and is_equal and not call.exclusive:
            return self._found(calls, clients.ClientAnswer(number, record.id, "", "", b""))
        text = f"queue {call.name!r} exists with other properties: declare it as it is, or passive"
        return refused(number, PreconditionFailed(text))

    def _passive(self, calls: Calls, number: int, name: str) -> clients.ClientAnswer | None:
        """Return the queue of a name; None while the node may not know the queue yet."""
        try:
            found = self._overview.found(name)
        except MirrorQError as error:
            is_unsure = isinstance(error, QueueNotFound) and not self._overview.is_ready
            return None if is_unsure else refused(number, error)
        return self._found(calls, clients.ClientAnswer(number, found.queue_id, "", "", b""))

    def _found(self, calls: Calls, answer: clients.ClientAnswer) -> clients.ClientAnswer:
        """Return the answer for a declared queue, with the rights that the client lacks."""
        if answer.error:
            return answer
        sharded = self._catalog.sharded(answer.value)
        refusals, permits = b"", calls.permits
        if permits is not None:
            refusals = msgspec.json.encode(permits.refusals(answer.value))
        rings = () if sharded is None else sharded.rings
        return clients.ClientAnswer(answer.number, answer.value, "", "", refusals, rings=rings)
