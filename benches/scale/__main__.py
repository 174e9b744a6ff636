"""How mirrorq grows with what is asked of it, and what became of each aim.

    python -m scale                                  # everything but the deepest queue: an hour
    python -m scale --only nodes,sizes               # some of it
    python -m scale --only depth --depths 0,50000000 # 6 GB of disk, minutes of filling
    python -m scale --only ''                        # nothing: the tables of what was found before

Run in benches/. Samples are added to results/scale.jsonl, and tables are made of all in it; with
`--write` they go into RESULTS.md, and a picture to results/scale.svg. `--anew` forgets what it has
of the parts that are measured. Beside what a clock says stand CPU time and instructions a message,
which other work on the machine changes less.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from compare.peer import end_servers_on_sigterm
from compare.report import RESULTS
from compare.results import write_into
from scale import depth, lasting, nodes, peers, places, producers, queues, sizes
from scale.aims import aims_table
from scale.part import Sample, Settings, append, read, tell
from scale.report import plot, table

CURVES = [nodes.PART, queues.PART, producers.PART, sizes.PART, depth.PART, lasting.PART]
ROWS = [
    places.BENCH,
    places.TAKES,
    peers.REPLICATED,
    peers.EMBEDDED,
    peers.OTHERS,
]
PARTS = [*CURVES, *ROWS]
LEVELS = {
    "nodes": "1,3,5,7",
    "queues": "1,10,100,1000",
    "producers": "1,10,50,200",
    "sizes": "100,1024,16384,65536,262144,1048576,4194304,16777216",
    "depth": "0,100000,1000000,10000000",
}


def main() -> None:
    end_servers_on_sigterm()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    names = ",".join(part.name for part in PARTS)
    parser.add_argument("--only", default=names, help="names of parts, by commas; '' for none")
    for name, levels in LEVELS.items():
        option = "--depths" if name == "depth" else f"--{name}"
        parser.add_argument(option, dest=name, default=levels, help="by commas")
    parser.add_argument("--messages", type=int, default=2_000_000, help="that churn turns over")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0, help="about, of each thing measured")
    parser.add_argument("--path", type=Path, help="directory on the disk that counts")
    parser.add_argument("--results", type=Path, default=Path("results/scale.jsonl"))
    parser.add_argument("--anew", action="store_true", help="forget what was found of these parts")
    parser.add_argument(
        "--write", action="store_true", help="put the tables into RESULTS.md, and draw a picture"
    )
    options = parser.parse_args()
    wanted = [name.strip() for name in options.only.split(",") if name.strip()]
    for name in wanted:
        if name not in names.split(","):
            parser.error(f"--only {name}: the parts are {names}")
    settings = Settings(
        path=options.path,
        seconds=options.seconds,
        levels={name: _numbers(getattr(options, name)) for name in LEVELS},
        messages=options.messages,
    )
    samples = read(options.results)
    if options.anew:
        samples = [each for each in samples if each.part not in wanted]
        options.results.unlink(missing_ok=True)
        for sample in samples:
            append(options.results, sample)
    _measure(wanted, settings, options.rounds, options.results)
    found = read(options.results)
    _report(found, options.write)
    if options.write:
        plot(CURVES, found, options.results.with_suffix(".svg"))


def _numbers(text: str) -> list[int]:
    return sorted(int(number) for number in text.split(","))


def _measure(wanted: list[str], settings: Settings, rounds: int, results: Path) -> None:
    for number in range(rounds):
        for part in PARTS:
            if part.name in wanted:
                tell(f"{part.name} (round {number + 1} of {rounds})")
                for sample in part.run(settings):
                    append(results, sample)
    tell("")
    print("\r", end="", file=sys.stderr)


def _report(samples: list[Sample], write: bool) -> None:
    shown = [part for part in PARTS if any(each.part == part.name for each in samples)]
    for part in shown:
        text = table(part, samples)
        print(f"{part.name}: {text}\n")
        if write:
            write_into(RESULTS, text, f"scale {part.name}")
    aims = aims_table(samples)
    print(aims)
    if write:
        write_into(RESULTS, aims, "aims")


if __name__ == "__main__":
    main()
