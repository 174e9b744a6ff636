"""The calls of a program on a cluster, alike on a node and on a client.

`Node` and `Client` differ in the source of answers: the node's own thread, or an entry node over a
socket. The requests are the same calls of `protocol.clients`, and so are the answers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Literal, Unpack

from mirrorq.api.administration import Administration
from mirrorq.api.administration import Seen as Seen
from mirrorq.api.arguments import check_flags, check_timeout
from mirrorq.api.closing import Closing
from mirrorq.api.exchange import Exchange, ExchangeHost
from mirrorq.api.host import Declared
from mirrorq.api.listeners import Listeners
from mirrorq.api.options import (
    DeclareOptions,
    QueueArguments,
    arguments_said,
    spelled_out,
)
from mirrorq.api.queue import MirroredQueue
from mirrorq.errors import ConfigError, QueueNotFound
from mirrorq.protocol import clients
from mirrorq.protocol.copy_page import CopyPage, unpack_page
from mirrorq.protocol.effects import Notice
from mirrorq.protocol.identities import SessionId, connection_of
from mirrorq.protocol.policy import owned_arguments
from mirrorq.protocol.validation import declaration_error

COPY_S = 30.0
"""A copy that lags behind its master, or a change of the entry node, gets so many seconds."""


class Access(Administration, Closing, ExchangeHost):
    """The base of `Node` and `Client`: has no thread and no socket, and sends calls by `_ask`.

    Every method may be called from any thread.
    """

    _listeners: Listeners
    """Receivers of notices."""
    _owned: dict[int, MirroredQueue]
    """A handle on each connection-exclusive queue, by the queue's id. The open handle keeps the
    queue."""

    # --- What a node and a client do each in their own way --------------------------------

    @abstractmethod
    def _new_session(self) -> SessionId:
        """Return an id for one more handle."""

    @abstractmethod
    def _wait_known(self, timeout: float | None) -> None:
        """Wait until the existence of exchanges and queues is known.

        Raises:
            NoQuorum: not known within `timeout` seconds.
        """

    # --- Queues and exchanges -------------------------------------------------------------

    @spelled_out
    def queue(self, name: str, **options: Unpack[DeclareOptions]) -> MirroredQueue:
        """Declare a queue and return a handle on it.

        An existing queue is returned as it is, even while it is down. A new queue is returned when
        all members of its first view have a copy.

        Args:
            name: 1 to 255 characters. An unknown name makes a new queue.
            durable: False: the queue ends when all its members have stopped.
            exclusive: True: the queue belongs to the handle: on the serving node only, and deleted
                when the handle is closed or the process ends. A client's queue is on its entry
                node, and ends with the connection there: when the client is closed, gone, or goes
                on to another node. "connection": the queue belongs to the connection of the
                client or node, and has mirrors. Only handles of the connection may take from it;
                other handles may put, with `passive=True`. The queue is deleted when the connection
                is closed, or is gone for `Config.consumer_return_ms`; a client that goes on to
                another node keeps the queue.
            auto_delete: deleted when its last consumer has gone; `get` is not a consumer.
            passive: do not make the queue.
            shards: make it of so many rings, 1 to 256, whose masters are spread over the nodes.
                None: as it exists; a new queue has one ring and is not sharded.
            expires, message_ttl, consumer_timeout: times: seconds, a text as "5m" or a timedelta.
                The times and the arguments below have the meaning of the policy keys with the same
                names, but hold for the one queue and stay with it. If a policy has the key too, the
                lesser number holds, otherwise the policy's value. None: as it exists.
            max_length, max_length_bytes, delivery_limit: numbers, as a policy's.
            overflow: a word, as a policy's.
            dead_letter_queue: name of the queue for messages that end here without an ack. If
                missing, it is made, durable and with the copies that its own policies require.

        Raises:
            PreconditionFailed: it exists with other properties, or belongs to another handle.
            QueueNotFound: `passive`, and it does not exist.
            NoQuorum: no majority within `timeout` seconds.
        """
        declared = self._declare(name, **options)
        return MirroredQueue._attach(self, declared, name)

    @spelled_out
    def _declare(
        self,
        name: str,
        *,
        durable: bool = True,
        exclusive: bool | Literal["connection"] = False,
        auto_delete: bool = False,
        passive: bool = False,
        shards: int | None = None,
        timeout: float | None = 30,
        **arguments: Unpack[QueueArguments],
    ) -> Declared:
        """Declare a queue without a handle on it: see `queue`."""
        check_flags(durable=durable, auto_delete=auto_delete, passive=passive)
        wrong = declaration_error(name, exclusive, auto_delete, shards, passive=passive)
        if wrong:
            raise ConfigError(wrong)
        if arguments.get("dead_letter_queue") == name:
            raise ConfigError(
                f"queue {name!r} cannot be its own dead-letter queue: what ends there would come "
                "again for ever. Name another one"
            )
        if timeout is not None:
            check_timeout(timeout)
        if not passive:
            self._declare_dead_letters(arguments.get("dead_letter_queue"), timeout)
        said = arguments_said(arguments)
        if passive:
            self._wait_known(timeout)
        is_connections = exclusive == "connection" and not passive
        if is_connections:
            said = owned_arguments(said, connection_of(self._new_session()))
        owner = self._new_session() if exclusive is True else None
        number = 0 if owner is None else owner.number
        flags = (durable, owner is not None, auto_delete, passive)
        call = clients.ClientDeclare(name, *flags, number, shards or 0, "" if passive else said)
        answer = self._ask(call, timeout)
        refusals = self._decoded(answer, "refusals", dict[str, str])
        declared = Declared(answer.value, refusals, answer.rings, owner)
        if is_connections:
            self._own(declared, name)
        return declared

    def _declare_dead_letters(self, name: str | None, timeout: float | None) -> None:
        if name:
            try:
                self._declare(name, passive=True, timeout=timeout)
            except QueueNotFound:
                self._declare(name, timeout=timeout)

    def _own(self, declared: Declared, name: str) -> None:
        """Keep a connection-exclusive queue until the connection or the queue ends."""
        for queue_id, handle in list(self._owned.items()):
            if handle._handle.is_closed:
                self._owned.pop(queue_id, None)
        if declared.queue_id not in self._owned:
            self._owned[declared.queue_id] = MirroredQueue._attach(self, declared, name)

    def _delete_queue(self, queue_id: int, *, if_empty: bool, timeout: float | None) -> None:
        """Delete a queue with all its messages.

        Raises:
            PreconditionFailed: `if_empty`, and it has messages; or it is one shard of a queue.
        """
        self._ask(clients.ClientDelete(queue_id, if_empty), timeout)

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
            alternate: name of the exchange for messages that reach no queue.
            passive: do not make it; `kind` is not looked at.

        Raises:
            PreconditionFailed: it exists with other properties.
            QueueNotFound: `passive`, and it does not exist; or there is no such `alternate`.
            NoQuorum: no majority within `timeout` seconds.

        Example:
            ```python
            node.queue("audit")
            news = node.exchange("news", "topic")
            news.bind("audit", "orders.#")
            print(news.publish("orders.eu", b"order 1").result(timeout=10))  # {'audit': 1}
            ```
        """
        check_flags(passive=passive)
        if passive:
            self._wait_known(timeout)
        return Exchange._declare(self, name, kind, alternate, passive, timeout)

    def _read_copy(
        self, queue_id: int, first: int, last: int, bytes_max: int, applied: int
    ) -> CopyPage:
        """Return the live messages from `first` to `last` in the serving node's copy.

        Raises:
            QueueDown: the node has no copy in sync.
            QueueDown, NoQuorum: the copy did not reach the op `applied` in time.
        """
        answer = self._ask(clients.ClientRead(queue_id, first, last, bytes_max, applied), COPY_S)
        return unpack_page(answer.value, answer.data, answer.frames)

    def _seek_copy(self, queue_id: int, stamp_ms: int, applied: int) -> int:
        """Return the copy's first sequence published at `stamp_ms` or later."""
        return self._ask(clients.ClientSeek(queue_id, stamp_ms, applied), COPY_S).value

    def add_listener(self, on_event: Callable[[Notice], None]) -> None:
        """Have a function called with events of the node or client, on a thread of its own:
        connected, disconnected, paused, resumed, new master.

        Args:
            on_event: takes a `Notice`. An exception is logged, and has no other effect.
        """
        self._listeners.add(on_event)
