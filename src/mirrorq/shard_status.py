"""A sharded queue's status: that of its shards as one, and in which order queues are listed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mirrorq.status import QueueStatus

if TYPE_CHECKING:
    from mirrorq.catalog import Catalog
    from mirrorq.sharding import ShardedRecord

__all__ = ["listed", "shard_text", "summed"]

_WORST_FIRST = ("paused", "down", "syncing", "running")


def listed(catalog: Catalog, *, shards: bool) -> list[int]:
    """Return the ids of all queues, by name, as users know them.

    Args:
        shards: after each sharded queue its shards, by their number.
    """
    names: dict[str, tuple[int, ...]]
    names = {q.name: (q.id,) for q in catalog.queues() if catalog.home_of(q.id) is None}
    for sharded in catalog.sharded_queues():
        rings = [ring for ring in sharded.rings if catalog.queue(ring) is not None]
        names[sharded.name] = (sharded.id, *rings) if shards else (sharded.id,)
    return [queue_id for name in sorted(names) for queue_id in names[name]]


def shard_text(home: ShardedRecord) -> str:
    """Return the refusal to delete one shard."""
    return (
        f"this is one of the {len(home.rings)} shards of queue {home.name!r}, which needs all of "
        "them: purge it, or delete the queue"
    )


def summed(record: ShardedRecord, parts: Sequence[QueueStatus]) -> QueueStatus:
    """Return the status of a sharded queue out of those of its shards.

    A shard that is no more has the status `unknown`.
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
        missing=tuple(dict.fromkeys(name for part in parts for name in part.missing)),
    )


def _mean(shares: Sequence[float]) -> float | None:
    return sum(shares) / len(shares) if shares else None


def _told(texts: Sequence[str]) -> str:
    """What is said of shards, each text once with the numbers of those that it is said of."""
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
            f"shard {', '.join(gone)} is no more, its last copy was given up: declare the queue "
            "again to make it anew, and open it again"
        )
    texts = dict.fromkeys(text for part in parts for text in part.warnings)
    for text in texts:
        found.append(_told([text if text in part.warnings else "" for part in parts]))
    return tuple(found)
