"""Which queues each node leads, has and owns, and which a handle owns: noted as views change. Pure.

The catalog's leader asks for the numbers at every judgement, and for the queues when a node dies or
comes back. To look at all queues for it would make a thousand declarations, or the failover of a
thousand queues, a million looks at queues.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attrs import define, field

from mirrorq.cluster.catalog.records import QueueRecord
from mirrorq.protocol.identities import SessionId


@define
class LoadCounts:
    """Of all queues of one catalog. A node that does nothing is absent."""

    masters: dict[str, dict[int, None]] = field(factory=dict)
    """Node -> queues whose view it heads."""
    copies: dict[str, dict[int, None]] = field(factory=dict)
    """Node -> queues of whose view it is a member."""
    owned: dict[str, dict[int, None]] = field(factory=dict)
    """Node -> exclusive queues of a handle or a connection there."""
    of_handles: dict[SessionId, dict[int, None]] = field(factory=dict)
    """Handle -> exclusive queues of it."""

    def enter(self, queue: QueueRecord) -> None:
        """A queue has this view from now on."""
        for queues, node in self._places(queue):
            queues.setdefault(node, {})[queue.id] = None

    def leave(self, queue: QueueRecord) -> None:
        """A queue has this view no longer."""
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
