"""Samples of a node's state for metrics: frozen values, made on the node thread.

A scrape waits a little for a fresh sample. It takes the last sample when the node thread is busy,
with a commit to a slow disk for instance. So a scrape takes no lock that is held over a commit. In
each round the node thread samples a slice of the queues.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from attrs import evolve, frozen

from mirrorq import clock
from mirrorq.containers.histogram import Observed
from mirrorq.node.known_bytes import known_bytes
from mirrorq.replication.counters import Tally
from mirrorq.waiting import Latch

if TYPE_CHECKING:
    from mirrorq.engine.engine import Engine
    from mirrorq.node.timings import Timings
    from mirrorq.replication.replica import Replica
    from mirrorq.store.node_store import Store
    from mirrorq.transport.transport import Transport

SLICE = 16
"""Queues that one round of the node thread samples: about half a millisecond."""
FRESH_MS = 100
"""A sample younger than so many milliseconds is reused."""


@frozen
class QueueSample:
    """State of one local copy of a queue at the time of the sample."""

    name: str
    is_master: bool
    """True if the copy is master and its promotion is applied."""
    in_sync: bool
    members: int
    members_in_sync: int
    ready: int
    """As all counts of messages and consumers, 0 unless the copy is the master."""
    unacked: int
    delayed: int
    consumers: int
    unstable_bytes: int
    is_blocked: bool
    """True if publishes or their confirms wait."""
    copy_bytes: int
    """Bytes of frames in the node's store."""
    sync_share: float
    """Share of the live messages on the local disk, 0 to 1; 1 for a complete copy."""
    tally: Tally


@frozen
class NodeSample:
    """State of one node at one moment. Immutable, for any thread."""

    made_ms: int
    """Time of the sample by `clock.now_ms`."""
    node: str
    incarnation: int
    is_leader: bool
    is_paused: bool
    is_blocked: bool
    """True if commits wait: the disk or the map is full."""
    nodes: int
    """Nodes in the catalog."""
    nodes_alive: int
    queues: int
    """Queues in the catalog."""
    queues_down: int
    """Queues of the catalog without a running master."""
    store_used_bytes: int
    store_bytes_max: int
    connections: int
    """Connections of the listening endpoint: peers' and clients'."""
    peers_connected: int
    clients: int
    dropped: int
    """Messages that found no connection, or a full connection. They are sent again."""
    garbage: int
    """Messages that could not be read."""
    alarms: tuple[str, ...]
    """Names of the raised alarms."""
    commits: Observed
    rings: Observed
    copies: tuple[QueueSample, ...]

    def age_ms(self) -> int:
        return max(clock.now_ms() - self.made_ms, 0)


class CountsClients(Protocol):
    """The gateway, reduced to the count of its clients."""

    @property
    def client_count(self) -> int:
        """Clients that are served now."""


class Sampled(Protocol):
    """The node thread, reduced to the needs of samples."""

    engine: Engine
    thread: threading.Thread
    timings: Timings
    blocked_by: str

    @property
    def gateway(self) -> CountsClients | None:
        """The gateway; None: the node listens nowhere."""

    @property
    def is_running(self) -> bool: ...

    def call(self, function: Callable[[], None]) -> None:
        """Have a function called on the node thread."""


class Sampler:
    """Makes samples of one node. `take_sample` may be called from any thread."""

    def __init__(self, driver: Sampled, store: Store, transport: Transport | None) -> None:
        self.latest: NodeSample | None = None
        self._driver = driver
        self._store = store
        self._transport = transport
        self._waiting: list[Latch] = []
        self._left: deque[int] = deque()
        self._copies: list[QueueSample] = []
        self._down = 0
        self.is_busy = False
        """True if `advance` must be called once a round."""

    def take_sample(self, patience_s: float) -> NodeSample | None:
        """Return a new sample; if none comes in time, the last sample, if there is any."""
        latest = self.latest
        if latest is not None and latest.age_ms() <= FRESH_MS:
            return latest
        if self._driver.is_running and threading.current_thread() is not self._driver.thread:
            done = Latch()
            self._driver.call(lambda: self._begin(done))
            done.wait(patience_s)
        return self.latest

    # --- On the node thread -------------------------------------------------------------

    def _begin(self, done: Latch) -> None:
        self._waiting.append(done)
        if not self.is_busy:
            self.is_busy = True
            self._down = 0
            self._copies = []
            self._left = deque(record.id for record in self._driver.engine.catalog.queues())

    def advance(self) -> None:
        """Sample more queues; after the last queue wake the waiting threads."""
        for _ in range(min(SLICE, len(self._left))):
            self._look_at(self._left.popleft())
        if self._left:
            return
        self.latest = self._sample()
        self.is_busy = False
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done.set()

    def _look_at(self, queue_id: int) -> None:
        engine = self._driver.engine
        record = engine.catalog.queue(queue_id)
        if record is None:
            return
        self._down += not engine.is_alive(record.view.members[0].id)
        replica = engine.replicas.get(queue_id)
        if replica is None:
            return
        view = record.view
        queue_bytes = known_bytes(partial(self._store.queue_bytes, queue_id))
        counts = (len(view.members), sum(member.in_sync for member in view.members))
        self._copies.append(_copy(record.name, counts, replica, queue_bytes))

    def _sample(self) -> NodeSample:
        driver, engine, transport = self._driver, self._driver.engine, self._transport
        now_ms = clock.now_ms()
        nodes = engine.catalog.nodes()
        return NodeSample(
            made_ms=now_ms,
            node=engine.me.node,
            incarnation=engine.me.incarnation,
            is_leader=engine.leader == engine.me.node,
            is_paused=engine.is_paused(now_ms),
            is_blocked=bool(driver.blocked_by),
            nodes=len(nodes),
            nodes_alive=sum(engine.is_alive(node.member) for node in nodes),
            queues=len(engine.catalog.queues()),
            queues_down=self._down,
            store_used_bytes=known_bytes(self._store.store_bytes),
            store_bytes_max=engine.config.store_bytes_max,
            connections=0 if transport is None else transport.connection_count,
            peers_connected=0 if transport is None else transport.peer_count,
            clients=0 if driver.gateway is None else driver.gateway.client_count,
            dropped=0 if transport is None else transport.dropped_count,
            garbage=0 if transport is None else transport.garbage_count,
            alarms=engine.alarms,
            commits=driver.timings.commits.observed(),
            rings=driver.timings.rings.observed(),
            copies=tuple(sorted(self._copies, key=lambda copy: copy.name)),
        )


def _copy(name: str, counts: tuple[int, int], replica: Replica, copy_bytes: int) -> QueueSample:
    master = replica.master if replica.is_serving else None
    dispatch = None if master is None else master.dispatch
    tally = replica.tally
    return QueueSample(
        name=name,
        is_master=master is not None,
        in_sync=replica.ring.in_sync,
        members=counts[0],
        members_in_sync=counts[1],
        ready=0 if dispatch is None else dispatch.ready.count,
        unacked=0 if dispatch is None else dispatch.open.unacknowledged,
        delayed=0 if master is None else master.delayed_count,
        consumers=0 if dispatch is None else dispatch.consumers.callback_count,
        unstable_bytes=replica.ring.log.unstable_bytes,
        is_blocked=bool(master is not None and master.blocked_by),
        copy_bytes=copy_bytes,
        sync_share=replica.copied_share,
        tally=evolve(tally, ended=dict(tally.ended)),
    )
