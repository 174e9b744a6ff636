"""What two processes carry over loopback: throughput, round trips, and the end of a peer.

Run: python benches/bench_transport.py

Each round trip is measured in an idle process and again beside a thread that computes in
Python, because every return from a blocking call then waits for the GIL.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time

from mirrorq.config import Config
from mirrorq.transport.inbound import DATA, Connected, Disconnected, PeerMessage, ProbeResult
from mirrorq.transport.transport import Transport

ROUND_COUNT = 100
"""Messages that are sent before the network gets them."""
BURST_COUNT = 500
"""Messages in flight, below any high-water mark."""


class Peer:
    """A process that answers each request "count" with the messages and bytes it has seen,
    each "echo" with itself, and keeps silent on the rest."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.process = subprocess.Popen(
            [sys.executable, __file__, "peer", transport.endpoint],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        transport.connect_peer("peer", self.process.stdout.readline().strip())
        self.until(Connected)
        self.ask(b"echo")

    def until(self, kind: type) -> object:
        while True:
            for item in self.transport.poll(1000):
                if isinstance(item, kind):
                    return item

    def ask(self, request: bytes) -> None:
        self.transport.send("peer", DATA, [request])
        self.until(PeerMessage)


def serve(endpoint: str) -> None:
    """The peer's process."""
    transport = Transport("peer", 1, "tcp://127.0.0.1:0", Config())
    print(transport.endpoint, flush=True)
    transport.connect_peer("bench", endpoint)
    is_up = False
    waiting = []
    while True:
        for item in transport.poll(1000):
            is_up = is_up or isinstance(item, Connected)
            if isinstance(item, PeerMessage) and item.parts[0] in (b"count", b"echo"):
                waiting.append(item.parts)
        while is_up and waiting:
            transport.send("bench", DATA, waiting.pop())


def throughput(peer: Peer, count: int, size: int) -> float:
    """Messages a second, to the peer, with an answer each BURST_COUNT."""
    message = [b"data", bytes(size)]
    begin = time.perf_counter()
    for number in range(1, count + 1):
        if not peer.transport.send("peer", DATA, message):
            raise SystemExit("a message was dropped")
        if number % ROUND_COUNT == 0:
            peer.transport.flush()
        if number % BURST_COUNT == 0:
            peer.ask(b"count")
    peer.ask(b"count")
    return count / (time.perf_counter() - begin)


def round_trip_us(peer: Peer, count: int) -> float:
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        peer.ask(b"echo")
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e6


def death_ms(transport: Transport) -> tuple[float, float]:
    """From SIGKILL to Disconnected, and to the answer of a probe."""
    peer = Peer(transport)
    begin = time.perf_counter()
    peer.process.kill()
    peer.until(Disconnected)
    down = time.perf_counter()
    transport.probe("peer")
    assert peer.until(ProbeResult) == ProbeResult("peer", refused=True)
    end = time.perf_counter()
    transport.forget_peer("peer")
    peer.process.wait()
    return (down - begin) * 1e3, (end - begin) * 1e3


def compute(stop: threading.Event) -> None:
    while not stop.is_set():
        sum(range(1000))


def main() -> None:
    transport = Transport("bench", 1, "tcp://127.0.0.1:0", Config())
    peer = Peer(transport)
    for count, size in ((1000, 100_000), (100_000, 100), (40, 16_000_000)):
        rate = throughput(peer, count, size)
        print(f"{count} x {size} bytes: {rate:,.0f} a second, {rate * size / 1e6:,.0f} MB/s")
    print(f"round trip: {round_trip_us(peer, 3000):.0f} us (median)")
    stop = threading.Event()
    busy = threading.Thread(target=compute, args=(stop,))
    busy.start()
    print(f"round trip beside a computing thread: {round_trip_us(peer, 200):.0f} us (median)")
    rate = throughput(peer, 20_000, 100)
    print(f"20000 x 100 bytes beside a computing thread: {rate:,.0f} a second")
    stop.set()
    busy.join()
    transport.forget_peer("peer")
    peer.process.kill()
    peer.process.wait()
    ends = [death_ms(transport) for _ in range(10)]
    print(
        f"SIGKILL to Disconnected: {statistics.median(down for down, _ in ends):.1f} ms, "
        f"to the refused probe: {statistics.median(probed for _, probed in ends):.1f} ms (medians)"
    )
    transport.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["peer"]:
        serve(sys.argv[2])
    else:
        main()
