"""How a peer is measured: so many seconds of publishing, the same messages taken, one at a time."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from compare.peer import Absent, Bare, Peer, Session, in_flight_of

RUN_BYTES = 512 << 20
"""One publishing is no larger than this: it all lies in the queue before it is taken."""
SINGLE_COUNT = 300


class Sample(msgspec.Struct, tag="sample"):
    """One peer, one size of message, one round."""

    peer: str
    size: int
    publish: float
    """Messages a second, confirmed."""
    take: float
    """Messages a second, got and acknowledged; 0 where there is no taking."""
    p50_ms: float
    """One message at a time, from before its put until its confirm."""
    p99_ms: float


def samples(
    peers: list[Peer],
    sizes: list[int],
    rounds: int,
    seconds: float,
    place: Path | None,
    tell: Callable[[str], None],
) -> Iterator[Sample]:
    """Measure the peers in turn, `rounds` times: what the machine does beside spreads over all."""
    absent: set[str] = set()
    for number in range(rounds):
        for peer in peers:
            if peer.name in absent:
                continue
            tell(f"round {number + 1} of {rounds}: {peer.name}")
            try:
                with (
                    tempfile.TemporaryDirectory(prefix="mirrorq-compare-", dir=place) as directory,
                    peer.start(Path(directory)) as session,
                ):
                    for size in sizes:
                        yield _sample(peer, session, size, seconds)
            except Absent as error:
                absent.add(peer.name)
                tell(f"skipped {peer.name}: {error}")


def _sample(peer: Peer, session: Session | Bare, size: int, seconds: float) -> Sample:
    if not hasattr(session, "publish"):
        rate, p50_ms, p99_ms = session.measure(size, seconds)
        return Sample(peer.name, size, rate, 0.0, p50_ms, p99_ms)
    body = b"x" * size
    in_flight = in_flight_of(size)
    enough = count_for(session, body, in_flight, seconds)
    publishing = _seconds(lambda: session.publish(body, enough, in_flight))
    taking = _seconds(lambda: session.take(enough))
    p50_ms, p99_ms = one_at_a_time(session, body, seconds)
    return Sample(peer.name, size, enough / publishing, enough / taking, p50_ms, p99_ms)


def count_for(session: Session, body: bytes, in_flight: int, seconds: float) -> int:
    """How many messages fill the time; finding out warms the peer up."""
    count_max = max(20, RUN_BYTES // len(body))
    count = min(200, count_max)
    while True:
        start = time.perf_counter()
        session.publish(body, count, in_flight)
        taken = time.perf_counter() - start
        session.take(count)
        enough = max(1, min(int(count / taken * seconds), count_max))
        if taken >= seconds / 8 or count == count_max:
            return enough
        count = min(max(enough, count), count * 20)


def _seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def one_at_a_time(session: Session, body: bytes, seconds: float) -> tuple[float, float]:
    """(p50, p99) in ms of one message after the other, for so long or `SINGLE_COUNT` times."""
    waits: list[float] = []
    end = time.perf_counter() + seconds
    while len(waits) < 10 or (len(waits) < SINGLE_COUNT and time.perf_counter() < end):
        waits.append(_seconds(lambda: session.publish(body, 1, 1)) * 1_000)
    session.take(len(waits))
    cuts = statistics.quantiles(waits, n=100, method="inclusive")
    return cuts[49], cuts[98]
