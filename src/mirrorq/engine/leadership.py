"""What the catalog's leader does: the controller is told, and what it wants is done.

Every node has one: it judges who is alive for its own use, too, and is ready to lead.
"""

from __future__ import annotations

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
    """One probe a node at a time: an old outcome must not explain a newer end."""

    def __init__(self) -> None:
        self._open: dict[str, int] = {}
        self._next: dict[str, int] = {}

    def begin(self, node: str, number: int) -> bool:
        """Whether to probe the node now; else that comes after the probe under way."""
        if node in self._open:
            self._next[node] = number
            return False
        self._open[node] = number
        return True

    def end(self, node: str) -> tuple[int | None, int | None]:
        """A probe has its outcome: its number, and that of the next one that is wanted."""
        return self._open.pop(node, None), self._next.pop(node, None)


class Leadership:
    """This node's controller, its probes, and what is still to be told to it. The engine has it.

    Args:
        context: what the engine's parts share.
        consensus: takes proposals.
        holder: of this node's lease; as leader it answers itself.
    """

    def __init__(
        self, context: EngineContext, consensus: Consensus, holder: LeaseHolder, now_ms: int
    ) -> None:
        self.tick = context.timers.new()
        """When the controller wants to look again."""
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
        """What applied commands have changed and the controller is still to be told."""
        self._contact_ms: int | None = None
        """Last majority contact that the controller was told of."""

    def is_alive(self, member: MemberId) -> bool:
        """Whether this incarnation of another node runs, as far as this node knows."""
        return self._controller.status(member) in (Status.ALIVE, Status.UNKNOWN)

    def unheard(self) -> tuple[str, ...]:
        """Names of nodes that are not heard here."""
        return self._controller.unheard()

    def admit(self, request: CatalogRequest) -> CatalogCommand | CatalogAnswer:
        """What to put into the log for a node that asks, or the answer that refuses it."""
        return self._controller.admit(request, self._consensus.leading)

    def supervise(self, now_ms: int, event: Event) -> None:
        """Tell the controller, and do what it wants done."""
        context, out = self._context, self._context.out
        effects = self._controller.step(now_ms, event, self._consensus.leading)
        self.tick.set(FOREVER_MS if effects.wake_at_ms is None else effects.wake_at_ms)
        context.hosting.news.of_all |= effects.is_news
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
            if context.admission.peers.end(member):
                context.on_gone(member.node)
            self._consensus.step(now_ms, PeerDead(StoreId(member.node, member.store)))
        if effects.wants_round:
            self._consensus.step(now_ms, Contact())
            if self._consensus.raft.majority_contact_ms == now_ms:
                self.supervise(now_ms, ControllerTick())

    def note_changed(self, queues: tuple[int, ...], nodes: tuple[str, ...]) -> None:
        """A command was applied here that has changed these."""
        self._changed.note(queues, nodes)

    def on_raft(self, now_ms: int, *, is_news: bool, has_applied: bool) -> None:
        """Raft was stepped.

        Args:
            is_news: this node leads now, or no longer.
            has_applied: there are new entries.
        """
        if self._controller.is_asked_for_leases:
            contact_ms = self._consensus.raft.majority_contact_ms
            is_news = is_news or contact_ms != self._contact_ms
            self._contact_ms = contact_ms
        if is_news or has_applied:
            changed, self._changed = self._changed, Changes()
            self.supervise(now_ms, changed.told())

    def on_probed(self, now_ms: int, node: str, *, refused: bool) -> None:
        """The outcome of a probe."""
        number, newer = self._probes.end(node)
        if newer is not None:
            self._probe(node, newer)
        if number is not None and refused:
            self.supervise(now_ms, ProbeRefused(node, number))

    def _probe(self, node: str, number: int) -> None:
        if self._probes.begin(node, number):
            self._context.out.probes.append(node)
