"""Declarations and deletions of a channel: exchanges, queues, bindings."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping
from typing import Any

from amqp import exceptions as amqp
from amqp.protocol import queue_declare_ok_t
from kombu.transport import base

import mirrorq
from mirrorq.contrib.kombu.arguments import declared_arguments
from mirrorq.contrib.kombu.connection import Connection, Terms, translated

__all__ = ["Declarations"]

log = logging.getLogger("mirrorq")
CONTROL_SUFFIX = ".pidbox"
"""Suffix of the names of queues with commands for workers, behind a worker's name."""
RETURN_S = 60.0
"""Time that a worker waits for the queue of a former worker of its name. A killed worker's queue is
kept for `consumer_return_ms`, because the worker may come back."""
LOOK_S = 0.5
"""Between two tries."""


class Declarations(base.StdChannel):  # type: ignore[misc]
    """The part of a channel that declares."""

    def __init__(self, connection: Connection) -> None:
        self.connection: Connection | None = connection
        self.is_open = True

    def _host(self) -> Connection:
        connection = self.connection
        if connection is None or not self.is_open:
            raise amqp.RecoverableConnectionError("the channel is closed")
        connection.check_open()
        return connection

    # --- Exchanges ----------------------------------------------------------------------

    def exchange_declare(
        self,
        exchange: str = "",
        type: str = "direct",  # noqa: A002  (its name in AMQP)
        passive: bool = False,
        durable: bool = True,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
        nowait: bool = False,
        **_: Any,
    ) -> None:
        """Make an exchange, or find one. All are durable."""
        if not exchange:
            return  # the one that every queue is bound to by its name
        connection = self._host()
        with translated():
            alternate = (arguments or {}).get("alternate-exchange")
            handle = connection.mirrorq.exchange(
                exchange,
                type,
                alternate=alternate,
                passive=passive,
                timeout=connection.confirm_timeout,
            )
            connection.exchanges.put(exchange, handle)
            if not passive:
                connection.kinds[exchange] = type

    def exchange_delete(self, exchange: str, if_unused: bool = False, **_: Any) -> None:
        """Delete an exchange; a missing exchange is no error."""
        connection = self._host()
        with translated():
            try:
                connection.exchanges.get(exchange).delete(if_unused)
            except mirrorq.QueueNotFound:
                pass
            finally:
                connection.exchanges.drop(exchange)

    def exchange_bind(self, destination: str, source: str = "", *_: Any, **__: Any) -> None:
        """mirrorq binds queues only."""
        raise NotImplementedError(
            f"exchange {destination!r} cannot be bound to {source!r}: bind its queues to that one"
        )

    exchange_unbind = exchange_bind

    # --- Queues -------------------------------------------------------------------------

    def queue_declare(
        self,
        queue: str = "",
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = True,
        nowait: bool = False,
        arguments: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> Any:
        """Make a queue, or find one; returns name, ready messages and consumers.

        Raises:
            PreconditionFailed: the queue exists with other properties, or an argument is refused.
        """
        connection = self._host()
        name = queue or f"amq.gen-{uuid.uuid4().hex}"
        said = {} if passive else declared_arguments(name, arguments or {})
        terms = Terms(bool(durable), bool(exclusive), bool(auto_delete), said)
        with translated():
            known = None if passive else connection.declared(name, terms)
            if known is not None:
                if exclusive:
                    connection.exclusive.add(name)
                return queue_declare_ok_t(name, *known)
            handle = self._declared(connection, name, terms, passive)
            connection.queues.put(name, handle)
            if not passive:
                connection.terms[name] = terms
            if exclusive and not passive:
                connection.exclusive.add(name)
            return queue_declare_ok_t(name, handle.qsize(), handle.status().consumers)

    def _declared(
        self, connection: Connection, name: str, terms: Terms, passive: bool
    ) -> mirrorq.MirroredQueue:
        until = time.monotonic() + RETURN_S
        is_told = False
        while True:
            try:
                return connection.mirrorq.queue(
                    name,
                    durable=terms.durable,
                    exclusive="connection" if terms.exclusive else False,
                    auto_delete=terms.auto_delete,
                    passive=passive,
                    timeout=connection.confirm_timeout,
                    **terms.arguments,
                )
            except mirrorq.PreconditionFailed as error:
                is_control = terms.exclusive and name.endswith(CONTROL_SUFFIX)
                if passive or not is_control or time.monotonic() >= until:
                    raise
                if not is_told:
                    log.warning("waiting up to %.0f s for a killed worker: %s", RETURN_S, error)
                is_told = True
            time.sleep(LOOK_S)
            self._host()

    def queue_bind(
        self,
        queue: str,
        exchange: str = "",
        routing_key: str = "",
        nowait: bool = False,
        arguments: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Bind a queue to an exchange."""
        if not exchange:
            return
        connection = self._host()
        with translated():
            connection.exchanges.get(exchange).bind(queue, routing_key or "", arguments=arguments)

    def queue_unbind(
        self,
        queue: str,
        exchange: str = "",
        routing_key: str = "",
        nowait: bool = False,
        arguments: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Take a binding away."""
        connection = self._host()
        with translated():
            connection.exchanges.get(exchange).unbind(queue, routing_key or "", arguments=arguments)

    def queue_purge(self, queue: str = "", nowait: bool = False, **_: Any) -> int:
        """End ready and delayed messages; returns how many."""
        with translated():
            return self._fresh(queue).purge()

    def queue_delete(
        self, queue: str = "", if_unused: bool = False, if_empty: bool = False, **_: Any
    ) -> int:
        """Delete a queue; a missing queue is no error. Returns the number of its messages."""
        connection = self._host()
        with translated():
            try:
                handle = self._fresh(queue)
                count = handle.qsize()
                handle.delete(if_empty=if_empty, if_unused=if_unused)
            except (mirrorq.QueueNotFound, mirrorq.ShutDown):
                # An auto-delete queue may go at this moment, with the cancelled consumer.
                connection.check_open()
                count = 0
        connection.forget_queue(queue)
        return count

    def _fresh(self, name: str) -> mirrorq.MirroredQueue:
        """Return a new handle on the queue that has this name now."""
        connection = self._host()
        connection.queues.drop(name)
        return connection.queues.get(name)
