"""Credit of a client's subscriptions: the master sends no more than the client reads."""

from __future__ import annotations

from attrs import define

from mirrorq.protocol.sessions import Credit, Deliver
from mirrorq.transport.flow_control import SHARES


@define
class ClientSubscription:
    """One consumer of a client's session, as its entry node sees it."""

    number: int
    total: int = 0
    """Number of messages that the client has asked for so far."""
    announced: int = 0
    """The `total` in the last Credit that was sent to the master."""
    granted: int = 0
    """Bytes of bodies in the last Credit that was passed on; 0: none yet, or none since `halt`."""
    arrived: int = 0
    """Bytes delivered since the last Credit."""

    def on_deliver(self, deliver: Deliver) -> None:
        self.arrived += sum(map(len, deliver.frames))

    def halt(self) -> Credit:
        """Return a Credit of 0: the client takes no more until it asks anew. Send at once."""
        self.total = self.announced = self.granted = 0
        return Credit(self.number, 0)

    @property
    def is_due(self) -> bool:
        """Whether there is a Credit to send to the master."""
        is_half_gone = self.granted > 0 and self.arrived * 2 >= self.granted
        return self.total > self.announced or is_half_gone

    def credit(self, room: int, sharing: int) -> Credit:
        """Return the Credit to send to the master now.

        Args:
            room: bytes that may still be sent to the client, more than 0.
            sharing: number of the client's consumers, which share the room.
        """
        self.announced = self.total
        self.granted = max(room // (SHARES * max(sharing, 1)), 1)
        self.arrived = 0
        return Credit(self.number, self.total, self.granted)
