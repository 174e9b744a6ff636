"""Queues in bulk: reading without taking, holding without bodies, atomic writes of many messages.

    from mirrorq import bulk

    extent = bulk.extent(queue)                       # the master reports the queue's end
    for batch in bulk.reader(queue).read(1, extent.next_sequence - 1, extent=extent):
        print(batch.first, batch.bodies())
    with bulk.lease(queue, 10_000) as lease:          # held here, read anywhere
        lease.ack()

The Spark connector, `mirrorq.arrow`, forwarders and spools are made of these calls. Each call takes
a blocking handle of a queue, or a node or client. A sequence belongs to one ring: for a sharded
queue the calls take its shards, one by one.

May import: api, session, protocol, wire, containers. Begin with `reading`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirrorq.api.queue import MirroredQueue
from mirrorq.bulk.leases import Claim, RangeLease
from mirrorq.bulk.reading import Batch, Extent, Reader
from mirrorq.bulk.staging import Committed, Staged, StagedAttempt, StagedPart
from mirrorq.errors import PreconditionFailed
from mirrorq.protocol.shard_names import shard_name

if TYPE_CHECKING:
    from mirrorq.api.access import Access
    from mirrorq.api.handle import Handle

__all__ = [
    "Batch",
    "Claim",
    "Committed",
    "Extent",
    "RangeLease",
    "Reader",
    "Staged",
    "StagedAttempt",
    "StagedPart",
    "claim",
    "extent",
    "identity",
    "lease",
    "open_reader",
    "reader",
    "staged",
]


def _ring_of(queue: MirroredQueue, call: str) -> Handle:
    if not isinstance(queue, MirroredQueue):
        raise TypeError(
            f"bulk.{call} takes a mirrorq.MirroredQueue, not {queue!r}: with mirrorq.aio pass "
            "queue.handle, and call it in a thread"
        )
    return queue._ring_for(call)


def extent(queue: MirroredQueue, timeout: float = 5.0) -> Extent:
    """Ask the master how far the queue goes.

    Raises:
        NoQuorum, QueueDown: it did not answer within `timeout` seconds, and why.
    """
    ring = _ring_of(queue, "extent()")
    ring.check()
    counts = ring.counts(timeout)
    return Extent(
        counts.next_sequence,
        counts.ready,
        counts.unacknowledged,
        counts.delayed,
        counts.applied,
        counts.is_paused,
    )


def identity(queue: MirroredQueue) -> str:
    """Return a text that identifies the queue among all queues.

    A queue that is deleted and declared again has another identity. So has a queue of this name in
    another cluster. A program that notes a sequence keeps the identity beside the sequence.
    """
    ring = _ring_of(queue, "identity()")
    return f"{ring.host._lineage:x}.{ring.queue_id}"


def reader(queue: MirroredQueue) -> Reader:
    """Return a reader of the queue's messages, which takes no message."""
    ring = _ring_of(queue, "reader()")
    ring.check()
    return Reader(ring.host, ring.queue_id, ring.name)


def open_reader(host: Access, name: str, *, timeout: float | None = 30) -> Reader:
    """Return a reader of a queue that exists, without a handle.

    The reader reads the copy of this node, or of the node that serves this client, even if the
    queue has no master now. A reader needs no close.

    Args:
        host: a node or a client.
        name: name of the queue.
        timeout: seconds to wait for a node that answers. None waits.

    Raises:
        QueueNotFound: the queue does not exist.
        NoQuorum: no node answered within `timeout` seconds.
    """
    declared = host._declare(name, passive=True, timeout=timeout)
    if declared.shards:
        raise PreconditionFailed(
            f"queue {name!r} has {len(declared.shards)} shards, each with sequences of its "
            f"own: read each by its name, the first is {shard_name(name, 0)!r}"
        )
    return Reader(host, declared.queue_id, name)


def lease(
    queue: MirroredQueue, count_max: int | None = None, label: str = "", timeout: float = 30.0
) -> RangeLease:
    """Hold ready messages without their bodies, for programs that read the messages elsewhere.

    Args:
        queue: the queue.
        count_max: the most messages; None: all that are ready now.
        label: names the holder to the operator.
        timeout: seconds to wait for the master to deliver the messages.

    Returns:
        The lease, to be used in a `with`: unacked messages go back at its end.

    Raises:
        PreconditionFailed: a consumer holds the queue exclusively.
        NoQuorum, QueueDown: there is no master.
    """
    ring = _ring_of(queue, "lease()")
    ring.check_open_for_gets()
    return RangeLease(ring, count_max, label, timeout)


def claim(queue: MirroredQueue, label: str = "", timeout: float = 30.0) -> Claim:
    """Hold the whole queue alone, to read messages elsewhere and to ack by sequence.

    Args:
        queue: the queue.
        label: names the holder to others that wait for the queue.
        timeout: seconds to wait until no other consumer takes or holds messages.

    Returns:
        The claim, to be used in a `with`: the claim ends with the block.

    Raises:
        PreconditionFailed: another consumer did for so long; the text names the consumer.
        NoQuorum, QueueDown: there is no master.
    """
    ring = _ring_of(queue, "claim()")
    ring.check_open_for_gets()
    return Claim(ring, label, timeout)


def staged(
    host: Access, transaction: str, version: int, queue: str, *, run: str | None = None
) -> Staged:
    """Write into a queue from many processes, so that all messages show at once, exactly once.

    Args:
        host: a node or a client.
        transaction: a name for ever: of a stream, or of a job. 1 to 512 characters.
        version: of the transaction, 0 or more, growing: the number of a stream's batch. A committed
            version is answered "committed already"; a lower version without a commit raises
            NotConfirmed: a backfill is another transaction.
        queue: name of an existing queue, the deciding queue: the same queue in every run.
        run: name of this try to write the version, never used again. None: the driver gets a new
            name, and gives the name to tasks (`Staged.run`).

    Returns:
        An object by which tasks stage and the driver commits.

    Raises:
        ConfigError: a name or the version is out of bounds.
    """
    return Staged(host, transaction, version, queue, run)
