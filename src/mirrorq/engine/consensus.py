"""A node's part in founding its cluster and in Raft: the catalog's log and the leader.

The engine's `follower` applies the entries and snapshots that Raft has agreed on. The engine's
`leadership` acts on changes of the leader.
"""

from __future__ import annotations

from collections.abc import Callable

from mirrorq.cluster.bootstrap import (
    AdmissionRequest,
    Founded,
    Founding,
    FoundingEvent,
    FoundingTick,
    joining,
    joins_through,
)
from mirrorq.cluster.catalog.proposals import pack
from mirrorq.cluster.controller.leases import Leading
from mirrorq.cluster.raft import messages
from mirrorq.cluster.raft.log import merge_writes
from mirrorq.cluster.raft.raft import Raft
from mirrorq.containers.timers import FOREVER_MS
from mirrorq.engine.catalog_requests import NOBODY
from mirrorq.engine.context import EngineContext
from mirrorq.engine.peers import Peer
from mirrorq.protocol.commands import CatalogCommand, NameCluster
from mirrorq.protocol.control import Directory
from mirrorq.protocol.effects import RaftSnapshot
from mirrorq.protocol.identities import StoreId


class Consensus:
    """Raft and founding, which step each other.

    Args:
        context: shared by the engine's parts.
        raft: Raft's state as read from the disk.
        joins: endpoints of a cluster through which an empty store joins it.
        on_installed: called with the snapshot that replaces the catalog.
        on_stepped: called after each step; true if the node began or ceased to lead.
    """

    def __init__(
        self,
        context: EngineContext,
        raft: Raft,
        joins: tuple[str, ...],
        now_ms: int,
        on_installed: Callable[[RaftSnapshot], None],
        on_stepped: Callable[[int, bool], None],
    ) -> None:
        self.raft = raft
        self.joins = joins
        """Endpoints to join through; () once the store is in a cluster."""
        self.founding = Founding(
            context.store,
            context.admission.names,
            raft.founding,
            context.config,
            founded=raft.is_founded,
            may_found=not joins,
        )
        self.led_ms = now_ms
        """When the node last knew of a leader, and so of a majority in contact with it."""
        self.has_news = True
        """True if Raft or the founding has been stepped, so that `tend` has to look."""
        self._context = context
        self._on_installed = on_installed
        self._on_stepped = on_stepped
        self._voters = raft.voters
        """Raft's voters after its last step."""
        self._led_by: StoreId | None = None
        self._led_until_ms = now_ms
        """The node knows of the same leader at least until then, if the leader stays."""
        self._number = 0
        """Number of the last proposal to Raft."""
        self._named_term = 0
        """Term in which this leader has proposed an id for the cluster."""
        self._tended: object = None
        """The state of Raft that `tend` saw last. The state does not change while Raft is idle."""
        self._admissions: dict[StoreId, None] = {}
        """Stores that ask to be voters."""
        self._tick, self._founding_tick = context.timers.new(), context.timers.new()
        self._tick.set(now_ms)
        if not raft.is_founded:
            self._founding_tick.set(now_ms)
        self._asked_ms = now_ms
        """When this store, founded already, last asked to be a voter."""
        self._directed_ms: dict[str, int] = {}
        """Node -> when the next directory may be sent to the node."""

    def start(self, now_ms: int) -> None:
        """Start the founding if needed. The content of the disk has been applied before."""
        if self.joins and self.raft.founding != joining(self.joins):
            self.step(now_ms, messages.Promise(joining(self.joins)))
        if not self.raft.is_founded:
            self.found(now_ms, FoundingTick())

    # --- Queries --------------------------------------------------------------------------

    @property
    def leading(self) -> Leading | None:
        """The leader's state, None when the node does not lead."""
        raft = self.raft
        if not raft.is_leader:
            return None
        contact_ms = raft.majority_contact_ms
        return Leading(
            raft.term,
            raft.own_term_applied,
            raft.commit_index,
            -1 if contact_ms is None else contact_ms,
            raft.voters,
        )

    def is_foreign(self, store: StoreId) -> bool:
        """Return true if a store certainly does not belong to the cluster, or no longer does. Only
        the leader can tell: its list of voters is the newest."""
        raft = self.raft
        return raft.is_leader and raft.own_term_applied and store not in raft.voters

    def is_peer_foreign(self, peer: Peer, store: StoreId) -> bool:
        """The same as `is_foreign` for a peer, cached. True also for a forgotten peer."""
        if peer.is_past:
            return True
        voters = self._voters
        if peer.voters is not voters:
            if store not in voters:
                return self.is_foreign(store)
            peer.voters = voters
        return False

    def waiting_text(self) -> str:
        """Return why the node is not founded yet; "": founded."""
        if self.raft.is_founded:
            return ""
        if self.joins:
            return f"waits to be admitted by the cluster at {', '.join(self.joins)}"
        if self.founding.stuck:
            return f"is not founded yet: {self.founding.stuck}"
        endpoint_of = self._context.admission.contacts.endpoint_of
        named = [f"{one} at {endpoint_of(one) or '?'}" for one in self.founding.waiting_for]
        whom = f"for {', '.join(named)}" if named else "to be admitted"
        return f"is not founded yet: waiting {whom}"

    # --- Steps ----------------------------------------------------------------------------

    def step(self, now_ms: int, event: messages.RaftEvent) -> None:
        """Step Raft and carry out its effects."""
        raft, out = self.raft, self._context.out
        was_founded, was_leader = raft.is_founded, raft.is_leader
        effects: messages.RaftEffects = raft.step(now_ms, event)
        self._voters = raft.voters
        if raft.leader is not self._led_by:
            self._led_until_ms = 0
        self.has_news = self._context.has_lease_news = True
        self._tick.set(_or_forever(effects.wake_at_ms))
        if effects.persist is not None:
            out.raft = merge_writes(out.raft, effects.persist)
            self._context.hosting.rounds.note_raft(effects.write_number)
        for store, message in effects.send:
            out.send.append((store.node, message))
        if effects.install is not None:
            self._on_installed(effects.install)
        if not was_founded and raft.is_founded:
            self._on_founded(now_ms)
        is_news = was_leader is not raft.is_leader
        if is_news:
            leads = "leads" if raft.is_leader else "no longer leads"
            self._context.notice("leader", f"{leads} the catalog in term {raft.term}")
        self._on_stepped(now_ms, is_news)

    def found(self, now_ms: int, event: FoundingEvent) -> None:
        """Step the founding and carry out its effects."""
        self.has_news = True
        effects = self.founding.step(now_ms, event)
        if not self.raft.is_founded:
            self._founding_tick.set(_or_forever(effects.wake_at_ms))
        if effects.promise is not None:
            self.step(now_ms, messages.Promise(effects.promise))
        if effects.found is not None:
            self.step(now_ms, messages.Found(effects.found))
        self._context.out.send.extend((store.node, message) for store, message in effects.send)
        self._admissions.update(dict.fromkeys(effects.admit))

    def _on_founded(self, now_ms: int) -> None:
        self.found(now_ms, Founded())
        self._founding_tick.clear()
        self._context.admission.on_founded()
        self.joins = ()
        self._context.notice("founded", "the cluster is founded")

    # --- Time -----------------------------------------------------------------------------

    def run_timers(self, now_ms: int) -> None:
        """Step the timers that are due."""
        if self._founding_tick.at_ms <= now_ms:
            self.found(now_ms, FoundingTick())
        if self._tick.at_ms <= now_ms:
            self.step(now_ms, messages.RaftTick())
            self._seek(now_ms)

    def led_at(self, now_ms: int) -> int:
        """Return the last time at which there was a leader, as of now. Two steps may lie far apart
        on a busy machine. A node that is the only voter leads as long as it runs."""
        raft = self.raft
        is_alone = raft.voters == (raft.store,) and raft.leader == raft.store
        return now_ms if is_alone or now_ms < self._led_until_ms else self.led_ms

    def note_leader(self, now_ms: int) -> None:
        """Note if there is a leader, once in each step of the engine."""
        if now_ms < self._led_until_ms:
            self.led_ms = now_ms
            return
        raft, config = self.raft, self._context.config
        self._led_by = raft.leader
        if self._led_by is not None:
            self._led_until_ms = raft.heard_ms + config.election_ms + config.election_spread_ms
            if now_ms < self._led_until_ms:
                self.led_ms = now_ms

    def _seek(self, now_ms: int) -> None:
        """Without a leader: ask once more to be a voter, and ask for the endpoints of the voters.

        A leader that could no longer commit may have admitted this store; later leaders do not know
        of the store. Other nodes may also have no endpoint for some voters: no remaining log has
        the registration.
        """
        raft, context = self.raft, self._context
        if raft.leader is not None or not raft.is_founded:
            return
        if now_ms < self._asked_ms + context.config.election_ms:
            return
        self._asked_ms = now_ms
        peers = context.admission.peers.all()
        if not raft.is_admitted:
            known = tuple(voter.store for voter in raft.committed_voters)
            request = AdmissionRequest(bool(joins_through(raft.founding)), known)
            context.out.send.extend((peer.name, request) for peer in peers)
        directory = context.admission.directory(raft.voters)
        if len(directory.nodes) < len(raft.voters):
            context.out.send.extend((peer.name, directory) for peer in peers)

    def on_directory(self, now_ms: int, sender: str, told: Directory) -> None:
        """Learn reported endpoints: of a cluster to join, or of the own cluster's voters."""
        admission = self._context.admission
        if not self.raft.is_founded:
            for name, endpoint in told.nodes:
                admission.meet(name, endpoint)
        elif self.raft.leader is None:
            more = admission.on_directory(told, self.raft.voters)
            # Limit the rate: two nodes, each of no help to the other, would never stop.
            if more is not None and now_ms >= self._directed_ms.get(sender, now_ms):
                self._directed_ms[sender] = now_ms + self._context.config.election_ms
                self._context.out.send.append((sender, more))

    # --- As leader ------------------------------------------------------------------------

    def tend(self, now_ms: int) -> None:
        """As leader: give the cluster its id, end votes of forgotten stores, admit new stores."""
        raft = self.raft
        self.has_news = False
        tended = (raft.role, raft.term, raft.commit_index, raft.applied_index, raft.last_index)
        if tended == self._tended and not self._admissions:
            return
        self._tended = tended
        if not raft.is_leader:
            self._admissions.clear()
            return
        if not raft.own_term_applied:
            return
        catalog, me = self._context.catalog, self._context.me
        if not catalog.cluster and self._named_term != raft.term:
            self._named_term = raft.term
            self.propose(now_ms, NameCluster(me.store or 1))
        if not raft.is_changing_voters:
            stay = tuple(voter for voter in raft.voters if not catalog.is_past(voter))
            if len(stay) < len(raft.voters):
                gone = next(voter for voter in raft.voters if voter not in stay)
                self._propose_voters(now_ms, tuple(v for v in raft.voters if v != gone))
            else:
                self._admit(now_ms)

    def _admit(self, now_ms: int) -> None:
        """Make asking stores voters; an old voter of the same node name goes first."""
        voters = self.raft.voters
        for store in list(self._admissions):
            if store in voters or self._context.catalog.is_past(store):
                del self._admissions[store]
                continue
            others = tuple(voter for voter in voters if voter.node != store.node)
            self._propose_voters(now_ms, others if len(others) < len(voters) else (*others, store))
            return

    def _propose_voters(self, now_ms: int, voters: tuple[StoreId, ...]) -> None:
        self._number += 1
        self.step(now_ms, messages.ProposeVoters(self._number, voters))

    def propose(self, now_ms: int, command: CatalogCommand) -> None:
        """Propose a command of the leader itself."""
        self.log(now_ms, pack(self._context.me, NOBODY, command))

    def log(self, now_ms: int, data: bytes) -> None:
        """Put a proposal into Raft's log, if the node leads."""
        self._number += 1
        self.step(now_ms, messages.Propose(self._number, data))


def _or_forever(at_ms: int | None) -> int:
    return FOREVER_MS if at_ms is None else at_ms
