"""How much the store will still take: shared by all queues of a node, set by its driver. Pure.

A store that is full must be drained, and draining takes commits: acks, checkpoints, Raft. A
publish that no commit can take would stand before all of them in the log. So it gets no lsn
while there is no room for it: the master lets it wait, and a mirror does not accept it.
"""

from __future__ import annotations

from attrs import define

PLENTY = 1 << 62


@define
class Room:
    """Bytes that the store takes for sure; what a step accepts is taken off."""

    bytes_left: int = PLENTY

    def take(self, size: int) -> bool:
        """Reserve room for a frame; False when there is none."""
        need = cost(size)
        if need > self.bytes_left:
            return False
        self.bytes_left -= need
        return True

    def has(self, size: int) -> bool:
        return cost(size) <= self.bytes_left


def cost(size: int) -> int:
    """Pages that a frame may take in all: its own, twice for half-full ones, and a few more."""
    return 2 * size + 16 * 1024
