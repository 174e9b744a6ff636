"""Room in the store: shared by all queues of a node, set by the node's driver. Pure.

A full store must be drained, and draining takes commits: acks, checkpoints, Raft. A publish that no
commit can take would stand before all of them in the log. So a publish without room gets no lsn:
the master holds it, and a mirror does not accept it.
"""

from __future__ import annotations

from attrs import define

PLENTY = 1 << 62
SMALL_BYTES = 60 * 1024
"""Frames up to this size fit wherever some free pages lie together. A larger frame needs a
contiguous place."""
OVERHEAD_BYTES = 16 * 1024
"""Extra bytes of pages for a frame: the rest of its last page, and pages of the tree."""
LOW_PART = 4


@define
class Room:
    """Bytes that the store is sure to take. A step subtracts the frames that it accepts."""

    bytes_left: int = PLENTY
    largest: int = PLENTY
    """Most bytes for one large frame, which needs contiguous pages."""
    most: int = PLENTY
    """Most bytes for one frame in an empty store. A larger frame is refused: it would wait for
    ever."""
    draining: int = PLENTY
    """Most bytes for one checkpoint. A larger checkpoint would fail, and block the acks that make
    it smaller."""
    node: str = ""
    """Name of the node."""
    wanted: int = 0
    """Largest need of a refused frame, until a frame is taken. Room made for this frame must stay
    free until then."""
    advice: str = ""
    """Advice for an operator who needs more room."""

    def set(self, bytes_left: int, largest: int, advice: str, draining: int = PLENTY) -> None:
        """Set the room that is left now."""
        self.draining = draining
        self.bytes_left = bytes_left
        self.largest = largest
        self.advice = advice

    @property
    def is_short(self) -> bool:
        """Return true if a frame waits for more room than there is."""
        return self.wanted > self.bytes_left

    @property
    def is_low(self) -> bool:
        """Return true if it is time to release unneeded pages."""
        return self.bytes_left < self.most // LOW_PART

    @property
    def is_ample(self) -> bool:
        """Return true if no queue has to release pages or to delay its writes."""
        return not self.wanted and self.draining == PLENTY and not self.is_low

    def reserve(self, size: int) -> bool:
        """Reserve room for a frame; False without room."""
        if not self.has(size):
            return False
        self.wanted = 0
        self.hold(cost(size))
        return True

    def hold(self, need: int) -> None:
        """Subtract room that is promised to a writer."""
        self.bytes_left -= need
        self.largest -= need

    @property
    def full_text(self) -> str:
        """Why messages wait, and what to do."""
        return f"the store of node {self.node} is full: consume and ack, or {self.advice}"

    def is_possible(self, size: int) -> bool:
        """Return true if a frame of this size has room in an empty store."""
        return cost(size) <= self.most

    def impossible_text(self, size: int) -> str:
        """Why a frame of this size never has room."""
        return (
            f"its frame of {size} bytes is more than the store of node {self.node} takes "
            f"({self.most} bytes in one piece): raise store_bytes_max"
        )

    def has(self, size: int) -> bool:
        """Return true if there is room for a frame of this size."""
        need = cost(size)
        if need <= (self.bytes_left if size <= SMALL_BYTES else min(self.bytes_left, self.largest)):
            return True
        self.wanted = max(self.wanted, need)
        return False


def cost(size: int) -> int:
    """Most bytes of pages that a frame of this size may take."""
    return size + OVERHEAD_BYTES
