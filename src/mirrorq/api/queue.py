"""`MirroredQueue`: a queue as users see it.

The class has the calls and their promises. A handle does the work: on one ring (`handle`), or on
the handles of all shards (`sharded.handle`).

*Threads*: every method may be called from any thread. In a forked child only the handle of a client
works; it connects anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from attrs import evolve

from mirrorq.api.arguments import (
    COUNT_MAX,
    check_block,
    check_callable,
    check_count,
    check_flags,
    check_sequence,
    check_timeout,
    checked_bodies,
    not_a_message,
)
from mirrorq.api.channel import ASK_S, purged_count
from mirrorq.api.closing import Closing
from mirrorq.api.confirmation import Confirmation, Settlement
from mirrorq.api.host import Declared
from mirrorq.api.message import Message, Target
from mirrorq.api.opening import embedding, handle_on
from mirrorq.api.options import (
    Body,
    ConsumeOptions,
    EmbeddedOptions,
    ManyOptions,
    MessageOptions,
    annotations_of,
    packed,
    packed_many,
    place_key,
    refuse_unknown,
    spelled_out,
    split_options,
)
from mirrorq.api.publish_options import PLAIN
from mirrorq.api.publisher import OnConfirm, PutCall
from mirrorq.api.receiver import unsee
from mirrorq.api.sharing import Use
from mirrorq.api.waits import in_thread
from mirrorq.errors import (
    AckRefused,
    MirrorQError,
    NoQuorum,
    PreconditionFailed,
    QueueDown,
    ShutDown,
)
from mirrorq.protocol.shard_names import shard_name, shard_of
from mirrorq.session.calls import pause_request, purge_request, range_request

if TYPE_CHECKING:
    from mirrorq.api.administration import Administration
    from mirrorq.api.consumer import Consumer
    from mirrorq.api.handle import Handle
    from mirrorq.api.host import Host
    from mirrorq.api.sharded.handle import ShardedHandle
    from mirrorq.api.stdlib_queue import AckAt, QueueAdapter
    from mirrorq.api.transactions import Transaction
    from mirrorq.monitoring.status import QueueStatus


Item = TypeVar("Item")

DELETE_S = 30.0
"""delete() waits so many seconds for the cluster."""


def browse_start(start: int | None, count_max: int) -> int:
    """Return the first sequence to browse. Raises TypeError, ValueError for invalid arguments."""
    check_sequence("start", start or 0)
    if type(count_max) is not int or count_max:
        check_count("count_max", count_max)
    return start or 1


def checked_range(first: int, last: int | None) -> tuple[int, int]:
    """Return a user's range of sequences. Raises TypeError, ValueError for an invalid range."""
    last = first if last is None else last
    for name, value in (("first", first), ("last", last)):
        if type(value) is not int:
            raise TypeError(f"{name} is {value!r}: give a sequence, an int from 1 on")
    if not 1 <= first <= last < 2**63:
        raise ValueError(f"{first} to {last} is no range of sequences: they count from 1")
    return first, last


class MirroredQueue(Target, Closing):
    """A replicated work queue: `put` with confirmation, `get` with ack.

    The constructor brings a node with it (a cluster of one without `peers`, no sockets); two queues
    on one path in one process share the node. `Node.queue()` and `Client.queue()` give the same
    object on a host of their own.

    Args:
        name: the queue's name, unique in the cluster.
        path: directory of the node's store.
        node: the node's name; "node" when there are no peers.
        peers, config, witness, security, insecure, listen, join, dashboard: as in `Node`.
        durable, exclusive, auto_delete, passive, shards, timeout: as in `Node.queue`.

    Raises:
        ConfigError: arguments that contradict each other or an open node on the path.
        StoreError: the store cannot be opened.
        NoQuorum: no majority within `timeout` seconds.

    *Threads*: every method may be called from any thread. Listeners are called on one thread of the
    handle's own. In a forked child a handle on a node raises: the child opens the queue anew.

    Example:
        ```python
        with mirrorq.MirroredQueue("jobs", path="./data") as jobs:
            jobs.put(b"resize 1.png").result(timeout=10)  # on the disk of every member in sync
            with jobs.get(timeout=10) as message:
                print(message.body)
            # acked here; an exception would have given it back
        ```
    """

    _handle: Handle | ShardedHandle
    """The handle that does the work."""

    @spelled_out
    def __init__(
        self,
        name: str,
        *,
        path: str | os.PathLike[str],
        node: str | None = None,
        **options: Unpack[EmbeddedOptions],
    ) -> None:
        declaration, rest = split_options(options)
        acquire, end = embedding()
        use = Use()
        try:
            shared = acquire(use, node or "node", path=path, **rest)
            declared = shared._declare(name, **declaration)
            self._hold(handle_on(shared, declared, name))
            self._on_close(partial(end, use))
            self._handle.open()
        except BaseException:
            self._abandon()
            end(use)
            raise

    @classmethod
    def _attach(cls, host: Host, declared: Declared, name: str) -> MirroredQueue:
        """Make a queue on an existing host, for `Node.queue` and `Client.queue`."""
        queue = cls.__new__(cls)
        try:
            queue._hold(handle_on(host, declared, name))
            queue._handle.open()
            return queue
        except BaseException:
            queue._abandon()
            raise

    def _hold(self, handle: Handle | ShardedHandle) -> None:
        """Make this object the one that users hold for a handle: its face."""
        self._handle = handle
        handle.show_as(self, MirroredQueue._on_handle)

    @classmethod
    def _on_handle(cls, handle: Any) -> MirroredQueue:
        """Make a new face after the user dropped the first. A message refers to the handle only."""
        queue = cls.__new__(cls)
        queue._hold(handle)
        return queue

    def _abandon(self) -> None:
        """Drop a handle whose creation was interrupted."""
        handle = self.__dict__.get("_handle")
        if handle is not None:
            handle.abandon()

    def _on_close(self, release: Callable[[], None]) -> None:
        """Have a function called at the close: it may close a host that came with the handle."""
        self._handle.release = release

    @property
    def name(self) -> str:
        """Name of the queue."""
        return self._handle.name

    @property
    def shards(self) -> int:
        """Number of shards; 0: the queue is not sharded."""
        return self._handle.shards

    def shard(self, number: int) -> MirroredQueue:
        """Return a new handle on one shard of a sharded queue, to be closed like any handle. It
        has all features of a queue without shards, and `mirrorq.bulk` takes it too.

        Args:
            number: number of the shard, from 0.

        Raises:
            PreconditionFailed: the queue is not sharded, or has no such shard.
        """
        handle = self._handle
        if not handle.shards:
            raise PreconditionFailed(f"queue {self.name!r} has no shards: use it as it is")
        if type(number) is not int or number not in range(handle.shards):
            raise PreconditionFailed(
                f"queue {self.name!r} has no shard {number!r}: its shards are 0 to "
                f"{handle.shards - 1}"
            )
        handle.check()
        declared = Declared(handle.ring_ids[number], refusals=handle.refusals)
        return MirroredQueue._attach(handle.host, declared, shard_name(self.name, number))

    def shard_of(self, key: str | bytes) -> int:
        """Return the number of the shard for messages with the key.

        Raises:
            PreconditionFailed: the queue is not sharded.
        """
        if not self.shards:
            raise PreconditionFailed(f"queue {self.name!r} has no shards: use it as it is")
        return shard_of(key, self.shards)

    def _target_id(self, key: str | bytes | None) -> int:
        self._handle.check_for("write")
        return self._handle.part_of(key).queue_id

    def _ring_for(self, call: str) -> Handle:
        """Return the only ring for a call. Raises PreconditionFailed for a sharded queue."""
        return self._handle.ring_for(call)

    # --- Publishing -----------------------------------------------------------------------

    @spelled_out
    def put(
        self,
        body: Body,
        block: bool = True,
        timeout: float | None = None,
        *,
        on_confirm: OnConfirm = None,
        **options: Unpack[MessageOptions],
    ) -> Confirmation:
        """Publish a message; returns once it is accepted by the handle.

        Args:
            body: bytes-like; copied if mutable.
            headers: names to str, bytes, int, float, bool or None, or lists and mappings of
                them.
            message_id: carried, not used to find duplicates.
            unique: a key that names the message, as "order-17". While the queue remembers it a
                second put of the key stores nothing: its confirmation ends with the sequence of the
                first, and its `is_duplicate` is true. The fate of the message and changes of the
                master do not matter. In a sharded queue `unique` chooses the shard without `key`.
            unique_for: seconds, a text as "5m" or a timedelta, for which the queue remembers it,
                from the first put on; None: by the policy's `unique-window`.
            reply_to, correlation_id, content_type: texts that are carried.
            priority: 0 to 31; higher priorities are delivered first, each in its own order.
            ttl: seconds, a text as "5m" or a timedelta, after which an untaken message ends. If the
                queue's policy has a message-ttl too, the lesser holds.
            delay: seconds, a text or a timedelta, until the message is ready. It then comes after
                all ready messages of its priority.
            key: carried; in a sharded queue, messages of one key keep their order.
            persistent: False: lost when all nodes stop.
            block, timeout: whether to wait while too much is unconfirmed, and how many seconds.
            on_confirm: called with the confirmation at its end.

        Returns:
            The confirmation: it ends with the message's sequence when the message is on disk
            on every member in sync.

        Raises:
            Full: too much unconfirmed for `timeout` seconds (NoQuorum, QueueDown if that is
                why).
            TypeError, ValueError: a body that is not bytes-like; a message that is too large
                (`message_bytes_max` bounds body and properties together).
            ConfigError: an invalid priority, ttl or delay.
            ShutDown: the handle is shut down or closed.
        """
        handle = self._handle
        if block is not True:
            check_block(block)
        if not options:
            if type(body) is not bytes or len(body) > handle.config.message_bytes_max:
                body = handle.checked_body(body)
            return handle.put(body, b"", PLAIN, None, block, timeout, on_confirm)
        terms, properties = packed(**options)
        data = handle.checked_body(body, properties)
        key = place_key(options)
        return handle.put(data, properties, terms, key, block, timeout, on_confirm)

    @spelled_out
    def put_many(
        self,
        bodies: Sequence[Body],
        block: bool = True,
        timeout: float | None = None,
        *,
        on_confirm: OnConfirm = None,
        **options: Unpack[ManyOptions],
    ) -> Confirmation:
        """Publish messages together. Up to `frame_bytes_max` in all, the queue stores all or none.

        The confirmation ends with a `range` of sequences (a tuple, when several frames were needed
        and another producer came between), or `NotConfirmed` with `.stored` and `.refused`.
        Arguments (but no `unique`) and errors as in `put`; options hold for every message.

        Example:
            ```python
            confirmation = queue.put_many([b"one", b"two", b"three"])
            print(confirmation.result(timeout=10))  # range(1, 4) on a new queue
            ```
        """
        handle = self._handle
        check_block(block)
        terms, properties = packed_many(**options)
        data = checked_bodies(bodies, properties, handle.config.message_bytes_max)
        how = PutCall(properties, terms, options.get("key"), block, timeout, on_confirm)
        return in_thread(handle.putting_many(data, how))

    def put_nowait(self, body: Body) -> Confirmation:
        """`put` that raises Full at once instead of waiting.

        Argument, result and errors as in `put`.
        """
        return self.put(body, block=False)

    def wait_for_confirms(self, timeout: float | None = None) -> bool:
        """Wait until everything put has an outcome, good or not: listeners get each outcome.

        Returns:
            True.

        Raises:
            NoQuorum, QueueDown, Full: not within `timeout` seconds, with the reason.
        """
        return in_thread(self._handle.puts.confirming(timeout))

    def add_confirm_listener(
        self,
        on_confirmed: Callable[[Confirmation], object] | None,
        on_not_confirmed: Callable[[Confirmation], object] | None = None,
    ) -> None:
        """Have functions called with each confirmation that ends well, or otherwise.

        On the handle's callback thread, one at a time: a slow function delays the others.

        Args:
            on_confirmed: called with each confirmation of a stored message. None: not called.
            on_not_confirmed: with each that ended with NotConfirmed or ConfirmUnknown.

        Raises:
            TypeError: a function cannot be called.
        """
        check_callable("on_confirmed", on_confirmed)
        check_callable("on_not_confirmed", on_not_confirmed)
        self._handle.puts.listen(on_confirmed, on_not_confirmed)

    # --- Consuming ------------------------------------------------------------------------

    def get(
        self, block: bool = True, timeout: float | None = None, *, auto_ack: bool = False
    ) -> Message:
        """Take the next message; it is held until it is acked or given back.

        Args:
            block: False: do not wait for a publish; the master is asked, at most 1 s.
            timeout: seconds to wait. None waits for ever, for a master too.
            auto_ack: the message is acked before it is returned.

        Returns:
            The message. As a context manager it is acked at the end of the block, and an exception
                gives it back.

        Raises:
            Empty: no message within `timeout` seconds (NoQuorum, QueueDown if that is why).
            PreconditionFailed: a consumer holds the queue exclusively.
            ShutDown: the handle is closed, or was shut down and nothing is ready.
            TypeError, ValueError: an invalid timeout; or seconds in the place of `block`.
        """
        if timeout is not None:
            check_timeout(timeout)
        if block is not True:
            check_block(block)
        if auto_ack is not False:
            check_flags(auto_ack=auto_ack)
        handle = self._handle
        found: list[Message] = []
        try:
            handle.take_one(found)
            if not found:
                in_thread(handle.receiver.getting(found, block, timeout))
            if auto_ack:
                found[0].ack()
            return found[0]
        except BaseException:
            unsee(found)
            raise

    def get_nowait(self) -> Message:
        """`get` that does not wait for a message to be published.

        Result and errors as in `get`.
        """
        return self.get(block=False)

    def get_many(self, count_max: int, timeout: float | None = None) -> list[Message]:
        """Take 1 to `count_max` messages as soon as any is ready; [] at the time-out.

        Args:
            count_max: 1 or more.
            timeout: seconds to wait for the first. None waits for ever.

        Returns:
            The messages, in the queue's order.

        Raises:
            NoQuorum, QueueDown: at the time-out, if that is why no message has come.
            PreconditionFailed: a consumer holds the queue exclusively.
            ShutDown: the handle is closed, or was shut down and nothing is ready.
        """
        if type(count_max) is not int or not 0 < count_max <= COUNT_MAX:
            check_count("count_max", count_max)
        found: list[Message] = []
        try:
            in_thread(self._handle.receiver.getting_many(found, count_max, timeout))
            return found
        except BaseException:
            unsee(found)
            raise

    def ack_many(self, messages: Sequence[Message]) -> Settlement:
        """Ack messages of the handle together; return the settlement, one for all.

        Raises:
            TypeError, ValueError: not all of them are messages of this handle.
        """
        if not isinstance(messages, Iterable):
            raise not_a_message(messages)
        return self._handle.ack_many(list(messages))

    def add_ack_listener(self, on_refused: Callable[[Message, AckRefused], object]) -> None:
        """Have `on_refused(message, error)` called with each message of the handle whose ack (or
        `nack(requeue=False)`) was refused: the message had gone back to the queue, and comes again.

        A worker need not wait for the outcomes of its acks: the listener learns whose work to
        undo, or which messages to expect again. It is called on the handle's callback thread. Acks
        of a transaction or an `ack_and_put` are reported by their own outcomes.

        Raises:
            TypeError: `on_refused` cannot be called.
        """
        if on_refused is None:
            raise TypeError("on_refused is None: give a function of a Message and an AckRefused")
        check_callable("on_refused", on_refused)
        self._handle.outcomes.ack_listeners.append(on_refused)

    @spelled_out
    def consume(
        self,
        callback: Callable[[Message], object],
        *,
        on_cancel: Callable[[Consumer], object] | None = None,
        **options: Unpack[ConsumeOptions],
    ) -> Consumer:
        """Have `callback(message)` called for each message, on a thread of its own; one thread for
        all shards of a sharded queue.

        When a callback returns, its message is acked, unless the callback has settled it. When a
        callback raises, its message is given back. It comes again after a delay that doubles with
        each delivery, and other messages are served meanwhile. At most `prefetch` messages are held
        unacknowledged.

        Args:
            callback: a plain function. An exception is logged with its traceback.
            prefetch: None: `Config.prefetch`; 0: no bound, for programs that bound their memory
                otherwise. In a sharded queue it is divided over the shards, at least 1 for each.
            ack: "return": messages are acked when the callback returns. "manual": the program
                acks each message, in the callback or later. "receipt": messages are acked before
                the callback is called; an exception or a crash loses the message.
            exclusive: no other consumer may consume meanwhile, from any shard.
            on_cancel: called with the consumer when the queue, not its user, ends it.
            cancel_on_failover: end it when another master takes over.
            retry_delay: delay before a failed message comes again, approximately, doubled with
                each delivery: seconds, a text as "5m" or a timedelta; 0: at once.
            retry_delay_max: upper limit of the delay, approximately.

        Returns:
            The consumer. It runs until `cancel`, or until the handle is closed.

        Raises:
            PreconditionFailed: `exclusive`, and there are other consumers; or another is exclusive.
            TypeError: the callback cannot be called, or is a coroutine function.
            ConfigError: the prefetch is no whole number, or below 0; `ack` is unknown; or
                a delay is invalid.

        Example:
            ```python
            def work(message: mirrorq.Message) -> None:
                print(message.body)  # acked when this returns, given back when it raises

            with queue.consume(work, prefetch=10):
                queue.put(b"resize 1.png").result(timeout=10)
            ```
        """
        from mirrorq.api.consumer import Consumer

        check_callable("callback", callback)
        refuse_unknown(options, annotations_of(ConsumeOptions))
        consumer = Consumer(self._handle, callback, on_cancel=on_cancel, **options)
        try:
            consumer._start()
            return consumer  # here: an interrupted return of another frame would leave the consumer
        except BaseException:
            consumer._abandon()
            raise

    def __iter__(self) -> Iterator[Message]:
        """Yield messages as they come, until the handle is closed; the caller acks them."""
        while True:
            try:
                yield self.get()
            except ShutDown:
                return

    def browse(self, start: int | None = None, count_max: int = 1000) -> list[Message]:
        """Look at messages, ready, unacknowledged and delayed, without taking them.

        Args:
            start: first sequence, inclusive; None: the oldest.
            count_max: most messages returned.
        """
        position = browse_start(start, count_max)
        self._handle.check_for("read")
        return in_thread(self._handle.browsing(position, count_max))

    # --- Questions ------------------------------------------------------------------------

    def qsize(self) -> int:
        """Messages ready: those that no call has returned."""
        return in_thread(self._handle.receiver.sizing())

    def empty(self) -> bool:
        """Whether no message is ready."""
        return self.qsize() == 0

    def full(self) -> bool:
        """Whether a `put` would wait: for confirms, or for the queue to become shorter."""
        return in_thread(self._handle.puts.filling())

    def status(self) -> QueueStatus:
        """Return the queue's status as known to the node. Never raises; waits for nothing, but a
        client for the answer of its entry node, a second at most."""
        handle = self._handle
        status = handle.host._queue_status(handle.queue_id)
        if not status.name:
            # The queue, its node or its client is gone, or the client's node does not answer.
            try:
                handle.check()
                why = str(handle.why_not(ShutDown("")))
            except MirrorQError as error:
                why = handle.why_closed or str(error)
            return evolve(status, name=self.name, warnings=(why,) if why else ())
        why = handle.puts.waits_for
        return evolve(status, blocked_by=why) if why and not status.blocked_by else status

    @property
    def node(self) -> Administration:
        """The node (or client) that the handle lives on."""
        return self._handle.host  # type: ignore[return-value]

    def purge(self) -> int:
        """End all ready and delayed messages; unacknowledged messages stay. Returns their number.

        Messages that handles have fetched ahead and no `get` has returned are ready too.

        Raises:
            PreconditionFailed: the queue is exclusive, and another connection's.
        """
        self._handle.check_for("read")
        return purged_count(self.name, self._handle.ask(purge_request, ASK_S))

    def delete_messages(self, first: int, last: int | None = None) -> int:
        """End one message, or a range, by sequence; held messages stay.

        Ready, delayed and fetched-ahead messages end, as with `purge`.

        Args:
            first: a sequence, as `browse` and `result` give it.
            last: the last sequence of the range; None: `first` alone.

        Returns:
            Number of messages that have ended; 0 when the range is empty, or all are held.

        Raises:
            PreconditionFailed: the queue is exclusive and another connection's, or has shards:
                sequences are of one shard (`shard`).
            ValueError: the range is invalid.
        """
        ring = self._range_ring("delete_messages")
        request = range_request(*checked_range(first, last))
        return purged_count(self.name, ring.ask(request, ASK_S))

    def move_messages(self, first: int, last: int | None = None, *, to: str | Target) -> int:
        """Move one message, or a range, to another queue, each exactly once.

        The queue's master moves them, as `redrive` does: they keep bodies and properties, and lose
        a delay or ttl. Held messages stay.

        Args:
            first, last: as in `delete_messages`.
            to: the other queue, by a handle or by name.

        Returns:
            Number of messages that have left the queue for good; they arrive soon. After a failover
            in between: the number since the failover.

        Raises:
            QueueNotFound: no queue has the name.
            PreconditionFailed, ValueError: as in `delete_messages`.
        """
        ring = self._range_ring("move_messages")
        span = checked_range(first, last)
        target = ring.id_of(to)
        if target == ring.queue_id:
            raise PreconditionFailed(f"the messages are in queue {self.name!r} already")
        return purged_count(self.name, ring.ask(range_request(*span, target), ASK_S))

    def _range_ring(self, call: str) -> Handle:
        self._handle.check_for("read")
        return self._ring_for(call)

    def pause(self) -> None:
        """Stop all deliveries of the queue until `resume`: to `get` and to `consume`.

        Puts, acks and `browse` go on, and so do delays and times to live. Fetched-ahead messages go
        back; a message that a consumer's callback is about to get may still come. The pause holds
        over failovers and restarts, and is shown by `status().deliveries_paused`.

        Raises:
            PreconditionFailed: the queue is exclusive, and another connection's.
        """
        self._set_paused(True)

    def resume(self) -> None:
        """End a `pause`; without a pause it has no effect. Errors as in `pause`."""
        self._set_paused(False)

    def _set_paused(self, is_paused: bool) -> None:
        self._handle.check_for("read")
        purged_count(self.name, self._handle.ask(pause_request(is_paused), ASK_S))

    def delete(self, if_empty: bool = False, if_unused: bool = False) -> None:
        """Delete the queue with all its messages.

        Args:
            if_empty: only when it has no messages, as its master knows now.
            if_unused: only when it is not used: it has no consumers, no held messages, and
                no waiting get().

        Raises:
            PreconditionFailed: it has messages or is in use, against the condition.
        """
        check_flags(if_empty=if_empty, if_unused=if_unused)
        self._handle.check()
        if if_empty or if_unused:
            self._check_left(if_empty=if_empty, if_unused=if_unused)
        self._handle.host._delete_queue(self._handle.queue_id, if_empty=if_empty, timeout=DELETE_S)

    def _check_left(self, *, if_empty: bool, if_unused: bool) -> None:
        """Raise PreconditionFailed when the queue must not be deleted on the conditions.

        The master is asked, because other nodes only know its last report. A queue without a master
        is not in use.
        """
        receiver = self._handle.receiver
        try:
            found = self._handle.counts()
        except (NoQuorum, QueueDown):
            return
        messages = found.ready + found.unacknowledged + found.delayed
        if if_empty and messages:
            text = f"queue {self.name!r} has {messages} message(s): purge it first"
            raise PreconditionFailed(text)
        if not if_unused:
            return
        # Messages that the handle has fetched ahead of calls are not held by a user.
        held = max(found.unacknowledged - receiver.buffered, 0)
        uses = [
            f"{found.consumers} consumer(s): cancel them first" if found.consumers else "",
            f"{held} message(s) that somebody holds: ack them or give them back" if held else "",
            "a get() that waits" if found.waiting or receiver.has_waiting else "",
        ]
        why = "; ".join(filter(None, uses))
        if why:
            raise PreconditionFailed(f"queue {self.name!r} is in use, it has {why}")

    def redrive(
        self, count_max: int | None = None, *, first: int | None = None, last: int | None = None
    ) -> int:
        """Move messages of a dead-letter queue back to the queues in which they ended.

        Each is moved exactly once, the oldest first: the messages ready now, at most `count_max`;
        or the range of `first` and `last`, as in `move_messages`. Messages without a header
        `x-death-queue`, or from a deleted queue, stay.

        Returns:
            Number of moved messages: they are out of the queue for good, and arrive soon.

        Raises:
            NoQuorum, QueueDown: there is no master; messages moved before stay moved.
            PreconditionFailed, ValueError: for a range, as in `delete_messages`.
        """
        from mirrorq.api.redrive import redrive, redrive_range

        handle = self._handle
        handle.check_open_for_gets()
        if first is not None and count_max is None:
            return redrive_range(self._range_ring("redrive"), *checked_range(first, last))
        if first is not None or last is not None:
            raise ValueError("redrive takes count_max, or first, or first and last")
        if count_max is not None and (type(count_max) is not int or count_max < 0):
            raise ValueError(f"count_max is {count_max!r}: it must be 0 or more, or None for all")
        moved = 0
        for ring in handle.rings():
            moved += redrive(ring, None if count_max is None else count_max - moved)
        return moved

    def transaction(self) -> Transaction:
        """Puts and acks on the queue as one op: all of them, or none; see `Transaction`.

        Example:
            ```python
            queue.put(b"order 1").result(timeout=10)
            message = queue.get(timeout=10)
            with queue.transaction() as step:
                step.ack(message)
                step.put(b"invoice for order 1")
            print(step.result(timeout=10))  # the sequences of what was put
            ```
        """
        from mirrorq.api.transactions import Transaction

        self._handle.check_open_for_puts(right="")
        return Transaction(self._handle)

    @overload
    def as_queue(self, *, ack: AckAt = "get") -> QueueAdapter[bytes]: ...

    @overload
    def as_queue(
        self,
        *,
        dumps: Callable[[Item], Body],
        loads: Callable[[bytes], Item],
        ack: AckAt = "get",
    ) -> QueueAdapter[Item]: ...

    def as_queue(
        self,
        *,
        dumps: Callable[[Any], Body] | None = None,
        loads: Callable[[bytes], Any] | None = None,
        ack: AckAt = "get",
    ) -> QueueAdapter[Any]:
        """A drop-in `queue.Queue` on the handle.

        Args:
            dumps: makes bytes of items to put, as `pickle.dumps`; None: bytes are put.
            loads: makes items of bytes for `get`, as `pickle.loads`; None: `get` returns bytes.
            ack: "get": an item that `get` returns is then off the queue, as from a `queue.Queue`.
                "task_done": acks the item; unfinished items of a dead process come again.
        """
        from mirrorq.api.stdlib_queue import QueueAdapter

        return QueueAdapter(self._handle, dumps, loads, ack)

    # --- The end --------------------------------------------------------------------------

    def shutdown(self, immediate: bool = False) -> None:
        """Take no more puts on the handle; `get` goes on until nothing is ready.

        As `queue.Queue.shutdown`, but for the one handle, and no message is deleted. With
        `immediate`, `get` and consumers end at once and fetched-ahead messages go back. Acks still
        work; `close` ends the handle.
        """
        self._handle.shutdown(immediate)

    def close(self) -> None:
        """Wait up to 5 s for open calls, give held messages back, and close the handle.

        Calls without an outcome end with ConfirmUnknown. A node made by `MirroredQueue(…)` is
        closed with its last handle. May be repeated. An interrupted close continues by itself, and
        another call waits for the rest.
        """
        self._handle.close()

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle as the host defines: a handle on a client by its name, on a node not at all."""
        return self._handle.host._pickled(self.name)

    def __repr__(self) -> str:
        of = f" of {self.shards} shards" if self.shards else ""
        return f"<MirroredQueue {self.name!r}{of} on {self._handle.host.name}>"
