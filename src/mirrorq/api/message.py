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
    """A handle on a queue, as a target for messages."""

    def _target_id(self, key: str | bytes | None) -> int:
        """Return the id of the ring for a message with the key."""
        raise NotImplementedError


class Holder(Protocol):
    """The handle by which a message came, reduced to the needs of the message."""

    name: str
    queue_name: str
    """For a shard the name of the whole queue."""
    shard: int | None
    outcomes: Outcomes

    @property
    def face(self) -> Any:
        """The object that users hold."""

    def ack(self, message: Message) -> Settlement:
        """Ack one message."""

    def settle(self, kind: str, messages: Sequence[Message], delay_ms: int = 0) -> Settlement:
        """Ack or release messages."""

    def extend(self, message: Message, duration_ms: int) -> Settlement:
        """Hold a message for a duration from now on."""

    def put_back(self, messages: Sequence[Message]) -> None:
        """Put the messages of an interrupted call back in front."""

    def ack_and_put(
        self,
        message: Message,
        target: str | Target,
        key: str | bytes | None,
        body: Body,
        properties: bytes,
        terms: Terms,
        *,
        block: bool,
    ) -> Settlement:
        """Ack a message and put another message into another queue, both or neither."""


class Chunk:
    """Messages of one frame delivered together: the shared state of their `Message`s.

    The frame is split at the first access to a body: a consumer that reads all bodies pays once, in
    its own thread.
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
        """1: the message is settled, or was only browsed, as its users know."""
        self.taken: bytearray | None = None
        """1: the host's thread has taken the message's settlement; None: no settlement taken."""
        self.held: bytearray | None = None
        """1: the message counts against its consumer's prefetch."""
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
        """Split the frame. Two threads may do so at once, with the same result."""
        frame = self._frame
        if frame is not None:
            self._properties = frames.split_properties(frame)
            self._bodies = frames.split(frame)
            self._frame = None

    def take_settlements(self, start: int, stop: int) -> bytes:
        """Take the settlements of messages from `start` to `stop`. On the host's thread.

        Only the host's thread knows settled messages: an interrupted ack may be repeated.

        Returns:
            1 for each message whose settlement was taken before, 0 for others.
        """
        if self.taken is None:
            self.taken = bytearray(self.count)
        before = bytes(self.taken[start:stop])
        self.taken[start:stop] = b"\1" * (stop - start)
        return before

    def leave(self, index: int) -> None:
        """Mark a message as unsettled again: its settlement has not happened."""
        self.settled[index] = 0
        if self.taken is not None:
            self.taken[index] = 0

    def messages(self, start: int, stop: int) -> list[Message]:
        """Return the messages from `start` to `stop`."""
        return list(map(Message, repeat(self), range(start, stop)))


class Message(msgspec.Struct, eq=False, gc=False):
    """One delivered message, held until it is acked or given back.

    As a context manager: acked on a clean exit, given back on an exception, left alone when it has
    been settled inside.

    *Threads*: any may read and settle it; only one thread settles it.
    """

    # The garbage collector skips messages: there are thousands, and the objects that they refer to
    # do not refer back for longer than the handle is open.
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
        """The bytes that were put."""
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
        """Time of publishing at the master, in seconds since 1970-01-01 UTC, by the queue's clock,
        which does not step when a wall clock is set."""
        return self._chunk.timestamp_us / 1e6

    @property
    def queue(self) -> str:
        """Name of the queue; for a shard the name of the sharded queue."""
        return self._chunk.handle.queue_name

    @property
    def handle(self) -> Any:
        """The `MirroredQueue` by which it came: for a sharded queue the whole, for an asyncio
        handle the wrapped handle."""
        return self._chunk.handle.face

    @property
    def shard(self) -> int | None:
        """Number of the message's shard, to which `sequence` belongs; None if the queue is not
        sharded."""
        return self._chunk.handle.shard

    @property
    def headers(self) -> dict[str, HeaderValue]:
        """Headers as put; empty when there were none."""
        return self._properties.headers

    @property
    def message_id(self) -> str | None:
        """Id as put. The queue carries it, and does not look for duplicates by it."""
        return self._properties.message_id

    @property
    def reply_to(self) -> str | None:
        """Text as put: by convention the name of the queue for the answer."""
        return self._properties.reply_to

    @property
    def correlation_id(self) -> str | None:
        """Text as put: by convention an answer has the id of its question."""
        return self._properties.correlation_id

    @property
    def content_type(self) -> str | None:
        """Text as put: the type of the body, such as `application/json`."""
        return self._properties.content_type

    @property
    def key(self) -> str | bytes | None:
        """Key as put. In a sharded queue it chose the shard."""
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
        """Tell the queue that the message is done.

        Returns:
            The settlement: it ends when the ack is on the disk of every member in sync, or with
            AckRefused when the message had gone back before. It need not be waited for. After a
            failover it ends well, too, if another consumer has ended the message meanwhile.
        """
        return self._chunk.handle.ack(self)

    def nack(self, requeue: bool = True, delay: Seconds | None = None) -> Settlement:
        """Give the message back to its place; it comes again with its count raised.

        Args:
            requeue: False ends the message instead, as RabbitMQ's `basic.reject`: it goes to the
                queue's dead-letter queue, if there is any.
            delay: seconds, a text as "5m" or a timedelta, until it comes again.

        Returns:
            The settlement, as in `ack`.

        Raises:
            ConfigError: an invalid delay, or a delay with `requeue=False`.
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
        """Hold the message for a time from now on, whatever the queue's consumer time-out is. For
        longer work, call it again and again until the end of the work.

        After the time the message goes back, as after the time-out. Messages behind it in the same
        consumer wait as well. A new master does not know the extension: after a failover the
        message comes again, as all held messages do.

        Args:
            seconds: or a text as "5m", or a timedelta; 0: for as long as the handle is open.

        Returns:
            The settlement: it ends with AckRefused when the message is no longer held, or its
            master runs a version without extensions.

        Raises:
            ConfigError: an invalid time.
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
        """Ack the message and put another message into another queue: exactly once, if and only if
        the ack takes effect.

        The other message is stored with the ack, in the outbox of the acked message's queue, and
        arrives soon after, whatever fails meanwhile. If its queue is deleted before, it is dropped.

        Args:
            queue: a handle, or a name.
            block: wait while too much of the handle is unconfirmed; else raise Full.
            others: as in `MirroredQueue.put`.

        Returns:
            The settlement: it ends when both are certain; with AckRefused when neither happens.

        Raises:
            QueueNotFound: no queue has the name.
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


class MessageRun(msgspec.Struct, eq=False):
    """Consecutive messages of one chunk. Made and dropped within one call or step."""

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


def runs_of(messages: Sequence[Message]) -> list[MessageRun]:
    """Return the messages as runs, in order. There is no Python code per message."""
    if len(messages) == 1:
        index = messages[0]._index
        return [MessageRun(messages[0]._chunk, index, index + 1)]
    runs: list[MessageRun] = []
    for chunk, group in groupby(messages, _CHUNK):
        indexes = list(map(_INDEX, group))
        start, stop = indexes[0], indexes[-1] + 1
        if indexes == [*range(start, stop)]:
            runs.append(MessageRun(chunk, start, stop))
            continue
        start = stop = indexes[0]
        for index in indexes:
            if index != stop:
                runs.append(MessageRun(chunk, start, stop))
                start = index
            stop = index + 1
        runs.append(MessageRun(chunk, start, stop))
    return runs


def messages_in(runs: Iterable[MessageRun]) -> list[Message]:
    """Return new Message objects for runs."""
    found: list[Message] = []
    for run in runs:
        found += run.chunk.messages(run.start, run.stop)
    return found


def names_of(runs: Iterable[MessageRun]) -> list[Delivery]:
    """Return names of deliveries, neighbours of one delivery joined: ten thousand acks in order
    travel as one range."""
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
    """Return names of the messages' deliveries."""
    return names_of(runs_of(messages))
