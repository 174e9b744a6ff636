"""Arrow tables beside `get_many`: the same messages out of a queue, and into one.

    python benches/arrow_tables.py --messages 1000000

One node in this process, 100-byte messages. In turn, a few times each: `get_many` and `ack_many`,
`arrow.take`, `arrow.read`; `put_many` of lists, `arrow.write` of a table. Medians.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

import mirrorq
from mirrorq import arrow

BODY = b"x" * 100
MANY = 10_000
ROUNDS = 3
WAIT_S = 60.0


def put_lists(queue: mirrorq.MirroredQueue, count: int) -> None:
    for _ in range(count // MANY):
        queue.put_many([BODY] * MANY)
    queue.wait_for_confirms(WAIT_S)


def put_table(queue: mirrorq.MirroredQueue, count: int) -> None:
    arrow.write(queue, pa.table({"value": [BODY] * count}))


def get_lists(queue: mirrorq.MirroredQueue, count: int) -> None:
    """A list of each batch's bodies, as a program needs them for a table."""
    while count:
        messages = queue.get_many(min(count, MANY), timeout=WAIT_S)
        bodies = [message.body for message in messages]
        queue.ack_many(messages)
        count -= len(bodies)


def take_table(queue: mirrorq.MirroredQueue, count: int) -> None:
    with arrow.take(queue) as reader:
        assert reader.read_all().num_rows == count


def read_table(queue: mirrorq.MirroredQueue, count: int) -> None:
    assert arrow.read(queue).read_all().num_rows == count


def measure(place: Path, count: int) -> None:
    spent: dict[str, list[float]] = {}

    def timed(name: str, work: Callable[[mirrorq.MirroredQueue, int], None]) -> None:
        begun = time.perf_counter()
        work(queue, count)
        spent.setdefault(name, []).append(time.perf_counter() - begun)

    with mirrorq.MirroredQueue("bench", path=place / "node") as queue:
        for _ in range(ROUNDS):
            timed("put_many", put_lists)
            timed("arrow.read", read_table)
            timed("get_many, ack_many", get_lists)
            timed("arrow.write", put_table)
            timed("arrow.take", take_table)
    for name, seconds in spent.items():
        print(f"{name:20} {count / statistics.median(seconds):12,.0f} messages/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--path", type=Path, help="directory on the disk that counts")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.path) as place:
        measure(Path(place), options.messages // MANY * MANY)


if __name__ == "__main__":
    main()
