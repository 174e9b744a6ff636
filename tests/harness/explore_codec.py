"""Entries without bytes: the codec that explorations give to the pure core.

Equal entries are one object, so that comparing and hashing them costs nothing.
"""

from __future__ import annotations

from mirrorq.errors import ProtocolError
from mirrorq.protocol.ops import (
    PRIORITY_SHIFT,
    AckOp,
    DiscardOp,
    DropHeadOp,
    DueOp,
    Entry,
    ExpiryOp,
    Header,
    HorizonOp,
    HorizonsOp,
    IdleOp,
    OpKind,
    OutboxDoneOp,
    OutboxOp,
    PauseOp,
    Payload,
    ProducerOp,
    PromotedOp,
    PurgeOp,
    RefusalOp,
    ReturnLaterOp,
    ReturnOp,
    Step,
    UniqueKey,
    UniqueWindowOp,
)
from mirrorq.protocol.staged import Stage, Staging

_KINDS: dict[type, OpKind] = {
    AckOp: OpKind.ACK,
    ReturnOp: OpKind.RETURN,
    HorizonOp: OpKind.HORIZON,
    HorizonsOp: OpKind.HORIZONS,
    IdleOp: OpKind.IDLE,
    UniqueWindowOp: OpKind.UNIQUE_WINDOW,
    PauseOp: OpKind.PAUSE,
    DueOp: OpKind.DUE,
    ReturnLaterOp: OpKind.RETURN_LATER,
    PromotedOp: OpKind.PROMOTED,
    RefusalOp: OpKind.REFUSAL,
    PurgeOp: OpKind.PURGE,
    DropHeadOp: OpKind.DROP_HEAD,
    ExpiryOp: OpKind.EXPIRY,
    DiscardOp: OpKind.DISCARD,
    OutboxOp: OpKind.OUTBOX,
    OutboxDoneOp: OpKind.OUTBOX_DONE,
    ProducerOp: OpKind.PRODUCER,
}
FRAME_BYTES = 16
"""What every frame weighs here, whatever it carries."""


class ModelCodec:
    """An `OpCodec` whose frames are names:
    "producer:first number:count:settled:priority:delay_ms"."""

    def __init__(self) -> None:
        self._entries: dict[tuple[Header, Payload], Entry] = {}
        self._names: dict[tuple[Header, Payload], str] = {}

    def frame(
        self,
        producer: int,
        first_number: int,
        count: int = 1,
        settled: int = 0,
        *,
        priority: int = 0,
        delay_ms: int = 0,
    ) -> bytes:
        """A producer's unstamped frame."""
        return f"{producer}:{first_number}:{count}:{settled}:{priority}:{delay_ms}".encode()

    def header(self, frame: bytes) -> Header:
        producer, first_number, count, settled, priority, delay_ms = map(
            int, frame.decode().split(":")
        )
        return self._header(
            OpKind.PUBLISH,
            0,
            0,
            0,
            0,
            count,
            producer,
            first_number,
            settled,
            priority << PRIORITY_SHIFT,
            delay_ms,
        )

    def cut(self, frame: bytes, start: int, stop: int) -> bytes:
        header = self.header(frame)
        return self.frame(
            header.producer,
            header.first_number + start,
            stop - start,
            header.settled,
            priority=header.priority,
            delay_ms=header.delay_ms,
        )

    def offsets(self, frame: bytes) -> bytes:
        return b""

    def read_step(self, frame: bytes) -> Step | None:
        return None

    def keys(self, frame: bytes) -> tuple[UniqueKey | None, ...]:
        return ()

    def staged(self, frame: bytes) -> Stage | Staging:
        raise ProtocolError("nothing is staged here")

    def request(self, asked: Staging, *, producer: int, first_number: int, settled: int) -> bytes:
        return self.frame(producer, first_number, 1, settled)

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
        raw = self.header(frame)
        header = self._header(
            OpKind.PUBLISH,
            queue_id,
            epoch,
            lsn,
            first_sequence,
            raw.count,
            raw.producer,
            raw.first_number,
            raw.settled,
            raw.flags,
            raw.delay_ms,
            timestamp_us if raw.delay_ms else 0,
        )
        return self._intern(header, None)

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
        header = self._header(
            _KINDS[type(payload)],
            queue_id,
            epoch,
            lsn,
            0,
            count,
            producer,
            first_number,
            settled,
        )
        return self._intern(header, payload)

    def _header(
        self,
        kind: int,
        queue_id: int,
        epoch: int,
        lsn: int,
        first_sequence: int,
        count: int,
        producer: int,
        first_number: int,
        settled: int,
        flags: int = 0,
        delay_ms: int = 0,
        timestamp_us: int = 0,
    ) -> Header:
        return Header(
            int(kind),
            flags,
            queue_id,
            epoch,
            lsn,
            first_sequence,
            count,
            producer,
            first_number,
            settled,
            timestamp_us,
            FRAME_BYTES,
            delay_ms,
        )

    def _intern(self, header: Header, payload: Payload) -> Entry:
        known = self._entries.get((header, payload))
        if known is None:
            known = Entry(header, payload, bytes(FRAME_BYTES))
            self._entries[header, payload] = known
        return known
