"""Sharded queues: what of a queue is read by itself, and how it is named.

Each shard of a queue is a queue like any other, with sequences of its own and a name made of the
queue's (`mirrorq.protocol.shard_names`): by that name it is read, leased, claimed, staged into,
and stands in offsets. A queue that is not sharded is the one part that it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from mirrorq.api.queue import MirroredQueue
from mirrorq.client.client import Client
from mirrorq.protocol.shard_names import logical_name
from pyspark_mirrorq.cluster import handle_on

__all__ = ["given_for", "parts_of"]

Value = TypeVar("Value")


def parts_of(client: Client, name: str, timeout_s: float) -> list[MirroredQueue]:
    """Handles on the shards of a queue, or on the queue.

    Raises:
        QueueNotFound: there is none of this name.
    """
    queue = handle_on(client, name, timeout_s)
    if not queue.shards:
        return [queue]
    with queue:
        return [queue.shard(number) for number in range(queue.shards)]


def given_for(given: Mapping[str, Value], part: str, otherwise: Value) -> Value:
    """What is given for a part by its name, or by that of its queue."""
    return given.get(part, given.get(logical_name(part), otherwise))
