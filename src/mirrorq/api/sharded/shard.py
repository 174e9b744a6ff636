"""`Shard`: the handle on one shard, as a part of the handle on the whole queue.

It is a handle like any, with its own session at its shard's master. What its users wait by it
shares with the others, and one thread for callbacks, as a handle has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from attrs import evolve

from mirrorq.api.batching import ManyPut, PutRun
from mirrorq.api.completion import Outcomes
from mirrorq.api.host import Declared
from mirrorq.api.publisher import Publisher
from mirrorq.api.queue import MirroredQueue
from mirrorq.api.receiver import AHEAD_BYTES, FIRST_BYTES
from mirrorq.protocol.shard_names import shard_name

if TYPE_CHECKING:
    from mirrorq.api.host import Host
    from mirrorq.api.sharded.queue import ShardedQueue
    from mirrorq.api.transactions import StepPut
    from mirrorq.config import Config
    from mirrorq.session.machine import Session

__all__ = ["Shard", "share"]

LEAST_BYTES = 4 << 10
BATCH_BYTES = 256 << 10
BATCH_COUNT = 1000
"""When so much has gathered it leaves all the same."""


def share(bound: int, shards: int) -> int:
    """One shard's part of a bound that is the whole handle's, at least 1."""
    return max(-(-bound // shards), 1)


class ShardOutcomes(Outcomes):
    """The outcomes of one shard's handle: those of the whole, and which shard they are of."""

    def __init__(self, whole: Outcomes, shard: int) -> None:
        super().__init__(shard)
        self._whole = whole
        self.listeners = whole.listeners
        self.callbacks = whole.callbacks
        self.ack_listeners = whole.ack_listeners

    def wait_for(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        return self._whole.wait_for(condition, timeout)

    @property
    def waiters(self) -> int:
        return self._whole.waiters

    def notify(self) -> None:
        self._whole.notify()

    def call_back(self, callback: Callable[..., object], *arguments: Any) -> None:
        self._whole.call_back(callback, *arguments)

    def close(self, timeout: float, callers: Collection[int] = ()) -> None:
        """The thread is the whole's."""


class ShardPublisher(Publisher):
    """The puts of one shard. While batches are on their way those that come gather to a larger one.

    What one handle puts is divided over many rings, and a ring's cost is by the batch. So a batch
    leaves at once when none of this shard waits for its outcome, else with that outcome.
    """

    def __init__(self, handle: Shard) -> None:
        super().__init__(handle)
        self._gathered: list[PutRun | ManyPut] = []
        self._gathered_bytes = 0
        self._gathered_count = 0
        """`put_many`s, and puts."""

    @property
    def has_gathered(self) -> bool:
        """Whether there are puts that the session does not know of."""
        return bool(self._gathered)

    def offer(self, session: Session, items: Sequence[PutRun | ManyPut]) -> None:
        """Take what was put since the last step."""
        self._gathered += items
        for item in items:
            self._gathered_bytes += item.size
            self._gathered_count += len(item.bodies) if isinstance(item, PutRun) else 1

    def send(self, session: Session, *, is_all: bool = False) -> None:
        """Pack what has gathered, if it is time."""
        is_enough = self._gathered_bytes >= BATCH_BYTES or self._gathered_count >= BATCH_COUNT
        if self._gathered and (is_all or is_enough or not session.has_open_batches):
            super().offer(session, self.take_gathered())

    def take_gathered(self) -> list[PutRun | ManyPut]:
        """What has gathered, which is then the caller's."""
        items, self._gathered = self._gathered, []
        self._gathered_bytes = self._gathered_count = 0
        return items


class Shard(MirroredQueue):
    """One shard's handle. Its bounds are its share of what one handle may have."""

    _whole: ShardedQueue
    _number: int
    _publisher: ShardPublisher

    @classmethod
    def of(cls, whole: ShardedQueue, ring: int, number: int) -> Shard:
        made = cls.__new__(cls)
        made._whole, made._number = whole, number
        made.open_again(ring)
        return made

    def open_again(self, ring: int) -> None:
        """Open it, in this process."""
        whole = self._whole
        declared = Declared(ring, refusals=whole._refusals)
        self._open(whole._host, declared, shard_name(whole.name, self._number))
        self._receiver.ahead_bytes = max(AHEAD_BYTES // whole.shards, FIRST_BYTES)

    def _remember(self) -> None:
        """The whole is."""

    def _own_config(self, host: Host) -> Config:
        config, shards = host.config, self._whole.shards
        return evolve(
            config,
            prefetch=share(config.prefetch, shards),
            unconfirmed_count_max=share(config.unconfirmed_count_max, shards),
            unconfirmed_bytes_max=max(share(config.unconfirmed_bytes_max, shards), LEAST_BYTES),
        )

    def _own_outcomes(self) -> Outcomes:
        return ShardOutcomes(self._whole._outcomes, self._number)

    def _own_publisher(self) -> ShardPublisher:
        return ShardPublisher(self)

    def _drain(self, session: Session) -> None:
        # In this order: who puts after the last look at the inbox must not rely on an outcome that
        # has come already.
        publisher = self._publisher
        publisher.is_held = False
        super()._drain(session)
        publisher.send(session)
        publisher.is_held = session.has_open_batches

    def _offer_step(self, session: Session, item: StepPut) -> None:
        # In the order of calls: what was put before it is stored before it.
        self._publisher.send(session, is_all=True)
        super()._offer_step(session, item)

    def _on_closed(self, session: Session, is_deleted: bool) -> None:
        self._inbox.extendleft(reversed(self._publisher.take_gathered()))
        super()._on_closed(session, is_deleted)

    def _is_quiet(self) -> bool:
        return super()._is_quiet() and not self._publisher.has_gathered

    def _on_forked(self) -> None:
        self._whole._on_forked()

    @property
    def is_open(self) -> bool:
        """Whether there is a session: its queue was not deleted."""
        return not self._is_closed

    @property
    def runs(self) -> bool:
        """Whether its master has been heard of, and serves."""
        session = self._session
        is_available = session is not None and session.available
        return is_available and self._publisher.credit.is_known and self.is_open
