"""Measure mirrorq beside RabbitMQ, NATS JetStream, PySyncObj, persist-queue.

    python -m compare                                   # all, three rounds: some 20 minutes
    python -m compare --only mirrorq,rabbit --sizes 100 --rounds 1
    python -m compare --results results/compare.jsonl   # adds to it; the report is of all in it
    python -m compare --results results/compare.jsonl --rounds 0 --page ../docs/performance.md

Run in benches/. The peers are measured in turn, with the same payloads and as many unconfirmed
messages at once, on the same disk. What cannot be started here is skipped with a sentence.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from compare import (
    bare,
    memory,
    mirrorq_peers,
    nats_peer,
    persist_queue,
    pysyncobj_peer,
    rabbitmq,
)
from compare.measure import Sample, samples
from compare.peer import end_servers_on_sigterm
from compare.report import README, RESULTS, summary, tables
from compare.results import Results, write_into

PEERS = [
    *bare.PEERS,
    *(peer for peer in mirrorq_peers.PEERS if peer.kind == "replicated"),
    *rabbitmq.PEERS,
    *nats_peer.PEERS,
    *pysyncobj_peer.PEERS,
    *(peer for peer in mirrorq_peers.PEERS if peer.kind == "embedded"),
    *persist_queue.PEERS,
    *memory.PEERS,
]
SIZES = "100,1024,16384,65536"


def main() -> None:
    end_servers_on_sigterm()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="parts of peers' names, by commas")
    parser.add_argument("--sizes", default=SIZES, help="bytes of a message, by commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each of a round's parts")
    parser.add_argument("--path", type=Path, help="directory on the disk that counts")
    parser.add_argument("--results", type=Path, help="file of samples to add to and to report")
    parser.add_argument(
        "--page", type=Path, help="page of the docs; README.md and RESULTS.md get theirs"
    )
    options = parser.parse_args()
    wanted = [part.strip().lower() for part in options.only.split(",")]
    peers = [peer for peer in PEERS if any(part in peer.name.lower() for part in wanted)]
    if not peers:
        parser.error(f"--only {options.only} names none of: {', '.join(p.name for p in PEERS)}")
    sizes = [int(size) for size in options.sizes.split(",")]
    results = Results(Sample, options.results)
    for sample in samples(peers, sizes, options.rounds, options.seconds, options.path, _tell):
        results.add(sample)
        _tell(
            f"  {sample.size:6,} bytes: put {sample.publish:,.0f}/s, got {sample.take:,.0f}/s, "
            f"one {sample.p50_ms:.3f} ms"
        )
    if not results.samples:
        raise SystemExit("nothing could be measured")
    text = tables(PEERS, results)
    print(text)
    if options.page:
        write_into(RESULTS, text, "compare")
        write_into(options.page, summary(PEERS, results), "compare summary")
        readme = options.page.parents[1] / "README.md"
        write_into(readme, summary(PEERS, results, README), "compare readme")


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
