"""Ops of chance, of every kind that changes what is known of messages and producers."""

from __future__ import annotations

from random import Random

from mirrorq.protocol.identities import is_key
from mirrorq.protocol.ops import FLAG_TRANSIENT as TRANSIENT
from mirrorq.protocol.ops import (
    FLAG_UNIQUE,
    PRIORITY_SHIFT,
    AckOp,
    DueOp,
    Entry,
    HorizonOp,
    IdleOp,
    PauseOp,
    ProducerOp,
    PromotedOp,
    ReturnLaterOp,
    ReturnOp,
    UniqueWindowOp,
)
from mirrorq.replication.state.pages import END
from mirrorq.replication.state.queue_state import QueueState
from mirrorq.wire.frames import pack_publish
from mirrorq.wire.ops import FrameCodec
from mirrorq.wire.properties import digest_of, pack_properties

CODEC = FrameCodec()
PLACE = {"queue_id": 1, "epoch": 1}


def _unique(chance: Random) -> bytes:
    """Properties with one of a few unique keys, or none."""
    number = chance.randint(0, 9)
    said = (digest_of(f"key {number}"), chance.choice((0, 1, 50)))
    return pack_properties(None, None, None, unique=said) if number else b""


def apply_one(chance: Random, state: QueueState) -> None:
    """Apply one op of chance."""
    state.apply(next_one(chance, state))


def next_one(chance: Random, state: QueueState, reach: int = 5) -> Entry:
    """One op of chance: of every kind that changes what pages show.

    Args:
        reach: most neighbours that it is about, beside one.
    """
    lsn, stamp_us = state.applied + 1, state.applied * 700 + chance.randint(0, 900)
    kind = chance.random()
    low = chance.randint(1, state.next_sequence)
    ranges = ((low, low + chance.randint(0, reach)),)
    if kind < 0.45:
        bodies = [bytes(chance.choice((1, 1, 7))) for _ in range(chance.randint(1, 4))]
        producer = chance.choice([0, *(one for one in state.producers if not is_key(one))])
        own = Random(f"{state.applied} of {low}")  # what comes from chance stays as it was
        is_unique = own.random() < 0.2
        flags = chance.choice((0, 0, 3, 9)) << PRIORITY_SHIFT | chance.choice((0, 0, TRANSIENT))
        flags |= FLAG_UNIQUE if is_unique else 0
        frame = pack_publish(
            bodies,
            [_unique(own) for _ in bodies] if is_unique else None,
            producer=producer,
            first_number=state.producers[producer].highest + 1 if producer else 0,
            flags=flags,
            delay_ms=chance.choice((0, 0, 0, 5)),
            ttl_ms=chance.choice((0, 0, 50)),
        )
        return CODEC.publish(
            frame,
            **PLACE,
            lsn=lsn,
            first_sequence=state.next_sequence,
            timestamp_us=stamp_us,
        )
    payload = {
        0: AckOp(ranges),
        1: AckOp(ranges),
        2: ReturnOp(ranges),
        3: ReturnLaterOp(ranges, chance.randint(1, 9)),
        4: HorizonOp(chance.randint(1, state.next_sequence)),
        5: ProducerOp("a/1", tuple(chance.sample(sorted(state.producers), 1)))
        if len(state.producers) > 9
        else ProducerOp("a/1"),
        6: DueOp((), state.next_sequence, ranges),
        7: DueOp(
            tuple((a, b) for a, b, _ in state.delayed.within(1, END)), state.next_sequence, ()
        ),
        8: PromotedOp(chance.choice(("clean", "cold"))),
        9: IdleOp(chance.choice((0, stamp_us))),
    }[chance.choice((0, 0, 0, 1, 2, 2, 3, 4, 5, 5, 6, 7, 8, 9))]
    own = Random(f"{state.applied} of {low}")
    if isinstance(payload, IdleOp) and own.random() < 0.7:
        payload = own.choice((UniqueWindowOp(own.randint(1, 9)), PauseOp(own.random() < 0.5)))
    return CODEC.op(payload, **PLACE, lsn=lsn, timestamp_us=stamp_us)
