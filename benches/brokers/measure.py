"""One worker's figures, as JSON: `python -m brokers.measure TASKS`, with a worker running."""

from __future__ import annotations

import json
import statistics
import sys
import time

from brokers.tasks import add

WARM = 50
SINGLE = 200
ANSWER_S = 120.0


def main(count: int) -> None:
    """Send, wait, print."""
    for number in range(min(WARM, count)):
        assert add.delay(number, 1).get(timeout=ANSWER_S) == number + 1
    begin = time.perf_counter()
    results = [add.delay(number, 1) for number in range(count)]
    sent = time.perf_counter()
    assert [result.get(timeout=ANSWER_S) for result in results] == list(range(1, count + 1))
    done = time.perf_counter()
    single = []
    for number in range(min(SINGLE, count)):
        start = time.perf_counter()
        assert add.delay(number, 1).get(timeout=ANSWER_S) == number + 1
        single.append((time.perf_counter() - start) * 1000)
    hundredths = statistics.quantiles(single, n=100)
    figures = {
        "tasks": count / (done - begin),
        "sent": count / (sent - begin),
        "p50_ms": hundredths[49],
        "p99_ms": hundredths[98],
    }
    print(json.dumps({name: round(value, 2) for name, value in figures.items()}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
