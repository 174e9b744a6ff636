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


# The lock under which a forked child replaces state of its parent. Held over each fork, so that no
# child starts with the lock taken by a thread that the child does not have.
FORK_LOCK = threading.RLock()
os.register_at_fork(
    before=FORK_LOCK.acquire,
    after_in_parent=FORK_LOCK.release,
    after_in_child=FORK_LOCK.release,
)


class SessionPort(Protocol):
    """A handle, as its host's thread sees it: `handle.Handle`, and a client's session in a node's
    `gateway`."""

    def step(
        self, now_ms: int, events: Sequence[SessionEvent]
    ) -> tuple[tuple[SessionRequest, ...], int | None]:
        """Take events and the user's calls; return requests and the time of the next step."""


@frozen
class Declared:
    """The result of a declaration: the queue and, if exclusive, the session that owns the queue."""

    queue_id: int
    refusals: dict[str, str] = field(factory=dict)
    """Rights that the process lacks by its key: right -> why. Handles add entries."""
    shards: tuple[int, ...] = ()
    """Ids of the rings of a sharded queue, by their number; () for any other."""
    owner: SessionId | None = None


class Host(Protocol):
    """The process side of handles: `node.Node` or `client.Client`.

    It steps each handle on one thread of its own, and routes requests to the queue's master. Every
    method may be called from any thread.
    """

    name: str
    """A node's name in its cluster; a client's name in logs and lists, new in a forked child."""
    config: Config
    """Limits and times."""
    _survives_fork: bool
    """True: it goes on in a forked child, on a connection of its own."""

    def _open_session(
        self, port: SessionPort, queue_id: int, owner: SessionId | None = None
    ) -> SessionId:
        """Register a handle (as `owner`, if given); its first event names the queue's master."""

    def _close_session(self, session: SessionId) -> None:
        """Close a handle's session: its messages are released."""

    def _wake(self, session: SessionId) -> None:
        """Have the handle stepped soon. Cheap."""

    @property
    def is_paused(self) -> bool:
        """Whether there is no contact with a majority."""

    @property
    def _access_error(self) -> AuthenticationError | None:
        """Why no node admits the client, or does any more; None: access is not the obstacle."""

    @property
    def _stuck_text(self) -> str:
        """Why the node, or the client's entry node, is useless; "": it is usable."""

    @property
    def _lineage(self) -> int:
        """The cluster's lineage (`protocol.identities.lineage`), 0 while not known."""

    @property
    def is_closed(self) -> bool:
        """Whether the host has been closed, or has failed."""

    def _pickled(self, name: str) -> tuple[object, ...]:
        """Return the pickled form of a handle on queue `name` (`object.__reduce__`).

        Raises:
            TypeError: a handle on the host cannot be pickled.
        """

    def _queue_status(self, queue_id: int) -> QueueStatus:
        """Return the host's knowledge of a queue, without a request."""

    def _declare(self, name: str, **options: Unpack[DeclareOptions]) -> Declared:
        """Declare a queue."""

    def _delete_queue(self, queue_id: int, *, if_empty: bool, timeout: float | None) -> None:
        """Delete a queue."""

    def _read_copy(
        self, queue_id: int, first: int, last: int, bytes_max: int, applied: int
    ) -> CopyPage:
        """Return the live messages from `first` to `last` in the local copy, up to `bytes_max`. The
        copy must have applied the op `applied`."""

    def _seek_copy(self, queue_id: int, stamp_ms: int, applied: int) -> int:
        """Return the first sequence of the local copy published at `stamp_ms` or later."""
