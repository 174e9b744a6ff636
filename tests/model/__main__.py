"""Every mutation against its checker, with all seeds: the table of docs/reliability.md.

cd tests && python -m model                     all
cd tests && python -m model "cut by length"     these
"""

from __future__ import annotations

import argparse
import sys

from mirrorq.testing.mutations import MUTATIONS

from .catches import catch, unaccounted


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
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
