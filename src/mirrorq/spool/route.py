"""One queue's way through the spool, what of it is on its way, and what is told of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from attrs import frozen

from mirrorq.api.batching import OwnBatch, packer
from mirrorq.api.handle import Handle
from mirrorq.api.publish_options import Terms
from mirrorq.errors import MirrorQError
from mirrorq.session.calls import Failed, Put, Stored
from mirrorq.spool.confirmation import Batch
from mirrorq.spool.line import Flight, Line
from mirrorq.spool.records import PutRecord
from mirrorq.store.spool_file import LineHead, SpoolRecord

if TYPE_CHECKING:
    from mirrorq.api.confirmation import Confirmation

AGAIN_S = (0.2, 5.0)
"""A queue that could not be opened is tried again after the first, at last after the second."""


@frozen
class SetAside:
    """What a spool could not bring to its queue, and nobody was there to hear of."""

    reason: str
    """The queue's, or that its bytes on the disk have changed."""
    bodies: tuple[bytes, ...]
    """Of the messages; () where they cannot be read."""
    messages: int
    """How many."""
    raw: bytes
    """The record as it stood in the file."""


@frozen
class SpoolStatus:
    """What one queue's line of a spool holds."""

    messages: int
    """Accepted here and not yet confirmed."""
    bytes: int
    """What they take of `spool_bytes_max`."""
    oldest_s: float
    """How long the oldest of them has waited, in seconds; 0: there is none."""
    connected: bool
    """Whether they are being sent."""
    why: str
    """Why not, "" when they are."""
    set_aside: int
    """Messages that the queue refused, or that are damaged: `SpooledQueue.set_aside()`."""
    dropped: int
    """Messages that were dropped since this process began, for their age or for want of room."""

    @classmethod
    def nothing(cls) -> SpoolStatus:
        """Return the status of who spools nothing."""
        return cls(0, 0, 0.0, True, "", 0, 0)


class Sending(OwnBatch):
    """A record on its way, as a handle's inbox and its session have it."""

    __slots__ = ("_line", "_packed", "count", "flight", "generation", "own_bytes", "route", "size",
                 "whole")  # fmt: skip

    def __init__(self, route: Route, flight: Flight, record: PutRecord, now_ms: int) -> None:
        self.route = route
        self.flight = flight
        self.generation = route.generation
        self.count = len(record.bodies)
        self.whole = record.whole
        said = record.properties
        properties: list[bytes] = said if isinstance(said, list) else [said] * self.count
        self.own_bytes = sum(map(len, record.bodies))
        self.size = self.own_bytes + sum(map(len, properties))
        age_ms = max(now_ms - record.stamp_ms, 0)
        terms = Terms(
            record.persistent,
            record.priority,
            max(record.delay_ms - age_ms, 0),
            max(record.ttl_ms - age_ms, 1) if record.ttl_ms else 0,
        )
        self._packed = packer(record.bodies, properties, terms)
        self._line = route.line

    def batch(self) -> Put:
        """The batch of the session."""
        return Put(self, self.count, self.size, self._pack, self.whole, self.own_bytes)

    def _pack(self, producer: int, first_number: int, settled: int) -> bytes:
        return self._packed(producer, first_number, self._line.settled(settled))

    def end(self, outcome: Stored | Failed) -> list[Confirmation]:
        """On the host's thread."""
        self.route.heard(self, outcome)
        return []

    def end_unknown(self, why: str) -> None:
        """The handle was closed."""
        self.route.heard(self, Failed(self, 0, self.count, why, True))


Heard = Callable[[Sending, Stored | Failed], None]


class Route:
    """One queue's way through the spool. The spool's thread's own, but for `heard`."""

    def __init__(self, number: int, head: LineHead, heard: Heard) -> None:
        self.heard = heard
        """Takes outcomes of what is on its way; called on hosts' threads."""
        self.number = number
        self.head = head
        """As it is on the disk."""
        self.line = Line(head.base, head.sent_to)
        self.handle: Handle | None = None
        self.generation = 0
        """Of handles: what an earlier one's says is not listened to."""
        self.is_opening = False
        self.open_at = 0.0
        self.again_s = AGAIN_S[0]
        self.why = "its queue is not opened yet"
        self.dropped = 0
        self.put_size = self.taken_size = 0
        """Bytes that were ever put, and that the spool's thread has taken."""
        self.batches: WeakValueDictionary[int, Batch] = WeakValueDictionary()
        """By ordinal, as far as somebody has their confirmations."""
        self.sizes: dict[int, int] = {}
        """Of records that are on their way or ready to be."""
        self.ready: deque[tuple[SpoolRecord, PutRecord]] = deque()
        """May be sent, and are not."""
        self.first: tuple[int, int | None] = (0, None)
        """Ordinal of the record that was first when somebody looked, and when it was put; None:
        it cannot be read. Any thread's."""
        self.read_to = 0
        """Ordinal up to which records were read to be sent."""
        self.window: list[tuple[SpoolRecord, PutRecord]] = []
        """Ready as soon as a commit says that they may be sent."""
        self.sent_due = head.sent_to
        self.gone: list[tuple[int, int, int]] = []
        """(ordinal, count, size) of records that leave the file with the next commit."""
        self.aside: list[tuple[int, int, str, bytes]] = []
        """(ordinal, count, reason, data): go aside with it. Their records are in `gone` or are
        replaced by what of them was refused."""
        self.damaged: list[tuple[int, int, int]] = []
        self.over: list[tuple[Batch, MirrorQError | None]] = []
        """To be told after it."""
        self.broken: str | None = None
        """Why what is on its way has to be sent anew, over another handle."""

    @property
    def has_news(self) -> bool:
        """Whether a commit is due for what went, not for what came."""
        return bool(self.gone or self.aside or self.damaged) or self.sent_due > self.head.sent_to

    @property
    def is_all_read(self) -> bool:
        """Whether everything in the file is ready, on its way or gone."""
        return self.read_to >= self.head.next_ordinal - 1 and not self.window
