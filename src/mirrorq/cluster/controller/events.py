"""What goes into the controller and what it wants done. Pure data."""

from __future__ import annotations

from msgspec import Struct

from mirrorq.cluster.catalog.core import Catalog
from mirrorq.cluster.controller.failure_detector import WantedProbe
from mirrorq.protocol.commands import CatalogCommand
from mirrorq.protocol.control import LeaseAnswer, LeaseRelease, LeaseRequest, Yield, Yielded
from mirrorq.protocol.identities import MemberId


class ControllerTick(Struct, frozen=True, gc=False):
    """Time has passed, or what `Leading` says has changed."""


class Heard(Struct, frozen=True, gc=False):
    """A sign of life (Hello) came from this incarnation."""

    member: MemberId
    unheard: tuple[str, ...] = ()
    broken: tuple[int, ...] = ()
    """Queues whose copies there cannot be read."""


class LinkBroken(Struct, frozen=True, gc=False):
    """The open control connection to this node ended."""

    node: str


class ProbeRefused(Struct, frozen=True, gc=False):
    """The endpoint of this node refused the probe of this number."""

    node: str
    number: int


class CatalogChanged(Struct, frozen=True, gc=False):
    """The catalog has applied commands: what their `CatalogResult` says was changed."""

    queues: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()


class Changes:
    """What several commands have changed, until the controller is told of all at once: of a
    thousand views in one commit each would cost it a step."""

    def __init__(self) -> None:
        self._queues: list[int] = []
        self._nodes: list[str] = []

    def note(self, queues: tuple[int, ...], nodes: tuple[str, ...]) -> None:
        """A command was applied."""
        self._queues += queues
        self._nodes += nodes

    def told(self) -> CatalogChanged:
        """All that was noted."""
        return CatalogChanged(tuple(self._queues), tuple(self._nodes))


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
    """What a step wants done. Only `propose` and `send` need that this node leads."""

    propose: tuple[CatalogCommand, ...] = ()
    """To be put into Raft's log now. What is lost is proposed again."""
    send: tuple[tuple[str, LeaseAnswer], ...] = ()
    """(node name, message); the own name: to this node's own lease holder."""
    yields: tuple[tuple[str, Yield], ...] = ()
    """(node name, message); the own name: to this node's own queue."""
    wants_round: bool = False
    """A lease request waits for an answer of the majority: let Raft send a round now."""
    probe: tuple[WantedProbe, ...] = ()
    """Try a TCP connection; tell `ProbeRefused` when it is refused, else nothing."""
    known_dead: tuple[MemberId, ...] = ()
    """Incarnations that have become known dead in this step: Raft need not wait for them."""
    wake_at_ms: int | None = None
    is_news: bool = False
    """Who is alive, or which links work, is judged differently from now on."""
