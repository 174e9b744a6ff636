"""The simulator's network: links between nodes, each a FIFO that loses only its end.

A link is one direction and one channel. While it is cut nothing arrives; cutting it loses
what is on the way and tells both ends, as a TCP connection that breaks would. A *silent*
cut tells nobody: packets vanish.
"""

from __future__ import annotations

from attrs import define, field


@define
class Link:
    """From one node to another."""

    cut: bool = False
    silent: bool = False
    """Cut without telling."""
    delay_ms: int = 0
    """Added to the normal delay."""
    free_ms: int = 0
    """When the last message on it arrives: FIFO."""
    generation: int = 0
    """What was sent in an older one is lost."""


@define
class Network:
    """All links; made when first asked for."""

    links: dict[tuple[str, str], Link] = field(factory=dict)

    def link(self, sender: str, receiver: str) -> Link:
        return self.links.setdefault((sender, receiver), Link())

    def is_connected(self, one: str, other: str) -> bool:
        """Whether a connection between the two stands (both directions flow)."""
        return not (self.link(one, other).cut or self.link(other, one).cut)

    def arrival_ms(self, sender: str, receiver: str, now_ms: int, delay_ms: int) -> int | None:
        """When a message sent now arrives; None when it is lost."""
        link = self.link(sender, receiver)
        if link.cut or link.silent:
            return None
        link.free_ms = max(link.free_ms, now_ms + delay_ms + link.delay_ms)
        return link.free_ms
