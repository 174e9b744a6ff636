"""What is counted of each op, and durations in buckets."""

from __future__ import annotations

import pytest
from attrs import asdict
from msgspec.structs import replace

from mirrorq.containers.histogram import BOUNDS_S, Histogram
from mirrorq.protocol.identities import SessionId
from mirrorq.protocol.ops import (
    AckOp,
    DiscardOp,
    DropHeadOp,
    Entry,
    ExpiryOp,
    Header,
    OpKind,
    OutboxOp,
    Payload,
    PromotedOp,
    PurgeOp,
    RefusalOp,
    ReturnLaterOp,
    ReturnOp,
    Step,
)
from mirrorq.protocol.sessions import Confirmed, Deliver, Delivery, Pong, SessionReply, Settled
from mirrorq.protocol.staged import CommitOp, Stage
from mirrorq.replication.counters import Tally

TWO_AND_THREE = ((1, 2), (7, 9))


def entry(payload: Payload, *, lsn: int = 5, count: int = 1, step: object = None) -> Entry:
    """An op; one without a payload is a publish."""
    kind = OpKind.PUBLISH if payload is None else OpKind.ACK
    header = Header(kind, 0, 1, 1, lsn, 1, count, 9, 1, 0, 0, 64)
    return Entry(header, payload, b"", step=step)  # type: ignore[arg-type]


def counted(*entries: Entry, verdict: str = "") -> dict[str, object]:
    """What is no longer 0."""
    tally = Tally()
    for each in entries:
        tally.count_op(each, verdict, 0)
    found = asdict(tally)
    ended = {reason: count for reason, count in found.pop("ended").items() if count}
    return {name: count for name, count in found.items() if count} | (
        {"ended": ended} if ended else {}
    )


@pytest.mark.parametrize(
    ("noted", "expected"),
    [
        (entry(None, count=4), {"published": 4}),
        (entry(None, count=4, step=Step(TWO_AND_THREE)), {"published": 3, "acked": 5}),
        (entry(None, count=4, step=Step(TWO_AND_THREE, target=8)), {"acked": 5}),
        (entry(None, count=4, step=Stage("t", 1, "r", 0, 0, 1)), {}),
        (entry(AckOp(TWO_AND_THREE)), {"acked": 5}),
        (entry(ReturnOp(TWO_AND_THREE)), {"returned": 5}),
        (entry(ReturnLaterOp(TWO_AND_THREE, 1)), {"returned": 5}),
        (entry(RefusalOp("full"), count=3), {"refused": 3}),
        (entry(ExpiryOp(TWO_AND_THREE)), {"ended": {"expired": 5}}),
        (entry(DropHeadOp(TWO_AND_THREE)), {"ended": {"maxlen": 5}}),
        (entry(PurgeOp(TWO_AND_THREE)), {"ended": {"purged": 5}}),
        (entry(DiscardOp(TWO_AND_THREE, "rejected")), {"ended": {"rejected": 5}}),
        (
            entry(OutboxOp(TWO_AND_THREE, 8, "delivery_limit")),
            {"dead_lettered": 5, "ended": {"delivery_limit": 5}},
        ),
        (entry(OutboxOp(TWO_AND_THREE, 8, "moved")), {"ended": {"moved": 5}}),
        (entry(PromotedOp("clean"), lsn=1), {}),
        (entry(PromotedOp("clean")), {"failovers": 1}),
        (entry(PromotedOp("unclean")), {"failovers": 1, "unclean": 1}),
    ],
    ids=lambda value: "" if isinstance(value, dict) else type(value.payload).__name__,
)
def test_each_op_counts_its_messages(noted: Entry, expected: dict[str, object]) -> None:
    """Messages, not ops; what shows nothing (staged, a queue's first op) counts nothing."""
    assert counted(noted) == expected
    twice = counted(noted, noted)
    assert twice.get("acked", 0) == 2 * expected.get("acked", 0)  # type: ignore[operator]


def test_a_commit_that_is_refused_publishes_nothing() -> None:
    """Staged messages count when they show."""
    commit = CommitOp("t", 1, "r", sequence=10, count=6)
    assert counted(entry(commit)) == {"published": 6}
    assert counted(entry(commit), verdict="fenced") == {}


def test_replies_and_deliveries() -> None:
    """Confirms as told; deliveries as sent, those of returned messages apart."""
    tally = Tally()
    session = SessionId("a", 1, 1)
    told = SessionReply(1, 1, session, 1, 1, Confirmed(9, ((1, 3, 1), (4, 2, 9))))
    refused = Settled(1, (Delivery(1, 1, 1, 3, 1), Delivery(1, 2, 9, 9, 1)), "went back")
    tally.note_replies([told, replace(told, reply=Pong()), replace(told, reply=refused)])
    assert tally.acks_refused == 4
    tally.note_sent(Deliver(0, (Delivery(1, 1, 1, 3, 1), Delivery(1, 2, 4, 5, 2))))
    assert (tally.confirmed, tally.delivered, tally.redelivered) == (5, 5, 2)


def test_a_duration_is_in_the_bucket_that_it_fits() -> None:
    """A bound belongs to its bucket, what exceeds all to the last one."""
    histogram = Histogram()
    for seconds in (0.0, BOUNDS_S[0], 0.0006, BOUNDS_S[-1], 60.0):
        histogram.observe(seconds)
    before = histogram.observed()
    histogram.observe(1.0)
    assert before.counts[:2] == (2, 1)
    assert before.counts[-2:] == (1, 1)
    assert before.count == 5
    assert before.seconds == pytest.approx(65.0011)
