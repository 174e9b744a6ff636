"""Copies on this node that no view names any more: when to ask whether they may go. Pure.

A policy takes a node out of a queue's view, and its copy stays: in memory and in the store. It
is worth something for a while, as a delta is all that is sent should the node be wanted again.
Then the catalog's leader is asked (`DropCopy`). It lets a copy go when as many members are in sync
as the policy wants, one of them certainly running, and this node is not to be one of them
(`cluster.controller`); the catalog does when the view is still the same and names neither this
store nor an older incarnation of it. Until then the node asks again now and then: that nobody lets
it go is how a copy stays that may be the last good one.

The command goes through the log, so a later view that names this node comes after it: such a
member joins with nothing, as one that never had a copy.
"""

from __future__ import annotations

AT_ONCE = 16
"""Copies that are asked for at a time: a policy may drop thousands."""


class OrphanedCopies:
    """When to ask for which copy."""

    def __init__(self, wait_ms: int) -> None:
        """Each copy is asked for after `wait_ms`, and again after every further one."""
        self._wait_ms = wait_ms
        self._ask_ms: dict[int, int | None] = {}
        """Queue id -> when to ask; None: not yet worked out."""

    def note(self, queue_id: int, is_left: bool) -> None:
        """Say whether this node has a copy of a queue whose view does not name its store."""
        if is_left:
            self._ask_ms.setdefault(queue_id, None)
        else:
            self._ask_ms.pop(queue_id, None)

    def due(self, now_ms: int) -> tuple[int, ...]:
        """Return the queues to ask for now."""
        found: list[int] = []
        for queue_id, ask_ms in self._ask_ms.items():
            if ask_ms is not None and now_ms < ask_ms:
                continue
            if ask_ms is not None:
                if len(found) == AT_ONCE:
                    continue
                found.append(queue_id)
            self._ask_ms[queue_id] = now_ms + self._wait_ms
        return tuple(found)
