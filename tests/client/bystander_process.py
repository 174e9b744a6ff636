"""A client that prints what comes into an auto-delete queue: `bystander_process.py ENDPOINT QUEUE`.

It ends when its standard input does.
"""

from __future__ import annotations

import sys

import mirrorq


def show(message: mirrorq.Message) -> None:
    print(message.body.decode(), flush=True)
    message.ack()


def main() -> None:
    endpoint, name = sys.argv[1:]
    with mirrorq.connect(endpoint) as client:
        client.queue(name, auto_delete=True).consume(show)
        print("consumes", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
