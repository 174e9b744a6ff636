"""Events and effects of the controller. Pure data."""

from __future__ import annotations

from msgspec import Struct

from mirrorq.cluster.catalog.catalog import Catalog
from mirrorq.cluster.catalog.records import CatalogResult
from mirrorq.cluster.controller.failure_detector import NO_NEWS, LivenessNews, WantedProbe
from mirrorq.protocol.commands import CatalogCommand
from mirrorq.protocol.control import LeaseAnswer, LeaseRelease, LeaseRequest, Yield, Yielded
from mirrorq.protocol.identities import MemberId


class ControllerTick(Struct, frozen=True, gc=False):
    """Time has passed, or `Leading` has changed."""


class Heard(Struct, frozen=True, gc=False):
    """A sign of life (Hello) came from the member."""

    member: MemberId
    unheard: tuple[str, ...] = ()
    broken: tuple[int, ...] = ()
    """Queues with unreadable copies at the member."""


class LinkBroken(Struct, frozen=True, gc=False):
    """The open control connection to the node ended."""

    node: str


class ProbeRefused(Struct, frozen=True, gc=False):
    """The node's endpoint refused the probe with the number."""

    node: str
    number: int


class CatalogChanged(Struct, frozen=True, gc=False):
    """The catalog has applied commands; the fields join the changes of their `CatalogResult`."""

    queues: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    redefines: bool = False


class Changes:
    """Changes of several commands, collected for one `CatalogChanged`. A thousand views in one
    commit would otherwise cost the controller a thousand steps."""

    def __init__(self) -> None:
        self._queues: list[int] = []
        self._nodes: list[str] = []
        self._redefines = False

    def on_applied(self, result: CatalogResult) -> None:
        """A command was applied."""
        self._queues += result.queues
        self._nodes += result.nodes
        self._redefines |= result.redefines

    def told(self) -> CatalogChanged:
        """Return all noted changes as one event."""
        return CatalogChanged(tuple(self._queues), tuple(self._nodes), self._redefines)


class CatalogReplaced(Struct, frozen=True, gc=False, eq=False):
    """A snapshot took the place of the whole catalog."""

    catalog: Catalog


Event = (
    ControllerTick
    | Heard
    | LinkBroken
    | ProbeRefused
    | CatalogChanged
    | CatalogReplaced
    | LeaseRequest
    | LeaseRelease
    | Yielded
)


class SupervisorEffects(Struct):
    """Effects of one step. Only `propose` and `send` need leadership."""

    propose: tuple[CatalogCommand, ...] = ()
    """Commands for Raft's log now. Lost commands are proposed again."""
    send: tuple[tuple[str, LeaseAnswer], ...] = ()
    """(node name, message); the own name: to the local lease holder."""
    yields: tuple[tuple[str, Yield], ...] = ()
    """(node name, message); the own name: to the local queue."""
    wants_round: bool = False
    """A lease request waits for an answer of the majority: let Raft send a round now."""
    probe: tuple[WantedProbe, ...] = ()
    """Try a TCP connection; step `ProbeRefused` on a refusal, else nothing."""
    known_dead: tuple[MemberId, ...] = ()
    """Incarnations newly known dead: Raft need not wait for their silence."""
    wake_at_ms: int | None = None
    news: LivenessNews = NO_NEWS
    """Nodes and links with changed judgement."""
