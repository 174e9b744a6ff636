"""The process side of a handle: the calls that a handle makes on its node or client."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, Unpack

from attrs import field, frozen

from mirrorq.protocol.sessions import SessionRequest
from mirrorq.session.calls import SessionEvent

if TYPE_CHECKING:
    from mirrorq.api.options import DeclareOptions
    from mirrorq.config import Config
    from mirrorq.errors import AuthenticationError
    from mirrorq.monitoring.status import QueueStatus
    from mirrorq.protocol.copy_page import CopyPage
    from mirrorq.protocol.identities import SessionId


# The lock under which a forked child makes its own of what it has from its parent.
#
# Held over each fork, so that no child is born with it taken by a thread that it does not have.
FORK_LOCK = threading.RLock()
os.register_at_fork(
    before=FORK_LOCK.acquire,
    after_in_parent=FORK_LOCK.release,
    after_in_child=FORK_LOCK.release,
)


class SessionPort(Protocol):
    """A handle, as its host's thread sees it: `handle.Handle`, and a node's `gateway` for those of
    clients."""

    def step(
        self, now_ms: int, events: Sequence[SessionEvent]
    ) -> tuple[tuple[SessionRequest, ...], int | None]:
        """Take events and the user's calls; return requests and when to be stepped again."""
        ...


@frozen
class Declared:
    """What a declaration gives: the queue and, when it is one handle's alone, the session that owns
    it."""

    queue_id: int
    refusals: dict[str, str] = field(factory=dict)
    """What this process may not do to it by its key: right -> why. Its handles add to it."""
    shards: tuple[int, ...] = ()
    """Ids of the rings of a sharded queue, by their number; () for any other."""
    owner: SessionId | None = None


class Host(Protocol):
    """The process side of handles: `node.Node` or `client.Client`.

    It steps each handle on one thread of its own, and routes requests to the queue's master.
    Every method may be called from any thread.
    """

    name: str
    """A node's in its cluster; a client's in logs and lists, another one in a forked child."""
    config: Config
    """Its limits and times."""
    _survives_fork: bool
    """Whether it goes on in a forked child, on a connection of its own."""

    def _open_session(
        self, port: SessionPort, queue_id: int, owner: SessionId | None = None
    ) -> SessionId:
        """Register a handle (as `owner`, if given); its first event tells who serves the queue."""
        ...

    def _close_session(self, session: SessionId) -> None:
        """The handle is no more: what it held goes back."""
        ...

    def _wake(self, session: SessionId) -> None:
        """Have the handle stepped soon. Cheap."""
        ...

    @property
    def is_paused(self) -> bool:
        """Whether there is no contact with a majority."""
        ...

    @property
    def _access_error(self) -> AuthenticationError | None:
        """Why no node lets this client in (any more), None when that is not what it waits for."""
        ...

    @property
    def _stuck_text(self) -> str:
        """What keeps this node, or the client's, from being of any use, "" when nothing does."""
        ...

    @property
    def _lineage(self) -> int:
        """The cluster's lineage (`protocol.identities.lineage`), 0 while it is not known."""
        ...

    @property
    def is_closed(self) -> bool:
        """Whether it has been closed, or has failed."""
        ...

    def _pickled(self, name: str) -> tuple[object, ...]:
        """What a handle on queue `name` is pickled as (`object.__reduce__`).

        Raises:
            TypeError: a handle on this host cannot be.
        """
        ...

    def _queue_status(self, queue_id: int) -> QueueStatus:
        """What it knows of a queue, without asking anybody."""
        ...

    def _declare(self, name: str, **options: Unpack[DeclareOptions]) -> Declared:
        """Declare a queue."""
        ...

    def _delete_queue(self, queue_id: int, *, if_empty: bool, timeout: float | None) -> None:
        """Delete a queue."""
        ...

    def _read_copy(
        self, queue_id: int, first: int, last: int, bytes_max: int, applied: int
    ) -> CopyPage:
        """What lives from `first` to `last` in the copy at hand, as far as it fits `bytes_max`;
        `applied` is what that copy has come to at least."""
        ...

    def _seek_copy(self, queue_id: int, stamp_ms: int, applied: int) -> int:
        """The first sequence in the copy at hand that was published at `stamp_ms` or later."""
        ...
