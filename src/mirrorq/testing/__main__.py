"""`python -m mirrorq.testing --seeds 200 | 17,23 | 100-199`: run seeds of the swarm."""

from __future__ import annotations

import argparse
import sys
import time

from mirrorq.testing.swarm import Report, Swarm


def seeds_of(text: str) -> list[int]:
    """200: the first two hundred; 17,23: these; 100-199: a range."""
    if "," in text:
        return [int(part) for part in text.split(",") if part]
    first, dash, last = text.partition("-")
    return list(range(int(first), int(last) + 1)) if dash else list(range(int(text)))


def describe(report: Report) -> str:
    lines = [f"seed {report.seed} fails:"]
    lines += [f"    {sentence}" for sentence in report.wrong[:10]]
    lines.append(f"    replay: python -m mirrorq.testing --seeds {report.seed}, --trace")
    return "\n".join(lines)


def main() -> int:
    """Run seeds; exit status 1 when one fails."""
    parser = argparse.ArgumentParser(prog="python -m mirrorq.testing", description=__doc__)
    parser.add_argument("--seeds", type=seeds_of, default="100", help="200 | 17,23 | 100-199")
    parser.add_argument("--trace", action="store_true", help="print what happened")
    arguments = parser.parse_args()
    began = time.monotonic()
    failed = confirmed = simulated_ms = 0
    for count, seed in enumerate(arguments.seeds, 1):
        report = Swarm(seed).run()
        confirmed += report.confirmed
        simulated_ms += report.simulated_ms
        if arguments.trace:
            print("\n".join(report.trace))
        if report.wrong:
            failed += 1
            print(describe(report))
        if sys.stderr.isatty():
            print(f"\r{count} of {len(arguments.seeds)} seeds", end="", file=sys.stderr)
    took_s = time.monotonic() - began
    print(
        f"{len(arguments.seeds)} seeds, {simulated_ms / 3_600_000:.2f} simulated hours in "
        f"{took_s:.0f} s, {confirmed} messages confirmed, {failed} seeds failed"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
