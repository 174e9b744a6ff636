"""When a node's rail may have a queue of which this copy is a mirror. Pure.

The *rail* is a native thread of the node. In a steady epoch it takes the small groups that the
master sends directly (the star), logs them, syncs, and tells the master. Later it hands them over,
many at once (`Railed`). In a `replicated` view it tells the master at receipt and logs nothing. The
rail decides nothing: it takes the next ops by epoch, lsn and checksum, and gives the queue back at
any other event.

Guarantee. Ops that the rail has acknowledged are in this copy's log before the copy uses the end of
its log: before it enters another epoch, cuts, or takes ops along the row. For this purpose such
events are held back while the rail has the queue. The rail is asked to give the queue back
(`RailDisarm`), its ops come, then `RailStopped`, then the events.
"""

from __future__ import annotations

from mirrorq.containers.fifo import Fifo
from mirrorq.protocol.effects import Persisted, RailArm, RailDisarm
from mirrorq.protocol.ring import Data, FetchFrames, JoinerDurable, Mark, Watermark
from mirrorq.replication import events
from mirrorq.replication.ring import Ring

REST_MS = 20
"""Time without the queue after the rail has given a queue back."""

OFF, ARMED, DRAINING = 0, 1, 2
_ALWAYS = (events.Railed, Persisted, events.Tick)
"""Events that a copy takes while it waits for `RailStopped`."""
_STEADY = (
    *_ALWAYS,
    events.Declared,
    events.Defined,
    events.Fetching,
    events.LeaseChanged,
    events.NeighboursChanged,
    events.NodeGone,
    events.Requested,
    events.SessionGone,
)
"""Events that change nothing of a mirror's log."""


class RailGuard:
    """Decides for one copy when the rail has the queue.

    Args:
        may_arm: true if there is a rail, and its use is allowed.
    """

    def __init__(self, ring: Ring, *, may_arm: bool) -> None:
        self.state = OFF
        self._ring = ring
        self.may_arm = may_arm
        self._held: Fifo[events.ReplicaEvent] = Fifo()
        """Events that wait until the rail has given the queue back, in order."""
        self._rest_ms = 0

    @property
    def is_marking(self) -> bool:
        """Return true if the rail has told the master of all ops that it has handed over. False
        after a request to stop."""
        return self.state == ARMED

    def holds(self, event: events.ReplicaEvent) -> bool:
        """Return true if the event has to wait. The event is kept."""
        if self.state == ARMED:
            if self._is_steady(event):
                return False
            self._ask_back()
        elif isinstance(event, _ALWAYS):
            return False
        self._held.append(event)
        return True

    def on_stopped(self, now_ms: int) -> Fifo[events.ReplicaEvent]:
        """Take the queue back; return the events that waited."""
        self.state = OFF
        self._rest_ms = now_ms + REST_MS
        held, self._held = self._held, Fifo()
        return held

    def settle(self, now_ms: int) -> None:
        """Give the queue to the rail at the end of a step, if nothing is unusual."""
        ring = self._ring
        if self.state == ARMED and ring.is_far_behind:
            # The rail marks at receipt. The copy marks from here on, until it is too far behind.
            self._ask_back()
        if not self.may_arm or self.state != OFF or now_ms < self._rest_ms:
            return
        master = ring.steady_master
        if master is not None:
            self.state = ARMED
            ring.is_star_heard = False
            ring.out.rail = RailArm(ring.epoch, ring.log.received, master, ring.log.is_at_receipt)

    def _ask_back(self) -> None:
        self.state = DRAINING
        self._ring.out.rail = RailDisarm()

    def _is_steady(self, event: events.ReplicaEvent) -> bool:
        if type(event) is not events.RingReceived:
            return isinstance(event, _STEADY)
        message, received = event.message, self._ring.log.received
        if type(message) is Data:
            return not message.entries or message.entries[-1].lsn <= received
        if type(message) is Mark:
            return message.received <= received
        return isinstance(message, FetchFrames | JoinerDurable | Watermark)
