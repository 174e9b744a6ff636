"""`LocalStore`: a spool's one-node store, with messages and records of targets.

A node of its own on the spool's path has a local queue for each target, of the target's name. Two
more queues belong to the spool. One has the *record* of each target (how to declare the target, and
its mark), the other has the messages that were set aside. A changed record is put anew, and the
former record is acked after that: the latest record is valid.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec
from msgspec.structs import replace

from mirrorq import bulk, clock
from mirrorq.api.access import Access
from mirrorq.api.opening import embedding
from mirrorq.api.sharing import Use
from mirrorq.bulk.reading import Reader
from mirrorq.errors import ConfigError, MirrorQError, PreconditionFailed, StoreLocked
from mirrorq.monitoring.status import QueueStatus
from mirrorq.spool.line import TargetMark

if TYPE_CHECKING:
    from mirrorq.api.message import Message
    from mirrorq.api.queue import MirroredQueue
    from mirrorq.bulk.leases import Claim
    from mirrorq.config import Config

OWN = "mirrorq.spool."
"""Names of the spool's own queues begin so."""
STORE_S = 30.0
"""The local disk answers within this time, or the call is tried again later."""


class Record(msgspec.Struct, array_like=True, frozen=True):
    """Stored facts about a target."""

    name: str
    durable: bool
    auto_delete: bool
    producer: int = 0
    """With `last`: the target's mark; 0: no message was ever sent."""
    last: int = 0

    @property
    def mark(self) -> TargetMark | None:
        return TargetMark(self.producer, self.last) if self.producer else None


class Aside(msgspec.Struct, array_like=True, frozen=True):
    """A message that was set aside."""

    name: str
    """Name of the target."""
    reason: str
    body: bytes
    properties: bytes


class LocalStore:
    """The store of one spool, open.

    Args:
        path: directory of the store, made if absent.
        config: the limits of its node, and the `spool_…` settings.

    Raises:
        StoreLocked: another spool, of this process or another one, has the store open.
        StoreError: the store cannot be opened.

    *Threads*: any.
    """

    def __init__(self, path: Path, config: Config) -> None:
        acquire, end = embedding()
        use = Use()
        try:
            node = acquire(use, "spool", path=path, config=config, salvages=True)
            self.node = cast(Access, node)
        except StoreLocked as error:
            raise StoreLocked(f"spool {path} is open: {error}: {_SHARED}") from error
        self._release = partial(end, use)
        try:
            self._bound(config)
            self._records, self._claim = self._own_queue("records")
            self._aside, self._aside_claim = self._own_queue("set-aside")
        except BaseException as error:
            self._release()
            if isinstance(error, PreconditionFailed):
                raise StoreLocked(f"spool {path} is open in this process: {_SHARED}") from error
            raise
        self.records: dict[str, Record] = {}
        self._places: dict[str, int] = {}
        """Sequence of each record."""
        for message in _all(self._records):
            if message.body:
                self._note(msgspec.msgpack.decode(message.body, type=Record), message.sequence)
        self.filled: dict[str, int] = {}
        """Targets for which messages may have waited at the opening, and how many."""
        for one in self._served_queues():
            if not one.name.startswith(OWN):
                # A damaged record is made anew.
                self.records.setdefault(one.name, Record(one.name, True, False))
                if one.messages or one.state != "running":
                    self.filled[one.name] = one.messages
        self.aside_counts: dict[str, int] = {}
        for _, aside in self.set_aside():
            self.aside_counts[aside.name] = self.aside_counts.get(aside.name, 0) + 1
        self._queue_ms, self._at_ms = self._stamp()

    def _bound(self, config: Config) -> None:
        """The local queues are bounded as the settings say."""
        drops = config.spool_overflow == "drop-head"
        definition: dict[str, object] = {
            "max-length-bytes": config.spool_bytes_max,
            "overflow": "drop-head" if drops else "block",
        }
        if config.spool_age_ms_max:
            definition["message-ttl"] = config.spool_age_ms_max
        self.node.set_policy("own", f"^{OWN}".replace(".", "[.]"), {"overflow": "block"}, 1)
        self.node.set_policy("targets", ".*", definition)

    def _own_queue(self, name: str) -> tuple[MirroredQueue, Claim]:
        queue = self.node.queue(OWN + name)
        bulk.extent(queue, STORE_S)  # with a thousand targets it has no master yet
        return queue, bulk.claim(queue, "spool", timeout=0)

    def _served_queues(self) -> list[QueueStatus]:
        """Return all local queues, each with its master: before, its messages are not counted. If
        one gets no master in time, the others are not waited for."""
        awaited: set[str] = set()
        while True:
            found = self.node.queues()
            without = [one.name for one in found if one.state != "running"]
            if not without or without[-1] in awaited:
                return found
            awaited.add(without[-1])
            try:
                with self.node.queue(without[-1], passive=True) as queue:
                    bulk.extent(queue, STORE_S)
            except MirrorQError:
                return self.node.queues()

    def _stamp(self) -> tuple[int, int]:
        """Return the local queues' time now, and this machine's time."""
        sequence = self._records.put(b"").result(STORE_S)
        at_ms = clock.now_ms()
        (batch,) = self.reader(self._records._handle.ring_for("").queue_id).read(sequence, sequence)
        self._claim.ack(sequence, sequence, STORE_S)
        return batch.timestamp_us // 1000, at_ms

    def reader(self, queue_id: int) -> Reader:
        """Reads a local queue."""
        return Reader(self.node, queue_id, "")

    def age_ms(self, timestamp_us: int) -> int:
        """Return the age of a local message in ms, whatever the wall clock says."""
        return max(self._queue_ms + clock.now_ms() - self._at_ms - timestamp_us // 1000, 0)

    def store_record(self, record: Record) -> None:
        """Store a target's record; on return the record is on the disk.

        Raises:
            ConfigError: the name is one of the spool's own.
            TimeoutError, MirrorQError: the disk has not taken the record. The disk may still do.
        """
        if record.name.startswith(OWN):
            raise ConfigError(f"queue {record.name!r} cannot be spooled: {OWN} is the spool's own")
        place = self._records.put(msgspec.msgpack.encode(record)).result(STORE_S)
        self._note(record, place)

    def note_mark(self, name: str, mark: TargetMark) -> None:
        """Keep a target's mark, as `store_record`."""
        self.store_record(replace(self.records[name], producer=mark.producer, last=mark.last))

    def _note(self, record: Record, place: int) -> None:
        former = self._places.get(record.name)
        self._places[record.name] = place
        self.records[record.name] = record
        if former is not None:
            self._claim.ack(former, former, STORE_S)

    def put_aside(self, messages: list[Aside]) -> None:
        """Keep messages that cannot be brought to their target."""
        self._aside.put_many([msgspec.msgpack.encode(one) for one in messages]).result(STORE_S)
        for one in messages:
            self.aside_counts[one.name] = self.aside_counts.get(one.name, 0) + 1

    def set_aside(self) -> list[tuple[int, Aside]]:
        """Return all messages that were set aside, each with its place."""
        return [
            (message.sequence, msgspec.msgpack.decode(message.body, type=Aside))
            for message in _all(self._aside)
        ]

    def drop_aside(self, name: str) -> int:
        """Forget a target's messages that were set aside; return their number."""
        places = [sequence for sequence, aside in self.set_aside() if aside.name == name]
        for sequence in places:
            self._aside_claim.ack(sequence, sequence, STORE_S)
        self.aside_counts.pop(name, None)
        return len(places)

    def close(self) -> None:
        """Close the node with all handles on the local queues."""
        self._release()


def _all(queue: MirroredQueue) -> Iterator[Message]:
    """Yield all messages of one of the spool's own queues."""
    start = 1
    while found := queue.browse(start):
        yield from found
        start = found[-1].sequence + 1


_SHARED = "two processes never share one. Give each a path of its own"
