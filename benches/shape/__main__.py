"""A queue of any depth, of messages that are not alike: every row of its table.

    python -m shape                                    # 1,000,000 messages: minutes
    python -m shape --messages 50000000 --only load    # one row of it
    python -m shape --only ''                          # nothing: the table of what was found before

Run in benches/. Samples are added to results/shape.jsonl, the table is made of all of them;
`--page RESULTS.md` puts it there. Rows but the last one go on with the queue of
the first.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from compare.results import write_into
from mirrorq import Config
from scale.part import Sample, append, found, read, tell
from scale.report import figure
from shape.rows import FULL_BYTES, KEY, ROWS, Row, nodes


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    names = ",".join(row.name for row in ROWS)
    parser.add_argument("--only", default=names, help="names of rows, by commas; '' for none")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--path", type=Path, help="directory on the disk that counts")
    parser.add_argument("--results", type=Path, default=Path("results/shape.jsonl"))
    parser.add_argument("--page", type=Path, help="page that gets the table")
    options = parser.parse_args()
    wanted = [name.strip() for name in options.only.split(",") if name.strip()]
    for name in wanted:
        if name not in names.split(","):
            parser.error(f"--only {name}: the rows are {names}")
    if wanted:
        _measure(wanted, options.messages, options.path, options.results)
    text = table(read(options.results))
    print(text)
    if options.page is not None:
        write_into(options.page, text, "shape")


def _measure(wanted: Sequence[str], count: int, path: Path | None, file: Path) -> None:
    deep = [row for row in ROWS if row.name in wanted and row.name != "full"]
    if deep:
        # They need the queue that the first row makes.
        with nodes(path) as run:
            for row in [ROWS[0], *(row for row in deep if row is not ROWS[0])]:
                _note(row, row.run(run, count), count, file)
    if "full" in wanted:
        with nodes(path, Config(store_bytes_max=FULL_BYTES)) as run:
            row = ROWS[-1]
            _note(row, row.run(run, count), count, file)
    tell("")


def _note(row: Row, figures: dict[str, float], count: int, file: Path) -> None:
    tell(f"shape: {row.name}")
    append(file, found(f"shape {row.name}", str(count), **figures))


def table(samples: Sequence[Sample]) -> str:
    """Markdown: a row for each thing and depth, medians over the samples."""
    own = [each for each in samples if each.part.startswith("shape ")]
    counts = sorted({int(each.at) for each in own})
    days = sorted({each.day for each in own}) or ["never"]
    lines = [
        f"Three nodes; samples of {' to '.join(dict.fromkeys((days[0], days[-1])))}.",
        "",
        "| messages | what | measured | aim | longest step of a node, ms |",
        "|---:|---|---:|---:|---:|",
    ]
    for count in counts:
        for row in ROWS:
            cell = _cell(own, row, str(count), KEY[row.unit])
            if cell:
                aim = f"{row.aim} {row.unit}" if row.aim.isdigit() else row.aim
                step = _cell(own, row, str(count), "step_max_ms")
                cells = [f"{count:,}", row.what, f"{cell} {row.unit}", aim, step]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(samples: Sequence[Sample], row: Row, at: str, key: str) -> str:
    value = figure(samples, f"shape {row.name}", at, key)
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


if __name__ == "__main__":
    main()
