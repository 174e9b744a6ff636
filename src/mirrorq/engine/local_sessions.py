"""The handles on this node, as its engine knows them: for whom, what they were told. Pure.

A handle has to know who serves its queue. It is told when that changes, never twice the same.
A handle may own an exclusive queue, which ends with it.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import define, field

from mirrorq.engine.events import MasterChange
from mirrorq.protocol.identities import SessionId

NO_MORE = (0, False)
"""What is told of a queue that was deleted, or is about to be."""


@define
class News:
    """What has changed since handles were told last: of a thousand queues it is mostly one."""

    of_all: bool = True
    """Who is alive, or the whole catalog."""
    queues: dict[int, None] = field(factory=dict)
    """These have another view, or another handle."""

    def __bool__(self) -> bool:
        return self.of_all or bool(self.queues)


class LocalSessions:
    """Sessions that are open on this node."""

    def __init__(self) -> None:
        self._queue_of: dict[SessionId, int] = {}
        self._counts: dict[int, int] = {}
        """Queue -> sessions that are open."""
        self._owners: dict[SessionId, None] = {}
        """Handles on this node that own an exclusive queue, or are to."""
        self._told: dict[int, tuple[int, bool]] = {}

    def open(self, session: SessionId, queue_id: int) -> None:
        self._forget(session)
        self._queue_of[session] = queue_id
        self._counts[queue_id] = self._counts.get(queue_id, 0) + 1
        self._told.pop(queue_id, None)

    def close(self, session: SessionId, queue_id: int) -> None:
        self._forget(session)
        if queue_id not in self._counts:
            self._told.pop(queue_id, None)

    def _forget(self, session: SessionId) -> None:
        queue_id = self._queue_of.pop(session, None)
        if queue_id is not None:
            self._counts[queue_id] -= 1
            if not self._counts[queue_id]:
                del self._counts[queue_id]

    def queues(self) -> Iterable[int]:
        """Each queue of which a handle is open, once."""
        return tuple(self._counts)

    def among(self, queues: Iterable[int]) -> Iterable[int]:
        """Those of these queues of which a handle is open."""
        return [queue_id for queue_id in queues if queue_id in self._counts]

    def tell(self, queue_id: int, master_epoch: int, is_available: bool) -> MasterChange | None:
        """What handles of a queue are to hear of its master, when that is news."""
        known = (master_epoch, is_available)
        if self._told.get(queue_id) == known:
            return None
        self._told[queue_id] = known
        return MasterChange(queue_id, *known)

    def tell_deleted(self, queue_id: int) -> MasterChange | None:
        """The same in the moment in which the queue goes."""
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
        """Say whether this handle owned a queue, or was to."""
        was_owner = owner in self._owners
        self._owners.pop(owner, None)
        return was_owner
