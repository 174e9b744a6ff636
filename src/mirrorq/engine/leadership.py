"""The catalog leader's work: feeds the controller with events and carries out its effects.

Every node has a controller. Each node judges liveness for its own use, too, and is ready to lead.
"""

from __future__ import annotations

from mirrorq.cluster.catalog.records import CatalogResult
from mirrorq.cluster.controller.controller import Controller
from mirrorq.cluster.controller.events import Changes, ControllerTick, Event, ProbeRefused
from mirrorq.cluster.controller.failure_detector import Status
from mirrorq.cluster.controller.leases import LeaseHolder
from mirrorq.cluster.raft.messages import Contact, PeerDead
from mirrorq.containers.timers import FOREVER_MS
from mirrorq.engine.consensus import Consensus
from mirrorq.engine.context import EngineContext
from mirrorq.protocol.commands import CatalogCommand
from mirrorq.protocol.control import CatalogAnswer, CatalogRequest
from mirrorq.protocol.identities import MemberId, StoreId


class _Probes:
    """One probe per node at a time: an old outcome must not explain a newer failure."""

    def __init__(self) -> None:
        self._open: dict[str, int] = {}
        self._next: dict[str, int] = {}

    def begin_probe(self, node: str, number: int) -> bool:
        """Return true to probe the node now. Otherwise the probe follows the running probe."""
        if node in self._open:
            self._next[node] = number
            return False
        self._open[node] = number
        return True

    def end_probe(self, node: str) -> tuple[int | None, int | None]:
        """End a probe. Return its number and the number of the next wanted probe."""
        return self._open.pop(node, None), self._next.pop(node, None)


class Leadership:
    """The node's controller, probes, and changes not yet passed to the controller.

    Args:
        context: shared by the engine's parts.
        consensus: takes proposals.
        holder: holder of the node's lease; a leader answers its own requests.
    """

    def __init__(
        self, context: EngineContext, consensus: Consensus, holder: LeaseHolder, now_ms: int
    ) -> None:
        self.tick = context.timers.new()
        """When the controller wants its next step."""
        self.tick.set(now_ms)
        self._context = context
        self._consensus = consensus
        self._holder = holder
        hosting = context.hosting
        self._controller = Controller(
            context.me, context.catalog, context.config, now_ms, lambda: hosting.broken
        )
        self._probes = _Probes()
        self._changed = Changes()
        """Changes by applied commands that the controller has not seen yet."""
        self._contact_ms: int | None = None
        """Last majority contact that the controller has seen."""

    def is_alive(self, member: MemberId) -> bool:
        """Return true if an incarnation of another node runs, as far as the local node knows."""
        return self._controller.status(member) in (Status.ALIVE, Status.UNKNOWN)

    def unheard(self) -> tuple[str, ...]:
        """Return the names of nodes that are silent here."""
        return self._controller.unheard()

    def admit(self, request: CatalogRequest) -> CatalogCommand | CatalogAnswer:
        """Return the command to log for a requesting node, or the answer that refuses it."""
        return self._controller.admit(request, self._consensus.leading)

    def supervise(self, now_ms: int, event: Event) -> None:
        """Step the controller with an event and carry out its effects."""
        context, out = self._context, self._context.out
        effects = self._controller.step(now_ms, event, self._consensus.leading)
        self.tick.set(FOREVER_MS if effects.wake_at_ms is None else effects.wake_at_ms)
        if effects.news:
            context.hosting.note_liveness(effects.news)
        for command in effects.propose:
            self._consensus.propose(now_ms, command)
        for node, answer in effects.send:
            if node == context.me.node:
                self._holder.on_answer(answer)
                context.has_lease_news = True
            else:
                out.send.append((node, answer))
        for name, wanted in effects.yields:
            if name == context.me.node:
                context.hosting.ask_to_yield(wanted.queue_id, wanted.epoch)
            else:
                out.send.append((name, wanted))
        for probe in effects.probe:
            self._probe(probe.node, probe.number)
        for member in effects.known_dead:
            if context.admission.peers.mark_dead(member):
                context.on_gone(member.node)
            self._consensus.step(now_ms, PeerDead(StoreId(member.node, member.store)))
        if effects.wants_round:
            self._consensus.step(now_ms, Contact())
            if self._consensus.raft.majority_contact_ms == now_ms:
                self.supervise(now_ms, ControllerTick())

    def note_changed(self, result: CatalogResult) -> None:
        """Note the changes of an applied command."""
        self._changed.on_applied(result)

    def on_raft(self, now_ms: int, *, is_news: bool, has_applied: bool) -> None:
        """Step the controller after Raft was stepped.

        Args:
            is_news: the node began or ceased to lead.
            has_applied: entries, or a page of a snapshot, were applied.
        """
        if self._controller.is_asked_for_leases:
            contact_ms = self._consensus.raft.majority_contact_ms
            is_news = is_news or contact_ms != self._contact_ms
            self._contact_ms = contact_ms
        if is_news or has_applied:
            changed, self._changed = self._changed, Changes()
            self.supervise(now_ms, changed.told())

    def on_probed(self, now_ms: int, node: str, *, refused: bool) -> None:
        """Handle the outcome of a probe."""
        number, newer = self._probes.end_probe(node)
        if newer is not None:
            self._probe(node, newer)
        if number is not None and refused:
            self.supervise(now_ms, ProbeRefused(node, number))

    def _probe(self, node: str, number: int) -> None:
        if self._probes.begin_probe(node, number):
            self._context.out.probes.append(node)
