"""Queues that clients declare: made, found, or refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from mirrorq.cluster.catalog.sharding import ShardedRecord
from mirrorq.errors import ConfigError, MirrorQError, PreconditionFailed, QueueNotFound
from mirrorq.node.gateway.calls import refused
from mirrorq.protocol.clients import ClientAnswer, ClientDeclare
from mirrorq.protocol.commands import DeclareQueue, DeclareShards
from mirrorq.protocol.validation import declaration_error

if TYPE_CHECKING:
    from mirrorq.cluster.catalog.core import Catalog
    from mirrorq.cluster.catalog.records import QueueRecord
    from mirrorq.node.driver import Driver
    from mirrorq.node.gateway.client import Client
    from mirrorq.node.overview import Overview

__all__ = ["Declarations"]


class Declarations:
    """Of all clients of one node.

    Args:
        driver: its engine has the catalog.
        overview: what the node knows of queues.
    """

    def __init__(self, driver: Driver, overview: Overview) -> None:
        self._driver = driver
        self._overview = overview

    @property
    def _catalog(self) -> Catalog:
        return self._driver.engine.catalog

    def declare(self, client: Client, number: int, call: ClientDeclare) -> None:
        """Serve one call."""
        shards = call.shards or None
        wrong = declaration_error(
            call.name, call.exclusive, call.auto_delete, shards, passive=call.passive
        )
        if wrong:
            client.calls.answer(refused(number, ConfigError(wrong)))
            return
        if call.passive:
            client.calls.wait_for(number, lambda: self._passive(client, number, call.name))
            return
        known = self._catalog.queue_named(call.name) or self._catalog.sharded_named(call.name)
        permits = client.link.permits
        if permits is not None and known is not None and not permits.may_declare(call.name):
            # Not by a command: it would make the queue anew if it was deleted this moment.
            client.calls.answer(self._existing(client, number, known, call))
            return

        def answered(answer: ClientAnswer) -> None:
            def look() -> ClientAnswer | None:
                is_new = known is None and not answer.error
                if is_new and not self._overview.is_served(answer.value):
                    return None
                return self._found(client, answer)

            client.calls.wait_for(number, look)

        client.calls.ask(number, self._command(client, call), answered)

    def _command(self, client: Client, call: ClientDeclare) -> DeclareQueue | DeclareShards:
        me = self._driver.engine.me.node
        if call.shards:
            return DeclareShards(call.name, call.shards, call.durable, me, ())
        owner = client.sessions.owner(call.session) if call.exclusive else None
        return DeclareQueue(
            call.name, call.durable, call.exclusive, call.auto_delete, me, owner, ()
        )

    def _existing(
        self,
        client: Client,
        number: int,
        record: QueueRecord | ShardedRecord,
        call: ClientDeclare,
    ) -> ClientAnswer:
        """A queue as it is, for who may not make it."""
        asked = (call.durable, call.auto_delete, call.exclusive, call.shards)
        found: tuple[bool, bool, bool, int]
        if isinstance(record, ShardedRecord):
            found = (record.durable, False, False, call.shards and len(record.rings))
        else:
            found = (record.durable, record.auto_delete, record.exclusive, 0)
        if asked == found and not call.exclusive:
            return self._found(client, ClientAnswer(number, record.id, "", "", b""))
        text = f"queue {call.name!r} exists with other properties: declare it as it is, or passive"
        return refused(number, PreconditionFailed(text))

    def _passive(self, client: Client, number: int, name: str) -> ClientAnswer | None:
        """The queue of this name; None while this node may not have heard of it yet."""
        try:
            found = self._overview.found(name)
        except MirrorQError as error:
            is_unsure = isinstance(error, QueueNotFound) and not self._overview.is_ready
            return None if is_unsure else refused(number, error)
        return self._found(client, ClientAnswer(number, found.queue_id, "", "", b""))

    def _found(self, client: Client, answer: ClientAnswer) -> ClientAnswer:
        """A declared queue, with what this client may not do to it."""
        if answer.error:
            return answer
        sharded = self._catalog.sharded(answer.value)
        refusals, permits = b"", client.link.permits
        if permits is not None:
            refusals = msgspec.json.encode(permits.refusals(answer.value))
        rings = () if sharded is None else sharded.rings
        return ClientAnswer(answer.number, answer.value, "", "", refusals, rings=rings)
