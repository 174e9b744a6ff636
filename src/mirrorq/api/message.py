"""`Message`: one delivery. Its body is bytes; its headers are read on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby, repeat
from operator import attrgetter
from typing import Any, NoReturn, Protocol, Unpack

import msgspec

from mirrorq.api.arguments import check_block, check_flags
from mirrorq.api.completion import Outcomes
from mirrorq.api.confirmation import Settlement
from mirrorq.api.options import Body, MessageOptions, packed, place_key, spelled_out
from mirrorq.api.publish_options import Seconds, Terms, milliseconds
from mirrorq.errors import MALFORMED, ConfigError, ProtocolError
from mirrorq.protocol.sessions import Delivery
from mirrorq.wire import frames
from mirrorq.wire.properties import _DECODER, HeaderValue, Properties


class Target:
    """A handle on a queue, as somewhere that a message may be put."""

    def _target_id(self, key: str | bytes | None) -> int:
        """The id of the ring that a message with this key goes to."""
        raise NotImplementedError


class Holder(Protocol):
    """The handle by which a message came, as far as the message knows it."""

    name: str
    queue_name: str
    """Of a shard: that of the whole queue."""
    shard: int | None
    outcomes: Outcomes

    @property
    def face(self) -> Any:
        """What its users hold."""
        ...

    def ack(self, message: Message) -> Settlement:
        """Ack one message."""
        ...

    def settle(self, kind: str, messages: Sequence[Message], delay_ms: int = 0) -> Settlement:
        """Ack or give back."""
        ...

    def extend(self, message: Message, duration_ms: int) -> Settlement:
        """Hold a message for so long from now on."""
        ...

    def put_back(self, messages: Sequence[Message]) -> None:
        """A call was interrupted before it has returned these: they are the next ones again."""
        ...

    def ack_and_put(
        self,
        message: Message,
        target: str | Target | int,
        key: str | bytes | None,
        body: Body,
        properties: bytes,
        terms: Terms,
        *,
        block: bool,
    ) -> Settlement:
        """Ack a message and put another one into another queue, both or neither."""
        ...


class Chunk:
    """Messages of one frame handed out together: what their `Message`s share.

    The frame is taken apart when the first of its bodies is asked for: a consumer that reads
    them all pays for it once, in its own thread.
    """

    __slots__ = (
        "_bodies",
        "_frame",
        "_properties",
        "consumer",
        "count",
        "delivery",
        "first",
        "handle",
        "held",
        "settled",
        "taken",
        "timestamp_us",
    )

    def __init__(
        self,
        handle: Holder,
        consumer: int,
        delivery: Delivery,
        first: int,
        count: int,
        timestamp_us: int,
        frame: frames.Frame,
    ) -> None:
        self.handle = handle
        self.consumer = consumer
        self.delivery = delivery
        self.first = first
        self.count = count
        self.timestamp_us = timestamp_us
        self.settled = bytearray(count)
        """1: that message is settled, or was only browsed: as its users know it."""
        self.taken: bytearray | None = None
        """1: the host's thread has taken what settles that message; None: of none of them."""
        self.held: bytearray | None = None
        """1: that message stands against its consumer's prefetch."""
        self._frame: frames.Frame | None = frame
        self._bodies: list[bytes] = []
        self._properties: list[bytes] | None = None

    @property
    def bodies(self) -> list[bytes]:
        if self._frame is not None:
            self._split()
        return self._bodies

    @property
    def properties(self) -> list[bytes] | None:
        if self._frame is not None:
            self._split()
        return self._properties

    def _split(self) -> None:
        """May be done by two threads at once: to the same end."""
        frame = self._frame
        if frame is not None:
            self._properties = frames.split_properties(frame)
            self._bodies = frames.split(frame)
            self._frame = None

    def take(self, start: int, stop: int) -> bytes:
        """The host's thread takes what settles those at these places.

        It alone knows what is settled: who was interrupted in an ack may ack once more.

        Returns:
            1 for each that it had taken before, 0 for the others.
        """
        if self.taken is None:
            self.taken = bytearray(self.count)
        before = bytes(self.taken[start:stop])
        self.taken[start:stop] = b"\1" * (stop - start)
        return before

    def leave(self, index: int) -> None:
        """What was to settle the one at this place has not: it is its user's again."""
        self.settled[index] = 0
        if self.taken is not None:
            self.taken[index] = 0

    def messages(self, start: int, stop: int) -> list[Message]:
        """The messages at these places."""
        return list(map(Message, repeat(self), range(start, stop)))


class Message(msgspec.Struct, eq=False, gc=False):
    """One delivered message, held until it is acked or given back.

    As a context manager: acked on a clean exit, given back on an exception, left alone when it
    has been settled inside.

    *Threads*: any may read it and settle it; one of them settles it.
    """

    # The collector does not look at messages: there are thousands, and what they refer to refers
    # to none of them for longer than its handle is open.
    _chunk: Chunk
    _index: int

    @property
    def _is_settled(self) -> bool:
        return bool(self._chunk.settled[self._index])

    @_is_settled.setter
    def _is_settled(self, value: bool) -> None:
        self._chunk.settled[self._index] = value

    @property
    def body(self) -> bytes:
        """What was put."""
        return self._chunk.bodies[self._index]

    @property
    def sequence(self) -> int:
        """Position in the queue, from 1."""
        return self._chunk.first + self._index

    @property
    def delivery_count(self) -> int:
        """1 at the first delivery."""
        return self._chunk.delivery.count

    @property
    def redelivered(self) -> bool:
        """Whether it may have been handed out before."""
        return self._chunk.delivery.count > 1

    @property
    def timestamp(self) -> float:
        """When the master took it, in seconds since 1970-01-01 UTC, by the time of its queue, which
        does not step when a wall clock is set."""
        return self._chunk.timestamp_us / 1e6

    @property
    def queue(self) -> str:
        """The queue's name; of a sharded queue its own, whichever shard it came from."""
        return self._chunk.handle.queue_name

    @property
    def handle(self) -> Any:
        """The `MirroredQueue` by which it came: of a sharded queue the whole, of an asyncio handle
        the one that it wraps."""
        return self._chunk.handle.face

    @property
    def shard(self) -> int | None:
        """Number of the shard that it is in, whose `sequence` it has; None where the queue is not
        sharded."""
        return self._chunk.handle.shard

    @property
    def headers(self) -> dict[str, HeaderValue]:
        """As they were put; empty when there were none."""
        return self._properties.headers

    @property
    def message_id(self) -> str | None:
        """As it was put. The queue carries it, and does not look for duplicates by it."""
        return self._properties.message_id

    @property
    def reply_to(self) -> str | None:
        """As it was put: by convention the name of the queue in which an answer is waited for."""
        return self._properties.reply_to

    @property
    def correlation_id(self) -> str | None:
        """As it was put: by convention an answer has that of what it answers."""
        return self._properties.correlation_id

    @property
    def content_type(self) -> str | None:
        """As it was put: what the body is, such as `application/json`."""
        return self._properties.content_type

    @property
    def key(self) -> str | bytes | None:
        """As it was put. In a sharded queue it chose the shard."""
        key: str | bytes | None = self._properties.key
        return key

    @property
    def _properties(self) -> Properties:
        columns = self._chunk.properties
        raw = columns[self._index] if columns else b""
        try:
            return _DECODER.decode(raw) if raw else Properties()
        except MALFORMED as error:
            raise ProtocolError(
                f"message {self.sequence} of queue {self.queue!r} has properties of {len(raw)} "
                f"bytes that cannot be read ({error}): its producer runs another version of mirrorq"
            ) from None

    def ack(self) -> Settlement:
        """Tell the queue that the message is done with.

        Returns:
            The settlement: it ends when the ack is on the disk of every member in sync, or with
                AckRefused when the message had gone back before. It need not be waited for.
        """
        return self._chunk.handle.ack(self)

    def nack(self, requeue: bool = True, delay: Seconds | None = None) -> Settlement:
        """Give the message back to its place; it comes again with its count raised.

        Args:
            requeue: False ends the message instead, as RabbitMQ's `basic.reject`: it goes to the
                dead-letter queue, where its queue has one.
            delay: seconds, a text as "5m" or a timedelta, until it comes again.

        Returns:
            The settlement, as in `ack`.

        Raises:
            ConfigError: a delay that is none, or one of a message that does not come again.
        """
        check_flags(requeue=requeue)
        delay_ms = 0 if delay is None else milliseconds("delay", delay)
        if delay is not None and not requeue:
            raise ConfigError(
                f"nack(requeue=False, delay={delay}): a message that is not requeued does not come "
                "again. Leave delay out"
            )
        return self._chunk.handle.settle("nack" if requeue else "reject", (self,), delay_ms)

    def extend(self, seconds: Seconds) -> Settlement:
        """Hold this message for so long from now on, whatever its queue's consumer time-out is: for
        work that takes longer, called again and again as long as that goes on.

        When the time is over the message goes back, as after the time-out. What waits behind it in
        the same consumer waits as well. A new master knows nothing of it: after a failover the
        message comes again, as everything that is held does.

        Args:
            seconds: or a text as "5m", or a timedelta; 0: for as long as this handle is there.

        Returns:
            The settlement: it ends with AckRefused when the message is not held any more, or its
            master runs a version that cannot do this.

        Raises:
            ConfigError: a time that is none.
        """
        return self._chunk.handle.extend(self, milliseconds("seconds", seconds))

    @spelled_out
    def ack_and_put(
        self,
        queue: str | Target,
        body: Body,
        *,
        block: bool = True,
        **options: Unpack[MessageOptions],
    ) -> Settlement:
        """Ack this message and put another one into another queue: exactly once, if and only if
        the ack takes effect.

        The other message is stored with the ack, in this queue's outbox, and arrives soon after,
        whoever dies meanwhile; if its queue is deleted before, it goes nowhere.

        Args:
            queue: a handle, or a name.
            block: wait while too much of this handle is unconfirmed; else raise Full.
            others: as in `MirroredQueue.put`.

        Returns:
            The settlement: it ends when both are certain; with AckRefused when neither happens.

        Raises:
            QueueNotFound: there is no queue of this name.
            ValueError, TypeError, ConfigError: as `put`; or the message is settled already.
        """
        if self._is_settled:
            raise ValueError(f"{self!r} is settled already, or was only browsed")
        check_block(block)
        terms, properties = packed(**options)
        return self._chunk.handle.ack_and_put(
            self, queue, place_key(options), body, properties, terms, block=block
        )

    def __enter__(self) -> Message:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if self._is_settled:
            return
        if kind is None:
            self.ack()
        else:
            self.nack()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} is held by this process and cannot be pickled: send its body, and ack it "
            "here, or pickle the handle of a client and get messages there"
        )

    def __repr__(self) -> str:
        return (
            f"<Message {self._chunk.handle.name}:{self.sequence} of {len(self.body)} bytes, "
            f"delivery {self.delivery_count}>"
        )


class Run(msgspec.Struct, eq=False):
    """Messages of one chunk that follow each other. Made and dropped within one call or step."""

    chunk: Chunk
    start: int
    stop: int

    @property
    def delivery(self) -> Delivery:
        """Their names."""
        whole, first = self.chunk.delivery, self.chunk.first
        return Delivery(
            whole.epoch, whole.number, first + self.start, first + self.stop - 1, whole.count
        )


_CHUNK: Callable[[Message], Chunk] = attrgetter("_chunk")
_INDEX: Callable[[Message], int] = attrgetter("_index")


def runs_of(messages: Sequence[Message]) -> list[Run]:
    """The messages as runs, in their order. Nothing is done in Python for each of them."""
    if len(messages) == 1:
        index = messages[0]._index
        return [Run(messages[0]._chunk, index, index + 1)]
    runs: list[Run] = []
    for chunk, group in groupby(messages, _CHUNK):
        indexes = list(map(_INDEX, group))
        start, stop = indexes[0], indexes[-1] + 1
        if indexes == [*range(start, stop)]:
            runs.append(Run(chunk, start, stop))
            continue
        start = stop = indexes[0]
        for index in indexes:
            if index != stop:
                runs.append(Run(chunk, start, stop))
                start = index
            stop = index + 1
        runs.append(Run(chunk, start, stop))
    return runs


def messages_in(runs: Iterable[Run]) -> list[Message]:
    """The messages of runs, each anew."""
    found: list[Message] = []
    for run in runs:
        found += run.chunk.messages(run.start, run.stop)
    return found


def names_of(runs: Iterable[Run]) -> list[Delivery]:
    """Names of deliveries, neighbours of one delivery joined: what travels for ten thousand
    acks in order is one range."""
    pieces: list[Delivery] = []
    whole: Delivery | None = None
    first = last = 0
    for run in runs:
        chunk = run.chunk
        start = chunk.first + run.start
        if chunk.delivery is not whole or start != last + 1:
            if whole is not None:
                pieces.append(Delivery(whole.epoch, whole.number, first, last, whole.count))
            whole, first = chunk.delivery, start
        last = chunk.first + run.stop - 1
    if whole is not None:
        pieces.append(Delivery(whole.epoch, whole.number, first, last, whole.count))
    return pieces


def pieces_of(messages: Sequence[Message]) -> list[Delivery]:
    """Names of the deliveries of these messages."""
    return names_of(runs_of(messages))
