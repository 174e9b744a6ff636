"""Entries, members and views for the tests of the pure core."""

from __future__ import annotations

from typing import Any

from harness.explore_codec import ModelCodec
from mirrorq.protocol.identities import MemberId
from mirrorq.protocol.ops import Entry, Payload
from mirrorq.protocol.ring import RingMessage
from mirrorq.protocol.views import View, make_view
from mirrorq.replication.ring import Ring
from mirrorq.replication.transfer import Transfer

QUEUE = 1
PRODUCER = 9
A, B, C, D = (MemberId(name, 1, 1) for name in "abcd")
CODEC = ModelCodec()


def view(epoch: int, in_sync: str, joining: str = "", master_epoch: int = 1) -> View:
    """A view by the members' names: view(1, "ab", "c")."""
    members = {"a": A, "b": B, "c": C, "d": D}
    return make_view(
        epoch,
        [members[n] for n in in_sync],
        [members[n] for n in joining],
        master_epoch=master_epoch,
    )


def publish(
    lsn: int,
    first_sequence: int,
    *,
    epoch: int = 1,
    count: int = 1,
    number: int | None = None,
    timestamp_us: int = 0,
    **terms: int,
) -> Entry:
    """A publish op; its producer's numbers are its sequences unless said otherwise."""
    frame = CODEC.frame(PRODUCER, first_sequence if number is None else number, count, **terms)
    return CODEC.publish(
        frame,
        queue_id=QUEUE,
        epoch=epoch,
        lsn=lsn,
        first_sequence=first_sequence,
        timestamp_us=timestamp_us,
    )


def op(lsn: int, payload: Payload, *, epoch: int = 1, **more: Any) -> Entry:
    """Any op that is no publish."""
    return CODEC.op(payload, queue_id=QUEUE, epoch=epoch, lsn=lsn, timestamp_us=0, **more)


def all_whole() -> Transfer:
    """Of a copy whose bodies are all on its disk."""
    return Transfer(A, QUEUE, 1 << 20)


def ring_of(me: MemberId, entries: list[Entry], stable: int = 0) -> Ring:
    """A member that has these entries on disk."""
    ring = Ring(me, QUEUE, 4096)
    ring.log.load(entries, 0, [])
    ring._learn_stable(stable)
    return ring


def sent(ring: Ring) -> list[tuple[str, RingMessage]]:
    """What the ring has sent since it was last asked, with the receivers' names."""
    found = [(to.node, message) for to, message in ring.out.send]
    ring.out.send.clear()
    return found


def persist(ring: Ring) -> None:
    """Everything that the ring wants on disk gets there."""
    ring.log.take_write()
    ring.log.on_persisted(ring.log.note_write())
