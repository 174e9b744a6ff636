"""1, 3, 5, 7 nodes: what each of them works and sends for a message."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

import ceiling
from compare.measure import count_for, one_at_a_time
from compare.mirrorq_peers import Batches
from compare.peer import batch_of, in_flight_of
from scale.cluster import Spent, cluster
from scale.part import Column, Part, Sample, Settings, each, found

BODY = b"x" * 100


def run(settings: Settings) -> Iterator[Sample]:
    for count in each(settings, "nodes", "nodes"):
        yield _measure(settings, count)


def _measure(settings: Settings, nodes: int) -> Sample:
    in_flight = in_flight_of(len(BODY))
    with cluster(settings, nodes) as running:
        session = Batches(running.queue())
        count = count_for(session, BODY, in_flight, settings.seconds)
        put = running.spent(count, lambda: session.publish(BODY, count, in_flight))
        took = running.spent(count, lambda: session.take(count))
        p50_ms, _ = one_at_a_time(session, BODY, settings.seconds)
    batch = batch_of(len(BODY))
    bare = ceiling.measure(
        settings.path,
        seconds=settings.seconds,
        batch=batch,
        in_flight=in_flight // batch,
        members=nodes,
    )
    return found(
        "nodes",
        nodes,
        put=count / put.seconds,
        share=100 * count / put.seconds / bare.messages_per_second,
        take=count / took.seconds,
        p50_ms=p50_ms,
        p50_times=p50_ms / bare.latency_p50_ms,
        put_sent=max(put.sent[:nodes]),
        put_sent_all=sum(put.sent[:nodes]),
        take_sent=max(took.sent[:nodes]),
        **costs("put", put, nodes),
        **costs("take", took, nodes),
    )


def costs(what: str, took: Spent, nodes: int) -> dict[str, float | None]:
    """CPU and instructions a message: of the master, a mirror (on average), and the load."""
    return {
        f"{what}_master_us": took.cpu_us[0],
        f"{what}_mirror_us": mean(took.cpu_us[1:nodes]),
        f"{what}_load_us": took.cpu_us[nodes],
        f"{what}_master": took.instructions[0],
        f"{what}_mirror": mean(took.instructions[1:nodes]),
        f"{what}_load": took.instructions[nodes],
    }


def mean(values: Sequence[float | None]) -> float | None:
    """None when there are none, or one of them is unknown."""
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known and len(known) == len(values) else None


PART = Part(
    "nodes",
    "nodes",
    run,
    [
        Column("put", "`put_many` /s"),
        Column("share", "share of the ceiling %"),
        Column("put_sent", "bytes sent a message, most of a node"),
        Column("put_sent_all", "all nodes"),
        Column("put_master_us", "CPU us a message: master", 2),
        Column("put_mirror_us", "a mirror", 2),
        Column("put_master", "instructions: master"),
        Column("put_mirror", "a mirror"),
        Column("take", "`get_many` + ack /s"),
        Column("take_sent", "bytes sent a message, most of a node", 1),
        Column("take_master", "instructions: master"),
        Column("take_mirror", "a mirror"),
        Column("p50_ms", "one put, p50 ms", 2),
        Column("p50_times", "of the ceiling's, times", 1),
    ],
    {"put_sent": "put, the node that sends most", "take_sent": "get + ack, the same"},
    "bytes sent a message",
)
