"""Every mutation against its checker, with all seeds: the table of tests/RELIABILITY.md.

Then the seeds of tests/model without any mutation: there nothing may be found.

cd tests && python -m model                     all
cd tests && python -m model "gate ended by a timeout"     these
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from harness.mutations.registry import MUTATIONS

from .catches import SEEDS, catch, unaccounted


def main(arguments: list[str] | None = None) -> int:
    """Print a line for each mutation; exit status 1 when one is not caught."""
    parser = argparse.ArgumentParser(prog="python -m model", description=__doc__)
    parser.add_argument("names", nargs="*", help="mutations; all when none is named")
    options = parser.parse_args(arguments)
    missed = sorted(unaccounted())
    print("| rule left out | caught by | checker | needed |\n|---|---|---|---|")
    for name in options.names or [one for one in MUTATIONS if one not in missed]:
        caught = catch(name, is_quick=False)
        if caught is None:
            missed.append(name)
            print(f"| {name} | **nothing** | | |", flush=True)
        else:
            print(f"| {name} | {caught.how} | {caught.checker} | {caught.effort} |", flush=True)
    for name in missed:
        print(f"not caught: {name}", file=sys.stderr)
    objections = list(_objections(options.names))
    for line in objections:
        print(line, file=sys.stderr)
    return 1 if missed or objections else 0


def _objections(names: list[str]) -> Iterator[str]:
    """What checkers say of the same runs without a mutation; several may share one."""
    chosen = [one for name, one in SEEDS.items() if not names or name in names]
    played = {(one.run.__name__, one.seed): one.run for one in chosen}
    for (run, seed), play in sorted(played.items()):
        said = play(seed)
        if said:
            yield f"{run}, seed {seed}, objects without a mutation: {said}"


if __name__ == "__main__":
    raise SystemExit(main())
