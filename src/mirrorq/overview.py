"""What one node knows of all queues of the cluster, for its users and its clients alike.

Everything is read from what is at hand on the node thread, which alone calls this: nobody is
asked, nothing waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import evolve

from mirrorq import clock
from mirrorq.catalog import exclusive_text
from mirrorq.errors import MirrorQError, PreconditionFailed, QueueNotFound
from mirrorq.host import Declared
from mirrorq.shard_status import listed, shard_text, summed
from mirrorq.status import QueueStatus

if TYPE_CHECKING:
    from mirrorq.driver import Driver
    from mirrorq.engine import Engine
    from mirrorq.permits import Permits
    from mirrorq.store import Store

__all__ = ["Overview"]


class Overview:
    """Answers questions about queues, as of now."""

    def __init__(self, driver: Driver, store: Store) -> None:
        self._driver = driver
        self._store = store

    @property
    def _engine(self) -> Engine:
        return self._driver.engine

    @property
    def is_ready(self) -> bool:
        """Whether the node takes part in a cluster that has a leader. From any thread."""
        engine = self._engine
        return engine.is_registered and engine.leader is not None

    def is_served(self, queue_id: int) -> bool:
        """Whether a queue's master has been heard of, or the queue is no more."""
        engine = self._engine
        sharded = engine.catalog.sharded(queue_id)
        if sharded is not None:
            return all(map(self.is_served, sharded.rings))
        replica = engine.replicas.get(queue_id)
        if replica is not None and replica.is_master:
            return replica.is_serving
        return queue_id in engine.reports or engine.catalog.queue(queue_id) is None

    def found(self, name: str) -> Declared:
        """The queue of this name.

        Raises:
            QueueNotFound: there is none, as far as this node knows.
            PreconditionFailed: it belongs to one handle.
        """
        catalog = self._engine.catalog
        sharded = catalog.sharded_named(name)
        if sharded is not None:
            return Declared(sharded.id, shards=sharded.rings)
        record = catalog.queue_named(name)
        if record is None:
            raise QueueNotFound(f"no queue is named {name!r}: declare it, or correct the name")
        if record.exclusive:
            raise PreconditionFailed(exclusive_text(record))
        return Declared(record.id)

    def objection(self, queue_id: int, *, if_empty: bool, if_unused: bool) -> str:
        """Why this queue must not be deleted on these conditions, "" when it may be."""
        home = self._engine.catalog.home_of(queue_id)
        if home is not None:
            return shard_text(home)
        if not (if_empty or if_unused):
            return ""
        status = self.status(queue_id)
        if if_empty and status.messages:
            return f"queue {status.name!r} has {status.messages} messages: purge it first"
        if if_unused and status.consumers:
            return f"queue {status.name!r} has {status.consumers} consumers: cancel them first"
        return ""

    def status(self, queue_id: int) -> QueueStatus:
        """What users are told of a queue, a sharded one or a ring."""
        sharded = self._engine.catalog.sharded(queue_id)
        if sharded is not None:
            return summed(sharded, [self.status(ring) for ring in sharded.rings])
        status = QueueStatus.of(
            self._engine,
            queue_id,
            clock.now_ms(),
            self._queue_bytes(queue_id),
            self._driver.blocked_by,
        )
        more = self._driver.watch.warnings_of(queue_id)
        return evolve(status, warnings=status.warnings + more) if more else status

    def statuses(self, *, shards: bool, permits: Permits | None = None) -> list[QueueStatus]:
        """The status of every queue, by name.

        Args:
            shards: after each sharded queue that of each of its shards.
            permits: of who asks, and is shown what it may know of; None: everything.
        """
        ids = listed(self._engine.catalog, shards=shards)
        return [self.status(one) for one in ids if permits is None or permits.sees(one)]

    def _queue_bytes(self, queue_id: int) -> int:
        try:
            return self._store.queue_bytes(queue_id)
        except MirrorQError:
            return 0
