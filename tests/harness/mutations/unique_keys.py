"""Rules of unique keys that are left out."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from harness.mutations.registry import Real, answer, instead
from mirrorq.node import outbox_packing
from mirrorq.protocol.identities import is_key
from mirrorq.protocol.ops import FLAG_UNIQUE, Entry
from mirrorq.replication.master.intake import Intake
from mirrorq.replication.state import queue_state
from mirrorq.replication.state.producer import Producer, Producers
from mirrorq.replication.state.queue_state import QueueState


@instead("unique keys forgotten by who reads a state", Producers, "load")
def _not_read(real: Real, self: Producers, whole: Any) -> None:
    """A restart, or a state of another member."""
    real(self, {number: one for number, one in whole.items() if not is_key(number)})


@instead("unique key never free again", queue_state, "holder_of")
def _never_free(real: Real, producers: Producers, key: Any, _: int) -> int:
    return int(real(producers, key, 0))


@instead("unique key prolonged by each repeat", QueueState, "_hold_keys")
def _prolonged(real: Real, self: QueueState, entry: Entry) -> None:
    real(self, entry)
    for key in entry.keys:
        known = None if key is None else self.producers.change(key.producer)
        if key is not None and known is not None:
            known.used_us = entry.header.timestamp_us + 1000 * key.window_ms


# A master looks at what is applied; the key may be put anew in an op before.
answer("unique key put anew forgotten", QueueState, "_is_over", True)


@instead("unique key of a lost message held", Producer, "lose")
def _held(real: Real, self: Producer, lost: Any, reason: str) -> None:
    is_named = bool(self.outcomes) and len(self.outcomes[0][3]) == 16
    if not is_named:
        real(self, lost, reason)


@instead("unique keys looked at where a message only passes", QueueState, "_hold_keys")
def _passing(real: Real, self: QueueState, entry: Entry) -> None:
    """An ack_and_put: the key is another queue's."""
    real(self, replace(entry, step=None))


@instead("unique key of a dead letter looked at", outbox_packing, "_terms")
def _dead_letter(real: Real, entry: Any, header: Any) -> Any:
    flags, delay_ms, ttl_ms = real(entry, header)
    return flags | header.flags & FLAG_UNIQUE, delay_ms, ttl_ms


# A queue at its limit refuses a repeat, or drops its oldest message for one.
answer("repeat judged by the queue's limit", Intake, "_only_repeats", False)


@instead("repeat stays ready", QueueState, "_end_repeats")
def _stays(real: Real, self: QueueState) -> tuple[()]:
    return ()
