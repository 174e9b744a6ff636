"""`Channel`: the methods of an AMQP channel, on mirrorq's queues and exchanges. Methods that make,
bind and end queues are in `declarations`.

A channel has a handle of its own on each queue that it takes from: held messages go back when the
channel closes. Acks are not waited for, as in AMQP; a late ack is logged, and its message comes
again.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from amqp import exceptions as amqp
from attrs import frozen
from kombu.transport import base

import mirrorq
from mirrorq.contrib.kombu.connection import Connection, translated
from mirrorq.contrib.kombu.declarations import Declarations
from mirrorq.contrib.kombu.envelope import Letter, delay_of, opened, sealed

__all__ = ["Channel", "Delivery"]

log = logging.getLogger("mirrorq")

PROPERTIES = (
    *("content_type", "content_encoding", "delivery_mode", "priority", "correlation_id"),
    *("reply_to", "expiration", "message_id", "timestamp", "type", "user_id", "app_id"),
    "cluster_id",
)
"""Properties of AMQP. As with AMQP, other properties of a publisher are dropped."""
UNBOUNDED = 65_535
"""The most messages that a consumer without a prefetch count holds."""
LOOK_S = 0.02
"""Interval of looks while waiting for a node or a binding."""
BOUND_S = 0.2
"""A binding made by another connection is known here a moment later. An answer to a direct exchange
waits this long for the binding of the asker's queue."""


@frozen
class Delivery:
    """A message in the form for a consumer or for `basic_get`."""

    message: mirrorq.Message
    tag: int
    consumer_tag: str = ""


@frozen
class Taker:
    """One consumer of a channel."""

    queue: str
    callback: Callable[[Delivery], object]
    no_ack: bool
    consumer: mirrorq.Consumer
    on_cancel: Callable[[str], object] | None


class Channel(Declarations):
    """One channel. Made by `Connection.channel`."""

    def __init__(self, connection: Connection, channel_id: int) -> None:
        super().__init__(connection)
        self.channel_id = channel_id
        self.no_ack_consumers: set[str] = set()
        self.events: defaultdict[str, set[Callable[..., object]]] = defaultdict(set)
        """Event -> callbacks that kombu adds for `basic_return`."""
        self._tags = itertools.count(1)
        self._consumer_numbers = itertools.count(1)
        self._unacked: dict[int, mirrorq.Message] = {}
        self._handles: dict[str, mirrorq.MirroredQueue] = {}
        self._takers: dict[str, Taker] = {}
        self._prefetch = UNBOUNDED
        self._returning: list[mirrorq.Settlement] = []
        """Messages on their way back to their queues."""
        self._is_flowing = True
        self._held: list[tuple[str, mirrorq.Message | None]] = []

    def close(self) -> None:
        """Stop consuming and give back unacked messages. Waits for acks on their way."""
        connection, self.connection = self.connection, None
        if not self.is_open or connection is None:
            return
        self.is_open = False
        self._takers.clear()
        self._unacked.clear()
        self._held.clear()
        handles, self._handles = list(self._handles.values()), {}
        for handle in handles:
            handle.close()
        connection.channels.pop(self.channel_id, None)

    def collect(self) -> None:
        """As `close`: nothing of a channel is anywhere else."""
        self.close()

    # --- Queues of consumers -------------------------------------------------------------

    def forget_queue(self, name: str) -> None:
        """Drop a deleted queue, whose consumers have ended."""
        for tag in [tag for tag, taker in self._takers.items() if taker.queue == name]:
            del self._takers[tag]
        handle = self._handles.pop(name, None)
        if handle is not None:
            handle.close()

    def after_reply_message_received(self, queue: str) -> None:
        """Delete the reply queue of a pidbox after the reply."""
        self.queue_delete(queue)

    # --- Publishing ---------------------------------------------------------------------

    def prepare_message(
        self,
        body: bytes | str,
        priority: int | None = None,
        content_type: str | None = None,
        content_encoding: str | None = None,
        headers: Mapping[str, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> Letter:
        """Return a message for `basic_publish`."""
        known = {
            "priority": priority,
            "content_type": content_type,
            "content_encoding": content_encoding,
            **(properties or {}),
        }
        return Letter(
            body.encode() if isinstance(body, str) else bytes(body),
            {name: known[name] for name in PROPERTIES if known.get(name) is not None},
            dict(headers or {}),
        )

    def prepare_queue_arguments(self, arguments: Any, **options: Any) -> Any:
        """A queue's options under AMQP's names."""
        return base.to_rabbitmq_queue_arguments(arguments, **options)

    def basic_publish(
        self,
        message: Letter,
        exchange: str = "",
        routing_key: str = "",
        mandatory: bool = False,
        immediate: bool = False,
        timeout: float | None = None,
        confirm_timeout: float | None = None,
        **_: Any,
    ) -> None:
        """Publish, and wait until the message is on disk in every reached queue; with the transport
        option `confirm` "later" until the message is accepted.

        Raises:
            NotConfirmed: the message is certainly not stored.
            NotFound: there is no such exchange.
            RecoverableConnectionError, NoQuorum, …: no answer came within `confirm_timeout`
                seconds; the message may be stored. kombu reconnects, and republishes when asked.
        """
        connection = self._host()
        wait_s = confirm_timeout or timeout or connection.confirm_timeout
        terms = message.terms
        if connection.has_unique_ids and terms.get("message_id"):
            terms["unique"] = terms["message_id"]
        delay = delay_of(message.headers) if connection.eta == "queue" else None
        if delay is not None:
            terms["delay"] = delay
            # A worker judges the ttl when the task is due, as with other brokers: waiting callers
            # are told.
            terms.pop("ttl", None)
        terms |= {"headers": sealed(message, exchange or "", routing_key or ""), "timeout": wait_s}
        if exchange:
            publish = partial(self._publish, exchange, routing_key or "", message.body, terms)
        else:
            # A mandatory publish must wait for its route.
            is_waited_for = connection.confirm == "wait" or mandatory
            publish = partial(self._put, routing_key, message.body, terms, is_waited_for)
        with translated():
            is_routed = publish()
        if not is_routed and mandatory:
            error = amqp.NoConsumers("the message reached no queue", reply_code=312)
            for returned in list(self.events["basic_return"]):
                returned(error, exchange, routing_key, message)

    def _publish(self, exchange: str, routing_key: str, body: bytes, terms: dict[str, Any]) -> bool:
        """Publish, wait, and return true if the message reached a queue."""

        def publish(handle: mirrorq.Exchange) -> bool:
            confirmation = handle.publish(routing_key, body, **terms)
            return bool(confirmation.result(terms["timeout"]))

        connection = self._host()
        end = time.monotonic() + BOUND_S
        while not connection.exchanges.call(exchange, publish):
            if connection.kinds.get(exchange) != "direct" or time.monotonic() >= end:
                return False
            time.sleep(LOOK_S)
        return True

    def _put(self, name: str, body: bytes, terms: dict[str, Any], is_waited_for: bool) -> bool:
        """Put into a queue, and return true if the queue exists. Without `is_waited_for` wait only
        while too much is unconfirmed."""

        def put(handle: mirrorq.MirroredQueue) -> None:
            confirmation = handle.put(body, **terms)
            if is_waited_for:
                confirmation.result(terms["timeout"])
            else:
                confirmation.add_done_callback(_on_confirmed)

        try:
            self._host().queues.call(name, put)
        except mirrorq.QueueNotFound:
            return False
        return True

    # --- Taking -------------------------------------------------------------------------

    def _handle(self, name: str) -> mirrorq.MirroredQueue:
        """Return this channel's handle on a queue."""
        handle = self._handles.get(name)
        if handle is None:
            connection = self._host()
            handle = connection.mirrorq.queue(
                name, passive=True, timeout=connection.confirm_timeout
            )
            handle.add_ack_listener(_on_refused)
            self._handles[name] = handle
        return handle

    def basic_consume(
        self,
        queue: str = "",
        consumer_tag: str = "",
        no_local: bool = False,
        no_ack: bool = False,
        exclusive: bool = False,
        nowait: bool = False,
        callback: Callable[[Delivery], object] | None = None,
        arguments: Mapping[str, Any] | None = None,
        on_cancel: Callable[[str], object] | None = None,
        **_: Any,
    ) -> str:
        """Have a queue's messages delivered to `callback`, in `drain_events`."""
        tag = consumer_tag or f"{self.channel_id}.{next(self._consumer_numbers)}"
        if callback is None:
            raise TypeError("basic_consume needs a callback: a function of a message")
        if tag in self._takers:
            raise amqp.NotAllowed(f"the channel has a consumer with tag {tag!r}: cancel it first")
        with translated():
            try:
                consumer = self._consume(queue, tag, exclusive)
            except mirrorq.ShutDown:
                self._host()
                self.forget_queue(queue)
                consumer = self._consume(queue, tag, exclusive)
        self._takers[tag] = Taker(queue, callback, no_ack, consumer, on_cancel)
        if no_ack:
            self.no_ack_consumers.add(tag)
        return tag

    def _consume(self, queue: str, tag: str, exclusive: bool) -> mirrorq.Consumer:
        connection = self._host()
        return self._handle(queue).consume(
            lambda message: connection.arrive((self, tag, message)),
            prefetch=self._prefetch,
            ack="manual",
            exclusive=exclusive,
            on_cancel=lambda _consumer: connection.arrive((self, tag, None)),
        )

    def basic_cancel(self, consumer_tag: str, **_: Any) -> None:
        """Stop a consumer. Delivered messages stay with the channel until their acks."""
        self.no_ack_consumers.discard(consumer_tag)
        taker = self._takers.pop(consumer_tag, None)
        if taker is not None:
            taker.consumer.cancel()

    def dispatch(self, tag: str, message: mirrorq.Message | None) -> bool:
        """Give a consumer an arrived message, or news of its end. False: it has heard nothing."""
        if not self.is_open:
            return False  # it went back when the channel closed
        if not self._is_flowing:
            self._held.append((tag, message))
            return False
        taker = self._takers.get(tag)
        if taker is None:
            if message is not None:
                message.nack()  # cancelled meanwhile
            return False
        if message is None:
            self._on_cancelled(tag, taker)
        else:
            taker.callback(self._deliver(message, tag, taker.no_ack))
        return True

    def _deliver(self, message: mirrorq.Message, consumer_tag: str, no_ack: bool) -> Delivery:
        tag = next(self._tags)
        if no_ack:
            message.ack()
        else:
            self._unacked[tag] = message
        return Delivery(message, tag, consumer_tag)

    def _on_cancelled(self, tag: str, taker: Taker) -> None:
        """Handle a consumer ended by its queue, which was deleted, or whose consumer hung."""
        self._takers.pop(tag, None)
        self.no_ack_consumers.discard(tag)
        if taker.on_cancel is not None:
            taker.on_cancel(tag)
            return
        raise amqp.ConsumerCancelled(f"queue {taker.queue!r} has ended consumer {tag}")

    def basic_get(self, queue: str = "", no_ack: bool = False, **_: Any) -> Delivery | None:
        """Take a message, if there is any, even one that this channel has given back."""
        returning, self._returning = self._returning, []
        for settlement in returning:
            settlement.exception(self._host().confirm_timeout)
        with translated():
            message = self._taken(queue)
        return None if message is None else self._deliver(message, "", no_ack)

    def _taken(self, queue: str) -> mirrorq.Message | None:
        """Return a message that is there now. While no master answers, wait as for a confirmation:
        `rpc://` asks for results in this way, and an error here fails a task's caller."""
        end = time.monotonic() + self._host().confirm_timeout
        while True:
            try:
                return self._handle(queue).get_nowait()
            except (mirrorq.NoQuorum, mirrorq.QueueDown):
                if time.monotonic() >= end:
                    raise
                time.sleep(LOOK_S)
            except mirrorq.Empty:
                return None
            except mirrorq.ShutDown:
                # The queue, not the client, has ended: another queue of its name may exist.
                self._host()
                self.forget_queue(queue)
                if time.monotonic() >= end:
                    raise

    def message_to_python(self, delivery: Delivery) -> Any:
        """A delivery as kombu's message."""
        message = delivery.message
        found = opened(message)
        properties = dict(found["properties"])
        # The tag of another delivery has no meaning here.
        properties["delivery_tag"] = delivery.tag
        info = {
            "consumer_tag": delivery.consumer_tag,
            "delivery_tag": delivery.tag,
            "redelivered": message.redelivered,
            "exchange": found.get("exchange", ""),
            "routing_key": found.get("routing_key", ""),
            "priority": properties.get("priority"),
        }
        properties["delivery_info"] = info
        return base.Message(
            body=message.body,
            channel=self,
            delivery_tag=delivery.tag,
            content_type=properties.get("content_type"),
            content_encoding=properties.get("content_encoding"),
            delivery_info=info,
            properties=properties,
            headers=dict(found.get("headers") or {}),
        )

    # --- Settling -----------------------------------------------------------------------

    def _settled(self, delivery_tag: int, multiple: bool) -> list[mirrorq.Message]:
        """Remove and return the messages of a tag."""
        if multiple:
            tags = [tag for tag in list(self._unacked) if tag <= delivery_tag or not delivery_tag]
        else:
            tags = [delivery_tag]
        found = [self._unacked.pop(tag, None) for tag in tags]
        if None in found:
            log.warning("a message with tag %r is not held, or is settled already", delivery_tag)
        return [message for message in found if message is not None]

    def basic_ack(self, delivery_tag: int, multiple: bool = False, **_: Any) -> None:
        """Ack a message; with `multiple` all messages up to the tag."""
        self._host()
        for message in self._settled(delivery_tag, multiple):
            message.ack()

    def basic_reject(self, delivery_tag: int, requeue: bool = False, **_: Any) -> None:
        """End a message; with `requeue` give it back to its place."""
        self.basic_nack(delivery_tag, requeue=requeue)

    def basic_nack(
        self, delivery_tag: int, multiple: bool = False, requeue: bool = True, **_: Any
    ) -> None:
        """As `basic_reject`, of several too."""
        self._host()
        self._returning = [settlement for settlement in self._returning if not settlement.done()]
        for message in self._settled(delivery_tag, multiple):
            self._returning.append(message.nack(requeue=bool(requeue)))

    def basic_recover(self, requeue: bool = False, **_: Any) -> None:
        """Give back all held messages: they are delivered again, to the next consumer."""
        self.basic_nack(0, multiple=True)

    def basic_qos(
        self,
        prefetch_size: int = 0,
        prefetch_count: int = 0,
        a_global: bool = False,
        **_: Any,
    ) -> None:
        """Bound the unacked messages of each consumer of this channel; 0 removes the bound."""
        self._host()
        self._prefetch = prefetch_count or UNBOUNDED
        for taker in list(self._takers.values()):
            taker.consumer.prefetch = self._prefetch

    def flow(self, active: bool = True) -> None:
        """Have deliveries wait here, or go on."""
        connection = self._host()
        self._is_flowing = active
        if active:
            held, self._held = self._held, []
            for tag, message in held:
                connection.arrive((self, tag, message))


def _on_refused(message: mirrorq.Message, error: mirrorq.AckRefused) -> None:
    log.warning("%r was acked too late and comes again: %s", message, error)


def _on_confirmed(confirmation: mirrorq.Confirmation) -> None:
    error = confirmation.exception(0)
    if error is not None:
        log.error("a message whose confirm nobody waited for is lost, or may be: %s", error)
