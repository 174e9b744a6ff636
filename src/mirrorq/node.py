"""`Node`: one process's part in a cluster, and the host of the handles that live on it.

All logic is in `engine`; the node thread that runs it is in `driver`. Here is what users and
handles call: each call becomes an event for the node thread and waits for its answer.

*Threads*: every public method may be called from any thread, except in a forked child.
"""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from attrs import evolve

from mirrorq import clock, errors, termination
from mirrorq.administration import Administration
from mirrorq.alarms import Alarm
from mirrorq.arguments import check_callable, check_command, check_config, check_text
from mirrorq.attendance import Attendance
from mirrorq.authority import Authority
from mirrorq.catalog import QueueRecord, exclusive_text
from mirrorq.config import Config
from mirrorq.contacts import MARK
from mirrorq.copy_page import CopyPage
from mirrorq.copy_reader import seek_copy
from mirrorq.declaration import declaration_error
from mirrorq.driver import Driver, SessionPort
from mirrorq.engine import Engine
from mirrorq.engine_events import (
    Answer,
    Ask,
    Release,
    SessionClosed,
)
from mirrorq.entry import Entry
from mirrorq.errors import (
    ConfigError,
    MirrorQError,
    NoQuorum,
    PreconditionFailed,
    QueueDown,
    QueueNotFound,
    ShutDown,
)
from mirrorq.expulsions import outcome_of
from mirrorq.host import Declared
from mirrorq.messages import (
    Administrative,
    CatalogCommand,
    DeclareQueue,
    DeclareShards,
    DeleteQueue,
    MemberId,
    SessionId,
)
from mirrorq.notice import Notice
from mirrorq.outcomes import Outcomes
from mirrorq.proposals import recorded_endpoints
from mirrorq.routing import ExchangeRecord
from mirrorq.sampling import NodeSample
from mirrorq.security import Security, check_endpoints, check_listen
from mirrorq.shard_status import listed, shard_text, summed
from mirrorq.sharding import ShardedRecord
from mirrorq.spawned import spawn
from mirrorq.status import NodeStatus, PolicyStatus, QueueStatus
from mirrorq.store import Store
from mirrorq.transport import Transport, parse_listen
from mirrorq.watch import ALARM
from mirrorq.wire.ops import FrameCodec

if TYPE_CHECKING:
    from mirrorq.dashboard import Dashboard
    from mirrorq.exchange import Exchange
    from mirrorq.queue import MirroredQueue
    from mirrorq.staged import Staged

__all__ = ["Node"]

log = logging.getLogger("mirrorq")

HAND_OVER_MS = 2000
"""close() waits no longer than this for other masters: two rounds of the catalog as a rule."""
WARNINGS = ("loss", "copy dropped", "catalog", ALARM)
"""Kinds of notices that are warnings in the log."""
CLOSE_S = 5.0
"""close() ends within this, with or without a majority."""
COPY_MS = 30_000
"""A copy that lags behind its master gets this long."""
SERVED_LOOK_S = 1.0
"""Who waits for a new queue's master looks this often whether the node is closed."""
Result = TypeVar("Result")


class Node(Administration):
    """One node: a store, a part in the catalog, and copies of queues.

    Args:
        name: this node's name, one of `peers`' names when there are any.
        path: directory of its store; made if absent.
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
    """

    survives_fork = False
    spawn = staticmethod(spawn)
    """A node as a process of its own: see `mirrorq.spawned.spawn`."""

    def __init__(
        self,
        name: str,
        *,
        path: str | os.PathLike[str],
        peers: Mapping[str, str] | None = None,
        config: Config | None = None,
        witness: bool = False,
        security: Security | None = None,
        insecure: bool = False,
        listen: str | None = None,
        join: str | Sequence[str] | None = None,
        dashboard: str | None = None,
    ) -> None:
        _check_names(name, peers)
        check_config(config)
        joins = _join_endpoints(join, name, peers)
        check_endpoints(joins, "join through", insecure=insecure, security=security)
        if security is not None:
            security.check_node(name, (other for other in peers or () if other != name))
        self.name = name
        self.config = config or Config()
        self.path = Path(path)
        self.peers = dict(peers or {})
        self._pid = os.getpid()
        self._tokens = itertools.count(1)
        self._session_numbers = itertools.count(1)
        self._listeners: list[Callable[[Notice], None]] = []
        self._callbacks = Outcomes()
        self._closed = threading.Event()
        self._close_lock = threading.Lock()
        self._transport: Transport | None = None
        self._dashboard: Dashboard | None = None
        address = listen or self.peers.get(name)
        if address is not None:
            check_listen(address, insecure=insecure, security=security)
        self.authority = None if security is None else Authority(security)
        """Who may do what, None without security. The node thread's."""
        self._store = Store(self.path, node=name, config=self.config)
        try:
            if address is None:
                address = self._recorded_address(joins)
                if address is not None:
                    check_listen(address, insecure=insecure, security=security)
            if address is not None:
                self._transport = Transport(
                    name, self._store.incarnation, address, self.config, self.authority
                )
            self._check_advertised(joins)
            self._driver = self._make_driver(witness, joins)
        except BaseException:
            if self._transport is not None:
                self._transport.close()
            self._store.close()
            raise
        self._warn_of_two(witness)
        self._driver.thread.start()
        termination.end_with(self)
        if dashboard is not None:
            self._dashboard = self._show(dashboard, insecure)

    def _show(self, address: str, insecure: bool) -> Dashboard:
        try:
            from mirrorq.dashboard import Dashboard

            return Dashboard(self, address, insecure=insecure)
        except BaseException:
            self.close()
            raise

    def _recorded_address(self, joins: tuple[str, ...]) -> str | None:
        """Where to listen when that was not said: as before or, to join, anywhere on loopback."""
        recorded = recorded_endpoints(self._store.raft_image()).get(self.name)
        if recorded is None and joins:
            return "tcp://127.0.0.1:*"
        return recorded

    def _check_advertised(self, joins: tuple[str, ...]) -> None:
        host = parse_listen(self.endpoint).host if self.endpoint else ""
        if joins and host in ("*", "0.0.0.0", "::"):
            raise ConfigError(
                f"node {self.name} listens on {self.endpoint}, which leads others nowhere: name "
                f"the endpoint at which they reach it, as peers={{{self.name!r}: …}}"
            )

    def _make_driver(self, witness: bool, joins: tuple[str, ...]) -> Driver:
        store = self._store
        me = MemberId(self.name, store.store_id, store.incarnation)
        engine = Engine(
            me,
            self.endpoint,
            self.peers,
            self.config,
            FrameCodec(),
            store.raft_image(),
            [store.load(queue_id) for queue_id in store.queue_ids()],
            join=joins,
            witness=witness,
            seed=secrets.randbits(32),
            now_ms=clock.now_ms(),
        )
        driver = Driver(engine, store, self._transport, self._on_notice)
        if self._transport is not None:
            driver.entry = Entry(
                driver,
                self._transport,
                self.config,
                tokens=self._tokens,
                session_numbers=self._session_numbers,
                status=self._status,
                is_served=self._is_served,
                is_ready=lambda: self._is_ready,
                authority=self.authority,
            )
        return driver

    def _warn_of_two(self, witness: bool) -> None:
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
        if self._transport is None:
            return ""
        return self.peers.get(self.name, self._transport.endpoint)

    @property
    def listening(self) -> str:
        """The endpoint that is bound (with the port that was found); "" without peers."""
        return "" if self._transport is None else self._transport.endpoint

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def closed(self) -> bool:
        return self._closed.is_set() or self._driver.failure is not None

    def close(self) -> None:
        """Hand masters over, stop, and close the store. Ends within 5 s. May be repeated."""
        self._check_process()
        with self._close_lock:
            if self._closed.is_set():
                return
            if self._dashboard is not None:
                self._dashboard.close()
            self._hand_over()
            self._closed.set()
            self._driver.stop(CLOSE_S)
            self._callbacks.close(1.0)
            if self._transport is not None:
                self._transport.close()
            self._store.close()
            termination.forget(self)

    def _hand_over(self) -> None:
        """Give the lease up, say that this end is a shutdown, and let the catalog's leader
        find other masters for a moment."""
        if self._transport is None or not self._driver.thread.is_alive():
            return
        self._driver.call(lambda: self._driver.post(Release()))
        engine = self._driver.engine
        deadline = clock.now_ms() + HAND_OVER_MS
        others = threading.Event()
        while clock.now_ms() < deadline and not self._on_thread(
            lambda: engine.has_left, 1.0, True
        ):
            others.wait(0.005)

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise MirrorQError(
                f"node {self.name} was made in process {self._pid}; this is process "
                f"{os.getpid()}, forked from it: make a node or connect() in the child"
            )

    def _check_open(self) -> None:
        self._check_process()
        failure = self._driver.failure
        if failure is not None:
            raise ShutDown(f"node {self.name} has failed: {failure}") from failure
        if self._closed.is_set():
            raise ShutDown(f"node {self.name} is closed")

    # --- Waiting for the node thread ----------------------------------------------------

    def _on_thread(self, function: Callable[[], Result], timeout: float, default: Result) -> Result:
        """Call a function on the node thread; `default` when it does not answer in time."""
        if threading.current_thread() is self._driver.thread:
            return function()
        done = threading.Event()
        result = [default]

        def run() -> None:
            result[0] = function()
            done.set()

        self._driver.call(run)
        waited = 0.0
        while not done.wait(min(0.05, timeout)) and waited < timeout:
            waited += 0.05
            if not self._driver.thread.is_alive():
                break
        return result[0]

    def _command(self, command: CatalogCommand, timeout: float | None) -> Answer:
        """Have a catalog command done.

        Raises:
            NoQuorum: nothing came of it in time.
        """
        self._check_open()
        token = next(self._tokens)
        done = threading.Event()
        answers: list[Answer] = []

        def answered(answer: Answer) -> None:
            answers.append(answer)
            done.set()

        def ask() -> None:
            self._driver.expect(token, answered)
            self._driver.post(Ask(token, command))

        self._driver.call(ask)
        if not done.wait(timeout):
            self._driver.call(lambda: self._driver.forget(token))
            raise NoQuorum(
                f"the cluster did not answer within {timeout} s: node {self.name} "
                f"{self._waiting_text()}. Start more of {', '.join(self.peers) or self.name}"
            )
        answer = answers[0]
        if answer.error:
            raise _exception(answer)
        return answer

    def _waiting_text(self) -> str:
        engine = self._driver.engine
        text = engine.waiting_text()
        return text or f"has leader {engine.leader or 'none'}"

    def wait_ready(self, timeout: float | None = None) -> None:
        """Wait until this node takes part in a cluster that has a majority.

        Raises:
            NoQuorum: that did not come within `timeout` seconds.
        """
        self._check_open()
        deadline = None if timeout is None else clock.now_ms() + int(timeout * 1000)
        pause = threading.Event()
        while not self._on_thread(lambda: self._is_ready, 1.0, False):
            self._check_open()
            if deadline is not None and clock.now_ms() >= deadline:
                raise NoQuorum(
                    f"node {self.name} is not ready after {timeout} s: it "
                    f"{self._waiting_text()}. Start more of {', '.join(self.peers)}"
                )
            pause.wait(0.005)

    @property
    def _is_ready(self) -> bool:
        engine = self._driver.engine
        return engine.is_registered and engine.leader is not None

    # --- Queues -------------------------------------------------------------------------

    def queue(
        self,
        name: str,
        *,
        durable: bool = True,
        exclusive: bool = False,
        auto_delete: bool = False,
        passive: bool = False,
        shards: int | None = None,
        timeout: float | None = 30,
    ) -> MirroredQueue:
        """Declare a queue and return a handle on it.

        A queue that exists is returned as it is, though it may be down; a new one when all
        members of its first view have it.

        Args:
            exclusive: the queue is this handle's alone: on this node only, and deleted when
                the handle is closed or this process ends.
            auto_delete: deleted when its last consumer has gone; `get` is no consumer.
            passive: do not make it.
            shards: make it of so many rings, 1 to 256, whose masters are spread over the nodes.
                None: as it is; a new one is one ring, not sharded.

        Raises:
            PreconditionFailed: it exists with other properties, or belongs to another handle.
            QueueNotFound: `passive`, and it does not exist.
            NoQuorum: no majority within `timeout` seconds.
        """
        from mirrorq.queue import MirroredQueue

        declared = self.declare(
            name,
            durable=durable,
            exclusive=exclusive,
            auto_delete=auto_delete,
            passive=passive,
            timeout=timeout,
            shards=shards,
        )
        return MirroredQueue._attach(self, declared, name)

    def declare(
        self,
        name: str,
        *,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        passive: bool,
        timeout: float | None,
        shards: int | None = None,
    ) -> Declared:
        """Declare a queue."""
        wrong = declaration_error(
            name, exclusive, auto_delete, shards, passive=passive, durable=durable
        )
        if wrong:
            raise ConfigError(wrong)
        if passive:
            self.wait_ready(timeout)
            return self._known_queue(name)
        owner = self._new_session() if exclusive else None
        command: DeclareQueue | DeclareShards
        command = DeclareQueue(name, durable, exclusive, auto_delete, self.name, owner, ())
        if shards is not None:
            command = DeclareShards(name, shards, durable, self.name, ())
        catalog = self._driver.engine.catalog
        records: tuple[QueueRecord | None, ShardedRecord | None] = (None, None)
        records = self._on_thread(
            lambda: (catalog.queue_named(name), catalog.sharded_named(name)), 1.0, records
        )
        known, sharded = records
        if (
            known is not None
            and shards is None
            and (known.durable, known.auto_delete) == (durable, auto_delete)
            and not (known.exclusive or exclusive)
            and self._is_ready
        ):
            return Declared(known.id)
        queue_id = self._command(command, timeout).value
        declared = Declared(queue_id, owner, shards=self.rings_of(queue_id))
        try:
            if known is None and sharded is None:
                self._wait_served(declared.queue_id, timeout)
        except BaseException:
            self._disown(declared)
            raise
        return declared

    def _new_session(self) -> SessionId:
        return SessionId(self.name, self._store.incarnation, next(self._session_numbers))

    def _disown(self, declared: Declared) -> None:
        """No handle comes of the declaration: an exclusive queue ends."""
        owner = declared.owner
        if owner is not None:
            self._driver.call(lambda: self._driver.post(SessionClosed(owner, declared.queue_id)))

    def rings_of(self, queue_id: int) -> tuple[int, ...]:
        """Ids of the shards of a sharded queue, () of another. From any thread."""
        record = self._driver.engine.catalog.sharded(queue_id)
        return () if record is None else record.rings

    def _known_queue(self, name: str) -> Declared:
        catalog = self._driver.engine.catalog
        sharded = self._on_thread(lambda: catalog.sharded_named(name), 1.0, None)
        if sharded is not None:
            return Declared(sharded.id, shards=sharded.rings)
        record = self._on_thread(lambda: self._driver.engine.catalog.queue_named(name), 1.0, None)
        if record is None:
            raise QueueNotFound(f"no queue is named {name!r}: declare it, or correct the name")
        if record.exclusive:
            raise PreconditionFailed(exclusive_text(record))
        return Declared(record.id)

    def _wait_served(self, queue_id: int, timeout: float | None) -> None:
        """A new queue: until its master has reported that it serves."""
        served = threading.Event()
        deadline = None if timeout is None else clock.now_ms() + int(timeout * 1000)

        def is_over() -> bool:
            return served.is_set() or self._is_served(queue_id)

        self._driver.call(lambda: self._driver.when(is_over, served.set))
        while not served.wait(SERVED_LOOK_S):
            if deadline is not None and clock.now_ms() >= deadline:
                break
            self._check_open()
        served.set()
        self._check_open()

    def _is_served(self, queue_id: int) -> bool:
        engine = self._driver.engine
        rings = self.rings_of(queue_id)
        if rings:
            return all(self._is_served(ring) for ring in rings)
        replica = engine.replicas.get(queue_id)
        if replica is not None and replica.is_master:
            return replica.is_serving
        return queue_id in engine.reports or engine.catalog.queue(queue_id) is None

    def delete(
        self, queue_id: int, *, if_empty: bool, if_unused: bool, timeout: float | None
    ) -> None:
        """Delete a queue with everything in it.

        Raises:
            PreconditionFailed: it is not empty, or has consumers, and that was asked; or it is
                one shard of a queue.
        """
        home = self._driver.engine.catalog.home_of(queue_id)
        if home is not None:
            raise PreconditionFailed(shard_text(home))
        if if_empty or if_unused:
            status = self.status(queue_id)
            if if_empty and status.messages:
                raise PreconditionFailed(
                    f"queue {status.name!r} has {status.messages} messages: purge it first"
                )
            if if_unused and status.consumers:
                raise PreconditionFailed(
                    f"queue {status.name!r} has {status.consumers} consumers: cancel them first"
                )
        self._command(DeleteQueue(queue_id), timeout)

    # --- Exchanges ----------------------------------------------------------------------

    def staged(
        self, transaction: str, version: int, queue: str, *, run: str | None = None
    ) -> Staged:
        """Write into a queue from many processes, exactly once, as `Client.staged` does."""
        from mirrorq.staged import Staged

        return Staged(self, transaction, version, queue, run)

    def exchange(
        self,
        name: str,
        kind: str | None = None,
        *,
        alternate: str | None = None,
        passive: bool = False,
        timeout: float | None = 30,
    ) -> Exchange:
        """Declare an exchange and return a handle on it.

        Args:
            kind: direct, fanout, topic or headers.
            alternate: name of the exchange that gets what reaches no queue.
            passive: do not make it; `kind` is not looked at.

        Raises:
            PreconditionFailed: it exists with other properties.
            QueueNotFound: `passive`, and it does not exist.
            NoQuorum: no majority within `timeout` seconds.
        """
        from mirrorq.exchange import Exchange

        if passive:
            self.wait_ready(timeout)
        return Exchange.declare(self, name, kind, alternate, passive, timeout)

    def exchange_record(self, name: str, at_least: int = 0) -> ExchangeRecord | None:
        """The exchange as this node knows it. Records never change: any thread may read them."""
        return self._driver.engine.catalog.exchange(name)

    def queue_name(self, queue_id: int) -> str:
        """The queue's name, "" when there is none of this id. From any thread."""
        catalog = self._driver.engine.catalog
        record = catalog.sharded(queue_id) or catalog.queue(queue_id)
        return "" if record is None else record.name

    # --- Host of handles ----------------------------------------------------------------

    def open_session(
        self, port: SessionPort, queue_id: int, owner: SessionId | None = None
    ) -> SessionId:
        """Register a handle; its first event tells who serves the queue."""
        self._check_open()
        session = owner or self._new_session()
        self._driver.call(lambda: self._driver.open_port(session, queue_id, port))
        return session

    def close_session(self, session: SessionId) -> None:
        self._driver.call(lambda: self._driver.close_port(session))

    def wake(self, session: SessionId) -> None:
        """Have the handle stepped soon."""
        self._driver.wake_session(session)

    def now_ms(self) -> int:
        return clock.now_ms()

    def is_paused(self) -> bool:
        """No contact with a majority."""
        return self._driver.engine.lease.paused

    def read_copy(
        self, queue_id: int, first: int, last: int, bytes_max: int, applied: int
    ) -> CopyPage:
        """What lives from `first` to `last` in this node's copy.

        Raises:
            QueueDown: it has none in sync, or it did not come as far as `applied` in time.
        """
        span = (first, last)
        return self._from_copy(
            lambda: self._driver.read_copy(queue_id, span, bytes_max, applied), queue_id
        )

    def seek_copy(self, queue_id: int, stamp_ms: int, applied: int) -> int:
        """The first sequence of this copy published at `stamp_ms` or later."""
        engine = self._driver.engine
        return self._from_copy(lambda: seek_copy(engine, queue_id, stamp_ms, applied), queue_id)

    def _from_copy(self, look: Callable[[], Result | None], queue_id: int) -> Result:
        """Look on the node thread until the copy has come far enough."""
        self._check_open()

        def look_safely() -> Result | MirrorQError | None:
            try:
                return look()
            except MirrorQError as error:
                return error

        pause = threading.Event()
        deadline = clock.now_ms() + COPY_MS
        while True:
            found = self._on_thread(look_safely, 5.0, None)
            if isinstance(found, MirrorQError):
                raise found
            if found is not None:
                return found
            self._check_open()
            if clock.now_ms() >= deadline:
                raise QueueDown(
                    f"the copy of queue {queue_id} on node {self.name} has not come as far as its "
                    f"master for {COPY_MS} ms: read from another node"
                )
            pause.wait(0.002)

    # --- Status and administration ------------------------------------------------------

    def status(self, queue_id: int) -> QueueStatus:
        """What this node knows of a queue. Never blocks for the network, never raises."""
        return self._on_thread(lambda: self._status(queue_id), 1.0, QueueStatus.unknown())

    def _status(self, queue_id: int) -> QueueStatus:
        sharded = self._driver.engine.catalog.sharded(queue_id)
        if sharded is not None:
            return summed(sharded, [self._status(ring) for ring in sharded.rings])
        status = QueueStatus.of(
            self._driver.engine,
            queue_id,
            clock.now_ms(),
            self._queue_bytes(queue_id),
            self._driver.blocked_by,
        )
        more = self._driver.watch.warnings_of(queue_id)
        return evolve(status, warnings=status.warnings + more) if more else status

    def alarms(self) -> tuple[Alarm, ...]:
        """The alarms that are raised at this node, with what happened and what to do. Never
        blocks. Names of other nodes' alarms are in `nodes()`."""
        return self._driver.watch.raised

    def _queue_bytes(self, queue_id: int) -> int:
        try:
            return self._store.queue_bytes(queue_id)
        except MirrorQError:
            return 0

    def queues(self, *, shards: bool = False) -> list[QueueStatus]:
        """The status of every queue of the cluster, by name.

        Args:
            shards: after each sharded queue that of each of its shards.
        """
        self._check_open()

        def look() -> list[QueueStatus]:
            catalog = self._driver.engine.catalog
            return [self._status(queue_id) for queue_id in listed(catalog, shards=shards)]

        return self._on_thread(look, 5.0, [])

    def nodes(self) -> list[NodeStatus]:
        """Every node of the cluster as this one sees it, by name."""
        self._check_open()
        return self._on_thread(lambda: NodeStatus.all_of(self._driver.engine), 5.0, [])

    def sample(self, timeout: float = 1.0) -> NodeSample | None:
        """What this node is like now, for metrics: of its own copies only.

        When the node thread is busy for longer than `timeout` seconds, the last one that was
        made, or None. May be called on a closed node.
        """
        return self._driver.sampler.take(timeout)

    def policies(self) -> list[PolicyStatus]:
        """Every policy of the cluster, by name."""
        self._check_open()
        return self._on_thread(lambda: PolicyStatus.all_of(self._driver.engine), 5.0, [])

    def attendance(self) -> Attendance:
        """Who uses the cluster: clients and consumers, as all its nodes have told."""
        self._check_open()
        roll_call = self._driver.roll_call
        return self._outcome(roll_call.ask_attendance, roll_call.attendance)

    def _disconnect(self, client: str, reason: str, timeout: float | None) -> None:
        self._check_open()
        roll_call = self._driver.roll_call
        asking = partial(roll_call.ask_disconnect, client, reason)
        found = self._outcome(asking, roll_call.disconnected)
        error, text = outcome_of(client, *found)
        if error:
            raise _exception(Answer(0, 0, error, text))

    def _outcome(self, ask: Callable[[], int], look: Callable[[int], Result | None]) -> Result:
        """Ask all nodes something, and wait for what comes of it."""
        pause = threading.Event()
        number = self._on_thread(ask, COPY_MS / 1000, 0)
        while True:
            found = self._on_thread(lambda: look(number), COPY_MS / 1000, None) if number else None
            if found is not None:
                return found
            self._check_open()
            if not number:
                raise NoQuorum(f"node {self.name} is busy: its thread did not answer. Ask again")
            pause.wait(0.005)

    def _administer(self, command: Administrative, timeout: float | None) -> int:
        check_command(command)
        return self._command(command, timeout).value

    def add_listener(self, on_event: Callable[[Notice], None]) -> None:
        """Have a function called with what happens to this node, on a thread of its own."""
        if on_event is None:
            raise TypeError("on_event is None: give a function that takes a Notice")
        check_callable("on_event", on_event)
        self._listeners.append(on_event)

    def _on_notice(self, notice: Notice) -> None:
        level = logging.WARNING if notice.kind in WARNINGS else logging.INFO
        log.log(level, "node %s: %s", self.name, notice.text)
        for listener in self._listeners:
            self._callbacks.call_back(listener, notice)


def _check_names(name: str, peers: Mapping[str, str] | None) -> None:
    check_text("a node's name", name)
    if not name or name[:1] == MARK:
        raise ConfigError(f"a node needs a name that does not begin with {MARK}, not {name!r}")
    if peers is not None and not isinstance(peers, Mapping):
        raise ConfigError(
            f"peers is {peers!r}: it is a mapping of each node's name to its endpoint, such as "
            "{'a': 'tcp://10.0.0.1:7400'}"
        )
    for peer, endpoint in (peers or {}).items():
        check_text("a peer's name", peer)
        check_text(f"the endpoint of peer {peer!r}", endpoint)
    if peers is not None and name not in peers:
        raise ConfigError(
            f"node {name!r} is not among its peers {', '.join(peers)}: name every node of the "
            "cluster with its endpoint, this one included"
        )


def _join_endpoints(
    join: str | Sequence[str] | None,
    name: str,
    peers: Mapping[str, str] | None,
) -> tuple[str, ...]:
    if join is None:
        return ()
    others = [other for other in peers or () if other != name]
    if others:
        raise ConfigError(
            f"node {name!r} is given join= and the peers {', '.join(others)}: with join= name "
            "this node only, the cluster tells who the others are"
        )
    texts = tuple(text.strip() for text in (join.split(",") if isinstance(join, str) else join))
    if not texts:
        raise ConfigError("join= names no endpoint: name one of the cluster's nodes")
    return texts


def _exception(answer: Answer) -> MirrorQError:
    kind = getattr(errors, answer.error, MirrorQError)
    made = kind(answer.text)
    return made if isinstance(made, MirrorQError) else MirrorQError(answer.text)
