"""Queues that handles on a node declare and delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirrorq import clock
from mirrorq.api.host import Declared
from mirrorq.cluster.catalog.records import QueueRecord
from mirrorq.engine.events import SessionClosed
from mirrorq.errors import ConfigError, PreconditionFailed
from mirrorq.protocol.commands import DeclareQueue, DeclareShards, DeleteQueue
from mirrorq.protocol.identities import SessionId
from mirrorq.protocol.validation import declaration_error
from mirrorq.waiting import Latch

if TYPE_CHECKING:
    from mirrorq.cluster.catalog.sharding import ShardedRecord
    from mirrorq.node.calls import NodeCalls
    from mirrorq.node.driver import Driver
    from mirrorq.node.overview import Overview

__all__ = ["NodeQueues"]

SERVED_LOOK_S = 1.0
"""Who waits for a new queue's master looks this often whether the node is closed."""


class NodeQueues:
    """Of one node. Every method may be called from any thread.

    Args:
        driver: its engine has the catalog.
        calls: have things done on its thread.
        overview: what the node knows of queues.
    """

    def __init__(self, driver: Driver, calls: NodeCalls, overview: Overview) -> None:
        self._driver = driver
        self._calls = calls
        self._overview = overview

    def declare(
        self,
        name: str,
        *,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        passive: bool,
        timeout: float | None,
        shards: int | None,
    ) -> Declared:
        """Declare a queue: see `Node.queue`."""
        wrong = declaration_error(
            name, exclusive, auto_delete, shards, passive=passive, durable=durable
        )
        if wrong:
            raise ConfigError(wrong)
        if passive:
            self._calls.wait_ready(lambda: self._overview.is_ready, timeout)
            return self._calls.look(lambda: self._overview.found(name))
        known, sharded = self._known(name)
        if (
            known is not None
            and shards is None
            and (known.durable, known.auto_delete) == (durable, auto_delete)
            and not (known.exclusive or exclusive)
            and self._overview.is_ready
        ):
            return Declared(known.id)
        owner = self._driver.new_session() if exclusive else None
        node = self._driver.engine.me.node
        command: DeclareQueue | DeclareShards
        command = DeclareQueue(name, durable, exclusive, auto_delete, node, owner, ())
        if shards is not None:
            command = DeclareShards(name, shards, durable, node, ())
        queue_id = self._calls.command(command, timeout).value
        try:
            if known is None and sharded is None:
                self._wait_served(queue_id, timeout)
        except BaseException:
            self._disown(queue_id, owner)
            raise
        return Declared(queue_id, owner, shards=self.rings_of(queue_id))

    def _known(self, name: str) -> tuple[QueueRecord | None, ShardedRecord | None]:
        catalog = self._driver.engine.catalog
        found: tuple[QueueRecord | None, ShardedRecord | None] = (None, None)
        return self._calls.run(
            lambda: (catalog.queue_named(name), catalog.sharded_named(name)), 1.0, found
        )

    def _disown(self, queue_id: int, owner: SessionId | None) -> None:
        """No handle comes of the declaration: an exclusive queue ends."""
        if owner is not None:
            self._driver.call(lambda: self._driver.post(SessionClosed(owner, queue_id)))

    def _wait_served(self, queue_id: int, timeout: float | None) -> None:
        """A new queue: until its master has reported that it serves."""
        served = Latch()
        deadline = None if timeout is None else clock.now_ms() + int(timeout * 1000)

        def is_over() -> bool:
            return served.is_set() or self._overview.is_served(queue_id)

        self._driver.call(lambda: self._driver.when(is_over, served.set))
        while not served.wait(SERVED_LOOK_S):
            if deadline is not None and clock.now_ms() >= deadline:
                break
            self._calls.check_open()
        served.set()
        self._calls.check_open()

    def rings_of(self, queue_id: int) -> tuple[int, ...]:
        """Ids of the shards of a sharded queue, () of another."""
        record = self._driver.engine.catalog.sharded(queue_id)
        return () if record is None else record.rings

    def name_of(self, queue_id: int) -> str:
        """The queue's name, "" when there is none of this id."""
        catalog = self._driver.engine.catalog
        record = catalog.sharded(queue_id) or catalog.queue(queue_id)
        return "" if record is None else record.name

    def delete(
        self, queue_id: int, *, if_empty: bool, if_unused: bool, timeout: float | None
    ) -> None:
        """Delete a queue with everything in it.

        Raises:
            PreconditionFailed: it is not empty, or has consumers, and that was asked; or it is
                one shard of a queue.
        """
        objection = self._calls.look(
            lambda: self._overview.objection(queue_id, if_empty=if_empty, if_unused=if_unused)
        )
        if objection:
            raise PreconditionFailed(objection)
        self._calls.command(DeleteQueue(queue_id), timeout)
