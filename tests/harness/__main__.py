"""Run seeds of the swarm, on all cores; a file of results lets a long run be done in pieces."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from functools import partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from harness import results
from harness.results import Result, result_of
from harness.swarm import Swarm


def seeds_of(text: str) -> list[int]:
    """200: the first two hundred; 17,23: these; 100-199: a range."""
    if "," in text:
        return [int(part) for part in text.split(",") if part]
    first, dash, last = text.partition("-")
    return list(range(int(first), int(last) + 1)) if dash else list(range(int(text)))


def describe(result: Result, *, with_rail: bool = False) -> str:
    """What went wrong with a seed, and the command that shows how."""
    lines = [f"seed {result.seed} fails:"]
    lines += [f"    {sentence}" for sentence in result.wrong]
    options = f"--seeds {result.seed}, --trace{' --rail' * with_rail}"
    lines.append(f"    replay, from tests/: python -m harness {options}")
    return "\n".join(lines)


def _swarm(seed: int, with_rail: bool) -> Swarm:
    return Swarm(seed, star=True, rail=True) if with_rail else Swarm(seed)


def run_seed(seed: int, version: str, *, with_rail: bool = False) -> Result:
    """One seed, in any process. What it raises is a failure of the seed."""
    try:
        return result_of(_swarm(seed, with_rail).run(), version)
    except Exception as error:
        wrong = [f"{type(error).__name__}: {error}"]
        return Result(seed, version, 0, 0, 0, 0, 0, 0, {}, {}, wrong)


def run_seeds(
    seeds: Sequence[int], version: str, jobs: int, with_rail: bool = False
) -> Iterator[Result]:
    """The results as they come, in any order."""
    run = partial(run_seed, version=version, with_rail=with_rail)
    if jobs == 1:
        yield from map(run, seeds)
        return
    waiting = iter(seeds)
    with ProcessPoolExecutor(jobs) as pool:
        running = {pool.submit(run, seed) for seed in islice(waiting, 2 * jobs)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
            running |= {pool.submit(run, seed) for seed in islice(waiting, len(done))}


def trace(seeds: Sequence[int], with_rail: bool) -> int:
    """Run seeds here and print all that happens in them."""
    failed = 0
    for seed in seeds:
        report = _swarm(seed, with_rail).run()
        print("\n".join(report.trace))
        for sentence in report.wrong:
            print(f"wrong: {sentence}")
        failed += bool(report.wrong)
    return 1 if failed else 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m harness", description=__doc__)
    parser.add_argument("--seeds", type=seeds_of, default="100", help="200 | 17,23 | 100-199")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--results", type=Path, help="file to append to, and to go on from")
    parser.add_argument(
        "--code", default=version("mirrorq"), help="what to call this version of the code in it"
    )
    parser.add_argument("--summary", action="store_true", help="print the file's totals, run none")
    parser.add_argument("--trace", action="store_true", help="print what happened in each seed")
    parser.add_argument("--rail", action="store_true", help="star and rail in each run")
    options = parser.parse_args(arguments)
    if options.summary and options.results is None:
        parser.error("--summary needs --results FILE")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run seeds; exit status 1 when one fails or has failed before."""
    options = parse(arguments)
    if options.trace:
        return trace(options.seeds, options.rail)
    known: dict[int, Result] = {}
    if options.results is not None:
        known = results.load(options.results, options.code)
    if options.summary:
        print(results.summary(known.values()))
        return 1 if any(result.wrong for result in known.values()) else 0
    found = {seed: known[seed] for seed in options.seeds if seed in known}
    left = [seed for seed in options.seeds if seed not in known]
    for result in found.values():
        if result.wrong:
            print(describe(result, with_rail=options.rail), flush=True)
    columns = (*Progress.get_default_columns()[:1], BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    with Progress(
        *columns,
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        redirect_stdout=False,
    ) as bar:
        task = bar.add_task("seeds", total=len(options.seeds), completed=len(found))
        for result in run_seeds(left, options.code, options.jobs, options.rail):
            found[result.seed] = result
            if options.results is not None:
                results.append(options.results, result)
            if result.wrong:
                print(describe(result, with_rail=options.rail), flush=True)
            bar.advance(task)
    print(results.summary(found.values()))
    return 1 if any(result.wrong for result in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
