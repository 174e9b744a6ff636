"""`python -m fuzz`: spoiled bytes for every reader of bytes, and odd arguments of calls."""

from __future__ import annotations

import argparse
import logging
import sys
import warnings

from .calls import CALLS_OF_USERS
from .readers import READERS, Target
from .runner import Outcome, run
from .world import CLUSTER

TARGETS = (*READERS, CLUSTER, CALLS_OF_USERS)


def share(count: int, target: Target) -> int:
    """Its runs, of `count` inputs over all targets."""
    inputs = -(-count * target.weight // sum(each.weight for each in TARGETS))
    return -(-inputs // target.inputs)


def progress(name: str, count: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{name:<16} {count:>9}", end="", file=sys.stderr)


def line(outcome: Outcome) -> str:
    rate = outcome.inputs / max(outcome.took_s, 0.001)
    grown = f"{outcome.growth_bytes / (1 << 20):+.1f} MiB"
    wrong = f"{len(outcome.wrong)} WRONG" if outcome.wrong else "fine"
    return f"{outcome.name:<16} {outcome.inputs:>9} inputs {rate:>8.0f}/s {grown:>10}  {wrong}"


def main() -> int:
    """Exit status 1 when an input raised what it must not, hung, or memory grew."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="inputs, over all targets")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", choices=[target.name for target in TARGETS])
    parser.add_argument("--only", type=int, help="the one input of this number")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    chosen = [each for each in TARGETS if arguments.target in (None, each.name)]
    outcomes = []
    for target in chosen:
        alone = -(-arguments.count // target.inputs)
        count = alone if arguments.target else share(arguments.count, target)
        numbers = range(count) if arguments.only is None else (arguments.only,)
        outcome = run(
            target, arguments.seed, numbers, lambda done, name=target.name: progress(name, done)
        )
        outcomes.append(outcome)
        print("\r" + line(outcome), flush=True)
        for wrong in outcome.wrong:
            print(wrong)
    total = sum(outcome.inputs for outcome in outcomes)
    failed = [outcome.name for outcome in outcomes if outcome.wrong]
    took = sum(outcome.took_s for outcome in outcomes)
    print(f"{total} inputs in {took:.0f} s, seed {arguments.seed}: {failed or 'nothing'} wrong")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
