"""A task of a job: stages its rows, says "half" half way and waits for a line, prints its part.

staging_process.py ENDPOINTS RUN PARTITION ATTEMPT COUNT
"""

from __future__ import annotations

import base64
import pickle
import sys

import mirrorq


def main() -> None:
    endpoints, run, partition, attempt, count = sys.argv[1:]
    client = mirrorq.connect(endpoints, timeout=60)
    with client, client.staged("job", 7, "orders", run=run) as staged:
        task = staged.attempt(int(partition), int(attempt))
        rows = [b"%s/%d" % (partition.encode(), row) for row in range(int(count))]
        task.put_many(rows[: len(rows) // 2])
        print("half", flush=True)
        sys.stdin.readline()
        task.put_many(rows[len(rows) // 2 :])
        part = task.finish(60)
    print(base64.b64encode(pickle.dumps(part)).decode(), flush=True)


if __name__ == "__main__":
    main()
