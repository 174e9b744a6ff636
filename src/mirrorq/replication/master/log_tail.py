"""The end of a queue's log at its master: appends ops, and answers questions about the whole log.

The master assigns sequences and judges producers' numbers by the whole log, including unstable ops.
An op in the log comes before every op that is appended later.
"""

from __future__ import annotations

from mirrorq.containers.run_length import SizedPiece, Sizes
from mirrorq.protocol import ops
from mirrorq.protocol.codec import OpCodec
from mirrorq.protocol.identities import OUTBOX_BIT, SPOOL_BIT
from mirrorq.protocol.staged import AbortOp, AskOp, CommitOp, Stage
from mirrorq.replication.master.limits import InLog
from mirrorq.replication.ring import Ring
from mirrorq.replication.state.contents import GENERATION_BITS
from mirrorq.replication.state.outbox import is_outbox
from mirrorq.replication.state.queue_state import QueueState

_NUMBERED = (
    ops.OpKind.PUBLISH,
    ops.OpKind.REFUSAL,
    ops.OpKind.SEAL,
    ops.OpKind.COMMIT,
    ops.OpKind.ABORT,
    ops.OpKind.ASK,
)
"""Kinds of ops that use numbers of a producer."""

SAID_COUNT = 4096
"""Producers with numbers in the log that are kept in memory; twice as many while ops are not
applied."""


class Highest:
    """Producer -> its highest number in the log. Other producers are unknown.

    Numbers come from the applied state, and for producers of unapplied ops from memory. A term
    begins with an empty memory, and never keeps many producers, however many there are.
    """

    def __init__(self, ring: Ring, state: QueueState) -> None:
        self._ring = ring
        self._state = state
        self._said: dict[int, int | None] = {}
        """Newest numbers. None: the producer has ended."""
        self._before: dict[int, int | None] = {}
        """Older numbers. Their ops are in the log up to `_upto`."""
        self._upto = 0

    def get(self, producer: int) -> int | None:
        """Highest number of the producer; None when the producer is unknown."""
        if producer in self._said:
            return self._said[producer]
        if producer in self._before:
            return self._before[producer]
        known = self._state.producers.find(producer)
        return None if known is None else known.highest

    def outboxes(self) -> list[int]:
        """Producer ids under which other queues' outboxes put messages here, in order."""
        known = {*self._state.producers.ids(OUTBOX_BIT, SPOOL_BIT | OUTBOX_BIT), *self._said}
        known |= {*self._before}
        return [number for number in sorted(known) if is_outbox(number) and number in self]

    def __contains__(self, producer: int) -> bool:
        return self.get(producer) is not None

    def raise_to(self, producer: int, number: int) -> None:
        """Note that the producer is known, with its numbers up to this number used."""
        self._say(producer, max(self.get(producer) or 0, number))

    def end_producer(self, producer: int) -> None:
        """Note that the producer has ended."""
        self._say(producer, None)

    def _say(self, producer: int, number: int | None) -> None:
        self._said[producer] = number
        if len(self._said) > SAID_COUNT and self._state.applied >= self._upto:
            self._before, self._said = self._said, {}
            # The op behind this number may not be in the ring yet: `append` notes it first.
            self._upto = self._ring.log.received + 1


class LogTail:
    """The ops that a master's term has proposed or inherited, and that are not applied yet."""

    def __init__(self, ring: Ring, state: QueueState, codec: OpCodec) -> None:
        self.next_sequence = state.next_sequence
        self.highest = Highest(ring, state)
        self.coming = InLog()
        """Messages that are not applied yet."""
        self.outbox_lsn = 0
        """Lsn of the last op that fills the outbox."""
        self._ring = ring
        self._state = state
        self._codec = codec
        for lsn in range(state.applied + 1, ring.log.received + 1):
            entry = ring.log.entry(lsn)
            assert entry is not None, "an unapplied op is always in memory"
            self._inherit(entry)

    def _inherit(self, entry: ops.Entry) -> None:
        self.add_op(entry)
        if isinstance(entry.payload, ops.ProducerOp):
            for number in entry.payload.expired:
                self.highest.end_producer(number)

    @property
    def last(self) -> int:
        """Lsn of the last op."""
        return self._ring.log.received

    @property
    def time_us(self) -> int:
        """The queue's time in this step: timestamp of ops, and clock of TTLs and delays."""
        return self._ring.time.now_us

    # --- Appending ------------------------------------------------------------------------

    def propose(
        self,
        payload: ops.Payload,
        *,
        count: int = 1,
        producer: int = 0,
        first_number: int = 0,
        settled: int = 0,
    ) -> None:
        """Append an op that is no publish."""
        ring = self._ring
        entry = self._codec.op(
            payload,
            queue_id=ring.queue_id,
            epoch=ring.epoch,
            lsn=ring.log.received + 1,
            timestamp_us=self.time_us,
            count=count,
            producer=producer,
            first_number=first_number,
            settled=settled,
        )
        self.append(entry)

    def publish(self, frame: bytes) -> ops.Entry:
        """Stamp a producer's frame and append it; return the resulting op."""
        ring = self._ring
        entry = self._codec.publish(
            frame,
            queue_id=ring.queue_id,
            epoch=ring.epoch,
            lsn=ring.log.received + 1,
            first_sequence=self.next_sequence,
            timestamp_us=self.time_us,
        )
        self.append(entry)
        return entry

    def append(self, entry: ops.Entry) -> None:
        """Put an op at the end of the log."""
        self.add_op(entry)
        self._ring.append(entry)

    # --- Effects of unapplied ops ---------------------------------------------------------

    def add_op(self, entry: ops.Entry) -> None:
        """Note the effects of an op on later ops."""
        header = entry.header
        if header.kind in _NUMBERED and header.producer:
            number = header.producer
            self.highest.raise_to(number, header.last_number)
        if header.kind == ops.OpKind.PUBLISH:
            self._note_publish(entry)
        else:
            self._note_op(header.lsn, entry.payload)

    def _note_publish(self, entry: ops.Entry) -> None:
        self.next_sequence = entry.header.last_sequence + 1
        if not isinstance(entry.step, Stage):
            self.coming.add_publish(entry)
        if isinstance(entry.step, ops.Step) and entry.step.target:
            self.outbox_lsn = entry.header.lsn

    def _note_op(self, lsn: int, payload: ops.Payload) -> None:
        match payload:
            case ops.PromotedOp():
                least = payload.generation << GENERATION_BITS
                self.next_sequence = max(self.next_sequence, least)
            case ops.DueOp():
                self.next_sequence = payload.next_place
            case CommitOp():
                self.next_sequence = payload.sequence + payload.count + 1
                self.coming.note_pieces(payload.sequence + 1, self._sizes_of(payload))
            case _:
                pass
        is_told = isinstance(payload, CommitOp | AbortOp) and bool(payload.others)
        if is_told or isinstance(payload, ops.OutboxOp | AskOp):
            self.outbox_lsn = lsn

    def _sizes_of(self, op: CommitOp) -> list[SizedPiece]:
        """Sizes of the messages that a commit will bring, as far as known now."""
        staging = self._state.staging
        if staging.count(op) == op.count:
            return staging.sizes_of(op)
        return [(1, op.count, Sizes())] if op.count else []
