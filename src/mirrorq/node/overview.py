"""Knowledge of one node about all queues of the cluster, for its users and its clients alike.

Only the node thread calls these methods. Everything is read from memory; no other node is asked,
and nothing waits.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from attrs import evolve

from mirrorq import clock
from mirrorq.api.host import Declared
from mirrorq.cluster.catalog.records import exclusive_text
from mirrorq.errors import PreconditionFailed, QueueNotFound
from mirrorq.monitoring.status import QueueStatus
from mirrorq.node.known_bytes import known_bytes
from mirrorq.node.status import queue_status
from mirrorq.protocol.policy import shown_arguments

if TYPE_CHECKING:
    from mirrorq.cluster.catalog.sharding import ShardedRecord
    from mirrorq.engine.engine import Engine
    from mirrorq.node.driver import Driver
    from mirrorq.node.permissions import Permits
    from mirrorq.store.node_store import Store

# A sharded queue's status: the sum of its shards; and the order in which queues are listed.
_WORST_FIRST = ("paused", "down", "syncing", "running")


LISTED_MAX = 100
"""Queues and shards after which a page of a list ends: some five milliseconds."""


def shard_text(home: ShardedRecord) -> str:
    """Return the refusal to delete one shard."""
    return (
        f"this is one of the {len(home.rings)} shards of queue {home.name!r}, which needs all of "
        "them: purge it, or delete the queue"
    )


def summed(record: ShardedRecord, parts: Sequence[QueueStatus]) -> QueueStatus:
    """Return the status of a sharded queue, summed from its shards.

    A deleted shard has the status `unknown`.
    """
    mirrors = list(dict.fromkeys(name for part in parts for name in part.mirrors))
    lagging = [n for p in parts for n in p.mirrors if n not in p.synchronised_mirrors]
    masters = dict.fromkeys(part.master for part in parts if part.master is not None)
    syncing = [part for part in parts if part.sync_progress is not None]
    seconds = [p.sync_seconds_left for p in syncing if p.sync_seconds_left is not None]
    states = [part.state for part in parts]
    return QueueStatus(
        name=record.name,
        state=next(state for state in _WORST_FIRST if state in states),
        master=", ".join(masters) or None,
        mirrors=tuple(mirrors),
        synchronised_mirrors=tuple(name for name in mirrors if name not in lagging),
        epoch=max(part.epoch for part in parts),
        messages=sum(part.messages for part in parts),
        messages_ready=sum(part.messages_ready for part in parts),
        messages_unacknowledged=sum(part.messages_unacknowledged for part in parts),
        counts_age_ms=max(part.counts_age_ms for part in parts),
        # A consumer of the queue has a seat at every shard.
        consumers=max(part.consumers for part in parts),
        policy=next((part.policy for part in parts if part.policy is not None), None),
        sync_progress=_mean([p.sync_progress for p in syncing if p.sync_progress is not None]),
        sync_messages_left=sum(part.sync_messages_left for part in parts),
        sync_bytes_left=sum(part.sync_bytes_left for part in parts),
        sync_seconds_left=max(seconds) if syncing and len(seconds) == len(syncing) else None,
        store_bytes=sum(part.store_bytes for part in parts),
        blocked_by=_told([part.blocked_by for part in parts]),
        warnings=_warnings(parts),
        messages_delayed=sum(part.messages_delayed for part in parts),
        messages_staged=sum(part.messages_staged for part in parts),
        bytes_staged=sum(part.bytes_staged for part in parts),
        shortfall=_told([part.shortfall for part in parts]),
        messages_published=sum(part.messages_published for part in parts),
        messages_delivered=sum(part.messages_delivered for part in parts),
        messages_acknowledged=sum(part.messages_acknowledged for part in parts),
        shards=len(parts),
        arguments=shown_arguments(record.arguments),
        missing=tuple(dict.fromkeys(name for part in parts for name in part.missing)),
        messages_lost=sum(part.messages_lost for part in parts),
        deliveries_paused=any(part.deliveries_paused for part in parts),
    )


def _mean(shares: Sequence[float]) -> float | None:
    return sum(shares) / len(shares) if shares else None


def _told(texts: Sequence[str]) -> str:
    """Return the shards' texts, each once with the numbers of its shards."""
    found: dict[str, list[str]] = {}
    for shard, text in enumerate(texts):
        if text:
            found.setdefault(text, []).append(str(shard))
    if len(found) == 1 and all(texts):
        return texts[0]
    return "; ".join(f"shard {', '.join(numbers)}: {text}" for text, numbers in found.items())


def _warnings(parts: Sequence[QueueStatus]) -> tuple[str, ...]:
    gone = [str(shard) for shard, part in enumerate(parts) if not part.name]
    found: list[str] = []
    if gone:
        found.append(
            f"shard {', '.join(gone)} no longer exists, its last copy was given up: declare the "
            "queue again to make it, then open it again"
        )
    texts = dict.fromkeys(text for part in parts for text in part.warnings)
    for text in texts:
        found.append(_told([text if text in part.warnings else "" for part in parts]))
    return tuple(found)


class Overview:
    """Answers questions about queues from the current state. Node thread only, unless a
    method states otherwise."""

    def __init__(self, driver: Driver, store: Store) -> None:
        self._driver = driver
        self._store = store
        self._names: list[str] = []
        self._names_of = (0, 0)
        """Identity of the catalog that the names are of, and its applied index."""

    @property
    def _engine(self) -> Engine:
        return self._driver.engine

    @property
    def is_ready(self) -> bool:
        """Whether the node takes part in a cluster that has a leader. From any thread."""
        engine = self._engine
        return engine.is_registered and engine.leader is not None

    def is_served(self, queue_id: int) -> bool:
        """Return true if a queue's master has reported, or the queue no longer exists."""
        engine = self._engine
        sharded = engine.catalog.sharded(queue_id)
        if sharded is not None:
            return all(map(self.is_served, sharded.rings))
        replica = engine.replicas.get(queue_id)
        if replica is not None and replica.is_master:
            return replica.is_serving
        return queue_id in engine.reports or engine.catalog.queue(queue_id) is None

    def found(self, name: str) -> Declared:
        """Return the queue of a name.

        Raises:
            QueueNotFound: there is none, as far as the node knows, or it is being deleted.
            PreconditionFailed: the queue is exclusive to one handle.
        """
        catalog = self._engine.catalog
        sharded, record = catalog.sharded_named(name), catalog.queue_named(name)
        known = sharded or record
        if known is None:
            raise QueueNotFound(f"no queue is named {name!r}: declare it, or correct the name")
        if known.is_ending:
            raise QueueNotFound(f"queue {name!r} is being deleted: declare it again in a moment")
        if sharded is not None:
            return Declared(sharded.id, shards=sharded.rings)
        assert record is not None
        if record.exclusive:
            raise PreconditionFailed(exclusive_text(record))
        return Declared(record.id)

    def objection(self, queue_id: int, *, if_empty: bool, connection: str) -> str:
        """Return why a connection must not delete a queue under the condition; "": allowed."""
        catalog = self._engine.catalog
        home, record = catalog.home_of(queue_id), catalog.queue(queue_id)
        if home is not None:
            return shard_text(home)
        if record is not None and record.connection not in ("", connection):
            return (
                f"queue {record.name!r} belongs to connection {record.connection}, and ends with "
                "it: disconnect that client, or wait for its end"
            )
        if if_empty:
            status = self.status(queue_id)
            if status.messages:
                return f"queue {status.name!r} has {status.messages} message(s): purge it first"
        return ""

    def status(self, queue_id: int) -> QueueStatus:
        """Return the status of a queue, sharded or not, or of a shard."""
        sharded = self._engine.catalog.sharded(queue_id)
        if sharded is not None:
            return summed(sharded, [self.status(ring) for ring in sharded.rings])
        status = queue_status(
            self._engine,
            queue_id,
            clock.now_ms(),
            known_bytes(partial(self._store.queue_bytes, queue_id)),
            self._driver.blocked_by,
        )
        more = self._driver.watch.warnings_of(queue_id)
        return evolve(status, warnings=status.warnings + more) if more else status

    def page(
        self, after: str, shards: bool, permits: Permits | None = None
    ) -> tuple[list[QueueStatus], str]:
        """Return the status of queues by name, and the name after which the next page begins.

        Args:
            after: begin with the next name.
            shards: list each shard after its sharded queue.
            permits: rights of the requester, who sees only permitted queues; None: all.

        Returns:
            The page, and "" for the name if no queue follows.
        """
        names = self._sorted_names()
        found: list[QueueStatus] = []
        rings = 0
        for at in range(bisect_right(names, after), len(names)):
            if rings >= LISTED_MAX:
                return found, names[at - 1]
            queue_id, *of_shards = self._ids_of(names[at])
            rings += len(of_shards) or 1
            ids = [queue_id, *of_shards] if shards else [queue_id]
            found += [self.status(one) for one in ids if permits is None or permits.sees(one)]
        return found, ""

    def _sorted_names(self) -> list[str]:
        """Return the names of all queues as users know them. Sorted once for each catalog."""
        catalog = self._engine.catalog
        if self._names_of != (id(catalog), catalog.applied_index):
            names = [q.name for q in catalog.queues() if catalog.home_of(q.id) is None]
            names += [sharded.name for sharded in catalog.sharded_queues()]
            self._names_of, self._names = (id(catalog), catalog.applied_index), sorted(names)
        return self._names

    def _ids_of(self, name: str) -> list[int]:
        """Return the id of a queue that exists, then the ids of its shards, by number."""
        catalog = self._engine.catalog
        sharded = catalog.sharded_named(name)
        if sharded is not None:
            return [sharded.id, *(ring for ring in sharded.rings if catalog.queue(ring))]
        record = catalog.queue_named(name)
        assert record is not None
        return [record.id]
