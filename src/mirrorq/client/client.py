"""`connect()`: the same queues from a process that is not a node.

A client keeps a connection to one node of the cluster, its *entry node*, which passes the handles'
requests on to the master. A handle whose master is at another endpoint of the client's is served
there (`driver`). When the entry node is gone, silent, or cut off from the majority, the client goes
on to the next endpoint, opens its sessions there, and each handle attaches again: the handle
resends puts without an outcome under the same producer numbers, so nothing is lost and
nothing stored twice. Unsettled messages of its users go back meanwhile, marked as redelivered, and
an ack of such a message is refused.

*Threads*: one thread of the client owns the socket and steps the handles. Every public method may
be called from any thread, except in a forked child: `connect` there.

This module never loads the store, nor any other part of a node.
"""

from __future__ import annotations

import itertools
import logging
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack, overload

from mirrorq import clock
from mirrorq.api.access import Access, Seen
from mirrorq.api.arguments import (
    check_config,
    check_timeout,
    checked_call,
    checked_path,
    deadline_of,
    left_until,
)
from mirrorq.api.channel import FLUSH_S
from mirrorq.api.exit_flush import flush_host
from mirrorq.api.host import FORK_LOCK, SessionPort
from mirrorq.api.listeners import Listeners
from mirrorq.api.opening import local_opening
from mirrorq.api.options import ClientOptions, said_of_client, spelled_out
from mirrorq.api.queue import MirroredQueue
from mirrorq.api.sharing import Sharing, Use
from mirrorq.api.termination import Interruptible, interruptible
from mirrorq.client.address import Address
from mirrorq.client.connect_errors import ASK_S, Inquiry, Refusals, tried_text
from mirrorq.client.driver import Call, ClientDriver
from mirrorq.client.exchange_watch import ExchangeWatch, ExchangeWatches
from mirrorq.config import Config
from mirrorq.errors import (
    AuthenticationError,
    ConfigError,
    MirrorQError,
    NoQuorum,
    QueueNotFound,
    ShutDown,
    named_error,
)
from mirrorq.monitoring.status import QueueStatus
from mirrorq.protocol import clients
from mirrorq.protocol.identities import SessionId
from mirrorq.protocol.routing import ExchangeRecord
from mirrorq.security.settings import Security, check_endpoints
from mirrorq.transport.endpoint import lasting
from mirrorq.transport.greeting import ABSENT, silence_of
from mirrorq.waiting import Once, begin_thread

if TYPE_CHECKING:
    from mirrorq.client.spooled import SpoolClient

CLOSE_S = 5.0
"""Limit for the duration of close()."""
log = logging.getLogger("mirrorq")

SILENCE_MS = 2000
"""A call that waits longer for a cluster logs the reason why the cluster is not ready."""
CHECK_S = 0.1
"""Interval in which a waiting call checks for a closed client."""
STATUS_S = 1.0
"""status() waits no longer for the entry node."""
ASK_EARLY_S = ASK_S + 0.5
"""Time before the end of a wait at which the client asks the endpoints why no node serves the
client: answers come before the end."""
AT_ONCE_S = 0.05
"""If the whole wait is shorter, the client waits this long for immediate answers."""


@overload
@spelled_out
def connect(
    endpoints: str | Sequence[str] | Mapping[str, Any] | None = None,
    *,
    spool: None = None,
    **options: Unpack[ClientOptions],
) -> Client: ...


@overload
@spelled_out
def connect(
    endpoints: str | Sequence[str] | Mapping[str, Any] | None = None,
    *,
    spool: str | os.PathLike[str],
    **options: Unpack[ClientOptions],
) -> SpoolClient[Client]: ...


@spelled_out
def connect(
    endpoints: str | Sequence[str] | Mapping[str, Any] | None = None,
    *,
    spool: str | os.PathLike[str] | None = None,
    **options: Unpack[ClientOptions],
) -> Client | SpoolClient[Client]:
    """Connect to a cluster as a process that is not a node.

    Args:
        endpoints: of nodes, best of all of them. The client tries them in order, and connects to
            the masters of its queues among them. A list, or joined by commas, or a mapping
            as a node's `peers`. Or a URL, `mirrorq://key@host:7400,host2?keys=DIR&timeout=5`;
            `mirrorq:///folder` is `mirrorq.local(folder)`. Or a mapping with `url`, any of the
            URL's options, and `config`. None: the environment's `MIRRORQ_URL`. Options here
            come before the other arguments.
        config: limits and times, equal to the nodes' settings.
        insecure: allow other addresses than loopback without keys.
        security: this client's secret key and the public keys of the nodes; the nodes must
            have keys too, and list this client's.
        timeout: seconds to wait for the first node that answers. None waits.
        fail_fast: do not wait where nothing listens at any of the endpoints.
        spool: directory on this machine: puts are accepted there, with or without a node, and
            sent on when a node answers. No two processes share one spool.

    Returns:
        A client, connected; the client goes on to other endpoints by itself until closed. With
        `spool` a `SpoolClient`, at once.

    Raises:
        ConfigError: an endpoint is malformed, or on another machine and there are no keys.
        AuthenticationError: the nodes do not know this client's key, have other keys than the
            client was given, or only one side has keys.
        NoQuorum: no node answered in time; or nothing listens, with `fail_fast`.
        StoreError: the spool cannot be opened (StoreLocked: another process has it).

    Example:
        ```python
        with mirrorq.connect("tcp://127.0.0.1:7400,tcp://127.0.0.1:7401") as client:
            client.queue("jobs").put(b"resize 1.png").result(timeout=10)
        ```
    """
    said = said_of_client(options)
    address = Address.of(endpoints)
    said |= address.options
    config, timeout, insecure = said["config"], said["timeout"], said["insecure"]
    check_config(config)
    if timeout is not None:
        check_timeout(timeout)
    if address.folder:
        opening = _opening_here(address.folder, said, spool)
        return opening()
    security = address.security(said["security"])
    check_endpoints(address.endpoints, "connect to", insecure=insecure, security=security)
    texts = tuple(map(lasting, address.endpoints))
    if spool is not None:
        from mirrorq.client.spooled import SpoolClient

        limits = config or Config()
        begin = partial(
            Client, texts, limits, insecure=insecure, timeout=timeout, security=security
        )
        return SpoolClient(checked_path(spool), limits, begin)
    if said["fail_fast"]:
        _check_listening(texts)
    client = Client.__new__(Client)
    try:
        Client.__init__(
            client, texts, config or Config(), insecure=insecure, security=security, timeout=timeout
        )
        client._wait_connected(timeout)
        return client
    except BaseException:
        # An interrupted call leaves no connection behind.
        if "_closing" in client.__dict__:
            client.close()
        raise


def _opening_here(
    folder: str, said: Mapping[str, Any], spool: str | os.PathLike[str] | None
) -> Callable[[], Client]:
    """Return a function that connects to the node in a folder of this machine."""
    if spool is not None:
        raise ConfigError(
            f"the node in {folder} is on this machine and needs no spool: leave it out"
        )
    local: Callable[..., Client] = local_opening()
    named = {name: said[name] for name in ("linger", "name") if name in said}
    return partial(local, folder, config=said["config"], timeout=said["timeout"], **named)


def _check_listening(endpoints: Sequence[str]) -> None:
    """Raise NoQuorum when certainly nothing listens at any endpoint."""
    silences = Inquiry(silence_of)
    for endpoint in endpoints:
        silences.ask(endpoint)
    silences.wait(ASK_EARLY_S)
    if all(silences.answer(endpoint) in ABSENT for endpoint in endpoints):
        tried = tried_text(endpoints, {}, silences)
        raise NoQuorum(f"no node listens: {tried}. Start one, or correct the endpoints")


def _reconnect(
    endpoints: tuple[str, ...],
    config: Config,
    insecure: bool,
    timeout: float | None,
    security: Security | None = None,
) -> Client:
    """Make the client of a pickled client."""
    return connect(endpoints, config=config, insecure=insecure, security=security, timeout=timeout)


class Client(Access):
    """A connection to a cluster, and the host of its handles. See `connect`.

    A forked child goes on with a connection of its own, made when the child first uses the client
    or a handle; messages that the parent holds or has open stay the parent's.

    *Threads*: every method may be called from any thread. A forked child goes on as said above.
    """

    _survives_fork = True

    def __init__(
        self,
        endpoints: Sequence[str],
        config: Config,
        *,
        insecure: bool,
        timeout: float | None,
        security: Security | None = None,
    ) -> None:
        self._listeners = Listeners()
        self._owned = {}
        self.config: Config = config
        """Limits and times of the client."""
        self.endpoints: tuple[str, ...] = tuple(endpoints)
        """Endpoints of nodes given at the start."""
        self._insecure = insecure
        self._security = security
        self._timeout = timeout
        self._begin()

    def _begin(self) -> None:
        """Connect, in this process."""
        self._pid = os.getpid()
        self.name = self._own_name()
        self._numbers = itertools.count(1)
        """Numbers of sessions and calls."""
        self._watches = ExchangeWatches(self._watch_again, self._end_watch)
        self._driver = self._open_driver()
        self._refusals = Refusals(self.endpoints, self._security, self._driver.news.notify)
        self._listeners.start_thread()
        self._driver.on_notice = self._listeners.tell
        self._closing = Once(self._close)
        begin_thread(self._driver.thread)

    def _own_name(self) -> str:
        return f"client-{self._pid}-{secrets.token_hex(4)}"

    def _open_driver(self) -> ClientDriver:
        return ClientDriver(self.name, self.endpoints, self.config, self._security)

    def __repr__(self) -> str:
        return f"<Client {self.name} of {', '.join(self.endpoints)}>"

    def __reduce__(self) -> tuple[object, ...]:
        given = (self.endpoints, self.config, self._insecure, self._timeout, self._security)
        return _reconnect, given

    def _pickled(self, name: str) -> tuple[object, ...]:
        """Return the pickle of a handle on queue `name`: the loading process connects anew.

        With security the pickle names the file of the secret key if the key came from a file. Else
        the pickle holds the secret key, and must be kept secret.
        """
        given = (self.endpoints, self.config, self._insecure, self._timeout)
        return reopen, (*given, name, self._security)

    # --- Life ---------------------------------------------------------------------------

    @property
    def entry_node(self) -> str:
        """Name of the node that serves this client, "" without a node."""
        return self._driver.entry_node if self._driver.welcomed.is_set() else ""

    @property
    def is_closed(self) -> bool:
        """True if the client was closed, also in the parent of a forked child, or has failed."""
        return self._driver.is_stopping or self._driver.failure is not None

    def close(self) -> None:
        """Wait up to 4 s for open calls of the client's handles, say goodbye, and end. May be
        repeated.

        Calls without an outcome end with ConfirmUnknown. Consumers end; callbacks under way are not
        waited for. Does nothing in a forked child: the connection is the parent's.
        """
        if os.getpid() == self._pid:
            self._closing.run()

    def _close(self) -> None:
        flush_host(self, FLUSH_S)
        self._driver.stop(CLOSE_S)
        self._listeners.close(1.0, self._closing.callers)

    @property
    def is_paused(self) -> bool:
        """Return true if no node serves the client, or its node has no contact with a majority."""
        return not self._driver.welcomed.is_set() or self._driver.entry_paused

    @property
    def _stuck_text(self) -> str:
        """Return the entry node's reason for not serving, "" while serving."""
        return self._driver.unfounded

    @property
    def _lineage(self) -> int:
        return self._driver.lineage

    @property
    def _unfounded(self) -> str:
        """Return the entry node's reason why there is no cluster yet, "" with a cluster."""
        return self._driver.unfounded

    def wait_ready(self, timeout: float | None = None) -> None:
        """Wait until a node that has contact with a majority serves this client.

        Raises:
            NoQuorum: no such node served the client within `timeout` seconds.
        """
        deadline = deadline_of(timeout)
        silences = Inquiry(silence_of)
        with interruptible() as call:
            while True:
                self._check_open()
                driver = self._driver
                heard = self._news_count
                if not (self.is_paused or not driver.has_told or driver.unfounded):
                    return
                if self._is_late(deadline, silences):
                    raise self._no_answer(timeout, self._tried_text(silences))
                self._hear(call, heard, deadline)

    def _wait_founded(self, timeout: float | None = None) -> None:
        """Wait until a node that knows a cluster serves this client, with a majority or not.

        Raises:
            NoQuorum: no such node serves the client, and which node waits for which. Raised when
                all endpoints were tried, else after `timeout` seconds.
        """
        deadline = deadline_of(timeout)
        with interruptible() as call:
            while True:
                self._check_open()
                driver = self._driver
                heard, why = self._news_count, driver.unfounded
                if driver.welcomed.is_set() and driver.has_told and not why:
                    return
                # The endpoints go round: a second such report means that all were tried.
                if why and driver.unfounded_count >= min(len(self.endpoints), 2):
                    raise NoQuorum(why)
                if left_until(deadline) == 0:
                    raise NoQuorum(why) if why else self._no_answer(timeout)
                self._hear(call, heard, deadline)

    def _hear(
        self, call: Interruptible, heard: int, deadline: float | None, tell_ms: int | None = None
    ) -> None:
        """Wait until its node, or another one, has said more than was heard; not past the deadline,
        nor the moments at which `_is_late` and `_tell_waiting` look.

        Raises:
            ShutDown: the call is to wait no longer.
        """
        if call.why:
            raise self._ended(call)
        driver = self._driver
        left_s = left_until(deadline)
        if left_s is not None:
            left_s = left_s - ASK_EARLY_S if left_s > ASK_EARLY_S else max(left_s, 0.001)
        if tell_ms is not None:
            till_tell_s = (tell_ms - clock.now_ms()) / 1000
            till_tell_s += ASK_S if till_tell_s <= 0 else 0.0
            left_s = till_tell_s if left_s is None else min(left_s, till_tell_s)

        def is_news() -> bool:
            return self._news_count != heard or not driver.is_running or bool(call.why)

        call.wait_for(driver.news, is_news, left_s)

    def _ended(self, call: Interruptible) -> ShutDown:
        return ShutDown(
            f"{call.why}: the call waits for a majority no longer. No node that has one serves "
            f"this client, which tries {', '.join(self.endpoints)}"
        )

    @property
    def _news_count(self) -> int:
        """How often the client's thread reported news or an endpoint answered."""
        return self._driver.news_count + self._refusals.answer_count

    def _wait_connected(self, timeout: float | None) -> None:
        deadline = deadline_of(timeout)
        silences, driver = Inquiry(silence_of), self._driver
        tell_ms: int | None = clock.now_ms() + SILENCE_MS
        with interruptible() as call:
            while True:
                heard = self._news_count
                if driver.welcomed.is_set():
                    return
                self._check_open()
                if tell_ms is not None and clock.now_ms() >= tell_ms:
                    tell_ms = self._tell_waiting(tell_ms, silences)
                is_late = self._is_late(deadline, silences)
                refused = self._refusals.error(driver.refusals, is_late=is_late)
                if refused is not None:
                    raise refused
                if is_late:
                    raise self._no_answer(timeout, self._tried_text(silences))
                self._hear(call, heard, deadline, tell_ms)

    def _tell_waiting(self, tell_ms: int, silences: Inquiry) -> int | None:
        """Ask the endpoints why no node serves the client. Log the reason after time for answers.
        Return `tell_ms` to call again, None once the reason is logged."""
        if self._driver.welcomed.is_set():
            return None
        for endpoint in self.endpoints:
            silences.ask(endpoint)
        is_known = all(silences.answer(endpoint) for endpoint in self.endpoints)
        if not is_known and clock.now_ms() < tell_ms + ASK_S * 1000:
            return tell_ms
        tried = tried_text(self.endpoints, self._driver.refusals, silences)
        log.info("connect() waits: no node answers yet, of %s", tried)
        return None

    def _is_late(self, deadline: float | None, silences: Inquiry) -> bool:
        """Return true if the wait is over. Shortly before, ask the endpoints why no node serves the
        client: answers before the end are reported, later answers are not waited for."""
        left_s = left_until(deadline)
        if left_s is None:
            return False
        if left_s <= ASK_EARLY_S and not self._driver.welcomed.is_set():
            for endpoint in self.endpoints:
                silences.ask(endpoint)
        return left_s == 0

    def _tried_text(self, silences: Inquiry) -> str:
        """Return the endpoints, and the known reasons why each serves no client."""
        if self._driver.welcomed.is_set():
            return ""
        silences.wait(AT_ONCE_S)
        return tried_text(self.endpoints, self._driver.refusals, silences)

    @property
    def _access_error(self) -> AuthenticationError | None:
        """Why no node lets this client in (any more), None while one does or for other reasons."""
        return self._refusal(is_late=True)

    def _refusal(self, *, is_late: bool) -> AuthenticationError | None:
        driver = self._driver
        if driver.welcomed.is_set():
            return None
        return self._refusals.error(driver.refusals, is_late=is_late)

    def _no_answer(self, timeout: float | None, tried: str = "") -> MirrorQError:
        return self._access_error or NoQuorum(self._no_answer_text(timeout, tried))

    def _no_answer_text(self, timeout: float | None, tried: str = "") -> str:
        where = f"node {self._driver.entry_node}" if self._driver.welcomed.is_set() else "no node"
        # The state found at each endpoint tells more than the end of the handshake.
        is_explained = all(f"{one} (" in tried for one in self.endpoints)
        trouble = f" ({self._driver.trouble})" if self._driver.trouble and not is_explained else ""
        if self._driver.unfounded:
            return (
                f"no cluster answered within {timeout} s: {self._driver.unfounded}. Start what it "
                "waits for, or correct the endpoints"
            )
        return (
            f"no majority answered within {timeout} s: {where} serves this client, which tries "
            f"{tried or ', '.join(self.endpoints)}{trouble}. Start more nodes, or correct the "
            "endpoints"
        )

    def _check_open(self) -> None:
        if os.getpid() != self._pid:
            with FORK_LOCK:
                if os.getpid() != self._pid:
                    self._begin()
        failure = self._driver.failure
        if failure is not None:
            raise ShutDown(f"the client has failed: {failure}") from failure
        if self._driver.is_stopping:
            raise ShutDown(self._driver.expelled or "the client is closed")

    # --- Queues -------------------------------------------------------------------------

    def _follow_exchange(self, name: str, at_least: int = 0) -> ExchangeRecord | None:
        """Subscribe to an exchange at the entry node until the last handle leaves."""
        self._check_open()
        watches = self._watches
        watches.follow(name)
        try:
            return self._exchange_record(name, at_least)
        except BaseException:
            watches.unfollow(name)
            raise

    def _leave_exchange(self, name: str) -> None:
        self._watches.unfollow(name)

    def _exchange_record(self, name: str, at_least: int = 0) -> ExchangeRecord | None:
        """The exchange as the entry node last told."""
        watch = self._watches.known(name, at_least, CLOSE_S)
        if watch is None:
            self._check_open()
            raise self._no_answer(CLOSE_S)
        if watch.refusal is not None:
            raise named_error(watch.refusal.error, watch.refusal.text)
        return watch.record

    def _queue_name(self, queue_id: int) -> str:
        """Return the name of a queue that an exchange is bound to."""
        return self._watches.queue_name(queue_id)

    def _rings_of(self, queue_id: int) -> tuple[int, ...]:
        """Return ids of the shards of a sharded queue that an exchange is bound to, else ()."""
        return self._watches.rings_of(queue_id)

    def _watch_again(self, watch: ExchangeWatch) -> None:
        """Have the entry node say when the exchange has changed again."""
        message = self._numbered(clients.ClientWatch(watch.name, watch.version, watch.index))
        call = watch.call = Call(message, on_answer=watch.on_answer)
        self._driver.call(lambda: self._driver.start_call(call))

    def _end_watch(self, watch: ExchangeWatch) -> None:
        """End the entry node's reports about an exchange."""
        call = watch.call
        if call is not None:
            self._driver.call(lambda: self._driver.forget_call(call))

    # --- Questions to a node --------------------------------------------------------------

    def _queue_status(self, queue_id: int) -> QueueStatus:
        """Return a queue's status as the entry node sees it; `unknown` without a prompt answer."""
        if not self._driver.entry_node and os.getpid() == self._pid:
            return QueueStatus.unknown()
        try:
            answer = self._ask(clients.ClientLook("status", queue_id), STATUS_S)
            return self._decoded(answer, "status", QueueStatus)
        except MirrorQError:
            return QueueStatus.unknown()

    def _list(self, what: str, kind: type[Seen], after: str = "") -> tuple[list[Seen], str]:
        answer = self._ask(clients.ClientLook(what, after=after), CLOSE_S)
        rows = self._decoded(answer, what, list[kind])  # type: ignore[valid-type]
        return rows, answer.text

    @property
    def _serving_node(self) -> str:
        return self._driver.entry_node

    def _new_session(self) -> SessionId:
        self._check_open()
        return SessionId(self.name, 0, next(self._numbers))

    def _wait_known(self, timeout: float | None) -> None:
        """Do nothing: the entry node waits."""

    def _ask(self, call: clients.AnyCall, timeout: float | None) -> clients.ClientAnswer:
        """Call the entry node, or the next entry node.

        Raises:
            NoQuorum: no answer came in time.
            ConfigError: no node could read the call.
        """
        self._check_open()
        asked = Call(self._numbered(checked_call(call)))
        answer = self._answer(asked, timeout)
        if not answer.error:
            return answer
        error = named_error(answer.error, answer.text)
        if isinstance(call, clients.ClientDelete) and isinstance(error, QueueNotFound):
            # A repeated call at the next entry node may find its own work done.
            if asked.send_count > 1:
                return answer
        raise error

    def _numbered(self, call: clients.AnyCall) -> clients.ClientCall:
        return clients.ClientCall(next(self._numbers), call)

    def _answer(self, call: Call, timeout: float | None) -> clients.ClientAnswer:
        deadline = deadline_of(timeout)
        self._driver.call(lambda: self._driver.start_call(call))
        try:
            with interruptible() as waiting:
                self._wait_answered(call, waiting, timeout, deadline)
        except MirrorQError:
            self._driver.call(lambda: self._driver.forget_call(call))
            raise
        if call.answer is None:
            self._check_open()
            raise ShutDown("the client is closed")
        return call.answer

    def _wait_answered(
        self, call: Call, waiting: Interruptible, timeout: float | None, deadline: float | None
    ) -> None:
        warn_ms: int | None = clock.now_ms() + SILENCE_MS
        pause_s = CHECK_S if timeout is None else min(CHECK_S, timeout)
        while not call.done.wait(pause_s) and self._driver.is_running:
            if waiting.why and (self.is_paused or self._driver.unfounded):
                raise self._ended(waiting)
            if warn_ms is not None and clock.now_ms() >= warn_ms and self._driver.unfounded:
                warn_ms = None
                log.warning("a call waits for a cluster: %s", self._driver.unfounded)
            if left_until(deadline) == 0:
                raise self._no_answer(timeout)
            refused = self._refusal(is_late=False)
            if refused is not None:
                raise refused

    # --- Host of handles ----------------------------------------------------------------

    def _open_session(
        self, port: SessionPort, queue_id: int, owner: SessionId | None = None
    ) -> SessionId:
        """Register a handle; its first event tells which master serves the queue."""
        self._check_open()
        session, is_owner = owner or self._new_session(), owner is not None
        self._driver.call(
            lambda: self._driver.open_port(session.number, queue_id, port, is_owner=is_owner)
        )
        return session

    def _close_session(self, session: SessionId) -> None:
        self._driver.call(lambda: self._driver.close_port(session.number))

    def _wake(self, session: SessionId) -> None:
        """Have the handle stepped soon."""
        self._driver.wake_session(session.number)


_CLIENTS: Sharing[Client] = Sharing()
"""Clients of unpickled handles: one counted client for each cluster in a process."""


def reopen(
    endpoints: tuple[str, ...],
    config: Config,
    insecure: bool,
    timeout: float | None,
    name: str,
    security: Security | None = None,
) -> MirroredQueue:
    """Make the handle of a pickled handle: on the same queue, on this process's client.

    Raises:
        NoQuorum: no node answered in time.
        QueueNotFound: the queue has been deleted meanwhile.
    """

    def make() -> Client:
        return connect(
            endpoints, config=config, insecure=insecure, security=security, timeout=timeout
        )

    use = Use()
    try:
        key = (os.getpid(), endpoints, config, insecure, security)
        client = _CLIENTS.add_use(use, key, None, make, lambda known, _: not known.is_closed)
        handle = client.queue(name, passive=True, timeout=timeout)
        handle._on_close(partial(_CLIENTS.end_use, use))
        return handle
    except BaseException:
        _CLIENTS.end_use(use)
        raise
