"""What the driver of a stream holds: its connection, its queues' claims, and what it knows of them.

A micro-batch asks several things of each queue; of several queues or shards they are asked at
once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

from mirrorq import bulk
from mirrorq.api.queue import MirroredQueue
from mirrorq.bulk.leases import Claim
from mirrorq.bulk.reading import Extent, Reader
from mirrorq.client.client import Client
from mirrorq.errors import PreconditionFailed, QueueNotFound, ShutDown
from mirrorq.protocol.shard_names import logical_name
from pyspark_mirrorq.cluster import (
    at_a_copy,
    connected,
    handle_on,
    label,
    master_first,
    queue_names,
    reading_order,
)
from pyspark_mirrorq.options import Options
from pyspark_mirrorq.shards import parts_of

__all__ = ["Held", "Range", "StreamDriver"]

log = logging.getLogger("pyspark_mirrorq")

Range = tuple[int, int]
Value = TypeVar("Value")
ORDER_S = 10.0
"""Where a queue's copies are is asked again after this: a task whose copy is gone finds another."""
PARTS_AT_ONCE = 8
"""So many queues or shards are asked at the same time."""


class Held:
    """What the driver has of one queue, and knows of it.

    A micro-batch is planned a moment after its end was found: what was asked then serves again.
    """

    def __init__(
        self, queue: MirroredQueue, claim: Claim | None, options: Options, client: Client
    ) -> None:
        self._options = options
        self._client = client
        self.queue = queue
        self.identity = bulk.identity(queue)
        self.claim = claim
        self.acked = 0
        """Everything below is acked."""
        self.extent: Extent | None = None
        """As it was told last."""
        self._live: tuple[int, int, list[Range]] = (1, 0, [])
        """Between two sequences: what of them lived then."""
        self._order: list[list[str]] = []
        self._order_until = 0.0

    def ask(self) -> Extent:
        """How far the queue goes now."""
        self.extent = bulk.extent(self.queue)
        return self.extent

    @property
    def is_deleted(self) -> bool:
        """Whether the queue is gone, as far as this process has heard. Asks no node."""
        try:
            bulk.reader(self.queue)
        except ShutDown as error:
            return _is_deletion(error)
        return False

    def reaching(self, end: int) -> Extent:
        """How far it goes: as it was told last if that is far enough."""
        if self.extent is None or self.extent.next_sequence < end:
            return self.ask()
        return self.extent

    def look(self, function: Callable[[Reader], Value]) -> Value:
        """Look into a copy."""
        return at_a_copy(self._options, self._client, self.queue, function)

    def live(self, first: int, last: int, extent: Extent) -> list[Range]:
        """What lives between two sequences."""
        low, high, known = self._live
        if not low <= first <= last <= high:
            known = self.look(lambda reader: reader.live_ranges(first, last, extent))
            self._live = (first, last, known)
        return [
            (max(start, first), min(end, last))
            for start, end in known
            if start <= last and end >= first
        ]

    def forget_live(self) -> None:
        """Another batch begins: what lived may have expired."""
        self._live = (1, 0, [])

    def order(self) -> list[list[str]]:
        """Its copies, as `reading_order` tells them."""
        now = time.monotonic()
        if now >= self._order_until:
            self._order = reading_order(self._options, self._client, self.queue)
            self._order_until = now + ORDER_S
        return self._order


class StreamDriver:
    """Connection, claims, and what is known of the queues."""

    def __init__(self, options: Options) -> None:
        with connected(options) as client:
            order = master_first(options, client, queue_names(options, client)[0])
        self.client: Client = connected(options, order)
        self.held: dict[str, Held] = {}
        """By name of a queue, or of a shard."""
        self._left: dict[str, Held] = {}
        """Queues that only an offset names, until `finish`."""
        self._seen: list[str] = []
        """Queues all of whose parts are held."""
        self._options = options
        self._pool: ThreadPoolExecutor | None = None

    def for_each(
        self, function: Callable[[str, Held], Value], held: Mapping[str, Held]
    ) -> dict[str, Value]:
        """Ask something of several queues or shards: at once, so that many take no longer than
        one. By name."""
        named = sorted(held.items())
        if len(named) < 2:
            return {name: function(name, one) for name, one in named}
        if self._pool is None:
            self._pool = ThreadPoolExecutor(PARTS_AT_ONCE, "mirrorq-stream")
        asked = [(name, self._pool.submit(function, name, one)) for name, one in named]
        # All of them, before what went wrong with one is raised: nobody works on when it is known.
        wait([answer for _, answer in asked])
        return {name: answer.result() for name, answer in asked}

    def ready(self) -> dict[str, Held]:
        """As `see`, without looking again at what a pattern matches."""
        self._forget_deleted()
        return self.held if self._seen and self._options.queue_pattern else self.see()

    def see(self) -> dict[str, Held]:
        """The queues that the options name now, each claimed.

        Raises:
            PreconditionFailed: a queue could not be had within claimTimeout; it says who has it.
            QueueNotFound, NoQuorum, QueueDown: and why.
        """
        options = self._options
        self._forget_deleted()
        if len(self._seen) < len(options.queues) or options.queue_pattern:
            for name in queue_names(options, self.client):
                if name not in self._seen:
                    self._hold_all(name)
                    self._seen.append(name)
        return self.held

    def _forget_deleted(self) -> None:
        """Hold no queue that a pattern matched and that was deleted. One that was named ends the
        query: its handle says why."""
        if self._options.queue_pattern:
            for name in [name for name, one in self.held.items() if one.is_deleted]:
                del self.held[name]
                self._seen = [one for one in self._seen if one != logical_name(name)]

    def _hold_all(self, name: str) -> None:
        parts = parts_of(self.client, name, self._options.timeout_s)
        try:
            for part in parts:
                if part.name not in self.held:
                    self.held[part.name] = self._hold(part)
        finally:
            kept = {id(one.queue) for one in self.held.values()}
            for part in parts:
                if id(part) not in kept:
                    part.close()

    def _hold(self, queue: MirroredQueue) -> Held:
        options = self._options
        if options.mode == "browse":
            return Held(queue, None, options, self.client)
        who = label(f"a stream of queue {queue.name}")
        try:
            claim = bulk.claim(queue, who, options.claim_timeout_s)
        except PreconditionFailed as error:
            raise _not_alone(error) from None
        return Held(queue, claim, options, self.client)

    def left(self, name: str, identity: str) -> Held | None:
        """A queue that an offset names and the options name no more, claimed until `finish`; None:
        the queue is gone.

        Raises:
            PreconditionFailed: the queue could not be had within claimTimeout.
        """
        if name not in self._left:
            found = self._found(name, identity)
            if found is None:
                return None
            try:
                self._left[name] = self._hold(found)
            except BaseException:
                found.close()
                raise
        return self._left[name]

    def _found(self, name: str, identity: str) -> MirroredQueue | None:
        try:
            queue = handle_on(self.client, name, self._options.timeout_s)
        except QueueNotFound:
            return None
        if bulk.identity(queue) == identity:
            return queue
        queue.close()
        return None

    def finish(self, name: str, identity: str, first: int, end: int) -> None:
        """Ack what Spark has committed of a queue that the options name no more, and let the queue
        go. Its other messages are for others."""
        held = self._left.pop(name, None)
        queue = held.queue if held is not None else self._found(name, identity)
        if queue is None:
            return
        try:
            if first < end and self._lives(queue, first, end):
                self.ack(held or self._hold(queue), first, end)
        except PreconditionFailed as error:
            log.warning("what was read of queue %s, named no more, comes again: %s", name, error)
        except ShutDown as error:
            if not _is_deletion(error):
                raise
        finally:
            queue.close()

    def _lives(self, queue: MirroredQueue, first: int, end: int) -> bool:
        """Whether anything lives from one sequence up to another."""
        extent = bulk.extent(queue)

        def live(reader: Reader) -> list[Range]:
            return reader.live_ranges(first, end - 1, extent)

        return bool(at_a_copy(self._options, self.client, queue, live))

    def ack(self, held: Held, first: int, end: int) -> None:
        """Be done with what Spark has committed; asked again it changes nothing."""
        if held.claim is None or end <= max(first, held.acked):
            return
        try:
            held.claim.ack(first, end - 1, self._options.timeout_s)
        except PreconditionFailed:
            # Another consumer came first after a change of master: it gives way, or is named.
            try:
                held.claim.ensure(self._options.claim_timeout_s)
            except PreconditionFailed as error:
                raise _not_alone(error) from None
            held.claim.ack(first, end - 1, self._options.timeout_s)
        held.acked = end

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False)
        self.client.close()


def _is_deletion(error: ShutDown) -> bool:
    return "was deleted" in str(error)


def _not_alone(error: PreconditionFailed) -> PreconditionFailed:
    """What to do about another who has the queue."""
    return PreconditionFailed(
        f"{error}. A stream needs its queue alone: stop the other, give it more time "
        "(option claimTimeout), or look without taking (option mode = browse)"
    )
