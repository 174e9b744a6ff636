"""`Node`: one process's part in a cluster, and the host of the handles that live on it.

All logic is in `engine`; the node thread that runs it is in `driver`. Here is what users and
handles call: each call becomes an event for the node thread and waits for its answer.

*Threads*: every public method may be called from any thread, except in a forked child.
"""

from __future__ import annotations

import logging
import os
import secrets
from typing import TYPE_CHECKING, Literal, NoReturn, Unpack, cast, overload

from attrs import evolve

from mirrorq import clock
from mirrorq.api.access import Access, Seen
from mirrorq.api.arguments import check_config, check_flags, checked_path
from mirrorq.api.host import SessionPort
from mirrorq.api.host_thread import check_threads
from mirrorq.api.listeners import Listeners
from mirrorq.api.options import DeclareOptions, NodeOptions, said_of_node, spelled_out
from mirrorq.cluster.catalog.proposals import recorded_endpoints
from mirrorq.config import Config
from mirrorq.engine.core import Engine
from mirrorq.engine.events import Release
from mirrorq.errors import AuthenticationError, NoQuorum, QueueDown, StoreCorrupt
from mirrorq.monitoring.alarms import Alarm
from mirrorq.monitoring.status import QueueStatus
from mirrorq.node import sigterm
from mirrorq.node.authority import Authority
from mirrorq.node.calls import NodeCalls
from mirrorq.node.driver import Driver
from mirrorq.node.endpoints import NodeEndpoints, silent_text
from mirrorq.node.gateway.core import Gateway
from mirrorq.node.gateway.request_handler import RequestHandler
from mirrorq.node.overview import Overview
from mirrorq.node.sampling import NodeSample
from mirrorq.node.spawned import spawn
from mirrorq.node.watch import ALARM, WAITS, warn_of_machine
from mirrorq.protocol.clients import AnyCall, ClientAnswer, ClientRead, ClientSeek
from mirrorq.protocol.effects import COLUMNS, Notice, QueueImage
from mirrorq.protocol.identities import MemberId, SessionId, lineage
from mirrorq.protocol.routing import ExchangeRecord
from mirrorq.replication.events import DAMAGE, SET_ASIDE
from mirrorq.replication.state.queue_state import next_sequence_of
from mirrorq.spool.spools import Spools
from mirrorq.store.node_store import Store
from mirrorq.transport.transport import Transport
from mirrorq.waiting import Latch, Once, begin_thread, is_host_thread
from mirrorq.wire.ops import FrameCodec

if TYPE_CHECKING:
    from pathlib import Path

    from mirrorq.api.queue import MirroredQueue
    from mirrorq.dashboard import Dashboard
    from mirrorq.node.rail import NodeRail
    from mirrorq.spool.queue import SpooledQueue
    from mirrorq.spool.route import SpoolStatus

log = logging.getLogger("mirrorq")

SPOOL_SUFFIX = "-spool"
"""Of the directory of its spool, which lies beside the node's own: advice for a damaged store moves
that one away."""
HAND_OVER_S = 2.0
"""close() waits no longer than this for other masters: two rounds of the catalog as a rule."""
LIST_S = 5.0
"""A list of what this node knows waits no longer for its thread."""
WARNINGS = (
    "loss",
    "copy dropped",
    "dead letters lost",
    "catalog",
    "gone",
    "paused",
    "foreign",
    "past",
    "kept out",
    DAMAGE,
    SET_ASIDE,
    ALARM,
    WAITS,
)
"""Kinds of notices that are warnings in the log."""
ERRORS = ("name",)
"""Kinds that are errors there: what is wrong does not mend itself."""
CLOSE_S = 5.0
"""close() ends within this, with or without a majority, and whatever the disk does."""
STOP_S_MIN = 1.0
"""Of that the thread has so long for its last rounds."""


class Node(Access):
    """One node: a store, a part in the catalog, and copies of queues.

    Args:
        name: this node's name, one of `peers`' names when there are any.
        path: directory of its store; made if absent. One that is not empty and holds no store is
            refused (StoreError).
        peers: name -> endpoint of every node of the cluster, this one included. None: what
            the store knows of its cluster; with an empty store a cluster of one, without
            sockets.
        config: limits and times; equal on all nodes.
        witness: votes and holds no queue.
        security: this node's secret key and the keys of who may connect; every node and client
            of the cluster must have keys then. None: no keys, and loopback only.
        insecure: allow to listen on other addresses than loopback without keys.
        listen: endpoint to bind, when it differs from the advertised one in `peers`.
        join: endpoint of one or more nodes of a running cluster, as a list or joined by
            commas: an empty store joins it. Other nodes reach this one at its endpoint in
            `peers` (which then names this node only), or where it listens; without either it
            takes a free port on loopback. A store that has joined needs no `join` any more.
        dashboard: `host:port` at which a web page shows the cluster, read-only; needs the extra
            `dashboard`. Other addresses than loopback need `insecure`.

    Returns at once, with or without peers; `wait_ready` waits for a majority.

    Made in the main thread of a process in which SIGTERM has its default disposition, it is
    closed at SIGTERM before the process ends; a handler of the application's stays in charge.

    Raises:
        ConfigError: arguments that contradict each other, an endpoint that cannot be bound.
        StoreError: the store cannot be opened (StoreLocked, StoreCorrupt among them).

    *Threads*: every method may be called from any thread. After a fork only the parent has it.
    """

    _survives_fork = False
    _salvages = False
    """Of a spool's node: ops that are damaged in this only copy keep nothing else from being used.
    Set before it is begun."""
    spawn = staticmethod(spawn)
    """A node as a process of its own: see `mirrorq.node.spawned.spawn`."""

    @spelled_out
    def __init__(
        self, name: str, *, path: str | os.PathLike[str], **options: Unpack[NodeOptions]
    ) -> None:
        said = said_of_node(options)
        config, security, insecure = said["config"], said["security"], said["insecure"]
        check_config(config)
        endpoints = NodeEndpoints(
            name, said["peers"], said["listen"], said["join"], insecure=insecure, security=security
        )
        self.name: str = name
        """Its name in the cluster."""
        self.config: Config = config or Config()
        """Its limits and times."""
        self.path: Path = checked_path(path)
        """Directory of its store."""
        self.peers = endpoints.peers
        """Endpoints by node, as they were given."""
        self._endpoint = ""
        self._others: dict[str, str] = {}
        """Endpoints of the other nodes, as far as they were named or are known."""
        self._listeners = Listeners()
        self._owned = {}
        self._transport: Transport | None = None
        self._rail: NodeRail | None = None
        self._dashboard: Dashboard | None = None
        self._authority = None if security is None else Authority(security)
        """Who may do what, None without security. The node thread's."""
        self._store = self._open_store()
        try:
            warn_of_machine(self.path)
            self._listen(endpoints)
            if said["dashboard"] is not None:
                self._check_dashboard(said["dashboard"], insecure)
            # Nothing on the disk was changed before: whatever refuses a start has been asked.
            self._store.begin()
            self._rail = self._open_rail()
            self._driver = self._make_driver(said["witness"], endpoints.joins)
            self._overview = Overview(self._driver, self._store)
            self._handler = RequestHandler(self._driver, self._overview)
            self._calls = NodeCalls(
                name, self._driver, self._handler, tuple(self._others), self._silent_text
            )
            if self._transport is not None:
                self._driver.gateway = Gateway(
                    self._driver, self._transport, self.config, self._handler, self._authority
                )
            spool = self.path.with_name(self.path.name + SPOOL_SUFFIX)
            self._spools = Spools(spool, self.config, lambda: self, self._open_queue)
            self._driver.watch.spooled = self._spools.total
            self._warn_of_two()
            self._closing = Once(self._close)
            begin_thread(self._driver.thread)
            self._end_with_process()
            if said["dashboard"] is not None:
                self._dashboard = self._show(said["dashboard"], insecure)
            self._spools.resume()
        except BaseException:
            self._give_up()
            raise

    def _give_up(self) -> None:
        """Nobody will have this node: who made it was interrupted, or it cannot be made."""
        parts = self.__dict__
        if "_closing" in parts:
            self.close()
            return
        if parts.get("_transport") is not None:
            parts["_transport"].close()
        if parts.get("_rail") is not None:
            parts["_rail"].free()
        if "_store" in parts:
            parts["_store"].close()

    def _check_dashboard(self, address: str, insecure: bool) -> None:
        from mirrorq.dashboard.server import check_address

        check_address(address, insecure=insecure)

    def _show(self, address: str, insecure: bool) -> Dashboard:
        from mirrorq.dashboard import Dashboard

        return Dashboard(self, address, insecure=insecure)

    def _listen(self, endpoints: NodeEndpoints) -> None:
        recorded = recorded_endpoints(self._store.raft_image())
        self._others = endpoints.others(recorded)
        address = endpoints.to_bind(recorded)
        if address is not None:
            self._transport = self._open_transport(address)
            self._endpoint = endpoints.endpoint(self._transport.endpoint)

    # What `mirrorq.testing` plays: the disk, the network, chance, and the process.

    def _silent_text(self) -> str:
        """Where no other node answers, and why: for who waits, on his thread."""
        transport = self._transport
        return silent_text(
            tuple(self._others.values()), {} if transport is None else transport.troubles()
        )

    def _open_store(self) -> Store:
        check_threads()
        return Store(
            self.path,
            node=self.name,
            config=self.config,
            begin=False,
            salvages=self._salvages,
        )

    def _open_transport(self, address: str) -> Transport:
        incarnation = self._store.incarnation
        return Transport(self.name, incarnation, address, self.config, self._authority)

    def _open_rail(self) -> NodeRail | None:
        if self._transport is None or not (self.config.star and self.config.rail):
            return None
        try:
            # Its C part is loaded only where it is used; not every system has it.
            from mirrorq.node.rail import begun_rail
        except ImportError as error:
            log.info("confirms go without the rail: %s", error)
            return None

        return begun_rail(self._store, self._transport)

    def _seed(self) -> int:
        return secrets.randbits(32)

    def _end_with_process(self) -> None:
        sigterm.end_with(self)

    def _make_driver(self, witness: bool, joins: tuple[str, ...]) -> Driver:
        store = self._store
        me = MemberId(self.name, store.store_id, store.incarnation)
        has_rail = self._rail is not None and self._rail.is_running
        engine = Engine(
            me,
            self.endpoint,
            self.peers,
            self.config if has_rail else evolve(self.config, rail=False),
            FrameCodec(),
            store.raft_image(),
            [self._image(queue_id) for queue_id in store.queue_ids()],
            join=joins,
            witness=witness,
            seed=self._seed(),
            now_ms=clock.now_ms(),
            read_page=self._read_page,
        )
        return Driver(engine, store, self._transport, self._on_notice, self._rail)

    def _read_page(self, queue_id: int, kind: int, first: int, lsn: int) -> bytes:
        """A page of a queue's state on this disk, b"" when it is not as it was written.

        Raises:
            StoreCorrupt: what it says cannot be done without: the node ends, and finds out at its
                next start that this copy is damaged.
        """
        try:
            return self._store.page(queue_id, kind, first, lsn)
        except StoreCorrupt as error:
            if kind != COLUMNS:
                raise
            log.error(
                "node %s: sizes and times of messages of queue %d from %d on are damaged on this "
                "disk: no limit by bytes counts them, and no TTL ends them: %s",
                self.name,
                queue_id,
                first,
                error,
            )
            return b""

    def _image(self, queue_id: int) -> QueueImage:
        """A queue's copy on this disk, as far as anything can be made of it.

        Raises:
            StoreCorrupt: nothing can, and there is no other node that may have one.
        """
        try:
            image = self._store.load(queue_id, next_sequence_of, whole=False)
        except StoreCorrupt as error:
            known = {*self.peers, *recorded_endpoints(self._store.raft_image())}
            if known <= {self.name}:
                raise
            log.error(
                "node %s: its copy of queue %d is damaged and is not used; it is copied again "
                "from another member that has one: %s",
                self.name,
                queue_id,
                error,
            )
            return QueueImage(queue_id, broken=str(error))
        if image.salvaged:
            log.error(
                "store %s: the log of queue %d is damaged: %s. What is whole is used; messages "
                "that are damaged are set aside (sequences: %s). `mirrorq store verify` names all "
                "damage",
                self.path,
                queue_id,
                image.salvaged,
                ", ".join(f"{first} to {last}" for first, last in image.damaged) or "none",
            )
        elif image.damaged:
            log.warning(
                "node %s: messages of queue %d are damaged on this disk (sequences %s) and are "
                "fetched from another member that has them",
                self.name,
                queue_id,
                ", ".join(f"{first} to {last}" for first, last in image.damaged),
            )
        return image

    def _warn_of_two(self) -> None:
        if len(self.peers) == 2:
            log.warning(
                "a cluster of two nodes (%s) has no majority without both: either one's death "
                "pauses the other. Add a third node, a witness (witness=True) is enough",
                ", ".join(self.peers),
            )

    # --- Life ---------------------------------------------------------------------------

    @property
    def endpoint(self) -> str:
        """Where others reach this node; "" without peers."""
        return self._endpoint

    @property
    def listening(self) -> str:
        """The endpoint that is bound (with the port that was found); "" without peers."""
        return "" if self._transport is None else self._transport.endpoint

    def _pickled(self, name: str) -> tuple[object, ...]:
        """A handle on a node is not pickled: raises TypeError."""
        raise TypeError(
            f"the handle on queue {name!r} is of a node and cannot be pickled: pickle "
            "one of mirrorq.connect(), or open the queue where it is used"
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"node {self.name} runs in this process and cannot be pickled: pickle a client of "
            "mirrorq.connect(), or one of its handles"
        )

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, or has failed."""
        return self._calls.is_closed or self._driver.failure is not None

    def close(self) -> None:
        """Hand masters over, stop, and close the store. Ends within 5 s. May be repeated.

        Interrupted it goes on by itself: called again it waits for the rest. Where a commit takes
        longer, which a warning says, the node ends when its disk has answered; its store stays
        locked until then.
        """
        self._calls.check_process()
        self._closing.run()
        if not is_host_thread():
            sigterm.forget(self)

    def _close(self) -> None:
        deadline = clock.monotonic() + CLOSE_S
        if self._dashboard is not None:
            self._dashboard.close()
        self._spools.close()
        self._hand_over()
        self._calls.close()
        if not self._driver.stop(max(deadline - clock.monotonic(), STOP_S_MIN)):
            # Its thread closes what it uses: nothing is taken from under it.
            self._store.note_ending()
            log.warning(
                "node %s is closed and has not ended: after %g s its disk is still at work on a "
                "commit. It ends when that is done, and its store %s stays locked until then",
                self.name,
                CLOSE_S,
                self.path,
            )
        self._listeners.close(1.0, self._closing.callers)

    def _hand_over(self) -> None:
        """Give the lease up, say that this end is a shutdown, and let the catalog's leader
        find other masters for a moment."""
        if self._transport is None or not self._driver.is_running:
            return
        driver, left = self._driver, Latch()

        def leave() -> None:
            driver.post(Release())
            driver.when(left, lambda: driver.engine.has_left, left.set)

        driver.call(leave)
        left.wait(HAND_OVER_S)

    @property
    def _unfounded(self) -> str:
        """Why this node takes part in no cluster yet, and whom it waits for; "" when it does."""
        text = self._driver.engine.waiting_text()
        return f"node {self.name} {text}" if text else ""

    def wait_ready(self, timeout: float | None = None) -> None:
        """Wait until this node takes part in a cluster that has a majority.

        Raises:
            NoQuorum: that did not come within `timeout` seconds.
        """
        self._calls.wait_ready(lambda: self._overview.is_ready, timeout)

    @overload
    def queue(
        self, name: str, *, spool: Literal[False] = False, **options: Unpack[DeclareOptions]
    ) -> MirroredQueue: ...

    @overload
    def queue(
        self,
        name: str,
        *,
        durable: bool = True,
        auto_delete: bool = False,
        timeout: float | None = 30,
        spool: Literal[True],
    ) -> SpooledQueue: ...

    @spelled_out
    def queue(
        self, name: str, *, spool: bool = False, **options: Unpack[DeclareOptions]
    ) -> MirroredQueue | SpooledQueue:
        """Declare a queue and return a handle on it, as `Client.queue` does.

        Args:
            spool: return a `SpooledQueue`, at once: its puts are accepted on this node's disk, and
                sent on when there is a majority.
            Others: as in `Client.queue`.
        """
        check_flags(spool=spool)
        if not spool:
            return super().queue(name, **options)
        return self._spools.queue(name, **options)

    def _open_queue(
        self, name: str, durable: bool, auto_delete: bool, timeout: float | None
    ) -> MirroredQueue:
        return self.queue(name, durable=durable, auto_delete=auto_delete, timeout=timeout)

    def spooled(self) -> dict[str, SpoolStatus]:
        """What is spooled on this node (`queue(…, spool=True)`), by the names of queues: how much,
        how old, and why. Never waits."""
        return self._spools.status()

    # --- What is asked of a node ----------------------------------------------------------

    def _ask(self, call: AnyCall, timeout: float | None) -> ClientAnswer:
        try:
            return self._calls.ask(call, timeout)
        except NoQuorum:
            if not isinstance(call, ClientRead | ClientSeek):
                raise
            raise QueueDown(
                f"the copy of queue {call.queue} on node {self.name} has not caught up with "
                f"its master for {timeout:g} s: read from another node"
            ) from None

    def _list(self, what: str, kind: type[Seen]) -> list[Seen]:
        self._calls.check_open()
        return self._calls.run(lambda: cast(list[Seen], self._handler.seen(what)), LIST_S, [])

    @property
    def _serving_node(self) -> str:
        return self.name

    def _new_session(self) -> SessionId:
        return self._driver.new_session()

    def _wait_known(self, timeout: float | None) -> None:
        self.wait_ready(timeout)

    def _follow_exchange(self, name: str, at_least: int = 0) -> ExchangeRecord | None:
        """A node knows every exchange."""
        return self._exchange_record(name, at_least)

    def _leave_exchange(self, name: str) -> None:
        """Nothing is kept for who follows."""

    def _exchange_record(self, name: str, at_least: int = 0) -> ExchangeRecord | None:
        """The exchange as this node knows it. Records never change: any thread may read them."""
        return self._driver.engine.catalog.exchange(name)

    def _queue_name(self, queue_id: int) -> str:
        """The queue's name, "" when there is none of this id. From any thread."""
        catalog = self._driver.engine.catalog
        record = catalog.sharded(queue_id) or catalog.queue(queue_id)
        return "" if record is None else record.name

    def _rings_of(self, queue_id: int) -> tuple[int, ...]:
        """Ids of the shards of a sharded queue, () of another. From any thread."""
        record = self._driver.engine.catalog.sharded(queue_id)
        return () if record is None else record.rings

    # --- Host of handles ----------------------------------------------------------------

    def _open_session(
        self, port: SessionPort, queue_id: int, owner: SessionId | None = None
    ) -> SessionId:
        """Register a handle; its first event tells who serves the queue."""
        self._calls.check_open()
        session = owner or self._new_session()
        self._driver.call(lambda: self._driver.open_port(session, queue_id, port))
        return session

    def _close_session(self, session: SessionId) -> None:
        self._driver.call(lambda: self._driver.close_port(session))

    def _wake(self, session: SessionId) -> None:
        """Have the handle stepped soon."""
        self._driver.wake_session(session.number)

    @property
    def _access_error(self) -> AuthenticationError | None:
        """A node is its own."""
        return None

    @property
    def _stuck_text(self) -> str:
        """Why this node cannot write, "" when it can."""
        why = self._driver.stuck_text
        return f"node {self.name} {why}" if why else ""

    @property
    def _lineage(self) -> int:
        return lineage(self._driver.engine.catalog.cluster)

    @property
    def is_paused(self) -> bool:
        """Return whether this node has no contact with a majority: it confirms nothing then."""
        return self._driver.engine.lease.paused

    # --- Status -------------------------------------------------------------------------

    def _queue_status(self, queue_id: int) -> QueueStatus:
        """What this node knows of a queue. Never blocks for the network, never raises."""
        return self._calls.run(lambda: self._overview.status(queue_id), 1.0, QueueStatus.unknown())

    def alarms(self) -> tuple[Alarm, ...]:
        """The alarms that are raised at this node, with what happened and what to do. Never
        blocks. Names of other nodes' alarms are in `nodes()`."""
        return self._driver.watch.raised

    def _sample(self, timeout: float = 1.0) -> NodeSample | None:
        """What this node is like now, for metrics: of its own copies only.

        When the node thread is busy for longer than `timeout` seconds, the last one that was
        made, or None. May be called on a closed node.

        Raises nothing.
        """
        return self._driver.sampler.take(timeout)

    def _on_notice(self, notice: Notice) -> None:
        level = logging.WARNING if notice.kind in WARNINGS else logging.INFO
        level = logging.ERROR if notice.kind in ERRORS else level
        log.log(level, "node %s: %s", self.name, notice.text)
        self._listeners.tell(notice)
