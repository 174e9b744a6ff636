"""Copies on the node that no view names any more, and when to request their removal. Pure.

A policy takes a node out of a queue's view, and the copy stays in memory and in the store. The copy
is useful for a while: if the node becomes a member again, a delta is enough.

Later the node requests the removal from the catalog's leader (`DropCopy`). The leader agrees under
three conditions (`cluster.controller`). As many members are in sync as the policy wants, at least
one certainly runs, and the node is not to become a member. The catalog removes the copy if the view
is unchanged and does not name the store or an older incarnation. Until then the node repeats the
request. A refused removal keeps a copy that may be the last good copy.

The command goes through the log, so a later view that names the node comes after it. Such a member
joins with nothing, like a new member.
"""

from __future__ import annotations

AT_ONCE = 16
"""Copies to request at a time: a policy may orphan thousands."""


class OrphanedCopies:
    """When to request the removal of each copy."""

    def __init__(self, wait_ms: int) -> None:
        """Each copy is requested after `wait_ms`, and again after every further `wait_ms`."""
        self._wait_ms = wait_ms
        self._ask_ms: dict[int, int | None] = {}
        """Queue id -> when to request; None: not yet computed."""

    def mark(self, queue_id: int, is_left: bool) -> None:
        """Note if the node has a copy of a queue whose view does not name its store."""
        if is_left:
            self._ask_ms.setdefault(queue_id, None)
        else:
            self._ask_ms.pop(queue_id, None)

    def due(self, now_ms: int) -> tuple[int, ...]:
        """Return the queues whose removal to request now."""
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
