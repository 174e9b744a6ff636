"""`MirroredQueue`: a queue as its users see it.

What it is made of is in `handle`; here are the calls, with what they promise.

*Threads*: every method may be called from any thread; in a forked child only if the handle is
a client's (which then connects anew).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from attrs import evolve

from mirrorq.api import exit_flush
from mirrorq.api.arguments import (
    MessageTooLarge,
    check_callable,
    check_count,
    check_sequence,
    check_timeout,
    not_a_message,
)
from mirrorq.api.batching import ManyPut
from mirrorq.api.confirmation import Confirmation, Settlement
from mirrorq.api.handle import ASK_S, CLOSE_S, FLUSH_S, Handle
from mirrorq.api.message import Message
from mirrorq.api.opening import embedding
from mirrorq.api.publish_options import PLAIN, Terms, terms_of
from mirrorq.api.reader import ReadingHandle
from mirrorq.api.receiver import chunks_of
from mirrorq.api.sharing import Use
from mirrorq.errors import (
    AckRefused,
    AuthenticationError,
    Empty,
    NoQuorum,
    PreconditionFailed,
    QueueDown,
    QueueNotFound,
    ShutDown,
)
from mirrorq.protocol.sessions import Browsed, HandOut, Purged
from mirrorq.protocol.shard_names import shard_of
from mirrorq.session.calls import browse_request, purge_request
from mirrorq.wire.properties import HeaderValue, pack_properties

if TYPE_CHECKING:
    from mirrorq.api.administration import Administration
    from mirrorq.api.consumer import Consumer
    from mirrorq.api.host import Declared, Host
    from mirrorq.api.leases import Claim, RangeLease
    from mirrorq.api.publish_options import Terms
    from mirrorq.api.stdlib_queue import QueueAdapter
    from mirrorq.api.transactions import Transaction
    from mirrorq.config import Config
    from mirrorq.monitoring.status import QueueStatus
    from mirrorq.security.settings import Security

__all__ = ["MessageTooLarge", "MirroredQueue"]

DELETE_S = 30.0
"""delete() waits so long for the cluster."""
BROWSE_PAGE = 1000
"""Messages asked for at once by browse()."""


def _browse_start(start: int | None, count_max: int) -> int | None:
    """Where browsing begins. Raises TypeError, ValueError for what is no sequence or number."""
    check_sequence("start", start or 0)
    if type(count_max) is not int or count_max:
        check_count("count_max", count_max)
    return start or 1


def _nothing() -> None:
    """What a handle on somebody else's host releases."""


def _class_of(declared: Declared) -> type[MirroredQueue]:
    """What a queue is handled by: who opens it need not know whether it is sharded."""
    if not declared.shards:
        return MirroredQueue
    from mirrorq.api.sharded.queue import ShardedQueue

    return ShardedQueue


class MirroredQueue(ReadingHandle):
    """A replicated work queue: `put` with confirmation, `get` with ack.

    Made here, it brings its node with it (a cluster of one without `peers`, no sockets); two
    on one path in one process share the node. `Node.queue()` and `Client.queue()` give the
    same object on a host of their own.

    Args:
        name: the queue's name, unique in the cluster.
        path: directory of the node's store.
        node: the node's name; "node" when there are no peers.
        peers, config, witness, security, insecure, listen, join, dashboard: as in `Node`.
        durable, exclusive, auto_delete, passive, shards, timeout: as in `Node.queue`.

    Raises:
        ConfigError: arguments that contradict each other or an open node on this path.
        StoreError: the store cannot be opened.
        NoQuorum: no majority within `timeout` seconds.
    """

    _release: Callable[[], None] = staticmethod(_nothing)
    """Called when the handle is closed: the node that came with it may be closed too."""
    _turns = itertools.count()
    """Whose turn it is of another queue's shards."""

    def __init__(
        self,
        name: str,
        *,
        path: str | os.PathLike[str],
        node: str | None = None,
        peers: Mapping[str, str] | None = None,
        config: Config | None = None,
        witness: bool = False,
        security: Security | None = None,
        insecure: bool = False,
        listen: str | None = None,
        join: str | Sequence[str] | None = None,
        dashboard: str | None = None,
        durable: bool = True,
        exclusive: bool = False,
        auto_delete: bool = False,
        passive: bool = False,
        shards: int | None = None,
        timeout: float | None = 30,
    ) -> None:
        acquire, end = embedding()
        use = Use()
        self._release = partial(end, use)
        try:
            shared = acquire(
                use,
                node or "node",
                path=path,
                peers=peers,
                config=config,
                witness=witness,
                security=security,
                insecure=insecure,
                listen=listen,
                join=join,
                dashboard=dashboard,
            )
            declared = shared.declare(
                name,
                durable=durable,
                exclusive=exclusive,
                auto_delete=auto_delete,
                passive=passive,
                timeout=timeout,
                shards=shards,
            )
            kind = _class_of(declared)
            if kind is not MirroredQueue:
                # Not for nothing: whose class was set reads its attributes five times as slowly.
                self.__class__ = kind
            self._open(shared, declared, name)
        except BaseException:
            self._abandon()
            end(use)
            raise

    @classmethod
    def _attach(cls, host: Host, declared: Declared, name: str) -> MirroredQueue:
        """A handle on a host that exists: what `Node.queue` and `Client.queue` return."""
        kind = _class_of(declared)
        handle = kind.__new__(kind)
        try:
            handle._open(host, declared, name)
            return handle
        except BaseException:
            handle._abandon()
            raise

    @property
    def shards(self) -> int:
        """How many shards the queue has; 0: it is not sharded."""
        return 0

    def shard(self, number: int) -> MirroredQueue:
        """A new handle on one shard of a sharded queue, from 0, to be closed like any.

        Raises:
            PreconditionFailed: the queue is not sharded.
        """
        raise PreconditionFailed(f"queue {self.name!r} has no shards: use it as it is")

    def _part_of(self, key: str | bytes | None) -> MirroredQueue:
        """The handle that takes a message with this key: of a sharded queue one shard's."""
        return self

    def _source_of(self, message: Message) -> MirroredQueue | None:
        """The handle that a message is held by, if that is this one or a part of it."""
        return self if message._chunk.handle is self else None

    # --- Publishing -----------------------------------------------------------------------

    def put(
        self,
        body: bytes | bytearray | memoryview,
        *,
        headers: Mapping[str, HeaderValue] | None = None,
        message_id: str | None = None,
        ttl: float | None = None,
        priority: int = 0,
        delay: float | None = None,
        key: str | bytes | None = None,
        persistent: bool = True,
        block: bool = True,
        timeout: float | None = None,
        on_confirm: Callable[[Confirmation], object] | None = None,
    ) -> Confirmation:
        """Publish a message; returns once it is accepted by this handle.

        Args:
            body: bytes-like; copied if it can change.
            headers: names to str, bytes, int, float or bool.
            message_id: carried, not used to find duplicates.
            priority: 0 to 31; higher ones are delivered first, each in its own order.
            ttl: seconds after which the message ends if nobody has taken it by then; where the
                queue's policy has a message-ttl (in ms) too, the lesser holds.
            delay: seconds until the message is ready; it then comes after all that are ready
                in its priority.
            key: carried; of a sharded queue, messages of one key keep their order.
            persistent: False: lost when all nodes stop.
            block, timeout: wait so long (seconds) while too much is unconfirmed.
            on_confirm: called with the confirmation when it has ended.

        Returns:
            The confirmation: it ends with the message's sequence when the message is on disk
            on every member in sync.

        Raises:
            Full: too much unconfirmed for `timeout` seconds (NoQuorum, QueueDown if that is
                why).
            TypeError, ValueError: a body that is not bytes-like or too large.
            ConfigError: a priority, a ttl or a delay that is none.
            ShutDown: the handle is shut down or closed.
        """
        terms = PLAIN
        if persistent is not True or priority != 0 or delay is not None or ttl is not None:
            terms = terms_of(persistent, priority, delay, ttl)
        if type(body) is bytes and len(body) <= self._config.message_bytes_max:
            data = body
        else:
            data = self._publisher.body(body)
        properties = b""
        if headers is not None or message_id is not None or key is not None:
            properties = pack_properties(headers, message_id, key)
        return self._put_packed(data, properties, terms, block, timeout, on_confirm)

    def _put_packed(
        self,
        body: bytes,
        properties: bytes,
        terms: Terms,
        block: bool,
        timeout: float | None,
        on_confirm: Callable[[Confirmation], object] | None,
    ) -> Confirmation:
        """As `put`, of what was looked at and packed already: here, or for the shard whose turn it
        is."""
        if (
            self._is_shut
            or self._is_closing
            or self._is_closed
            or self._is_refused
            or self._refusals
            or os.getpid() != self._pid
        ):
            # Not asked each time is the host: when it ends, it ends its handles.
            self._check_open_for_puts()
        confirmation = Confirmation(self._outcomes)
        if on_confirm is not None:
            check_callable("on_confirm", on_confirm)
            confirmation._first = on_confirm
        self._publisher.accept_one(confirmation, body, properties, terms, block, timeout)
        return confirmation

    def put_many(
        self,
        bodies: Sequence[bytes | bytearray | memoryview],
        *,
        headers: Mapping[str, HeaderValue] | None = None,
        message_id: str | None = None,
        ttl: float | None = None,
        priority: int = 0,
        delay: float | None = None,
        key: str | bytes | None = None,
        persistent: bool = True,
        block: bool = True,
        timeout: float | None = None,
        on_confirm: Callable[[Confirmation], object] | None = None,
    ) -> Confirmation:
        """Publish messages together: up to `frame_bytes_max` all or none.

        The confirmation ends with a `range` of sequences (a tuple, when several frames were
        needed and another producer came between), or `NotConfirmed` with `.stored` and
        `.refused`. Arguments and errors as in `put`; they are those of every message.
        """
        terms = terms_of(persistent, priority, delay, ttl)
        data = self._publisher.bodies(bodies)
        properties = pack_properties(headers, message_id, key)
        self._check_open_for_puts()
        confirmation = Confirmation(self._outcomes)
        if on_confirm is not None:
            check_callable("on_confirm", on_confirm)
            confirmation._first = on_confirm
        if not data:
            confirmation._finish(range(0), None)
            return confirmation
        body_bytes = sum(map(len, data))
        size = body_bytes + len(properties) * len(data)
        item = ManyPut(confirmation, data, properties, terms, size)
        self._publisher.accept(item, len(data), size, body_bytes, block, timeout)
        return confirmation

    def put_nowait(self, body: bytes | bytearray | memoryview) -> Confirmation:
        """`put` that raises Full at once instead of waiting."""
        return self.put(body, block=False)

    def wait_for_confirms(self, timeout: float | None = None) -> bool:
        """Wait until everything put has an outcome; True.

        Raises:
            NoQuorum, QueueDown, Full: not within `timeout` seconds, and why.
        """
        self._check()
        self._publisher.wait_for_confirms(timeout)
        return True

    def add_confirm_listener(
        self,
        on_confirmed: Callable[[Confirmation], object] | None,
        on_not_confirmed: Callable[[Confirmation], object] | None = None,
    ) -> None:
        """Have functions called with each confirmation that ends well, or otherwise."""
        check_callable("on_confirmed", on_confirmed)
        check_callable("on_not_confirmed", on_not_confirmed)
        self._publisher.listen(on_confirmed, on_not_confirmed)

    def on_confirm(self, function: Callable[[Confirmation], object]) -> None:
        """Have a function called with each confirmation that ends, however it does."""
        if function is None:
            raise TypeError("function is None: give a function that takes a Confirmation")
        check_callable("function", function)
        self._publisher.listen(function, function)

    # --- Consuming ------------------------------------------------------------------------

    def get(
        self, block: bool = True, timeout: float | None = None, *, auto_ack: bool = False
    ) -> Message:
        """Take the next message; it is held until it is acked or given back.

        Raises:
            Empty: none within `timeout` seconds (NoQuorum, QueueDown if that is why).
            PreconditionFailed: a consumer holds the queue exclusively.
            ShutDown: the handle is closed, or was shut down and nothing is ready.
        """
        if timeout is not None:
            check_timeout(timeout)
        found: list[Message] = []
        try:
            self._take_one(found)
            if not found:
                self._get_into(found, block, timeout)
            if auto_ack:
                found[0].ack()
            return found[0]
        except BaseException:
            self._unsee(found)
            raise

    def _get_into(self, found: list[Message], block: bool, timeout: float | None) -> None:
        """`get`, into a list that the caller still has when it is interrupted."""
        self._check_open_for_gets()
        self._receiver.obtain(found, 1, block, timeout)
        if not found:
            if self._is_shut:
                raise ShutDown(f"the handle on queue {self.name!r} was shut down")
            within = f" within {timeout} s" if block else ""
            raise self._why_not(Empty(f"queue {self.name!r} had no message ready{within}"))

    def get_nowait(self) -> Message:
        """`get` that does not wait for a message to be published."""
        return self.get(block=False)

    def get_many(self, count_max: int, timeout: float | None = None) -> list[Message]:
        """Take 1 to `count_max` messages as soon as there is one; [] at the time-out.

        Raises:
            NoQuorum, QueueDown: that is why there is none.
        """
        if type(count_max) is not int or count_max < 1:
            check_count("count_max", count_max)
        self._check_open_for_gets()
        found: list[Message] = []
        try:
            self._receiver.obtain(found, count_max, True, timeout)
            if not found:
                if self._is_shut:
                    raise ShutDown(f"the handle on queue {self.name!r} was shut down")
                reason = self._why_not(Empty(""))
                if not isinstance(reason, Empty):
                    raise reason
            return found
        except BaseException:
            self._unsee(found)
            raise

    def ack_many(self, messages: Sequence[Message]) -> Settlement:
        """Ack messages of this handle together: one outcome for all."""
        messages = list(messages)
        try:
            is_foreign = any(message._chunk.handle is not self for message in messages)
        except AttributeError:
            raise not_a_message(messages) from None
        if is_foreign:
            raise ValueError(f"not all messages came from this handle on queue {self.name!r}")
        if messages:
            return self._settle("ack", messages)
        settlement = Settlement(self._outcomes)
        settlement._finish(None, None)
        return settlement

    def add_ack_listener(self, on_refused: Callable[[Message, AckRefused], object]) -> None:
        """Have `on_refused(message, error)` called with each message of this handle whose ack (or
        `nack(requeue=False)`) was refused: it had gone back to the queue, and comes again.

        A worker need not wait for the outcomes of its acks: this tells it what to undo, or to
        expect a second time. Called on the handle's callback thread. What a transaction or an
        `ack_and_put` acks is told by its own outcome.
        """
        if on_refused is None:
            raise TypeError("on_refused is None: give a function of a Message and an AckRefused")
        check_callable("on_refused", on_refused)
        self._outcomes.ack_listeners.append(on_refused)

    def consume(
        self,
        callback: Callable[[Message], object],
        *,
        prefetch: int | None = None,
        auto_ack: bool = False,
        exclusive: bool = False,
        on_cancel: Callable[[Consumer], object] | None = None,
        cancel_on_failover: bool = False,
    ) -> Consumer:
        """Have `callback(message)` called for each message, on a thread of its own; one thread
        for all shards of a sharded queue.

        An exception gives the message back with a delay that grows with each of its
        deliveries, from 0.1 to 5 s; others are served meanwhile. At most `prefetch`
        messages are held unacknowledged.

        Args:
            prefetch: None: `Config.prefetch`. Of a sharded queue it is divided over the shards,
                at least one for each.
            auto_ack: messages are acked before the callback sees them.
            exclusive: nobody else may consume meanwhile, from any shard.
            on_cancel: called with the consumer when the queue, not its user, ends it.
            cancel_on_failover: end it when another master takes over.

        Raises:
            PreconditionFailed: `exclusive`, and there are other consumers; or another one is.
        """
        if not callable(callback):
            raise TypeError(f"callback is {callback!r}: give a function that takes a Message")
        check_callable("on_cancel", on_cancel)
        self._check()
        self._check_right("read")
        consumer = self._consumer_class()(
            self,
            self._next_consumer(),
            callback,
            prefetch=self._config.prefetch if prefetch is None else prefetch,
            auto_ack=bool(auto_ack),
            exclusive=bool(exclusive),
            on_cancel=on_cancel,
            cancel_on_failover=bool(cancel_on_failover),
        )
        try:
            consumer._start()
            return consumer
        except BaseException:
            consumer._abandon()
            raise

    def _consumer_class(self) -> type[Consumer]:
        from mirrorq.api.consumer import Consumer

        return Consumer

    def lease(
        self, count_max: int | None = None, label: str = "", timeout: float = 30.0
    ) -> RangeLease:
        """Hold ready messages without their bodies, for who reads them elsewhere (`leases`).

        Args:
            count_max: at most so many; None: all that are ready now.
            label: who holds them, for who asks.
            timeout: seconds to wait for the master to hand them out.

        Raises:
            PreconditionFailed: a consumer holds the queue exclusively.
            NoQuorum, QueueDown: there is no master.
        """
        from mirrorq.api.leases import RangeLease

        self._check_open_for_gets()
        return RangeLease(self, count_max, label, timeout)

    def claim(self, label: str = "", timeout: float = 30.0) -> Claim:
        """Have the queue alone, reading it elsewhere and acking by sequence (`leases`).

        Args:
            label: who has it, for those who wait.
            timeout: seconds to wait until nobody else consumes or holds messages.

        Raises:
            PreconditionFailed: somebody did for so long; it says who.
            NoQuorum, QueueDown: there is no master.
        """
        from mirrorq.api.leases import Claim

        self._check_open_for_gets()
        return Claim(self, label, timeout)

    def __iter__(self) -> Iterator[Message]:
        """Messages as they come, until the handle is closed; acking is the caller's."""
        while True:
            try:
                yield self.get()
            except ShutDown:
                return

    # --- Questions ------------------------------------------------------------------------

    def browse(self, start: int | None = None, count_max: int = 1000) -> list[Message]:
        """Look at messages, ready, unacknowledged and delayed, without taking them.

        Args:
            start: first sequence, inclusive; None: the oldest.
            count_max: most messages returned.
        """
        position = _browse_start(start, count_max)
        self._check()
        self._check_right("read")
        found: list[Message] = []
        while position is not None and len(found) < count_max:
            page = min(count_max - len(found), BROWSE_PAGE)
            reply = self._ask(browse_request(position, page), ASK_S)
            assert isinstance(reply, Browsed)
            messages, position = self._browsed(reply)
            found += messages
        return found

    def _browsed(self, reply: Browsed) -> tuple[list[Message], int | None]:
        """The messages of one page, and where the next one begins if there is one."""
        pieces = [HandOut(0, 0, first, last, count) for first, last, count in reply.ranges]
        messages: list[Message] = []
        for chunk in chunks_of(self, 0, pieces, reply.frames):
            chunk.settled = bytearray(b"\1" * chunk.count)  # nobody holds it: an ack is refused
            messages += chunk.messages(0, chunk.count)
        return messages, pieces[-1].last + 1 if pieces else None

    def qsize(self) -> int:
        """Messages ready: those that no call has returned."""
        self._check()
        return self._counts().ready + self._receiver.buffered

    def empty(self) -> bool:
        """Whether no message is ready."""
        return self.qsize() == 0

    def full(self) -> bool:
        """Whether a `put` would wait: for confirms, or for the queue to become shorter."""
        if os.getpid() != self._pid:
            self._check()
        publisher = self._publisher
        publisher.learn()
        return not publisher.takes(1, 1, 1)

    def status(self) -> QueueStatus:
        """What this handle's node knows of the queue. Never blocks, never raises."""
        status = self._host.status(self._queue_id)
        if not status.name:
            # The queue, its node or its client is no more, or the client's node does not answer.
            why = self._session.closed if self._session is not None else ""
            return evolve(status, name=self.name, warnings=(why,) if why else ())
        why = self._publisher.waits_for
        return evolve(status, blocked_by=why) if why and not status.blocked_by else status

    @property
    def node(self) -> Administration:
        """The node (or client) that this handle lives on."""
        return self._host  # type: ignore[return-value]

    def purge(self) -> int:
        """End all ready and delayed messages; those unacknowledged stay. Returns how many.

        What handles have fetched ahead and no `get` has returned is ready too.
        """
        self._check()
        self._check_right("read")
        reply = self._ask(purge_request, ASK_S)
        assert isinstance(reply, Purged)
        return reply.count

    def delete(self, if_empty: bool = False, if_unused: bool = False) -> None:
        """Delete the queue with everything in it.

        Args:
            if_empty: only when it has no messages, as its master knows now.
            if_unused: only when nobody uses it: it has no consumers, nobody holds a message of it,
                no get() waits.

        Raises:
            PreconditionFailed: it has messages or is in use, and that was asked.
        """
        self._check()
        if if_empty or if_unused:
            self._check_left(if_empty=if_empty, if_unused=if_unused)
        self._host.delete(
            self._queue_id,
            if_empty=bool(if_empty),
            if_unused=bool(if_unused),
            timeout=DELETE_S,
        )

    def _check_left(self, *, if_empty: bool, if_unused: bool) -> None:
        """Raise PreconditionFailed when the queue must not be deleted on these conditions.

        Its master is asked: what other nodes know of it is what they were told a while ago. Nobody
        uses a queue without a master.
        """
        receiver = self._receiver
        try:
            found = self._counts()
        except (NoQuorum, QueueDown):
            return
        messages = found.ready + found.unacknowledged + found.delayed
        if if_empty and messages:
            raise PreconditionFailed(f"queue {self.name!r} has {messages} messages: purge it first")
        if not if_unused:
            return
        # What this handle has fetched ahead of calls is in nobody's hands.
        held = max(found.unacknowledged - receiver.buffered, 0)
        uses = [
            f"{found.consumers} consumers: cancel them first" if found.consumers else "",
            f"{held} messages that somebody holds: ack them or give them back" if held else "",
            "a get() that waits" if found.waiting or receiver.has_waiting else "",
        ]
        why = "; ".join(filter(None, uses))
        if why:
            raise PreconditionFailed(f"queue {self.name!r} is in use, it has {why}")

    def redrive(self, count_max: int | None = None) -> int:
        """Move messages of a dead-letter queue back to the queues in which they ended.

        Each exactly once, the oldest first: those that are ready now, at most `count_max`. What
        has no header `x-death-queue`, or came from a queue that is no more, stays.

        Returns:
            How many were moved: they are out of this queue for good, and arrive soon.

        Raises:
            NoQuorum, QueueDown: there is no master; what was moved before is moved.
        """
        from mirrorq.api.redrive import redrive

        self._check_open_for_gets()
        return redrive(self, count_max)

    def transaction(self) -> Transaction:
        """Puts and acks on this queue that are one op: all of them, or none; see `Transaction`."""
        from mirrorq.api.transactions import Transaction

        self._check_open_for_puts(right="")
        return Transaction(self)

    def _step(
        self,
        bodies: Sequence[bytes],
        properties: Sequence[bytes],
        terms: Terms,
        messages: Sequence[Message],
        target: int = 0,
        outcome: Settlement | None = None,
        *,
        block: bool = True,
    ) -> Confirmation | Settlement:
        """Send acks and puts that are one op. Raises Full when it is not to wait for room."""
        from mirrorq.api.transactions import StepPut

        right = "write" if bodies and not target else "read"
        self._check_open_for_puts(right)
        confirmation = Confirmation(self._outcomes) if outcome is None else outcome
        item = StepPut(confirmation, bodies, properties, terms, messages, target)
        if not bodies and not messages:
            confirmation._finish(range(0), None)
            return confirmation
        if item.frame_bytes > self._config.frame_bytes_max:
            raise ValueError(
                f"{len(bodies)} puts and {len(messages)} acks need {item.frame_bytes} bytes, one "
                f"op has at most frame_bytes_max {self._config.frame_bytes_max}: do less at once"
            )
        if any(message._is_settled for message in messages):
            raise ValueError("a message is settled already, or was only browsed")
        try:
            for message in messages:
                message._is_settled = True
            if target or not bodies:
                self._publisher.accept_free(item, block)
            else:
                size = item.own_bytes
                self._publisher.accept(item, item.count, item.size, size, block, None)
        except BaseException:
            for message in messages:
                message._is_settled = False
            raise
        return confirmation

    def _id_of(self, queue: str | Handle | int, key: str | bytes | None = None) -> int:
        """The id of another queue to be written, by a handle or by its name; an id is one already.
        Of a sharded queue it is that of the key's shard.

        Raises:
            AuthenticationError: this client's key may not write it.
            QueueNotFound: there is none of this name.
        """
        if isinstance(queue, int):
            return queue
        if isinstance(queue, MirroredQueue):
            queue._check_right("write")
            return queue._part_of(key)._queue_id
        if not isinstance(queue, str):
            raise TypeError(f"a queue is named by a str or a handle, not {queue!r}")
        try:
            declared = self._host.declare(
                queue, durable=True, exclusive=False, auto_delete=False, passive=True, timeout=ASK_S
            )
        except QueueNotFound:
            raise QueueNotFound(f"no queue is named {queue!r}: declare it first") from None
        if "write" in declared.refusals:
            raise AuthenticationError(declared.refusals["write"])
        if declared.shards:
            number = next(self._turns) if key is None else shard_of(key, len(declared.shards))
            return declared.shards[number % len(declared.shards)]
        return declared.queue_id

    def as_queue(self) -> QueueAdapter:
        """A drop-in `queue.Queue` on this handle."""
        from mirrorq.api.stdlib_queue import QueueAdapter

        return QueueAdapter(self)

    # --- The end --------------------------------------------------------------------------

    def shutdown(self, immediate: bool = False) -> None:
        """Take no more puts on this handle; `get` goes on until nothing is ready.

        As `queue.Queue.shutdown`, but of this handle only, and no message is deleted: with
        `immediate`, `get` and consumers end at once and what was fetched ahead goes back.
        Acks still work; `close` ends the handle.
        """
        self._check()
        self._is_shut = True
        if immediate:
            self._is_shut_for_gets = True
            session = self._session
            assert session is not None
            for consumer in list(self._consumers.values()):
                consumer.cancel()
            self._on_host(lambda: self._receiver.give_back(session, keep=0))
        self._receiver.notify()
        self._outcomes.notify()

    def close(self) -> None:
        """Wait up to 5 s for what is open, give back what is held, and close the handle.

        What has no outcome then ends with ConfirmUnknown. The node goes with its last handle
        if it was made by `MirroredQueue(…)`. May be repeated. Interrupted it goes on by itself:
        called again it waits for the rest.
        """
        if os.getpid() != self._pid:
            return
        self._is_closing = True
        self._closing.run()

    def _close(self) -> None:
        self._begin_close()
        if not self._is_closed and not self._host.closed():
            if not self._host.is_paused():
                self._outcomes.wait_for(self._is_quiet, FLUSH_S)
            self._end_session()
        self._outcomes.close(CLOSE_S - FLUSH_S, self._closing.callers)
        exit_flush.forget(self)
        self._release()

    def _begin_close(self) -> None:
        """Let nobody begin anything more."""
        self._is_closing = True
        self._outcomes.notify()
        self._receiver.notify()
        for consumer in list(self._consumers.values()):
            consumer._cancel(self._closing.callers)

    def __reduce__(self) -> tuple[object, ...]:
        """What its host makes of it: one on a client is pickled as its name, one on a node not."""
        return self._host.pickled(self.name)

    def __enter__(self) -> MirroredQueue:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<MirroredQueue {self.name!r} on {self._host.name}>"
