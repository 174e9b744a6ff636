"""The node's local handles: their queues and the last master that each was notified of. Pure.

A handle has to know its queue's master. The handle is notified of each change once. A handle may
own an exclusive queue, which ends with the handle.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import define, field

from mirrorq.engine.events import MasterChange
from mirrorq.protocol.identities import SessionId

NO_MORE = (0, False)
"""Sent to handles of a queue that is deleted or about to be deleted."""


@define
class News:
    """Changes since the last notification of handles: mostly of one queue in a thousand."""

    of_all: bool = True
    """True after a change of liveness or of the whole catalog."""
    queues: dict[int, None] = field(factory=dict)
    """Queues with a new view or a new handle."""

    def __bool__(self) -> bool:
        return self.of_all or bool(self.queues)


class LocalSessions:
    """Sessions that are open on the node."""

    def __init__(self) -> None:
        self._queue_of: dict[SessionId, int] = {}
        self._counts: dict[int, int] = {}
        """Queue -> number of open sessions."""
        self._owners: dict[SessionId, None] = {}
        """Local handles that own an exclusive queue, or are about to."""
        self._told: dict[int, tuple[int, bool]] = {}
        self._new: dict[int, list[SessionId]] = {}
        """Queue -> handles that know nothing of its master."""

    def open(self, session: SessionId, queue_id: int) -> None:
        self._forget(session)
        self._queue_of[session] = queue_id
        self._counts[queue_id] = self._counts.get(queue_id, 0) + 1
        self._new.setdefault(queue_id, []).append(session)

    def close(self, session: SessionId, queue_id: int) -> None:
        self._forget(session)
        if queue_id not in self._counts:
            self._told.pop(queue_id, None)
            self._new.pop(queue_id, None)

    def _forget(self, session: SessionId) -> None:
        queue_id = self._queue_of.pop(session, None)
        if queue_id is not None:
            self._counts[queue_id] -= 1
            if not self._counts[queue_id]:
                del self._counts[queue_id]

    def queues(self) -> Iterable[int]:
        """Return each queue with an open handle, once."""
        return tuple(self._counts)

    def among(self, queues: Iterable[int]) -> Iterable[int]:
        """Return the given queues that have an open handle."""
        return [queue_id for queue_id in queues if queue_id in self._counts]

    def tell(self, queue_id: int, master_epoch: int, is_available: bool) -> MasterChange | None:
        """Return the notice of a queue's master for its handles; None: handles know already."""
        known = (master_epoch, is_available)
        new = tuple(self._new.pop(queue_id, ()))
        if self._told.get(queue_id) == known:
            return MasterChange(queue_id, *known, new) if new else None
        self._told[queue_id] = known
        return MasterChange(queue_id, *known)

    def tell_deleted(self, queue_id: int) -> MasterChange | None:
        """Return the notice of a queue's deletion; None: no handle is open."""
        self._told.pop(queue_id, None)
        if queue_id not in self._counts:
            return None
        return self.tell(queue_id, *NO_MORE)

    # --- Owners of exclusive queues -------------------------------------------------------

    def own(self, owner: SessionId) -> None:
        self._owners[owner] = None

    def is_owner(self, owner: SessionId) -> bool:
        return owner in self._owners

    def disown(self, owner: SessionId) -> bool:
        """Forget an owner. Return true if the handle owned a queue, or was about to."""
        was_owner = owner in self._owners
        self._owners.pop(owner, None)
        return was_owner
