"""`Exchange`: a name to publish to; bindings decide which queues a message reaches.

Exchanges and bindings are in the catalog, so they are the same on all nodes and as durable as the
catalog. Routing is done by the publisher's handle: it has a handle on each queue that its messages
reach, and puts a message into all of them. Each put is resent after a failover under its own
producer number, so a failover in the middle neither loses the message nor doubles it in any queue.
The confirmation of `publish` ends when every put has ended.

*Threads*: every method may be called from any thread.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from attrs import frozen

from mirrorq.api.arguments import (
    check_block,
    check_flags,
    checked_body,
    deadline_of,
)
from mirrorq.api.closing import Closing
from mirrorq.api.completion import Outcomes
from mirrorq.api.confirmation import Confirmation
from mirrorq.api.fan_out import Gathering
from mirrorq.api.handle import Handle
from mirrorq.api.host import FORK_LOCK, Declared, Host
from mirrorq.api.opening import handle_on
from mirrorq.api.options import Body, RoutedOptions, packed, spelled_out
from mirrorq.api.publish_options import Terms
from mirrorq.api.publisher import OnConfirm, confirmation_of
from mirrorq.api.queue import MirroredQueue
from mirrorq.api.waits import Wait, Waits, in_thread
from mirrorq.errors import ConfigError, Full, MirrorQError, QueueNotFound, ShutDown
from mirrorq.protocol.commands import Administrative, Bind, DeclareExchange, DeleteExchange, Unbind
from mirrorq.protocol.routing import (
    KEY_CHARS_MAX,
    ExchangeRecord,
    Routes,
    arguments_text,
    exchange_error,
)

if TYPE_CHECKING:
    from mirrorq.api.sharded.handle import ShardedHandle


class ExchangeHost(Host, Protocol):
    """The needs of an exchange from the process that it lives in."""

    def _follow_exchange(self, name: str, at_least: int = 0) -> ExchangeRecord | None:
        """Follow an exchange and return it as `_exchange_record`: the first time that a handle uses
        the name. After an exception the exchange is not followed."""

    def _leave_exchange(self, name: str) -> None:
        """Undo one `_follow_exchange`: a handle is closed."""

    def _exchange_record(self, name: str, at_least: int = 0) -> ExchangeRecord | None:
        """Return the exchange as the process knows it, at least of the given version.

        The calling handle follows the exchange.
        """

    def _queue_name(self, queue_id: int) -> str:
        """Return the queue's name; "": no queue has the id."""

    def _rings_of(self, queue_id: int) -> tuple[int, ...]:
        """Return the ids of a sharded queue's shards; () for another queue."""

    def _administer(self, command: Administrative, timeout: float | None) -> int: ...


class Exchange(Closing):
    """One exchange. Made by `Node.exchange` and `Client.exchange`; holds a handle on each queue
    that its messages reach. Every method may be called from any thread."""

    def __init__(self, host: ExchangeHost, name: str) -> None:
        self.name: str = name
        """Name of the exchange."""
        self._host = host
        self._is_closed = False
        self._begin()

    def _begin(self) -> None:
        """Begin in the current process: a forked child has none of its parent's open handles."""
        self._pid = os.getpid()
        self._lock = threading.RLock()
        """Held while a message is accepted: by all of its queues or by none."""
        self._handles: dict[int, Handle | ShardedHandle] = {}
        self._routes: dict[str, Routes] = {}
        self._followed: dict[str, None] = {}
        """Exchanges followed by the host until the handle is closed, including alternates."""
        self._outcomes = Outcomes()
        self._open: dict[Gathering, None] = {}
        """Publishes without an outcome."""

    @classmethod
    def _declare(
        cls,
        host: ExchangeHost,
        name: str,
        kind: str | None,
        alternate: str | None,
        passive: bool,
        timeout: float | None,
    ) -> Exchange:
        """Make an exchange, or find an existing exchange."""
        if passive:
            # A passive declaration uses the name only.
            wrong = exchange_error(name, "topic", "")
            if wrong:
                raise ConfigError(wrong)
            return cls(host, name)._begun(0)
        wrong = exchange_error(name, kind, alternate or "")
        if wrong:
            raise ConfigError(wrong)
        if alternate:
            try:
                cls(host, alternate)._begun(0).close()
            except QueueNotFound:
                raise QueueNotFound(
                    f"no exchange is named {alternate!r}: declare it before exchange {name!r}, "
                    "whose alternate it is to be"
                ) from None
        version = host._administer(DeclareExchange(name, str(kind), alternate or ""), timeout)
        return cls(host, name)._begun(version)

    def _begun(self, version: int) -> Exchange:
        """Return the handle, once its host knows the exchange at the version or a later version."""
        try:
            if self._known(self.name, version) is None:
                raise QueueNotFound(f"no exchange is named {self.name!r}: declare it")
        except BaseException:
            self.close()
            raise
        return self

    # --- Bindings -------------------------------------------------------------------------

    def bind(
        self,
        queue: str | MirroredQueue,
        routing_key: str = "",
        *,
        arguments: Mapping[str, Any] | None = None,
        timeout: float | None = 30,
    ) -> None:
        """Have messages reach a queue. An equal binding changes nothing.

        Publishers on the same node see it when the call returns, others as soon as their node does.

        Args:
            routing_key: direct: the key; topic: a pattern with `*` and `#`; else carried.
            arguments: headers: compared with the message's headers.

        Raises:
            QueueNotFound: there is no such queue or exchange.
            NoQuorum: no majority within `timeout` seconds.
        """
        self._change(Bind(self.name, *_ends(queue, routing_key, arguments)), timeout)

    def unbind(
        self,
        queue: str | MirroredQueue,
        routing_key: str = "",
        *,
        arguments: Mapping[str, Any] | None = None,
        timeout: float | None = 30,
    ) -> None:
        """Remove a binding; when there is no equal binding, nothing happens. As `bind`."""
        self._change(Unbind(self.name, *_ends(queue, routing_key, arguments)), timeout)

    def _change(self, command: Bind | Unbind, timeout: float | None) -> None:
        self._check_open()
        version = self._host._administer(command, timeout)
        self._known(self.name, version)

    def bindings(self) -> list[tuple[str, str, str]]:
        """(queue's name, key, arguments as JSON) of each binding, in the order made."""
        self._check_open()
        record = self._record()
        named = [(self._host._queue_name(b.queue_id), b.key, b.arguments) for b in record.bindings]
        return [binding for binding in named if binding[0]]

    def delete(self, if_unused: bool = False, *, timeout: float | None = 30) -> None:
        """Delete the exchange with its bindings; queues stay.

        Args:
            if_unused: only when nothing is bound to it.
            timeout: seconds to wait for a majority. None waits.

        Raises:
            PreconditionFailed: `if_unused`, and something is bound to it.
            QueueNotFound: there is no such exchange.
            NoQuorum: no majority in time. It may still be deleted.
        """
        check_flags(if_unused=if_unused)
        self._check_open()
        self._host._administer(DeleteExchange(self.name, if_unused), timeout)

    # --- Publishing -----------------------------------------------------------------------

    @spelled_out
    def publish(
        self,
        routing_key: str,
        body: Body,
        *,
        mandatory: bool = False,
        block: bool = True,
        timeout: float | None = None,
        on_confirm: OnConfirm = None,
        **options: Unpack[RoutedOptions],
    ) -> Confirmation:
        """Publish a message to every queue that it reaches; returns once it is accepted.

        Args:
            routing_key: up to 255 characters; the message carries it as its `key`.
            mandatory: a message that reaches no queue ends with NotConfirmed. Otherwise it is
                confirmed, by no queue, as in RabbitMQ.
            block, timeout: wait so long (seconds) while too much is unconfirmed.
            others: as in `MirroredQueue.put`. Each queue checks a unique key by itself; of a
                sharded queue it chooses the shard where the routing key is "".

        Returns:
            The confirmation: it ends with {queue's name: sequence} when every queue has the
            message on disk on all its members in sync. It ends with NotConfirmed when a queue
            refused the message (the text names the queues that have it), with ConfirmUnknown when a
            queue's outcome is unknown. A queue that is deleted meanwhile no longer counts.

        Raises:
            Full, NoQuorum, QueueDown: not accepted, by no queue, with the reason.
            QueueNotFound: the exchange was deleted.
            ShutDown: the handle is closed.
        """
        check_block(block)
        request = self._checked_request(
            routing_key, body, mandatory=mandatory, on_confirm=on_confirm, **options
        )
        return in_thread(self._publishing(request, block, deadline_of(timeout)))

    def _publishing(
        self, request: PublishRequest, block: bool, until: float | None
    ) -> Waits[Confirmation]:
        while (full := self._accept(request)) is not None:
            yield from self._making_room(full, request, block, until)
        return request.confirmation

    def _making_room(
        self, full: Handle, request: PublishRequest, block: bool, until: float | None
    ) -> Waits[None]:
        """Wait for a change at a queue that had no room."""
        with contextlib.suppress(ShutDown):  # its queue was deleted: look again
            yield from full.puts.making_room(1, request.size, len(request.body), block, until)

    def _checked_request(
        self,
        routing_key: str,
        body: Body,
        *,
        mandatory: bool,
        on_confirm: OnConfirm,
        **options: Unpack[RoutedOptions],
    ) -> PublishRequest:
        """Return the checked arguments of `publish`."""
        check_flags(mandatory=mandatory)
        if not isinstance(routing_key, str) or len(routing_key) > KEY_CHARS_MAX:
            raise ConfigError(
                f"a routing key is a string of up to {KEY_CHARS_MAX} characters, "
                f"not {routing_key!r}"
            )
        terms, properties = packed(key=routing_key or None, **options)
        data = checked_body(body, properties, self._host.config.message_bytes_max)
        headers = options.get("headers") or {}
        self._check_open()
        confirmation = confirmation_of(self._outcomes, on_confirm)
        place = routing_key or options.get("unique")
        return PublishRequest(
            confirmation, routing_key, place, headers, data, properties, terms, mandatory
        )

    def _accept(self, request: PublishRequest) -> Handle | None:
        """Put a message into all queues that it reaches; or return a queue without room."""
        with self._lock:
            if self._is_closed:
                raise ShutDown(f"the handle on exchange {self.name!r} is closed")
            reached = self._reached(request)
            for handle in reached:
                if not handle.puts.takes(1, request.size, len(request.body)):
                    return handle
            gathering = Gathering(
                request.confirmation, request.mandatory, len(reached), self._on_ended
            )
            try:
                self._open[gathering] = None
                for handle in reached:
                    self._put(handle, gathering, request)
                gathering.end_one()
            except BaseException:
                gathering.give_up()
                raise
            return None

    def _put(self, handle: Handle, gathering: Gathering, request: PublishRequest) -> None:
        part = gathering.part(handle)
        try:
            left = handle.puts.accept_one(part, request.body, request.properties, request.terms)
            if left is not None:
                in_thread(handle.puts.accepting_one(left, False, None))
        except MirrorQError as error:
            # Closed, because its queue was deleted; or a limit of the one queue.
            gathering.note_outcome(handle, part, None, error)

    def _learn(self) -> None:
        """Fetch the exchanges needed for routing, with alternates; may wait for the entry node."""
        with self._lock:
            for record in self._chain():
                self._routes_of(record)

    def _is_known(self) -> bool:
        """Return true if publishing waits for room only: for callers that must not wait."""
        name = self.name
        passed: list[str] = []
        while name and name not in passed:
            passed.append(name)
            if name not in self._followed:
                return False
            record = self._host._exchange_record(name)
            if record is None:
                return name != self.name
            routes = self._routes.get(name)
            if routes is None or routes.record.version != record.version:
                return False
            name = record.alternate
        return True

    def _on_ended(self, gathering: Gathering) -> None:
        self._open.pop(gathering, None)
        self._outcomes.notify()

    def _reached(self, request: PublishRequest) -> list[Handle]:
        """Return handles on the queues that a message reaches, by way of alternates if needed."""
        for record in self._chain():
            queue_ids = self._routes_of(record).route(request.key, request.headers)
            handles = [self._handle(queue_id) for queue_id in queue_ids]
            reached = [handle.part_of(request.place) for handle in handles if handle is not None]
            if reached:
                return reached
        return []

    def _chain(self) -> Iterator[ExchangeRecord]:
        """Yield the exchange, its alternate, the alternate's alternate, …: each once."""
        record: ExchangeRecord | None = self._record()
        passed: list[str] = []
        while record is not None and record.name not in passed:
            passed.append(record.name)
            yield record
            record = self._known(record.alternate) if record.alternate else None

    def _known(self, name: str, at_least: int = 0) -> ExchangeRecord | None:
        """Return an exchange as the host knows it, followed from the first time on."""
        with self._lock:
            if self._is_closed:
                raise ShutDown(f"the handle on exchange {self.name!r} is closed")
            if name in self._followed:
                return self._host._exchange_record(name, at_least)
            record = self._host._follow_exchange(name, at_least)
            self._followed[name] = None
            return record

    def _record(self) -> ExchangeRecord:
        record = self._known(self.name)
        if record is None:
            raise QueueNotFound(f"exchange {self.name!r} no longer exists: declare it again")
        return record

    def _routes_of(self, record: ExchangeRecord) -> Routes:
        routes = self._routes.get(record.name)
        if routes is None or routes.record.version != record.version:
            routes = self._routes[record.name] = Routes(record)
            self._close_unbound()
        return routes

    def _close_unbound(self) -> None:
        """Close idle handles on queues without a binding."""
        bound = {b.queue_id for routes in self._routes.values() for b in routes.record.bindings}
        for queue_id in [queue_id for queue_id in self._handles if queue_id not in bound]:
            if not self._handles[queue_id].puts.count:
                self._handles.pop(queue_id).close()

    def _handle(self, queue_id: int) -> Handle | ShardedHandle | None:
        handle = self._handles.get(queue_id)
        if handle is not None and not handle.is_closed:
            return handle
        name = self._host._queue_name(queue_id)
        if not name:
            return None
        declared = Declared(queue_id, shards=self._host._rings_of(queue_id))
        handle = handle_on(self._host, declared, name)
        try:
            handle.open()
        except BaseException:
            handle.abandon()
            raise
        # A silent queue must not delay the other queues.
        handle.puts.learn_nothing()
        self._handles[queue_id] = handle
        return handle

    # --- The end --------------------------------------------------------------------------

    def wait_for_confirms(self, timeout: float | None = None) -> bool:
        """Wait until everything published has an outcome, good or not.

        Returns:
            True.

        Raises:
            Full: not within `timeout` seconds.
        """
        return in_thread(self._confirming(timeout))

    def _confirming(self, timeout: float | None) -> Waits[bool]:
        until = deadline_of(timeout)
        if not (yield Wait(self._outcomes.signal, lambda: not self._open, until)):
            raise Full(
                f"exchange {self.name!r}: {len(self._open)} messages are still unconfirmed "
                f"after {timeout} s: wait again"
            )
        return True

    def close(self) -> None:
        """Wait up to 5 s for open publishes, and close the handle. The exchange stays."""
        with self._lock:
            self._is_closed = True
            handles, self._handles = list(self._handles.values()), {}
            followed, self._followed = list(self._followed), {}
        for name in followed:
            self._host._leave_exchange(name)
        for handle in handles:
            handle.close()
        self._outcomes.close(1.0)

    def _check_open(self) -> None:
        if os.getpid() != self._pid and self._host._survives_fork:
            with FORK_LOCK:
                if os.getpid() != self._pid:
                    self._begin()
        if self._is_closed or self._host.is_closed:
            raise ShutDown(f"the handle on exchange {self.name!r} is closed")

    def __repr__(self) -> str:
        return f"<Exchange {self.name!r} on {self._host.name}>"


@frozen
class PublishRequest:
    """A message on its way to the queues that it reaches."""

    confirmation: Confirmation
    key: str
    place: str | bytes | None
    """Chooses the shard of a sharded queue: the key, else the unique key; None: the next shard."""
    headers: Mapping[str, Any]
    body: bytes
    properties: bytes
    terms: Terms
    mandatory: bool

    @property
    def size(self) -> int:
        return len(self.body) + len(self.properties)


def _ends(
    queue: str | MirroredQueue, key: str, arguments: Mapping[str, Any] | None
) -> tuple[str, str, str]:
    """Return (queue's name, key, arguments) of a binding, checked."""
    name = queue.name if isinstance(queue, MirroredQueue) else queue
    if not isinstance(name, str):
        raise ConfigError(f"a queue is bound by its name or a handle on it, not {name!r}")
    if not isinstance(key, str) or len(key) > KEY_CHARS_MAX:
        raise ConfigError(
            f"a binding's key is a string of up to {KEY_CHARS_MAX} characters, not {key!r}"
        )
    return name, key, arguments_text(arguments)
