"""Interface of the pure core to the frame codec. `wire.ops.FrameCodec` implements the interface;
the core never touches bytes and so imports nothing of `wire`."""

from __future__ import annotations

from typing import Protocol

from mirrorq.protocol.ops import Entry, Header, Payload, Step, UniqueKey
from mirrorq.protocol.staged import Stage, Staging


class OpCodec(Protocol):
    """Makes and reads entries of the log: the bytes are in `wire.ops`. Every call is pure."""

    def header(self, frame: bytes) -> Header:
        """Return the header of an already checked frame."""

    def cut(self, frame: bytes, start: int, stop: int) -> bytes:
        """The publish frame with messages start to stop - 1 only."""

    def offsets(self, frame: bytes) -> bytes:
        """Where each body of a publish frame ends, as int32 after a 0; b"" when not known."""

    def read_step(self, frame: bytes) -> Step | Stage | None:
        """Return the step of a publish frame. Raises ProtocolError: the step is unsound."""

    def keys(self, frame: bytes) -> tuple[UniqueKey | None, ...]:
        """The unique keys of a publish frame's messages; () without FLAG_UNIQUE. Raises
        ProtocolError: the keys cannot be read."""

    def staged(self, frame: bytes) -> Stage | Staging:
        """Return the first body of a frame with FLAG_STAGED. Raises ProtocolError: no such body."""

    def request(self, asked: Staging, *, producer: int, first_number: int, settled: int) -> bytes:
        """Return an unstamped frame with a request about staged messages."""

    def publish(
        self,
        frame: bytes,
        *,
        queue_id: int,
        epoch: int,
        lsn: int,
        first_sequence: int,
        timestamp_us: int,
    ) -> Entry:
        """Stamp a producer's frame as the op at `lsn`."""

    def op(
        self,
        payload: Payload,
        *,
        queue_id: int,
        epoch: int,
        lsn: int,
        timestamp_us: int,
        count: int = 1,
        producer: int = 0,
        first_number: int = 0,
        settled: int = 0,
    ) -> Entry:
        """Make any op but a publish."""
