"""A client that takes COUNT messages and keeps them: `consumer_process.py ENDPOINTS QUEUE COUNT`.

It prints "held" when it has them, and waits to be killed or for its standard input to end.
"""

from __future__ import annotations

import sys

import mirrorq


def main() -> None:
    endpoints, name, count = sys.argv[1:]
    queue = mirrorq.connect(endpoints).queue(name)
    taken = [queue.get(timeout=30) for _ in range(int(count))]
    print("held", len(taken), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
