"""State that the parts of one master's term share. Every part may change it."""

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
"""Of many messages that end or come back at once, so many ranges are one op; the next op is made
when it is applied. Others have their turn between."""

BEGIN_COUNT = 512
"""So much of what is ready or delayed is sorted in at once at the beginning of a term; the rest has
its turn in the next steps. Others have theirs between."""

LEASE_IDLE_MS = 2000
"""The lease is kept up for so long after the last thing that needed it; the next one after that
waits for a round trip to the catalog's leader."""


@define
class Lease:
    """One object a node, shared by all its queues: a renewal steps none of them."""

    until_ms: int = 0
    """Messages may be handed out before this moment."""
    paused: bool = False
    """No contact with a majority: nothing is confirmed."""


class Term:
    """One master's term over one queue: made by `Master`, shared by its parts, gone with it."""

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
        """`View.master_epoch`: the epoch in which the term began names it."""
        self.ring = ring
        self.state = state
        self.config = config
        self.codec = codec
        self.lease = lease
        self.bodies = bodies
        """Knows whose bodies are not whole on this disk."""
        self.room = room or Room()
        """Of the store."""
        self.targets = targets or NoTargets()
        """Other queues."""
        self.log = LogTail(ring, state, codec)
        self.timers = Timers()
        """When parts of this master want to be woken though nothing comes."""
        self.attachments = Attachments(
            ring.queue_id, epoch, 2 * config.failure_ms, self.timers.new()
        )
        self.claims = Claims()
        self.horizons = Horizons()
        self.definition = DEFAULT
        """What the policy in force says."""
        self.commands: list[CatalogCommand] = []
        """What to ask the catalog for."""
        self._delay_due = self.timers.new()
        self.begin()

    def begin(self) -> None:
        """What is ready and delayed is as the applied state has it; nobody holds anything."""
        self.dispatch = Dispatch(self.state, self.epoch, self.bodies, self.config.failure_ms)
        self.dispatch.is_single = self.definition.single_active_consumer
        self.delays = Delays(self.state, self._delay_due)
        self._beginning: Iterator[None] | None = None
        """What is left to be sorted in, between portions of it."""

    def go_on(self) -> bool:
        """Sort in a portion of what is ready and delayed; whether all of it is sorted in."""
        if self._beginning is None:
            self._beginning = chain(self.dispatch.sort_in(), self.delays.gather())
        if sum(1 for _ in islice(self._beginning, BEGIN_COUNT)) == BEGIN_COUNT:
            return False
        self._beginning = None
        return True

    def reply(self, session: SessionId, reply: Reply) -> None:
        """Answer a session, if it is still attached."""
        self.attachments.reply(session, reply)

    def notice(self, kind: str, text: str) -> None:
        """Tell whoever runs the node."""
        self.ring.out.notices.append((kind, text))
