"""The unique keys in a queue's state: who holds one, for how long, and through what."""

from __future__ import annotations

import pytest

from mirrorq.errors import ProtocolError
from mirrorq.protocol.ops import FLAG_UNIQUE, Entry, ProducerOp, PromotedOp, UniqueWindowOp
from mirrorq.replication.state.producer import REFUSED
from mirrorq.replication.state.queue_state import QueueState
from mirrorq.replication.state.unique_keys import REPEATED
from mirrorq.wire.frames import pack_publish
from mirrorq.wire.ops import FrameCodec, make_entry
from mirrorq.wire.properties import digest_of, key_of, pack_properties

CODEC = FrameCodec()
PLACE = {"queue_id": 1, "epoch": 1}
SECOND_US = 1_000_000


def put(state: QueueState, *keys: str, at_us: int = 0, window_ms: int = 1000) -> Entry:
    """Apply a publish of one message for each key, "" for none."""
    properties = [
        pack_properties(None, None, None, unique=(digest_of(key), window_ms)) if key else b""
        for key in keys
    ]
    raw = pack_publish([b"x"] * len(keys), properties, flags=FLAG_UNIQUE)
    where = {**PLACE, "lsn": state.applied + 1, "timestamp_us": at_us}
    entry = CODEC.publish(raw, **where, first_sequence=state.next_sequence)
    state.apply(entry)
    return entry


def op(state: QueueState, payload: ProducerOp | PromotedOp | UniqueWindowOp, at_us: int) -> None:
    where = {**PLACE, "lsn": state.applied + 1, "timestamp_us": at_us}
    state.apply(CODEC.op(payload, **where))


def number_of(key: str) -> int:
    found = key_of(pack_properties(None, None, None, unique=(digest_of(key), 0)))
    assert found is not None
    return found.producer


def test_one_message_of_a_key_is_live() -> None:
    state = QueueState()
    put(state, "a", "", "a", "b")
    assert [*state.live] == [(1, 2), (4, 4)]
    assert state.repeats == {3: 1}
    put(state, "b", at_us=SECOND_US // 2)
    assert (state.repeats, state.next_sequence) == ({5: 4}, 6)


def test_a_key_is_held_until_its_window_ends() -> None:
    """The last microsecond before its end counts, and a repeat does not prolong it."""
    state = QueueState()
    put(state, "a")
    put(state, "a", at_us=SECOND_US - 1)
    assert state.repeats == {2: 1}
    put(state, "a", at_us=SECOND_US)
    assert state.repeats == {}
    assert [*state.live] == [(1, 1), (3, 3)]


def test_a_window_that_no_put_says_is_that_of_the_log() -> None:
    state = QueueState()
    op(state, UniqueWindowOp(5), 0)
    put(state, "a", window_ms=0)
    put(state, "a", at_us=4999, window_ms=0)
    assert state.repeats == {2: 1}
    put(state, "a", at_us=5000, window_ms=0)
    assert state.repeats == {}
    assert QueueState.decode(state.encode()).unique_window_ms == 5


def test_a_key_that_was_put_anew_is_not_forgotten() -> None:
    """A master looks at what is applied; a put of the key may lie before its op in the log."""
    state = QueueState()
    put(state, "a")
    put(state, "a", at_us=2 * SECOND_US)
    op(state, ProducerOp("", (number_of("a"),)), 2 * SECOND_US)
    put(state, "a", at_us=2 * SECOND_US + 1)
    assert state.repeats == {3: 2}
    op(state, ProducerOp("", (number_of("a"),)), 3 * SECOND_US)
    assert state.producers.find(number_of("a")) is None


def test_a_key_whose_message_was_lost_is_free() -> None:
    """An unclean promotion: nobody may be told that the message stands in the queue."""
    state = QueueState()
    put(state, "a", "b", window_ms=10**6)
    op(state, PromotedOp("unclean", 1, 2, ((1, 1),), 1), 1)
    put(state, "a", "b", at_us=2, window_ms=10**6)
    first = state.next_sequence - 2
    assert state.repeats == {first + 1: 2}


def test_another_text_with_the_same_id_is_no_repeat() -> None:
    """All 125 bits of the digest that are kept have to be the same."""
    state = QueueState()
    entry = put(state, "a")
    (key,) = entry.keys
    assert key is not None
    known = state.producers.find(key.producer)
    assert known is not None
    assert [outcome[3] for outcome in known.outcomes] == [key.check]
    state.producers.change(key.producer).outcomes[0] = (1, 1, 1, "0" * 16)  # type: ignore[union-attr]
    put(state, "a", at_us=1)
    assert state.repeats == {}


def test_a_repeat_is_an_outcome_of_its_producer() -> None:
    """Runs of numbers stay apart from those of messages that were stored."""
    state = QueueState()
    op(state, ProducerOp("a/1"), 0)
    properties = [
        pack_properties(None, None, None, unique=(digest_of(key), 1000)) for key in "abab"
    ]
    raw = pack_publish([b"x"] * 4, properties, producer=1, first_number=1, flags=FLAG_UNIQUE)
    where = {**PLACE, "lsn": 2, "timestamp_us": 0}
    state.apply(CODEC.publish(raw, **where, first_sequence=1))
    producer = state.producers.find(1)
    assert producer is not None
    assert producer.outcomes_of(1, 4) == [(1, 2, 1, ""), (3, 2, 1, REPEATED)]
    assert all(sequence > REFUSED for _, _, sequence, _ in producer.outcomes)


@pytest.mark.parametrize("unique", [(b"short", 1), (bytes(16), -1), "text", 5])
def test_keys_that_cannot_be_read_are_refused(unique: object) -> None:
    from mirrorq.wire.properties import Properties, encode_properties

    packed = encode_properties(Properties(unique=unique))  # type: ignore[arg-type]
    frame = pack_publish([b"x"], [packed], flags=FLAG_UNIQUE)
    with pytest.raises(ProtocolError):
        make_entry(frame)


def test_a_frame_has_few_keys() -> None:
    """Each is a page that is read and changed."""
    with pytest.raises(ProtocolError, match="at most 64"):
        make_entry(pack_publish([b"x"] * 66, [b""] * 66, flags=FLAG_UNIQUE))
