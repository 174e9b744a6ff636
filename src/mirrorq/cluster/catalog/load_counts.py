"""Queues led, held and owned by each node, and queues of each handle: kept as views change. Pure.

The catalog's leader asks for the numbers at every judgement, and for the queues when a node dies or
comes back. A search through all queues would turn a thousand declarations, or the failover of a
thousand queues, into a million looks at queues.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attrs import define, field

from mirrorq.cluster.catalog.records import QueueRecord
from mirrorq.protocol.identities import SessionId


@define
class LoadCounts:
    """Counts over all queues of one catalog. A node without load is absent."""

    masters: dict[str, dict[int, None]] = field(factory=dict)
    """Node -> queues with the node as master."""
    copies: dict[str, dict[int, None]] = field(factory=dict)
    """Node -> queues with the node as member."""
    owned: dict[str, dict[int, None]] = field(factory=dict)
    """Node -> exclusive queues of a handle or a connection there."""
    of_handles: dict[SessionId, dict[int, None]] = field(factory=dict)
    """Handle -> its exclusive queues."""

    def enter(self, queue: QueueRecord) -> None:
        """Count a queue with its present view."""
        for queues, node in self._places(queue):
            queues.setdefault(node, {})[queue.id] = None

    def leave(self, queue: QueueRecord) -> None:
        """Uncount a queue with its present view."""
        for queues, node in self._places(queue):
            del queues[node][queue.id]
            if not queues[node]:
                del queues[node]

    def _places(self, queue: QueueRecord) -> Iterator[tuple[dict[Any, dict[int, None]], object]]:
        members = queue.view.members
        yield self.masters, members[0].id.node
        for member in members:
            yield self.copies, member.id.node
        if queue.owner_incarnation is not None:
            yield self.owned, queue.owner_incarnation.node
            yield self.of_handles, queue.owner
        elif queue.connection:
            yield self.owned, queue.connection.partition("/")[0]
