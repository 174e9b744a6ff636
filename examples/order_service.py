"""A service with a bug that a crash at the wrong moment shows, and the simulator that finds it.

Orders come from a queue, and for each an invoice goes into another one. `bill` puts the invoice
and acks the order: when its process dies in between, the order comes again and is billed twice.
`bill_once` does both in one step. Each seed is a run of a whole cluster on virtual time, with
a crash at another moment. python examples/order_service.py
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable

import mirrorq
from mirrorq.testing import SimulatedCluster

ORDERS = 20
SEEDS = 30

Service = Callable[[mirrorq.MirroredQueue, mirrorq.MirroredQueue], None]


def bill(orders: mirrorq.MirroredQueue, invoices: mirrorq.MirroredQueue) -> None:
    """Write an invoice for each order. It looks right, and every order is billed."""
    for order in orders:
        invoices.put(b"invoice for " + order.body).result()
        order.ack()


def bill_once(orders: mirrorq.MirroredQueue, invoices: mirrorq.MirroredQueue) -> None:
    """The same, mended: the invoice is there if and only if the order is done."""
    for order in orders:
        order.ack_and_put(invoices, b"invoice for " + order.body)


def invoices_written(service: Service, seed: int) -> Counter[bytes]:
    """Run the service on a node that crashes once; return how often each invoice was written."""
    with SimulatedCluster(nodes=3, seed=seed) as cluster:
        orders = cluster.queue("orders", on="a")
        invoices = cluster.queue("invoices", on="a")

        def start() -> None:
            queues = (cluster.queue(name, on="b") for name in ("orders", "invoices"))
            cluster.spawn(service, *queues, on="b")

        start()
        orders.put_many([b"order %d" % number for number in range(ORDERS)]).result()
        cluster.run(cluster.random.uniform(0.0, 0.2))
        cluster.crash("b")
        cluster.run(5)
        cluster.restart("b")
        start()
        cluster.run_until(orders.empty)
        cluster.run(5)
        return Counter(message.body for message in invoices.browse(count_max=10 * ORDERS))


def first_failure(service: Service) -> str:
    """What goes wrong under the first seed under which anything does; "" when nothing does."""
    for seed in range(SEEDS):
        written = invoices_written(service, seed)
        wrong = [body.decode() for body, count in written.items() if count != 1]
        if wrong or len(written) != ORDERS:
            return f"seed {seed}: {len(written)} of {ORDERS} orders billed, more than once: {wrong}"
    return ""


def main() -> None:
    found = first_failure(bill)
    print(f"bill: {found or 'nothing found'}")
    left = first_failure(bill_once)
    print(f"bill_once: {left or f'each order billed once, under {SEEDS} seeds'}")
    sys.exit(not found or bool(left))


if __name__ == "__main__":
    main()
