"""Spools in real processes: the producer is killed again and again, and so is the master."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

import mirrorq
from mirrorq.demo.children import LineProcess

from .cluster import Cluster, until

pytestmark = pytest.mark.soak

WAIT_S = 120.0
PRODUCER = """
import sys
import mirrorq

endpoints, path, begin = sys.argv[1], sys.argv[2], int(sys.argv[3])
with mirrorq.connect(endpoints, spool=path) as client:
    orders = client.queue("orders")
    print("opened", flush=True)
    if begin < 0:
        orders.wait_for_confirms(120)
        print("confirmed", flush=True)
    number = begin
    while begin >= 0:
        on_accept = lambda _, number=number: print(number, flush=True)
        if number % 50 == 0:
            orders.put_many([b"%d.%d" % (number, part) for part in range(20)], on_accept=on_accept)
        else:
            orders.put(b"%d" % number, on_accept=on_accept)
        number += 1
"""


class Producer(LineProcess):
    """A process that puts numbers from `begin` on, and says which were accepted; below 0: it puts
    nothing, and waits until what was spooled is confirmed."""

    def __init__(self, endpoints: str, path: Path, begin: int, log: Path) -> None:
        self.accepted: list[int] = []
        self.said: set[bytes] = set()
        command = [sys.executable, "-c", PRODUCER, endpoints, str(path), str(begin)]
        super().__init__("producer", command, log, None)

    def on_line(self, line: bytes) -> None:
        if line.strip().isdigit():
            self.accepted.append(int(line))
        elif line:
            self.said.add(line.strip())


def test_what_was_accepted_is_there_once_whoever_is_killed(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.name_all("abc")
    endpoints = ",".join(cluster.endpoints.values())
    spool, log = tmp_path / "spool", tmp_path / "producer.log"
    accepted: set[int] = set()
    begin = 0

    def life(done: int) -> None:
        """One life of the producer; it is killed when it has this many accepted."""
        nonlocal begin
        producer = Producer(endpoints, spool, begin, log)
        try:
            until(lambda: len(producer.accepted) >= done, log.read_text)
        finally:
            producer.kill()
        accepted.update(producer.accepted)
        # What it has put and nobody has heard of may be there or not: others come behind.
        begin = max(accepted) + 200_000

    life(300)  # there is no cluster yet
    cluster.start("abc")
    for name in ("a", "b"):
        life(500)
        killer = threading.Timer(0.05, cluster.kill, (name,))
        killer.start()
        life(1500)
        killer.join()
        cluster.start(name)
    last = Producer(endpoints, spool, -1, log)
    try:
        until(lambda: b"confirmed" in last.said, log.read_text)
    finally:
        last.kill()
    with mirrorq.connect(endpoints, timeout=WAIT_S) as client:
        queue = client.queue("orders", timeout=WAIT_S)
        found: list[bytes] = []
        while queue.qsize():
            messages = queue.get_many(1000, timeout=WAIT_S)
            found += [message.body for message in messages]
            queue.ack_many(messages).result(WAIT_S)
    counted = Counter(found)
    assert [body for body, count in counted.items() if count > 1] == []
    wanted = {b"%d" % n for n in accepted if n % 50}
    wanted |= {b"%d.%d" % (n, part) for n in accepted if not n % 50 for part in range(20)}
    assert wanted - set(found) == set()
    order = [tuple(map(int, body.split(b"."))) for body in found]
    assert order == sorted(order)
