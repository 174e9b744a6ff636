"""A node's rail: its thread, and the messages between the thread and the engine.

The store notes durable ops of the rail before the engine takes them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress

from mirrorq.engine.events import EngineEvent, FromPeer, ToCopy
from mirrorq.protocol.effects import QueueWrite, RailArm, RailDisarm
from mirrorq.protocol.ring import Data
from mirrorq.replication.events import Railed, RailStopped
from mirrorq.store.node_store import Rail, Store
from mirrorq.store.rail_log import HALF_BYTES
from mirrorq.transport.libzmq import libzmq_user
from mirrorq.transport.transport import Transport
from mirrorq.wire.native_rail import NativeRail, finds_libzmq
from mirrorq.wire.rail import DISK, LOGGED, STOPPED, Handed

log = logging.getLogger("mirrorq")


def begun_rail(store: Store, transport: Transport) -> NodeRail | None:
    """Return a new rail; None where no rail is possible, and confirms take the ordinary way."""
    if not finds_libzmq(libzmq_user()):
        log.info("the functions of libzmq are not found through pyzmq: there can be no rail")
        return None
    if not store.has_plenty:
        # A rail would be given no queue, and its log would take room from messages.
        return None
    rail_log = store.begin_rail()
    try:
        return None if rail_log is None else NodeRail(store, rail_log, transport)
    except OSError as error:
        log.warning("confirms go without the rail and are slower: %s", error)
        return None


class NodeRail:
    """The rail of one node. Created, called and stopped by the node's thread."""

    def __init__(self, store: Store, log_of_rail: Rail, transport: Transport) -> None:
        """Raises: OSError, MemoryError."""
        self._store = store
        self._log = log_of_rail
        self._transport = transport
        self._numbers: dict[str, int] = {}
        self._names: list[str] = []
        """Peers by their numbers."""
        self._armed: set[int] = set()
        """Queues that the rail has, as far as Python knows."""
        self._at_receipt: dict[int, int] = {}
        """Queues that the rail marks at receipt -> the last op known to be marked."""
        self._cut = 0
        self._told: list[EngineEvent] = []
        """Events met by `carry_out`; the next `take_events` returns them."""
        self.notify_fd, self._tell = os.pipe()
        for descriptor in (self.notify_fd, self._tell):
            os.set_blocking(descriptor, False)
        self._native = NativeRail(self._log.salt, HALF_BYTES)
        self.is_running = self._native.start(self._log.file.descriptor, self._tell)
        if self.is_running:
            transport.carry_rail(self)
        else:
            log.warning("the system gives no thread for the rail: confirms are slower")

    # --- Sockets ------------------------------------------------------------------------

    def add(self, peer: str, address: int) -> None:
        """Use a socket to a peer."""
        self._native.add_socket(self._number_of(peer), address)

    def remove(self, peer: str) -> None:
        """Stop using the socket to a peer."""
        self._native.remove_socket(self._number_of(peer))

    def _number_of(self, peer: str) -> int:
        number = self._numbers.get(peer)
        if number is None:
            number = self._numbers[peer] = len(self._names)
            self._names.append(peer)
        return number

    # --- Queues -------------------------------------------------------------------------

    def carry_out(self, queue_id: int, wanted: RailArm | RailDisarm) -> None:
        """Have the rail take or release a queue. `take_events` returns the outcome behind earlier
        events, because a copy takes ops in order only."""
        if isinstance(wanted, RailDisarm):
            # The rail mostly releases in the call. Then its thread does not wake the node, so the
            # events are taken here.
            self._told += self._taken() if self._disarm(queue_id) else [_let_go(queue_id)]
        elif not (
            self.is_running and self._may_log(queue_id, wanted) and self._arm(queue_id, wanted)
        ):
            self._told.append(_let_go(queue_id))

    @property
    def is_due(self) -> bool:
        """Whether `take_events` must be called at once: no thread wakes the node for the events."""
        return bool(self._told)

    def _may_log(self, queue_id: int, wanted: RailArm) -> bool:
        if wanted.at_receipt:
            return self._store.has_plenty
        return self._store.may_rail(queue_id, wanted.after)

    def _arm(self, queue_id: int, wanted: RailArm) -> bool:
        # The master has sent ops by the star, so its version knows rails.
        self._transport.open_rail(wanted.master.node)
        peer = self._number_of(wanted.master.node)
        has_it = self._native.arm(
            queue_id, wanted.epoch, wanted.after, peer, at_receipt=wanted.at_receipt
        )
        if has_it:
            self._armed.add(queue_id)
        if has_it and wanted.at_receipt:
            self._at_receipt[queue_id] = wanted.after
        return has_it

    def _disarm(self, queue_id: int) -> bool:
        self._armed.discard(queue_id)
        return self._native.disarm(queue_id)

    def take_events(self) -> list[EngineEvent]:
        """Return the events that the rail has handed over, in order, for the engine. Their ops are
        in the store now."""
        told, self._told = self._told, []
        return told + self._taken()

    def _taken(self) -> list[EngineEvent]:
        if self._armed and not self._store.has_plenty:
            # From here on the copy checks the remaining room for each message.
            for queue_id in sorted(self._armed):
                self._disarm(queue_id)
        handed = self._native.take_items()
        if self._native.is_left():
            with suppress(BlockingIOError):  # full, and so readable
                os.write(self._tell, bytes(8))
        if handed:
            self._note(handed)
        if self._cut != self._log.lmdb_has:
            self._cut = self._log.lmdb_has
            self._native.cut(self._cut)
        return list(self._events_of(handed))

    def _note(self, handed: Sequence[Handed]) -> None:
        logged = [one for one in handed if one.kind == LOGGED]
        writes = [
            QueueWrite(one.queue_id, append=one.message.entries, stable=one.message.stable)
            for one in logged
            if one.message is not None
        ]
        if logged:
            self._store.take_railed(writes, logged[-1].number)
        if any(one.kind == STOPPED and one.why == DISK for one in handed):
            self._store.end_rail(self._native.number())

    def _events_of(self, handed: Sequence[Handed]) -> Iterator[EngineEvent]:
        for one in handed:
            if one.kind == STOPPED:
                self._armed.discard(one.queue_id)
                self._at_receipt.pop(one.queue_id, None)
                yield _let_go(one.queue_id)
            elif one.message is not None and (one.kind == LOGGED or self._is_marked(one.message)):
                yield ToCopy(one.queue_id, Railed(one.message))
            elif one.message is not None:
                name = self._names[one.peer]
                incarnation = self._transport.newest_of(name)
                if incarnation is not None:
                    yield FromPeer(name, incarnation, one.message)

    def _is_marked(self, message: Data) -> bool:
        """Return true if a message was marked at receipt: its op is next, and the rail had not
        released the queue before."""
        last = self._at_receipt.get(message.queue_id)
        if last is None or not message.entries or message.entries[0].lsn != last + 1:
            return False
        self._at_receipt[message.queue_id] = message.entries[-1].lsn
        return True

    # --- End ----------------------------------------------------------------------------

    def stop(self) -> None:
        """End the thread. Its last ops can still be taken."""
        self.is_running = False
        self._native.stop()

    def free(self) -> None:
        """Free the rail after `stop` and the closing of its sockets. No more calls are allowed."""
        self._native.free()
        os.close(self.notify_fd)
        os.close(self._tell)


def _let_go(queue_id: int) -> ToCopy:
    """Return the event that the rail has not taken a queue, or has given a queue back."""
    return ToCopy(queue_id, RailStopped())
