"""`Node`: one process's part in a cluster, and the host of the handles that live on it.

All logic is in `engine`; the node thread that runs the engine is in `driver`. Users and handles
call the methods here: each call becomes an event for the node thread and waits for its answer.

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
from mirrorq.api.arguments import check_config, check_flags, check_text, checked_path
from mirrorq.api.exit_flush import flush_host
from mirrorq.api.host import SessionPort
from mirrorq.api.host_thread import check_threads
from mirrorq.api.listeners import Listeners
from mirrorq.api.options import DeclareOptions, NodeOptions, said_of_node, spelled_out
from mirrorq.cluster.catalog.proposals import recorded_endpoints
from mirrorq.config import Config
from mirrorq.engine.engine import Engine
from mirrorq.engine.events import Release
from mirrorq.errors import AuthenticationError, NoQuorum, QueueDown, StoreCorrupt
from mirrorq.monitoring.alarms import Alarm
from mirrorq.monitoring.status import QueueStatus
from mirrorq.node import sigterm
from mirrorq.node.authority import Authority
from mirrorq.node.calls import NodeCalls
from mirrorq.node.driver import Driver
from mirrorq.node.endpoints import NodeEndpoints, silent_text
from mirrorq.node.gateway.gateway import Gateway
from mirrorq.node.gateway.request_handler import RequestHandler
from mirrorq.node.overview import Overview
from mirrorq.node.sampling import NodeSample
from mirrorq.node.spawned import spawn
from mirrorq.node.watch import ALARM, COMPUTES, WAITS, warn_of_machine
from mirrorq.protocol.clients import AnyCall, ClientAnswer, ClientLook, ClientRead, ClientSeek
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
"""Suffix of the spool's directory, which lies beside the node's own. The advice for a damaged store
moves only the store away."""
HAND_OVER_S = 2.0
"""close() waits no longer for other masters, in seconds: mostly two rounds of the catalog."""
LIST_S = 5.0
"""A list of the node's knowledge waits no longer for the node thread, in seconds."""
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
    COMPUTES,
)
"""Kinds of notices that are warnings in the log."""
ERRORS = ("name",)
"""Kinds of notices that are errors in the log: an operator must act."""
CLOSE_S = 5.0
"""close() ends within so many seconds, with or without a majority, whatever the disk does."""
FLUSH_S = 3.0
"""Part of that time for open calls of the node's handles."""
STOP_S_MIN = 1.0
"""Minimum of that time for the last rounds of the node thread."""


class Node(Access):
    """One node: a store, a part in the catalog, and copies of queues.

    Args:
        name: the node's name, one of `peers`' names when there are any.
        path: directory of its store; made if absent. A non-empty directory without a store is
            refused (StoreError).
        peers: name -> endpoint of every node of the cluster, including the node itself. None: the
            cluster that the store knows; with an empty store a cluster of one, without
            sockets.
        config: limits and times; equal on all nodes.
        witness: votes and holds no queue.
        security: the node's secret key and the keys of the processes that may connect; every node
            and client of the cluster must have keys then. None: no keys, and loopback only.
        insecure: allow to listen on other addresses than loopback without keys.
        listen: endpoint to bind, when it differs from the advertised endpoint in `peers`.
        join: endpoint of one or more nodes of a running cluster, as a list or joined by
            commas: an empty store joins it. Other nodes reach the node at its endpoint in
            `peers` (with no other node in it), or where it listens; without either it
            takes a free port on loopback. A store that has joined needs no `join` any more.
        dashboard: `host:port` at which a web page shows the cluster, read-only; needs the extra
            `dashboard`. Other addresses than loopback need `insecure`.

    Returns at once, with or without peers; `wait_ready` waits for a majority.

    If a node is made in the main thread while SIGTERM has its default disposition, SIGTERM closes
    the node before the process ends. A handler of the application keeps control.

    Raises:
        ConfigError: arguments that contradict each other, an endpoint that cannot be bound.
        StoreError: the store cannot be opened (StoreLocked, StoreCorrupt among them).

    *Threads*: every method may be called from any thread. After a fork only the parent has it.
    """

    _survives_fork = False
    _salvages = False
    """True for a spool's node: damaged ops in the only copy do not prevent the use of the rest. Set
    before the node begins."""
    spawn = staticmethod(spawn)
    """Run a node as a process of its own: see `mirrorq.node.spawned.spawn`."""

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
        self.name: str = endpoints.name
        """Name of the node in the cluster."""
        self.config: Config = config or Config()
        """Limits and times of the node."""
        self.path: Path = checked_path(path)
        """Directory of the node's store."""
        self.peers = endpoints.peers
        """Endpoints by node, as given in the arguments."""
        self._endpoint = ""
        self._others: dict[str, str] = {}
        """Endpoints of the other nodes, as far as given or known."""
        self._listeners = Listeners()
        self._owned = {}
        self._transport: Transport | None = None
        self._rail: NodeRail | None = None
        self._dashboard: Dashboard | None = None
        self._authority = None if security is None else Authority(security)
        """Keys and rights, None without security. Node thread only."""
        self._store = self._open_store()
        try:
            warn_of_machine(self.path)
            self._listen(endpoints)
            if said["dashboard"] is not None:
                self._check_dashboard(said["dashboard"], insecure)
            # The disk is unchanged until here: all checks that may refuse a start are done.
            self._store.open_files()
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
            self._spools = self._make_spools()
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
        """Free the parts of a node that was interrupted in its creation or cannot be made."""
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

        check_text("dashboard", address)
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

    # Replaced by `mirrorq.testing`: the disk, the network, chance, and the process.

    def _silent_text(self) -> str:
        """Return the endpoints without a running node, with reasons. On the waiting thread."""
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

    def _make_spools(self) -> Spools:
        path = self.path.with_name(self.path.name + SPOOL_SUFFIX)
        return Spools(path, self.config, lambda: self, self._open_queue)

    def _open_rail(self) -> NodeRail | None:
        if self._transport is None or not (self.config.star and self.config.rail):
            return None
        try:
            # The C part is loaded only where needed; it is missing on some systems.
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
        """Return a page of a queue's state on the local disk, b"" when it is damaged.

        Raises:
            StoreCorrupt: the page is indispensable. The node ends, and finds the damage of its copy
                at its next start.
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
        """Return a queue's copy on the local disk, as far as it is readable.

        Raises:
            StoreCorrupt: nothing is readable, and no other node may have a copy.
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
        """Endpoint at which other nodes reach the node; "" without peers."""
        return self._endpoint

    @property
    def listening(self) -> str:
        """The bound endpoint, with the actual port; "" without peers."""
        return "" if self._transport is None else self._transport.endpoint

    def _pickled(self, name: str) -> tuple[object, ...]:
        """Raise TypeError: a handle on a node cannot be pickled."""
        raise TypeError(
            f"the handle on queue {name!r} is of a node and cannot be pickled: pickle "
            "one of mirrorq.connect(), or open the queue where it is used"
        )

    def __repr__(self) -> str:
        return f"<Node {self.name} in {self.path}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"node {self.name} runs in this process and cannot be pickled: pickle a client of "
            "mirrorq.connect(), or one of its handles"
        )

    @property
    def is_closed(self) -> bool:
        """Whether the node was closed, or has failed."""
        return self._calls.is_closed or self._driver.failure is not None

    def close(self) -> None:
        """Wait for open calls of the node's handles, hand masters over, stop, and close the store.
        Ends within 5 s. May be repeated.

        The wait for calls takes 3 s at most; a node without a majority does not wait. Calls without
        an outcome end with ConfirmUnknown.

        An interrupted close continues by itself, and another call waits for the rest. If a commit
        takes longer, a warning is logged and the node ends when its disk has answered. Its store
        stays locked until then.
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
        if not self.is_paused:
            flush_host(self, FLUSH_S)
        self._hand_over(deadline - STOP_S_MIN)
        self._calls.close()
        if not self._driver.stop(max(deadline - clock.monotonic(), STOP_S_MIN)):
            # The node thread closes its own resources: none is taken from it.
            self._store.note_ending()
            log.warning(
                "node %s is closed and has not ended: after %g s its disk is still at work on a "
                "commit. It ends when that is done, and its store %s stays locked until then",
                self.name,
                CLOSE_S,
                self.path,
            )
        self._listeners.close(1.0, self._closing.callers)

    def _hand_over(self, deadline: float) -> None:
        """Release the lease, announce a shutdown, and wait a moment while the catalog's leader
        finds other masters."""
        if self._transport is None or not self._driver.is_running:
            return
        driver, left = self._driver, Latch()

        def leave() -> None:
            driver.post(Release())
            driver.when(left, lambda: driver.engine.may_end, left.set)

        driver.call(leave)
        left.wait(min(HAND_OVER_S, deadline - clock.monotonic()))

    @property
    def _unfounded(self) -> str:
        """Why the node takes part in no cluster yet, and for whom it waits; "": takes part."""
        text = self._driver.engine.waiting_text()
        return f"node {self.name} {text}" if text else ""

    def wait_ready(self, timeout: float | None = None) -> None:
        """Wait until the node takes part in a cluster that has a majority.

        Raises:
            NoQuorum: the node was not ready within `timeout` seconds.
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
            spool: return a `SpooledQueue`, at once: its puts are accepted on the node's disk, and
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
        """Return the spools of the node (`queue(…, spool=True)`) by names of queues: amount, age,
        and reason. Never waits."""
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

    def _list(self, what: str, kind: type[Seen], after: str = "") -> tuple[list[Seen], str]:
        self._calls.check_open()

        def look() -> tuple[list[Seen], str]:
            rows, following = self._handler.seen(ClientLook(what, after=after))
            return cast(list[Seen], rows), following

        nothing: tuple[list[Seen], str] = ([], "")
        return self._calls.run(look, LIST_S, nothing)

    @property
    def _serving_node(self) -> str:
        return self.name

    def _new_session(self) -> SessionId:
        return self._driver.new_session()

    def _wait_known(self, timeout: float | None) -> None:
        self.wait_ready(timeout)

    def _follow_exchange(self, name: str, at_least: int = 0) -> ExchangeRecord | None:
        """Return the exchange: a node knows every exchange."""
        return self._exchange_record(name, at_least)

    def _leave_exchange(self, name: str) -> None:
        """Do nothing: a node keeps no state for followers."""

    def _exchange_record(self, name: str, at_least: int = 0) -> ExchangeRecord | None:
        """Return the exchange as the node knows it. Records are immutable. From any thread."""
        return self._driver.engine.catalog.exchange(name)

    def _queue_name(self, queue_id: int) -> str:
        """Return the queue's name; "": no queue has the id. From any thread."""
        catalog = self._driver.engine.catalog
        record = catalog.sharded(queue_id) or catalog.queue(queue_id)
        return "" if record is None else record.name

    def _rings_of(self, queue_id: int) -> tuple[int, ...]:
        """Return the ids of a sharded queue's shards; () for another queue. From any thread."""
        record = self._driver.engine.catalog.sharded(queue_id)
        return () if record is None else record.rings

    # --- Host of handles ----------------------------------------------------------------

    def _open_session(
        self, port: SessionPort, queue_id: int, owner: SessionId | None = None
    ) -> SessionId:
        """Register a handle; its first event names the queue's master."""
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
        """None: a node needs no access to itself."""
        return None

    @property
    def _stuck_text(self) -> str:
        """Why the node cannot write; "": it can."""
        why = self._driver.stuck_text
        return f"node {self.name} {why}" if why else ""

    @property
    def _lineage(self) -> int:
        return lineage(self._driver.engine.catalog.cluster)

    @property
    def is_paused(self) -> bool:
        """Whether the node has no contact with a majority: a paused node confirms nothing."""
        return self._driver.engine.lease.paused

    # --- Status -------------------------------------------------------------------------

    def _queue_status(self, queue_id: int) -> QueueStatus:
        """Return the node's knowledge of a queue. Never blocks for the network, never raises."""
        return self._calls.run(lambda: self._overview.status(queue_id), 1.0, QueueStatus.unknown())

    def alarms(self) -> tuple[Alarm, ...]:
        """Return the alarms raised at the node, with their cause and remedy. Never blocks. Names of
        other nodes' alarms are in `nodes()`."""
        return self._driver.watch.raised

    def _sample(self, timeout: float = 1.0) -> NodeSample | None:
        """Return the node's current state for metrics, with its own copies only.

        If the node thread is busy for longer than `timeout` seconds, return the last sample, or
        None. May be called on a closed node.

        Raises nothing.
        """
        return self._driver.sampler.take_sample(timeout)

    def _on_notice(self, notice: Notice) -> None:
        level = logging.WARNING if notice.kind in WARNINGS else logging.INFO
        level = logging.ERROR if notice.kind in ERRORS else level
        log.log(level, "node %s: %s", self.name, notice.text)
        self._listeners.tell(notice)
