"""This node's part in founding its cluster, and in Raft: what the catalog's log has, who leads.

The engine's `follower` applies the entries and snapshots that Raft has agreed on; its `leadership`
acts on who leads.
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
from mirrorq.cluster.raft.core import Raft
from mirrorq.cluster.raft.log import merge_writes
from mirrorq.cluster.raft.messages import (
    Found,
    Promise,
    Propose,
    ProposeVoters,
    RaftEffects,
    RaftEvent,
    RaftTick,
)
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
        context: what the engine's parts share.
        raft: as the disk has it.
        joins: endpoints of a cluster through which an empty store joins it.
        on_installed: told that the catalog becomes that of a snapshot.
        on_stepped: told after each step whether this node leads anew or no longer.
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
        """() once this store is in a cluster."""
        self.founding = Founding(
            context.store,
            context.admission.names,
            raft.founding,
            context.config,
            founded=raft.is_founded,
            may_found=not joins,
        )
        self.led_ms = now_ms
        """When this node last knew of a leader: of a majority that it is in contact with."""
        self.has_news = True
        """Raft or the founding has been stepped: there may be something to tend."""
        self._context = context
        self._on_installed = on_installed
        self._on_stepped = on_stepped
        self._voters = raft.voters
        """After its last step."""
        self._led_by: StoreId | None = None
        self._led_until_ms = now_ms
        """Until then at least it knows of that leader, if it leads on."""
        self._number = 0
        """Of the last proposal to Raft."""
        self._named_term = 0
        """Term in which this leader has proposed an id for the cluster."""
        self._tended: object = None
        """Of Raft: what `tend` has looked at; none of it changes while all is idle."""
        self._admissions: dict[StoreId, None] = {}
        """Stores that ask to be voters."""
        self._tick, self._founding_tick = context.timers.new(), context.timers.new()
        self._tick.set(now_ms)
        if not raft.is_founded:
            self._founding_tick.set(now_ms)
        self._asked_ms = now_ms
        """When this store, founded already, last asked to be a voter."""
        self._directed_ms: dict[str, int] = {}
        """Node -> when it may be told again where others are."""

    def start(self, now_ms: int) -> None:
        """The node starts: what its disk has was applied."""
        if self.joins and self.raft.founding != joining(self.joins):
            self.step(now_ms, Promise(joining(self.joins)))
        if not self.raft.is_founded:
            self.found(now_ms, FoundingTick())

    # --- Queries --------------------------------------------------------------------------

    @property
    def leading(self) -> Leading | None:
        """What this node knows as the leader, None when it is none."""
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
        """Whether a store is certainly none of this cluster's (or no longer): only the leader
        knows, for its voters are the newest."""
        raft = self.raft
        return raft.is_leader and raft.own_term_applied and store not in raft.voters

    def is_peer_foreign(self, peer: Peer, store: StoreId) -> bool:
        """The same of one whose messages come often, or that is known to be forgotten."""
        if peer.is_past:
            return True
        voters = self._voters
        if peer.voters is not voters:
            if store not in voters:
                return self.is_foreign(store)
            peer.voters = voters
        return False

    def waiting_text(self) -> str:
        """What keeps this node from being founded, "" when it is."""
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

    def step(self, now_ms: int, event: RaftEvent) -> None:
        """Step Raft, and do what it wants done."""
        raft, out = self.raft, self._context.out
        was_founded, was_leader = raft.is_founded, raft.is_leader
        effects: RaftEffects = raft.step(now_ms, event)
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
        """Step the founding, and do what it wants done."""
        self.has_news = True
        effects = self.founding.step(now_ms, event)
        if not self.raft.is_founded:
            self._founding_tick.set(_or_forever(effects.wake_at_ms))
        if effects.promise is not None:
            self.step(now_ms, Promise(effects.promise))
        if effects.found is not None:
            self.step(now_ms, Found(effects.found))
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
        """Step what is due."""
        if self._founding_tick.at_ms <= now_ms:
            self.found(now_ms, FoundingTick())
        if self._tick.at_ms <= now_ms:
            self.step(now_ms, RaftTick())
            self._seek(now_ms)

    def led_at(self, now_ms: int) -> int:
        """When there was a leader last, as of now: between two steps too, which may lie far apart
        on a busy machine. Who votes alone leads while it runs."""
        raft = self.raft
        is_alone = raft.voters == (raft.store,) and raft.leader == raft.store
        return now_ms if is_alone or now_ms < self._led_until_ms else self.led_ms

    def note_leader(self, now_ms: int) -> None:
        """Note whether there is a leader, once in each step of the engine."""
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
        """Without a leader: ask once more to be a voter, and where other voters are.

        A leader that could commit nothing any more may have taken this store in, and those after
        it do not know of it. And voters may have no address that is known to the others: what
        registers them stands in no log that is left.
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
        """A node says where nodes are: the way to a cluster, or to voters of the own one."""
        admission = self._context.admission
        if not self.raft.is_founded:
            for name, endpoint in told.nodes:
                admission.meet(name, endpoint)
        elif self.raft.leader is None:
            more = admission.on_directory(told, self.raft.voters)
            # Once a while, or two that each lack what the other cannot use would talk for ever.
            if more is not None and now_ms >= self._directed_ms.get(sender, now_ms):
                self._directed_ms[sender] = now_ms + self._context.config.election_ms
                self._context.out.send.append((sender, more))

    # --- As leader ------------------------------------------------------------------------

    def tend(self, now_ms: int) -> None:
        """Give the cluster its id, end votes of forgotten stores, admit others: all as leader."""
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
        """Make stores that ask for it voters: the old one of that name goes first."""
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
        self.step(now_ms, ProposeVoters(self._number, voters))

    def propose(self, now_ms: int, command: CatalogCommand) -> None:
        """A wish of the leader's own."""
        self.log(now_ms, pack(self._context.me, NOBODY, command))

    def log(self, now_ms: int, data: bytes) -> None:
        """Put a proposal into Raft's log, if this node leads."""
        self._number += 1
        self.step(now_ms, Propose(self._number, data))


def _or_forever(at_ms: int | None) -> int:
    return FOREVER_MS if at_ms is None else at_ms
