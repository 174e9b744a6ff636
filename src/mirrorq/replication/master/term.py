"""State shared by the parts of a master's term. Every part may change it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

from attrs import define

from mirrorq.config import Config
from mirrorq.containers.timers import Timers
from mirrorq.protocol.codec import OpCodec
from mirrorq.protocol.commands import CatalogCommand
from mirrorq.protocol.identities import SessionId
from mirrorq.protocol.policy import DEFAULT
from mirrorq.protocol.sessions import Reply
from mirrorq.replication.disk_budget import Room
from mirrorq.replication.master.attachments import Attachments, Claims
from mirrorq.replication.master.courier import NoTargets, Targets
from mirrorq.replication.master.delays import Delays
from mirrorq.replication.master.dispatch import Dispatch
from mirrorq.replication.master.log_tail import LogTail
from mirrorq.replication.ring import Ring
from mirrorq.replication.state.priorities import Horizons
from mirrorq.replication.state.queue_state import QueueState
from mirrorq.replication.transfer import Transfer

PORTION = 512
"""Ranges of ended or returned messages in one op. The next op is made when the last is applied, and
other work has its turn between."""

BEGIN_COUNT = 512
"""Ranges sorted in at once at the beginning of a term. The rest follows in the next steps, with
other work between."""

LEASE_IDLE_MS = 2000
"""The lease is kept for this time after its last use. The next use waits for a round trip to the
catalog's leader."""


@define
class Lease:
    """Lease of a node, shared by all its queues: a renewal steps none of them."""

    until_ms: int = 0
    """End of the time in which messages may be delivered."""
    paused: bool = False
    """True without contact to a majority: nothing is confirmed."""


class Term:
    """A master's term over a queue: made by `Master`, shared by its parts, gone with it."""

    def __init__(
        self,
        ring: Ring,
        state: QueueState,
        epoch: int,
        config: Config,
        codec: OpCodec,
        lease: Lease,
        bodies: Transfer,
        room: Room | None = None,
        targets: Targets | None = None,
    ) -> None:
        self.epoch = epoch
        """`View.master_epoch`: the epoch in which the term began."""
        self.ring = ring
        self.state = state
        self.config = config
        self.codec = codec
        self.lease = lease
        self.bodies = bodies
        """Knows which bodies are missing on this disk."""
        self.room = room or Room()
        """Room of the store."""
        self.targets = targets or NoTargets()
        """The catalog's view of other queues."""
        self.log = LogTail(ring, state, codec)
        self.timers = Timers()
        """Timers at which parts of this master want to be woken."""
        self.attachments = Attachments(
            ring.queue_id, epoch, 2 * config.failure_ms, self.timers.new()
        )
        self.claims = Claims()
        self.horizons = Horizons()
        self.definition = DEFAULT
        """Definition of the policy in force."""
        self.commands: list[CatalogCommand] = []
        """Commands for the catalog."""
        self._delay_due = self.timers.new()
        self.start_from_state()

    def start_from_state(self) -> None:
        """Start from the applied state: no message is held."""
        self.dispatch = Dispatch(self.state, self.epoch, self.bodies, self.config.failure_ms)
        self.dispatch.is_single = self.definition.single_active_consumer
        self.delays = Delays(self.state, self._delay_due)
        self._beginning: Iterator[None] | None = None
        """Iterator over the rest of the messages that are to be sorted in."""

    def begin_portion(self) -> bool:
        """Sort in a portion of ready and delayed messages. Returns true if all are sorted in."""
        if self._beginning is None:
            self._beginning = chain(self.dispatch.ready.sort_in(), self.delays.gather())
        if sum(1 for _ in islice(self._beginning, BEGIN_COUNT)) == BEGIN_COUNT:
            return False
        self._beginning = None
        return True

    def reply(self, session: SessionId, reply: Reply) -> None:
        """Answer a session, if it is still attached."""
        self.attachments.reply(session, reply)

    def notice(self, kind: str, text: str) -> None:
        """Write a notice to the operator of the node."""
        self.ring.out.notices.append((kind, text))
