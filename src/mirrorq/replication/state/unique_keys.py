"""The unique keys that a queue remembers. Pure.

A unique key is kept as a producer of one message. The producer id is a digest of the key, and the
only outcome is the sequence of the message. `used_us` is the time at which the queue forgets the
key. Keys therefore lie in the pages of producers (`producer`). Checkpoints, transfers and unclean
promotions treat both alike.

A repeat is detected when its op is applied, so every copy decides alike. A new master knows all
keys that its predecessor knew.
"""

from __future__ import annotations

from mirrorq.protocol.ops import UniqueKey
from mirrorq.replication.state.image import NUMBER_MAX
from mirrorq.replication.state.producer import REFUSED, Producer, Producers

REPEATED = "repeated"
"""Reason of an outcome that is the sequence of another message with the same unique key."""


def holder_of(producers: Producers, key: UniqueKey, time_us: int) -> int:
    """Sequence of the message with this key; 0: the queue knows no such message."""
    known = producers.find(key.producer)
    if known is None or known.used_us <= time_us:
        return 0
    ((_, _, sequence, check),) = known.outcomes
    return sequence if sequence > REFUSED and check == key.check else 0


def hold_key(producers: Producers, key: UniqueKey, sequence: int, until_us: int) -> None:
    """Remember a message's key until this time of the queue."""
    outcomes = [(1, 1, sequence, key.check)]
    producers.add(key.producer, Producer(1, 0, outcomes, min(until_us, NUMBER_MAX)))
