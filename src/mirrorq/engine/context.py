"""What the parts of one node's engine share. Each of them is given it."""

from __future__ import annotations

from mirrorq.cluster.catalog.core import Catalog
from mirrorq.config import Config
from mirrorq.containers.timers import Timers
from mirrorq.engine.events import EngineEffects
from mirrorq.engine.hosting import Hosting
from mirrorq.engine.peer_admission import PeerAdmission
from mirrorq.protocol.effects import Notice
from mirrorq.protocol.identities import MemberId, StoreId
from mirrorq.replication.events import NodeGone


class EngineContext:
    """What the parts of one node's engine share, from the node's start to its end."""

    def __init__(
        self, me: MemberId, config: Config, hosting: Hosting, admission: PeerAdmission
    ) -> None:
        self.me = me
        self.store = StoreId(me.node, me.store)
        self.config = config
        self.hosting = hosting
        self.admission = admission
        self.catalog: Catalog = hosting.catalog
        """As applied here; another one after a snapshot."""
        self.has_lease_news = True
        """Raft was stepped, or the lease answered: `LeaseKeeping` is to look."""
        self.was_registered = False
        """What `is_registered` said when the catalog was last applied."""
        self.alarms: tuple[str, ...] = ()
        """Names of those that are raised here."""
        self.spooled: tuple[int, ...] = ()
        """`Hello.spooled` of this node."""
        self.timers = Timers()
        """When parts of the engine want to be woken; those of a queue are its copy's."""
        self.out = EngineEffects()
        """What this step comes to."""

    @property
    def is_registered(self) -> bool:
        """Whether the catalog knows this incarnation of the node: it takes part."""
        record = self.catalog.node(self.me.node)
        return record is not None and record.member == self.me

    def notice(self, kind: str, text: str) -> None:
        """Tell whoever runs the node."""
        self.out.notices.append(Notice(kind, text))

    def on_gone(self, node: str) -> None:
        """A peer is not heard any more."""
        self.hosting.post_masters(NodeGone(node))
        peer = self.admission.peers.find(node)
        member = None if peer is None else peer.member
        if member is not None and self.catalog.was_stopped(member):
            self.notice("left", f"node {node} was shut down")
        else:
            self.notice("gone", f"node {node} is silent or dead")

    def on_forgotten(self, node: str) -> None:
        """A peer is none of the cluster's any more."""
        # Not every master has found it silent before: to some it may not have been.
        self.hosting.post_masters(NodeGone(node))
        self.notice("left", f"node {node} was forgotten")
