"""How much the store will still take: shared by all queues of a node, set by its driver. Pure.

A store that is full must be drained, and draining takes commits: acks, checkpoints, Raft. A
publish that no commit can take would stand before all of them in the log. So it gets no lsn
while there is no room for it: the master lets it wait, and a mirror does not accept it.
"""

from __future__ import annotations

from attrs import define

PLENTY = 1 << 62
SMALL_BYTES = 60 * 1024
"""A frame up to this finds its place wherever some free pages lie together; a larger one needs
a place of its own."""
OVERHEAD_BYTES = 16 * 1024
"""Pages that a frame may take beside its own: the rest of its last one, and of the tree."""
LOW_PART = 4


@define
class Room:
    """Bytes that the store takes for sure; what a step accepts is taken off."""

    bytes_left: int = PLENTY
    largest: int = PLENTY
    """What lies together: the most for one large frame."""
    most: int = PLENTY
    """Of one frame, if the store were empty: what needs more is refused, as it would wait for
    ever."""
    draining: int = PLENTY
    """Of one checkpoint: a larger one would get no place, and stand before the acks that make it
    smaller."""
    node: str = ""
    """Whose it is."""
    wanted: int = 0
    """The most that a frame needed for which there was no room, until one is taken: what made room
    for it is not to be undone before it comes."""
    advice: str = ""
    """What gives more."""

    def set(self, bytes_left: int, largest: int, advice: str, draining: int = PLENTY) -> None:
        """So much is left as of now."""
        self.draining = draining
        self.bytes_left = bytes_left
        self.largest = largest
        self.advice = advice

    @property
    def is_short(self) -> bool:
        """Whether a frame waits for more than there is."""
        return self.wanted > self.bytes_left

    @property
    def is_low(self) -> bool:
        """Whether it is time to give back what nobody needs."""
        return self.bytes_left < self.most // LOW_PART

    @property
    def is_ample(self) -> bool:
        """Whether nobody has to give anything back, or to wait with what he writes."""
        return not self.wanted and self.draining == PLENTY and not self.is_low

    def take(self, size: int) -> bool:
        """Reserve room for a frame; False when there is none."""
        if not self.has(size):
            return False
        self.wanted = 0
        self.hold(cost(size))
        return True

    def hold(self, need: int) -> None:
        """So much is promised to somebody."""
        self.bytes_left -= need
        self.largest -= need

    @property
    def full_text(self) -> str:
        """Why messages wait, and what to do."""
        return f"the store of node {self.node} is full: consume and ack, or {self.advice}"

    def is_possible(self, size: int) -> bool:
        """Whether there would be room for a frame in an empty store."""
        return cost(size) <= self.most

    def impossible_text(self, size: int) -> str:
        """Why there never is."""
        return (
            f"its frame of {size} bytes is more than the store of node {self.node} takes "
            f"({self.most} bytes in one piece): raise store_bytes_max"
        )

    def has(self, size: int) -> bool:
        """Whether there is room for a frame of so many bytes."""
        need = cost(size)
        if need <= (self.bytes_left if size <= SMALL_BYTES else min(self.bytes_left, self.largest)):
            return True
        self.wanted = max(self.wanted, need)
        return False


def cost(size: int) -> int:
    """Bytes of pages that a frame may take in all."""
    return size + OVERHEAD_BYTES
