"""How many queues each node leads, and of how many it holds a copy: counted as views change. Pure.

Every judgement of the catalog's leader asks for it. To count anew each time would make a thousand
declarations, or the failover of a thousand queues, a million looks at queues.
"""

from __future__ import annotations

from attrs import define, field

from mirrorq.protocol.views import View


@define
class LoadCounts:
    """Of all queues of one catalog. A node that does nothing is absent."""

    masters: dict[str, int] = field(factory=dict)
    """Node -> queues whose view it heads."""
    copies: dict[str, int] = field(factory=dict)
    """Node -> queues of whose view it is a member."""

    def enter(self, view: View) -> None:
        """A queue has this view from now on."""
        self._count(view, 1)

    def leave(self, view: View) -> None:
        """A queue has this view no longer."""
        self._count(view, -1)

    def _count(self, view: View, change: int) -> None:
        for place, member in enumerate(view.members):
            node = member.id.node
            for counts in (self.copies,) if place else (self.copies, self.masters):
                counts[node] = counts.get(node, 0) + change
                if not counts[node]:
                    del counts[node]
