"""Acks and puts as one op: `queue.transaction()` and `message.ack_and_put(…)`.

The op is a publish frame. Its first body is a `Step`: it lists the messages to ack, and names
another queue if the other bodies are for the other queue. Like any batch the frame uses numbers of
the producer, also for its first body. So its outcome is known across failovers: all of it, or
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from attrs import define, field

from mirrorq.api.arguments import not_a_message
from mirrorq.api.batching import FRAME_OVERHEAD, MESSAGE_OVERHEAD, error_of, packer
from mirrorq.api.channel import Channel, RingChannel
from mirrorq.api.closing import of_this_process
from mirrorq.api.confirmation import Confirmation, Settlement
from mirrorq.api.message import Message, pieces_of
from mirrorq.api.options import Body, MessageOptions, packed, place_key, spelled_out
from mirrorq.api.publish_options import PLAIN, Terms
from mirrorq.api.waits import Waits, in_thread
from mirrorq.containers.ranges import RangeSet
from mirrorq.errors import AckRefused, MirrorQError
from mirrorq.protocol.ops import FLAG_STEP, NOT_TAKEN, Step
from mirrorq.session.calls import Failed, Put, Stored
from mirrorq.wire.ops import encode_step

STEP_BYTES = 64
RANGE_BYTES = 24
"""Limits in bytes of the first body, and of each ack in it."""


@define(eq=False)
class StepPut:
    """One transaction or ack_and_put: in the inbox, then the token of its batch, on the host's
    thread."""

    confirmation: Confirmation | Settlement
    bodies: Sequence[bytes]
    properties: Sequence[bytes]
    terms: Terms
    messages: Sequence[Message]
    target: int = 0
    sequences: dict[int, int] = field(factory=dict)
    """Index of each body -> its sequence, if bodies have unique keys."""
    has_stored: bool = False
    """True: a body was stored as new, not as a repeat."""

    @property
    def count(self) -> int:
        """Number of producer's numbers used."""
        return len(self.bodies) + 1

    @property
    def body_bytes(self) -> int:
        return sum(map(len, self.bodies))

    @property
    def own_bytes(self) -> int:
        """Bytes of bodies that are put into the queue itself."""
        return 0 if self.target else self.body_bytes

    @property
    def size(self) -> int:
        return self.body_bytes + sum(map(len, self.properties)) + len(self.messages) * RANGE_BYTES

    @property
    def frame_bytes(self) -> int:
        """Upper limit of the frame's size."""
        overhead = FRAME_OVERHEAD + STEP_BYTES + MESSAGE_OVERHEAD * self.count
        return self.size + overhead

    def note_outcome(self, outcome: Stored | Failed) -> list[Confirmation]:
        """Note the outcome."""
        if isinstance(outcome, Stored) and self.terms.is_unique and not self.target:
            return self._end_unique(outcome)
        if isinstance(outcome, Stored):
            first = outcome.first_sequence - outcome.index + 1
            value = None if self.target else range(first, first + len(self.bodies))
            return self._finish(value, None)
        if not outcome.unknown:
            for message in self.messages:
                message._chunk.leave(message._index)
        return self._finish(None, _error_of(outcome, self.messages))

    def _end_unique(self, outcome: Stored) -> list[Confirmation]:
        """Note sequences: messages that repeat earlier messages are not consecutive."""
        for index in range(outcome.count):
            self.sequences[outcome.index + index] = outcome.first_sequence + index
            if outcome.index + index and not outcome.is_repeated:
                self.has_stored = True
        if len(self.sequences) < self.count:
            return []
        if isinstance(self.confirmation, Confirmation):
            self.confirmation._is_duplicate = self.count > 1 and not self.has_stored
        return self._finish(tuple(self.sequences[index] for index in range(1, self.count)), None)

    def _finish(self, value: object, error: MirrorQError | None) -> list[Confirmation]:
        confirmation = self.confirmation
        if confirmation.done():
            return []
        confirmation._finish(value, error)
        return [confirmation] if isinstance(confirmation, Confirmation) else []


def _error_of(outcome: Failed, messages: Sequence[Message]) -> MirrorQError:
    if outcome.unknown or NOT_TAKEN not in outcome.reason:
        return error_of(outcome)
    return AckRefused(
        f"nothing was done: {outcome.reason}. Of {len(messages)} message(s) of queue "
        f"{messages[0].queue!r} at least one is no longer held here"
    )


def step_put(item: StepPut) -> Put:
    """Return the batch of a step: indivisible, with the deliveries to ack."""
    pieces = tuple(pieces_of(sorted(item.messages, key=lambda message: message.sequence)))
    ranges = tuple(RangeSet((piece.first, piece.last) for piece in pieces))
    bodies = [encode_step(Step(ranges, item.target)), *item.bodies]
    pack = packer(bodies, [b"", *item.properties], item.terms, FLAG_STEP)
    return Put(item, item.count, item.size, pack, True, item.own_bytes, pieces)


class Transaction:
    """Puts and acks of one queue that take effect together, or not at all.

        with queue.transaction() as t:
            t.ack(message)
            t.put(b"next")
        t.result(5)

    Nothing is sent before the end of the block. If an exception leaves the block, nothing happens,
    and the caller still has to settle the messages. Not for several threads at once.
    """

    def __init__(self, channel: Channel) -> None:
        self._whole = channel
        self._ring: RingChannel | None = None
        """The ring of the transaction, once certain: a sharded queue has several."""
        self._bodies: list[bytes] = []
        self._properties: list[bytes] = []
        self._terms = PLAIN
        self._messages: list[Message] = []
        self._is_begun = self._is_over = False
        self._confirmation: Confirmation | None = None

    @spelled_out
    def put(self, body: Body, **options: Unpack[MessageOptions]) -> None:
        """Publish a message with the rest; arguments and errors as in `MirroredQueue.put`.

        Raises:
            ValueError: ttl, priority, delay or persistent differs from an earlier put, or only one
                of them has a unique key. Or, in a sharded queue, the key belongs to another shard
                than an earlier part.
        """
        self._check()
        key = place_key(options)
        place = None if key is None else self._placed(self._whole.part_of(key), f"key {key!r}")
        terms, properties = packed(**options)
        if self._bodies and terms != self._terms:
            raise ValueError(
                "all puts of a transaction have the same persistence, priority, delay and ttl, and "
                "all of them a unique key or none: use a transaction for each"
            )
        data = self._whole.checked_body(body, properties)
        self._ring = place or self._ring
        self._terms = terms
        self._bodies.append(data)
        self._properties.append(properties)

    def ack(self, message: Message) -> None:
        """Ack a message of the queue with the rest.

        Raises:
            ValueError: it came from another handle, was settled, or is acked here already. Or, in
                a sharded queue, it belongs to another shard than an earlier part.
        """
        self._check()
        if not isinstance(message, Message):
            raise not_a_message(message)
        place = self._whole.source_of(message)
        if place is None:
            raise ValueError(f"{message!r} did not come from this handle on {self._whole.name!r}")
        place = self._placed(place, f"{message!r}")
        if message._is_settled or any(message is other for other in self._messages):
            raise ValueError(f"{message!r} is settled already, or was only browsed")
        self._messages.append(message)
        self._ring = place

    def _placed(self, place: RingChannel, what: str) -> RingChannel:
        """Return the ring of a part, if it fits the earlier parts."""
        if self._ring is not None and self._ring is not place:
            raise ValueError(
                f"{what} is of {place.name!r}, the transaction of {self._ring.name!r}: a "
                "transaction is one op of one shard. Use one for each shard"
            )
        return place

    @property
    def confirmation(self) -> Confirmation:
        """Ends with the `range` of sequences of the puts; with AckRefused or NotConfirmed when
        nothing took effect, with ConfirmUnknown when not known. After the block only."""
        if self._confirmation is None:
            raise ValueError(
                "the transaction has no outcome: its with block has not ended, or has raised"
            )
        return self._confirmation

    def result(self, timeout: float | None = None) -> range:
        """Wait for the outcome; as `confirmation.result`."""
        found: range = self.confirmation.result(timeout)
        return found

    def _check(self) -> None:
        if self._is_over or not self._is_begun:
            state = "is over" if self._is_over else "has not begun"
            raise ValueError(
                f"the transaction {state}: put and ack inside `with queue.transaction() as t`"
            )

    def _begin(self) -> None:
        if self._is_begun:
            raise ValueError("the transaction has begun before: begin another one")
        self._is_begun = True

    def _sending(self) -> Waits[Confirmation]:
        """Send the gathered puts and acks at the end of a successful block."""
        ring = self._ring or self._whole.part_of(None)
        return ring.transact(self._bodies, self._properties, self._terms, self._messages)

    __reduce__ = of_this_process

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self._whole.name!r}>"

    def __enter__(self) -> Transaction:
        self._begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._is_over = True
        if kind is None:
            self._confirmation = in_thread(self._sending())
