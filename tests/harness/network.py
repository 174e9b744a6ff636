"""The simulator's network: links between nodes, each a FIFO that loses only its end.

A link is one direction and one channel. While it is cut nothing arrives; cutting it loses
what is on the way and tells both ends, as a TCP connection that breaks would. A *silent*
cut tells nobody: packets vanish. A *refusing* one answers new connections as a dead process's
machine would, like a firewall that resets.
"""

from __future__ import annotations

from attrs import define, field


@define
class Link:
    """From one node to another."""

    cut: bool = False
    silent: bool = False
    """Cut without telling."""
    refuses: bool = False
    """Cut, and new connections are refused in the other end's name."""
    delay_ms: int = 0
    """Added to the normal delay."""
    gap_ms: int = 0
    """Between two messages: a hop of little speed."""
    clogged_until_ms: int = 0
    """Nothing arrives before."""
    free_ms: int = 0
    """When the last message on it arrives: FIFO."""
    generation: int = 0
    """What was sent in an older one is lost."""

    def arrival_ms(self, due_ms: int) -> int | None:
        """When a message arrives that would do so at `due_ms` on a free link; None: never."""
        if self.cut or self.silent:
            return None
        due_ms += self.delay_ms
        if due_ms < self.clogged_until_ms:
            due_ms = self.clogged_until_ms
        if due_ms < self.free_ms + self.gap_ms:
            due_ms = self.free_ms + self.gap_ms
        self.free_ms = due_ms
        return due_ms

    def is_impaired(self, now_ms: int) -> bool:
        """Whether it is cut or slower than links are."""
        slow = self.delay_ms or self.gap_ms or self.clogged_until_ms > now_ms
        return bool(self.cut or self.silent or slow)

    def mend(self) -> None:
        """Make it a good link; what is on its way is lost."""
        self.cut = self.silent = self.refuses = False
        self.delay_ms = self.gap_ms = self.clogged_until_ms = self.free_ms = 0
        self.generation += 1


@define
class Network:
    """All links; made when first asked for."""

    links: dict[tuple[str, str], Link] = field(factory=dict)

    def link(self, sender: str, receiver: str) -> Link:
        found = self.links.get((sender, receiver))
        if found is None:
            found = self.links[sender, receiver] = Link()
        return found

    def is_connected(self, one: str, other: str) -> bool:
        """Whether a connection between the two stands (both directions flow)."""
        return not (self.link(one, other).cut or self.link(other, one).cut)
