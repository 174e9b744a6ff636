"""Puts as they are handed to the host's thread, and the confirmations that get their outcomes.

Single puts that wait together are packed into one frame. A put_many keeps frames of its own, one
frame if it fits, so that it is stored whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise
from operator import attrgetter
from typing import Protocol, runtime_checkable

from attrs import define, field
from msgspec import Struct

from mirrorq.api.confirmation import Confirmation
from mirrorq.api.publish_options import Terms
from mirrorq.errors import ConfirmUnknown, MirrorQError, NotConfirmed
from mirrorq.session.calls import Failed, Put, Stored
from mirrorq.wire.frames import pack_publish

PACK_BYTES = 256 * 1024
"""Limit in bytes on a frame of single puts of one round, beside `Terms.count_max` messages. A
larger put has a frame of its own."""
FRAME_OVERHEAD = 256
"""Header, padding, terms and the offsets' first entries of a frame, in bytes."""
MESSAGE_OVERHEAD = 8
"""Offsets of one message in both columns, in bytes."""


class OnePut(Struct, eq=False, gc=False):
    """One `put` of a user's thread, in the inbox until the host takes it. The garbage collector
    skips the objects: many wait, for a moment only."""

    confirmation: Confirmation
    body: bytes
    properties: bytes
    terms: Terms


@define(eq=False)
class PutRun:
    """Single puts that waited together in the inbox, as columns. A run leaves as one frame.
    Host's thread."""

    terms: Terms
    confirmations: list[Confirmation]
    bodies: list[bytes]
    size: int
    """Bytes of bodies and properties."""
    properties: list[bytes] | None = None
    """One entry for each body; None: no message has properties."""

    @classmethod
    def of(cls, confirmation: Confirmation, body: bytes, properties: bytes, terms: Terms) -> PutRun:
        """Return a run that begins with a put."""
        size = len(body) + len(properties)
        return cls(terms, [confirmation], [body], size, [properties] if properties else None)

    @property
    def count(self) -> int:
        """Number of messages."""
        return len(self.bodies)

    @property
    def own_bytes(self) -> int:
        """Bytes of bodies."""
        return self.size - sum(map(len, self.properties or ()))

    def has_place(self, count: int, size: int, terms: Terms) -> bool:
        """Return true if more messages with the given terms fit."""
        count_max = self.terms.count_max
        is_small = len(self.bodies) + count <= count_max and self.size + size <= PACK_BYTES
        return is_small and terms == self.terms

    def join(self, later: PutRun) -> None:
        """Append a run that was put later."""
        self.join_properties(later.properties, len(later.bodies))
        self.confirmations += later.confirmations
        self.bodies += later.bodies
        self.size += later.size

    def join_properties(self, later: list[bytes] | None, count: int) -> None:
        """Append the properties of `count` more bodies, before the bodies are appended."""
        if self.properties is None and later is not None:
            self.properties = [b""] * len(self.bodies)
        if self.properties is not None:
            self.properties += later or [b""] * count


def runs_of_puts(puts: list[OnePut]) -> list[PutRun]:
    """Return single puts in order, in as few runs as possible."""
    if len(puts) == 1:
        put = puts[0]
        return [PutRun.of(put.confirmation, put.body, put.properties, put.terms)]
    bodies = [put.body for put in puts]
    properties = [put.properties for put in puts]
    terms = [put.terms for put in puts]
    size = sum(map(len, bodies))
    column = None
    if any(properties):
        size += sum(map(len, properties))
        column = properties
    if terms.count(terms[0]) != len(puts):
        groups = [list(group) for _, group in groupby(puts, attrgetter("terms"))]
    elif len(puts) <= terms[0].count_max and size <= PACK_BYTES:
        return [PutRun(terms[0], [put.confirmation for put in puts], bodies, size, column)]
    else:
        half, count_max = (len(puts) + 1) // 2, terms[0].count_max
        fitting = min(len(puts) * PACK_BYTES // max(size, 1), count_max, half)
        step = max(fitting, 1)
        groups = [puts[start : start + step] for start in range(0, len(puts), step)]
    return [run for group in groups for run in runs_of_puts(group)]


@define(eq=False)
class ManyPut:
    """One `put_many`: in the inbox, then with the host until all of its frames have an outcome."""

    confirmation: Confirmation
    bodies: Sequence[bytes]
    properties: bytes
    terms: Terms
    size: int
    parts_open: int = 0
    stored: list[range] = field(factory=list)
    refused: list[range] = field(factory=list)
    reason: str = ""
    is_unknown: bool = False

    @property
    def count(self) -> int:
        """Number of messages."""
        return len(self.bodies)

    @property
    def own_bytes(self) -> int:
        """Bytes of bodies."""
        return self.size - len(self.properties) * len(self.bodies)


class Counted(Protocol):
    """The counts of a call in the inbox: producer's numbers, and bytes."""

    @property
    def count(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def own_bytes(self) -> int: ...


@runtime_checkable
class Ending(Protocol):
    """A token that itself determines the confirmations that its outcome ends (`transactions`)."""

    def note_outcome(self, outcome: Stored | Failed) -> list[Confirmation]:
        """Note an outcome on the host's thread; return the ended confirmations."""


class OwnBatch:
    """An item of a handle's inbox that makes its own batch, and is then the token of the batch. It
    gets the outcome itself."""

    __slots__ = ()

    count: int
    """Number of producer's numbers used."""
    size: int
    """Bytes of bodies and properties."""
    own_bytes: int
    """Bytes of bodies that are put into the queue now."""

    def batch(self) -> Put:
        """Return the batch for the session."""
        raise NotImplementedError

    def note_outcome(self, outcome: Stored | Failed) -> list[Confirmation]:
        """Note an outcome, on the host's thread; return the ended confirmations."""
        raise NotImplementedError

    def end_unknown(self, why: str) -> None:
        """Note that the handle was closed before the batch was made."""
        raise NotImplementedError


@define(eq=False)
class PutToken:
    """Target of a frame's outcome: single confirmations, or a part of a put_many. The session holds
    the token for the host's thread until the outcome."""

    singles: list[Confirmation] | None
    many: ManyPut | None
    offset: int = 0
    count: int = 0
    left: int = 0


def packer(
    bodies: Sequence[bytes], properties: Sequence[bytes], terms: Terms, flags: int = 0
) -> Callable[[int, int, int], bytes]:
    """Return a function that makes the frame from the producer's numbers."""
    column = list(properties) if any(properties) else None

    def pack(producer: int, first_number: int, settled: int) -> bytes:
        return pack_publish(
            bodies,
            column,
            producer=producer,
            first_number=first_number,
            settled=settled,
            flags=terms.flags | flags,
            delay_ms=terms.delay_ms,
            ttl_ms=terms.ttl_ms,
        )

    return pack


def frames_of(inbox: Sequence[PutRun | ManyPut], frame_bytes_max: int) -> Iterator[Put]:
    """Turn calls into batches, in order."""
    run: PutRun | None = None
    for item in inbox:
        if run is not None:
            if isinstance(item, PutRun) and run.has_place(len(item.bodies), item.size, item.terms):
                run.join(item)
                continue
            yield _singles(run)
            run = None
        if isinstance(item, PutRun):
            run = item
        else:
            yield from _many(item, frame_bytes_max)
    if run is not None:
        yield _singles(run)


def _singles(run: PutRun) -> Put:
    count = len(run.bodies)
    token = PutToken(run.confirmations, None, 0, count, count)
    pack = packer(run.bodies, run.properties or (), run.terms)
    return Put(token, count, run.size, pack, False, sum(map(len, run.bodies)))


def _many(item: ManyPut, frame_bytes_max: int) -> Iterator[Put]:
    parts = list(parts_of(item.bodies, item.properties, item.size, frame_bytes_max))
    item.parts_open = len(parts)
    for start, stop in parts:
        bodies = item.bodies[start:stop]
        properties = [item.properties] * len(bodies) if item.properties else ()
        token = PutToken(None, item, start, stop - start, stop - start)
        own_bytes = len(item.properties) * len(bodies)
        is_all = stop - start == len(item.bodies)
        body_bytes = item.size - own_bytes if is_all else sum(map(len, bodies))
        size = body_bytes + own_bytes
        pack = packer(bodies, properties, item.terms)
        yield Put(token, stop - start, size, pack, True, body_bytes)


def parts_of(
    bodies: Sequence[bytes], properties: bytes, size: int, frame_bytes_max: int
) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of the bodies for each frame of a put_many, in order.

    Args:
        properties: of each message.
        size: bytes of bodies and properties.
    """
    each = len(properties) + MESSAGE_OVERHEAD
    if size + each * len(bodies) + FRAME_OVERHEAD <= frame_bytes_max:
        yield 0, len(bodies)
        return
    start = 0
    size = FRAME_OVERHEAD
    for index, body in enumerate(bodies):
        if index > start and size + len(body) + each > frame_bytes_max:
            yield start, index
            start, size = index, FRAME_OVERHEAD
        size += len(body) + each
    yield start, len(bodies)


def finish(outcome: Stored | Failed) -> list[Confirmation]:
    """Note an outcome; return the ended confirmations."""
    token = outcome.token
    if not isinstance(token, PutToken):
        # Checked last: the check of a protocol's methods is slower than the rest.
        assert isinstance(token, Ending)
        return token.note_outcome(outcome)
    if token.singles is not None:
        return _finish_singles(token.singles, outcome)
    assert token.many is not None
    return _finish_part(token, token.many, outcome)


def _finish_singles(singles: list[Confirmation], outcome: Stored | Failed) -> list[Confirmation]:
    ended = singles[outcome.index : outcome.index + outcome.count]
    if isinstance(outcome, Stored):
        if outcome.is_repeated:
            for confirmation in ended:
                confirmation._is_duplicate = True
        for sequence, confirmation in enumerate(ended, outcome.first_sequence):
            if type(confirmation) is not Confirmation or confirmation._first is not None:
                confirmation._finish(sequence, None)
                continue
            # The content of `_finish`, without the call: it runs once per put.
            confirmation._value = sequence
            confirmation._is_done = True
            if confirmation._outcomes.callbacks:
                confirmation._finish(sequence, None)
    else:
        for confirmation in ended:
            confirmation._finish(None, error_of(outcome))
    return ended


def error_of(outcome: Failed) -> MirrorQError:
    if outcome.unknown:
        return ConfirmUnknown(
            f"it is not known whether the message was stored: {outcome.reason}. Publishing it "
            "again may make a duplicate"
        )
    return NotConfirmed(f"the message was not stored: {outcome.reason}")


def _finish_part(token: PutToken, many: ManyPut, outcome: Stored | Failed) -> list[Confirmation]:
    if isinstance(outcome, Stored):
        first = outcome.first_sequence
        many.stored.append(range(first, first + outcome.count))
    else:
        start = token.offset + outcome.index
        many.refused.append(range(start, start + outcome.count))
        many.reason = outcome.reason
        many.is_unknown = many.is_unknown or outcome.unknown
    token.left -= outcome.count
    if token.left == 0:
        many.parts_open -= 1
    if many.parts_open:
        return []
    _finish_many(many)
    return [many.confirmation]


def _finish_many(many: ManyPut) -> None:
    confirmation = many.confirmation
    if not many.refused:
        confirmation._finish(_joined(many.stored), None)
    elif many.is_unknown:
        failed = Failed(None, 0, 0, many.reason, True)
        confirmation._finish(None, error_of(failed))
    else:
        refused = _runs(many.refused)
        count = sum(map(len, refused))
        text = f"{count} of {len(many.bodies)} messages were not stored"
        if many.stored:
            places = ", ".join(f"{piece.start} to {piece.stop - 1}" for piece in refused)
            text += f" (those at {places} of the list; the others were)"
        text += f": {many.reason}"
        confirmation._finish(None, NotConfirmed(text, _runs(many.stored), refused))


def _runs(pieces: list[range]) -> list[range]:
    """Return ranges with the same numbers in order, with neighbours merged."""
    runs: list[range] = []
    for piece in sorted(pieces, key=lambda piece: piece.start):
        if runs and runs[-1].stop == piece.start:
            piece = range(runs.pop().start, piece.stop)
        runs.append(piece)
    return runs


def _joined(pieces: list[range]) -> range | tuple[int, ...]:
    """Return one range, or all sequences in order if other producers came between the parts."""
    is_one = all(a.stop == b.start for a, b in pairwise(pieces))
    if is_one:
        return range(pieces[0].start, pieces[-1].stop)
    return tuple(sequence for piece in pieces for sequence in piece)
