"""When a node's rail may have a queue of which this copy is a mirror. Pure.

The *rail* is a native thread of the node. In a steady epoch it takes the small groups that the
master sends straight (the star), logs them, syncs, tells the master, and hands them over later,
many at once (`Railed`). In a `replicated` view it tells the master at receipt and logs nothing. It
decides nothing: it takes what is next by epoch, lsn and checksum, and gives the queue back at
anything else.

Guarantee. What the rail has told the master of is in this copy's log before the copy does anything
that could rest on its log's end: before it enters another epoch, cuts, or takes ops along the row.
For while the rail has the queue, events of that kind are held back: it is asked to give the queue
back (`RailDisarm`), what it has taken comes, then `RailStopped`, then the events.
"""

from __future__ import annotations

from collections import deque

from mirrorq.protocol.effects import Persisted, RailArm, RailDisarm
from mirrorq.protocol.ring import Data, FetchFrames, JoinerDurable, Mark, Watermark
from mirrorq.replication.events import (
    Declared,
    Defined,
    Fetching,
    LeaseChanged,
    NeighboursChanged,
    NodeGone,
    Railed,
    ReplicaEvent,
    Requested,
    RingReceived,
    SessionGone,
    Tick,
)
from mirrorq.replication.ring import Ring

REST_MS = 20
"""After it has given a queue back the rail does not get it for so long."""

OFF, ARMED, DRAINING = 0, 1, 2
_ALWAYS = (Railed, Persisted, Tick)
"""What a copy takes while it waits for `RailStopped`."""
_STEADY = (
    *_ALWAYS,
    Declared,
    Defined,
    Fetching,
    LeaseChanged,
    NeighboursChanged,
    NodeGone,
    Requested,
    SessionGone,
)
"""What changes nothing of a mirror's log."""


class RailGuard:
    """Of one copy.

    Args:
        may_arm: there is a rail, and it is to be used.
    """

    def __init__(self, ring: Ring, *, may_arm: bool) -> None:
        self.state = OFF
        self._ring = ring
        self.may_arm = may_arm
        self._held: deque[ReplicaEvent] = deque()
        """What waits until the rail has let go, in order."""
        self._rest_ms = 0

    @property
    def is_marking(self) -> bool:
        """Whether the rail has told the master of all that it has handed over: not after it was
        asked to stop."""
        return self.state == ARMED

    def holds(self, event: ReplicaEvent) -> bool:
        """Whether an event has to wait: it is kept then."""
        if self.state == ARMED:
            if self._is_steady(event):
                return False
            self._ask_back()
        elif isinstance(event, _ALWAYS):
            return False
        self._held.append(event)
        return True

    def on_stopped(self, now_ms: int) -> deque[ReplicaEvent]:
        """The rail has let go: what waited for that."""
        self.state = OFF
        self._rest_ms = now_ms + REST_MS
        held, self._held = self._held, deque()
        return held

    def settle(self, now_ms: int) -> None:
        """A step ends: the rail may have the queue from here on, if nothing is unusual."""
        ring = self._ring
        if self.state == ARMED and ring.is_far_behind:
            # It marks at receipt. From here on the copy does, and with more behind no more.
            self._ask_back()
        if not self.may_arm or self.state != OFF or now_ms < self._rest_ms:
            return
        master = ring.steady_master
        if master is not None:
            self.state = ARMED
            ring.is_star_heard = False
            ring.out.rail = RailArm(ring.epoch, ring.received, master, ring.is_at_receipt)

    def _ask_back(self) -> None:
        self.state = DRAINING
        self._ring.out.rail = RailDisarm()

    def _is_steady(self, event: ReplicaEvent) -> bool:
        if type(event) is not RingReceived:
            return isinstance(event, _STEADY)
        message, received = event.message, self._ring.received
        if type(message) is Data:
            return not message.entries or message.entries[-1].lsn <= received
        if type(message) is Mark:
            return message.received <= received
        return isinstance(message, FetchFrames | JoinerDurable | Watermark)
