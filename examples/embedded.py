"""A durable work queue in one process: no peers, no sockets, no server.

Run it with a directory to keep the queue in: python examples/embedded.py ./data
Run it again: the order that was not finished the first time comes first. Its delivery count may
be 2: a handle fetches ahead, and what was handed out before counts.
"""

from __future__ import annotations

import sys

import mirrorq


def main(path: str) -> None:
    """Put three orders, finish two, and leave one for the next run."""
    with mirrorq.MirroredQueue("orders", path=path) as orders:
        sequences = orders.put_many([b"2 coffees", b"1 tea", b"3 cakes"]).result(timeout=10)
        print(f"on disk: messages {sequences[0]} to {sequences[-1]}")

        with orders.get(timeout=10) as order:  # acked when the block ends without an exception
            print(f"served {order.body.decode()}, delivery {order.delivery_count}")

        order = orders.get(timeout=10)
        order.ack().result(timeout=10)  # an ack that has resolved is never undone
        print(f"served {order.body.decode()}, delivery {order.delivery_count}")

        print(f"left for the next run: {orders.qsize()}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "./data")
