"""The log of an only copy with holes: whatever is missing, all else keeps its place."""

from __future__ import annotations

from random import Random

from mirrorq.containers.ranges import RangeSet
from mirrorq.protocol.ops import Entry, OpKind
from mirrorq.replication.state.queue_state import QueueState
from mirrorq.store.salvage import bridged

from .writing import QUEUE, Writer

SEEDS = 300


def log_of(random: Random) -> list[Entry]:
    """Publishes and acks of a queue from its beginning."""
    writer = Writer()
    log = [writer.publish([b"first"])]
    for _ in range(random.randint(0, 12)):
        if random.random() < 0.7:
            log.append(writer.publish([b"body"] * random.randint(1, 4)))
        else:
            log.append(writer.ack(1, random.randint(1, writer.sequence)))
    return log


def messages_of(entries: list[Entry]) -> RangeSet:
    spans = [one.header for one in entries if one.header.kind == OpKind.PUBLISH]
    return RangeSet([(one.first_sequence, one.last_sequence) for one in spans])


def test_what_is_whole_keeps_its_place() -> None:
    """Some ops are missing, at the end too: the store knows how far it went by other values."""
    for seed in range(SEEDS):
        check(Random(seed))


def check(random: Random) -> None:
    log = log_of(random)
    whole = [entry for entry in log if random.random() < 0.6]
    last = messages_of(log).last
    found, lost = bridged(QUEUE, whole, (0, 0), (log[-1].lsn, last))
    assert [entry.lsn for entry in found] == [entry.lsn for entry in log]
    assert set(map(id, whole)) <= set(map(id, found))
    assert list(messages_of(found)) == list(messages_of(log)) == [(1, last)]
    missing = messages_of([entry for entry in log if entry not in whole])
    assert list(RangeSet(lost)) == list(missing)
    state = QueueState()
    for entry in found:
        state.apply(entry)
    assert (state.applied, state.next_sequence) == (log[-1].lsn, last + 1)


def test_a_log_of_which_nothing_is_whole() -> None:
    """That it went further than the checkpoint is known by the name of a run alone."""
    found, lost = bridged(QUEUE, [], (5, 9), (0, 12))
    assert [(entry.lsn, entry.header.first_sequence) for entry in found] == [(6, 10)]
    assert lost == [(10, 12)]
    assert bridged(QUEUE, [], (5, 9), (5, 9)) == ([], [])
