"""Results of many seeds: a line of JSON each, so that long runs are done in pieces.

A line names the version of the code that ran. Lines of other versions stay in the file and
count for nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec
from attrs import asdict

from harness.checkers import Tally
from harness.swarm import Report


class Result(msgspec.Struct):
    """One seed under one version of the code."""

    seed: int
    version: str
    nodes: int
    queues: int
    simulated_ms: int
    healed_ms: int
    confirmed: int
    deliveries: int
    tally: dict[str, int]
    """In Jepsen's words, see `checkers.Tally`."""
    faults: dict[str, int]
    wrong: list[str]
    rails: dict[str, int] = {}


def result_of(report: Report, version: str) -> Result:
    return Result(
        report.seed,
        version,
        report.nodes,
        report.queues,
        report.simulated_ms,
        report.healed_ms,
        report.tally.acknowledged,
        report.tally.deliveries,
        asdict(report.tally),
        report.faults,
        report.wrong[:10],
        report.rails,
    )


def append(path: Path, result: Result) -> None:
    """Add one line. A line that was cut off by a crash is not continued."""
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(msgspec.json.encode(result) + b"\n")


def load(path: Path, version: str) -> dict[int, Result]:
    """The results of this version, by seed; {} when there is no file."""
    found: dict[int, Result] = {}
    if path.exists():
        for line in path.read_bytes().splitlines():
            try:
                result = msgspec.json.decode(line, type=Result)
            except msgspec.MsgspecError:
                continue  # cut off, or of a run whose lines had other fields
            if result.version == version:
                found[result.seed] = result
    return found


def summary(results: Iterable[Result]) -> str:
    """The totals, some lines of text."""
    results = list(results)
    faults: Counter[str] = Counter()
    rails: Counter[str] = Counter()
    tally = Tally()
    for result in results:
        faults.update(result.faults)
        rails.update(result.rails)
        tally.add(Tally(**result.tally))
    hours = sum(result.simulated_ms for result in results) / 3_600_000
    healed = sorted(result.healed_ms for result in results) or [0]
    failed = [result.seed for result in results if result.wrong]
    lines = [
        f"{len(results)} seeds, {hours:.2f} simulated hours, {faults.total()} faults, "
        f"{len(failed)} seeds failed",
        *(f"    {name:<14}{count:>12,}" for name, count in asdict(tally).items()),
        f"    drained and in sync after heal: half within {healed[len(healed) // 2]} ms, "
        f"all within {healed[-1]} ms",
        *(f"    {count:>8,}  {kind}" for kind, count in sorted(faults.items())),
        *(f"    {count:>8,}  rails: {kind}" for kind, count in sorted(rails.items())),
    ]
    if failed:
        lines.append(f"failed: {','.join(map(str, sorted(failed)))},")
    return "\n".join(lines)
