"""One client at its entry node: its link, its sessions, its calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define

from mirrorq.monitoring.presence import Served

if TYPE_CHECKING:
    from mirrorq.cluster.catalog.catalog import Catalog
    from mirrorq.node.gateway.calls import Calls
    from mirrorq.node.gateway.link import ClientLink
    from mirrorq.node.gateway.sessions import ClientSessions
    from mirrorq.security.roles import Key


@define(eq=False)
class ServedClient:
    """A client between hello and end, with its open sessions and calls. Node thread only."""

    link: ClientLink
    sessions: ClientSessions
    calls: Calls
    address: str
    """Address of the client's connection."""
    since_us: int
    """Wall clock time of the client's hello, in microseconds."""

    @property
    def name(self) -> str:
        return self.link.name

    def served(self, catalog: Catalog, key: Key | None) -> Served:
        """Return the client's entry for lists of clients."""
        queue_ids = dict.fromkeys(session.queue_id for session in self.sessions)
        names = map(catalog.name_of, queue_ids)
        return Served(
            self.name,
            self.address,
            self.since_us / 1_000_000,
            "" if key is None else key.name,
            "" if key is None else key.role.value,
            tuple(session.session.number for session in self.sessions),
            tuple(name for name in names if name),
        )
