"""`Shard`: the handle on one shard, as a part of the handle on the whole queue.

It is an ordinary handle, with its own session at its shard's master. The users' condition and the
callback thread belong to the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from attrs import evolve

from mirrorq.api.batching import ManyPut, PutRun
from mirrorq.api.channel import share
from mirrorq.api.completion import Outcomes
from mirrorq.api.handle import Handle
from mirrorq.api.host import Declared, Host
from mirrorq.api.prefetch_buffer import Backlog
from mirrorq.api.publisher import Publisher
from mirrorq.api.transactions import StepPut
from mirrorq.config import Config
from mirrorq.protocol.shard_names import shard_name
from mirrorq.session.machine import Session
from mirrorq.session.window import AHEAD_BYTES, FIRST_BYTES

LEAST_BYTES = 4 << 10
BATCH_BYTES = 256 << 10
BATCH_COUNT = 1000
"""Limit on gathered puts: so many leave at once."""


class ShardPublisher(Publisher):
    """The puts of one shard. While batches are on their way, new puts gather into a larger batch.

    The puts of one handle are divided over many rings, and a ring's cost is per batch. So a batch
    leaves at once when no batch of the shard is unconfirmed, else with the outcome.
    """

    def __init__(self, channel: Shard, ahead: Callable[[], int]) -> None:
        super().__init__(channel, ahead)
        self._gathered: list[PutRun | ManyPut] = []
        self._gathered_bytes = 0
        self._gathered_count = 0
        """Number of `put_many`s and of single puts."""

    @property
    def has_gathered(self) -> bool:
        """Whether there are puts that the session does not have."""
        return bool(self._gathered)

    def offer(self, session: Session, items: Sequence[PutRun | ManyPut]) -> None:
        """Gather the puts since the last step."""
        self._gathered += items
        for item in items:
            self._gathered_bytes += item.size
            self._gathered_count += len(item.bodies) if isinstance(item, PutRun) else 1

    def send(self, session: Session, *, is_all: bool = False) -> None:
        """Pack the gathered puts, if due."""
        is_enough = self._gathered_bytes >= BATCH_BYTES or self._gathered_count >= BATCH_COUNT
        if self._gathered and (is_all or is_enough or not session.has_open_batches):
            super().offer(session, self.take_gathered())

    def take_gathered(self) -> list[PutRun | ManyPut]:
        """Return the gathered puts and forget them."""
        items, self._gathered = self._gathered, []
        self._gathered_bytes = self._gathered_count = 0
        return items


class Whole(Protocol):
    """The handle on the whole queue, as its parts see it."""

    name: str
    host: Host
    config: Config
    refusals: dict[str, str]
    shards: int
    outcomes: Outcomes

    @property
    def face(self) -> Any:
        """The object that users hold."""

    def on_forked(self) -> None:
        """Reopen at the first use in a child."""

    def on_part_closed(self) -> None:
        """Note that a part was closed. On the host's thread."""


class Shard(Handle):
    """One shard's handle, held by the whole's. Its bounds are its share of one handle's bounds."""

    puts: ShardPublisher

    def __init__(self, whole: Whole, ring: int, number: int) -> None:
        declared = Declared(ring, refusals=whole.refusals)
        super().__init__(whole.host, declared, shard_name(whole.name, number))
        self.number = number
        self._whole = whole
        config, shards = whole.config, whole.shards
        self.config = evolve(
            config,
            prefetch=share(config.prefetch, shards),
            unconfirmed_count_max=share(config.unconfirmed_count_max, shards),
            unconfirmed_bytes_max=max(share(config.unconfirmed_bytes_max, shards), LEAST_BYTES),
        )

    def open(self) -> None:
        super().open()
        self.receiver.ahead_bytes = max(AHEAD_BYTES // self._whole.shards, FIRST_BYTES)

    def _remember(self) -> None:
        """Do nothing: the exit remembers the whole."""

    @property
    def face(self) -> Any:
        """The face of the whole."""
        return self._whole.face

    def _own_outcomes(self) -> Outcomes:
        return Outcomes(self.number, self._whole.outcomes)

    def _own_publisher(self, backlog: Backlog) -> ShardPublisher:
        return ShardPublisher(self, backlog.count)

    def _drain(self, session: Session) -> None:
        # In the order given: a put after the last look at the inbox must not rely on an outcome
        # that has already come.
        publisher = self.puts
        publisher.is_held = False
        super()._drain(session)
        publisher.send(session)
        publisher.is_held = session.has_open_batches

    def _offer_step(self, session: Session, item: StepPut) -> None:
        # In the order of calls: earlier puts are stored before the step.
        self.puts.send(session, is_all=True)
        super()._offer_step(session, item)

    def _on_closed(self, session: Session, is_cancelled: bool) -> None:
        self.inbox.extendleft(reversed(self.puts.take_gathered()))
        super()._on_closed(session, is_cancelled)

    def _note_closed(self) -> None:
        super()._note_closed()
        self._whole.on_part_closed()

    def is_quiet(self) -> bool:
        return super().is_quiet() and not self.puts.has_gathered

    def on_forked(self) -> None:
        self._whole.on_forked()

    @property
    def is_open(self) -> bool:
        """Whether there is a session: the queue was not deleted."""
        return not self.is_closed

    @property
    def runs(self) -> bool:
        """Whether the master is known, and serves."""
        session = self.session
        is_available = session is not None and session.available
        return is_available and self.puts.credit.is_known and self.is_open
