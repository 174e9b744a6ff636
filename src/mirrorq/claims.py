"""Who is told what becomes of a producer's numbers. Pure.

As a rule one session publishes under an id. After a failover of who publishes (another node's
master sends an outbox on, a client goes on through another node) there are two for a while, and
what the former one sent may arrive last. So a session that is gone takes its own claim along and
no other: whoever else publishes under that id still waits.

An id is its owner's: of the key that opened it or, in a later reign, that was the first to name it.
Under another's id a client could use up numbers, and whoever they belong to would take its own
messages for stored. Handles of nodes, and clients without keys, have one owner together.
"""

from __future__ import annotations

from mirrorq.messages import SessionId

__all__ = ["Claims"]


class Claims:
    """The sessions that publish under each id, in one reign."""

    def __init__(self) -> None:
        self._sessions: dict[int, tuple[SessionId, ...]] = {}
        self._owners: dict[int, str] = {}

    def open(self, producer: int, owner: str) -> None:
        """The id is given to this owner."""
        self._owners[producer] = owner

    def admits(self, producer: int, owner: str) -> bool:
        """Whether this owner may publish under the id; from now on it is its own."""
        return self._owners.setdefault(producer, owner) == owner

    def take(self, producer: int, session: SessionId) -> None:
        """This session publishes under the id, too."""
        known = self._sessions.get(producer, ())
        if session not in known:
            self._sessions[producer] = (*known, session)

    def of(self, producer: int) -> tuple[SessionId, ...]:
        """Who is to be told."""
        return self._sessions.get(producer, ())

    def drop(self, producer: int, session: SessionId) -> None:
        """The session is gone."""
        left = tuple(one for one in self._sessions.get(producer, ()) if one != session)
        if left:
            self._sessions[producer] = left
        else:
            self._sessions.pop(producer, None)

    def forget(self, producer: int) -> None:
        """The id has expired."""
        self._owners.pop(producer, None)
        self._sessions.pop(producer, None)
