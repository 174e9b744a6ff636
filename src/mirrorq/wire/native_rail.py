"""Python's interface to the C part of the rail; loaded only on a node with a rail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirrorq._native._rail import ffi, lib
from mirrorq.wire.rail import Handed, handed_in

if TYPE_CHECKING:
    from mirrorq._native._rail import CData

GROUP_BYTES_MAX = 64 << 10
"""Maximum bytes of frames in a record. The rail takes no larger message."""
TAKES_MAX = 4
"""Maximum number of takes in one call. A node's thread has other work, too."""
LATE_US = 10_000
"""Time that taken ops wait before the rail wakes Python, unless they are urgent."""


def finds_libzmq(library: str) -> bool:
    """Return true if libzmq is found through a library that uses it; the rail needs libzmq."""
    return lib.mq_rail_load_zmq(library.encode()) == 0


class NativeRail:
    """The rail of one node. Only the node's thread may call, and after `free` no thread may."""

    def __init__(self, salt: int, half_bytes: int) -> None:
        """Raises: MemoryError."""
        self._memory: CData | None = lib.mq_rail_new(salt, 1, half_bytes, GROUP_BYTES_MAX)
        if self._memory == ffi.NULL:
            raise MemoryError

    @property
    def _rail(self) -> CData:
        if self._memory is None:
            raise RuntimeError("this rail was freed: its node has ended, and nobody may use it")
        return self._memory

    def start(self, log: int, notify: int) -> bool:
        """Begin; False where the system gives no thread. `finds_libzmq` first.

        Args:
            log: descriptor of the preallocated file, open with O_DSYNC.
            notify: descriptor that eight bytes are written to when `take_items` is to be called.
        """
        return lib.mq_rail_start(self._rail, log, notify, LATE_US) == 0

    def stop(self) -> None:
        """End the thread; taken ops stay available. Does nothing in a forked child."""
        lib.mq_rail_stop(self._rail)

    def free(self) -> None:
        """Stop, and free the memory: any later call raises RuntimeError."""
        memory, self._memory = self._rail, None
        lib.mq_rail_stop(memory)
        lib.mq_rail_free(memory)

    def add_socket(self, peer: int, address: int) -> None:
        lib.mq_rail_add_socket(self._rail, peer, ffi.cast("void *", address))

    def remove_socket(self, peer: int) -> None:
        lib.mq_rail_remove_socket(self._rail, peer)

    def arm(
        self, queue_id: int, epoch: int, after: int, peer: int, *, at_receipt: bool = False
    ) -> bool:
        """Arm the rail for a queue; return true on success. With `at_receipt` the rail hands ops
        over as `RAW`, because the rail logs nothing."""
        return lib.mq_rail_arm(self._rail, queue_id, epoch, after, peer, at_receipt) == 0

    def disarm(self, queue_id: int) -> bool:
        """Return true if `STOPPED` comes or waits, false if the rail did not have the queue."""
        return lib.mq_rail_disarm(self._rail, queue_id) == 0

    def cut(self, number: int) -> None:
        """Report that LMDB has all records up to `number`."""
        lib.mq_rail_cut(self._rail, number)

    def number(self) -> int:
        """Return the number of the last record, even if still being written, or failed."""
        return int(lib.mq_rail_number(self._rail))

    def take_items(self) -> list[Handed]:
        """Return all waiting items, and items that come meanwhile; see `is_left`."""
        handed: list[Handed] = []
        for _ in range(TAKES_MAX):
            size = lib.mq_rail_waiting(self._rail)
            if not size:
                break
            out = bytes(size)
            taken = lib.mq_rail_take(self._rail, ffi.from_buffer(out), size)
            handed += handed_in(memoryview(out)[:taken])
        return handed

    def is_left(self) -> bool:
        """Return true if more items came during `take_items` than it returns. The rail's thread may
        not signal them for long: it has signalled the items before."""
        return bool(lib.mq_rail_waiting(self._rail))
