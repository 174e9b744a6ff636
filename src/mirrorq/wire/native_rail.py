"""The rail's C part as Python sees it; loaded only where there is a rail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirrorq._native._rail import ffi, lib
from mirrorq.wire.rail import Handed, handed_in

if TYPE_CHECKING:
    from mirrorq._native._rail import CData

GROUP_BYTES_MAX = 64 << 10
"""Of frames in a record. A message of more is not taken."""
TAKES_MAX = 4
"""Where more comes all the time, a node's thread has other things to do, too."""
LATE_US = 10_000
"""What the rail has taken waits so long for Python, unless it is much."""


def finds_libzmq(library: str) -> bool:
    """Whether libzmq is found through this shared library that uses it: else no rail begins."""
    return lib.mq_rail_load_zmq(library.encode()) == 0


class NativeRail:
    """The rail of one node. The node's thread calls it, and at last `free`; no other one then."""

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
            notify: descriptor that eight bytes are written to when `take` is to be called.
        """
        return lib.mq_rail_start(self._rail, log, notify, LATE_US) == 0

    def stop(self) -> None:
        """End the thread; what it has taken is still there. In a forked child: nothing."""
        lib.mq_rail_stop(self._rail)

    def free(self) -> None:
        """Stop, and give its memory back: any other call raises RuntimeError from then on."""
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
        """Whether the rail has the queue from now on. At receipt: what it takes is handed over
        `RAW`, for nothing is logged."""
        return lib.mq_rail_arm(self._rail, queue_id, epoch, after, peer, at_receipt) == 0

    def disarm(self, queue_id: int) -> bool:
        """Whether `STOPPED` comes, or waits to be taken: not of one that it had not."""
        return lib.mq_rail_disarm(self._rail, queue_id) == 0

    def cut(self, number: int) -> None:
        """LMDB has all records up to this one."""
        lib.mq_rail_cut(self._rail, number)

    def number(self) -> int:
        """Of the last record; of one that is being written, or has failed, too."""
        return int(lib.mq_rail_number(self._rail))

    def take(self) -> list[Handed]:
        """All that waits, whole records, and what comes meanwhile, but for `is_left`."""
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
        """Whether more came during `take` than that takes. Its thread may not tell of it for long:
        it has told of what was there before."""
        return bool(lib.mq_rail_waiting(self._rail))
