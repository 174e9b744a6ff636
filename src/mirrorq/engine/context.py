"""The state that the parts of one node's engine share."""

from __future__ import annotations

from mirrorq.cluster.catalog.catalog import Catalog
from mirrorq.config import Config
from mirrorq.containers.timers import Timers
from mirrorq.engine.events import EngineEffects
from mirrorq.engine.hosting import Hosting
from mirrorq.engine.peer_admission import PeerAdmission
from mirrorq.protocol.effects import Notice
from mirrorq.protocol.identities import MemberId, StoreId


class EngineContext:
    """Shared by the parts of one node's engine, from the node's start to its end."""

    def __init__(
        self, me: MemberId, config: Config, hosting: Hosting, admission: PeerAdmission
    ) -> None:
        self.me = me
        self.store = StoreId(me.node, me.store)
        self.config = config
        self.hosting = hosting
        self.admission = admission
        self.catalog: Catalog = hosting.catalog
        """The catalog as applied here; a snapshot replaces the object."""
        self.has_lease_news = True
        """True after a step of Raft or an answer about the lease: `LeaseKeeping` has to look."""
        self.was_registered = False
        """The value of `is_registered` when the catalog was last applied."""
        self.alarms: tuple[str, ...] = ()
        """Names of the alarms raised at the node."""
        self.spooled: tuple[int, ...] = ()
        """`Hello.spooled` of the node."""
        self.timers = Timers()
        """Timers of the engine's parts. A queue's timers belong to its copy."""
        self.out = EngineEffects()
        """The effects of the current step."""

    @property
    def is_registered(self) -> bool:
        """True if the catalog knows this incarnation of the node, so that the node takes part."""
        record = self.catalog.node(self.me.node)
        return record is not None and record.member == self.me

    def notice(self, kind: str, text: str) -> None:
        """Report an event to the operator of the node."""
        self.out.notices.append(Notice(kind, text))

    def on_gone(self, node: str) -> None:
        """Tell the masters here that a peer is silent or dead."""
        self.hosting.post_node_gone(node)
        peer = self.admission.peers.find(node)
        member = None if peer is None else peer.member
        if member is not None and self.catalog.was_stopped(member):
            self.notice("left", f"node {node} was shut down")
        else:
            self.notice("gone", f"node {node} is silent or dead")

    def on_forgotten(self, node: str) -> None:
        """Tell the masters here that a peer was removed from the cluster."""
        # Some masters may not have seen the node silent before.
        self.hosting.post_node_gone(node)
        self.notice("left", f"node {node} was forgotten")
