"""Tables and the picture, out of all samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from scale.part import Part, Sample

WIDE = 50
"""A curve that goes as far is drawn on a logarithmic scale."""


def table(part: Part, samples: Sequence[Sample]) -> str:
    """Markdown: a row for each place of the curve, medians over its samples."""
    own = [each for each in samples if each.part == part.name]
    columns = [c for c in part.columns if any(c.key in each.figures for each in own)]
    lines = [
        f"{_occasion(own)}",
        "",
        "| " + " | ".join([part.what, *(column.head for column in columns)]) + " |",
        "|---:|" + "---:|" * len(columns),
    ]
    for place in places(own):
        row = [f"{int(place):,}" if place.isdigit() else place]
        for column in columns:
            value = figure(own, part.name, place, column.key)
            row.append("" if value is None else f"{value:,.{column.digits}f}")
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def _occasion(samples: Sequence[Sample]) -> str:
    runs = max(sum(each.at == at for each in samples) for at in {each.at for each in samples})
    days = sorted({each.day for each in samples})
    loads = [each.load for each in samples]
    return (
        f"Medians of up to {runs} samples, {' to '.join(dict.fromkeys((days[0], days[-1])))}, "
        f"load average {min(loads):.0f} to {max(loads):.0f}."
    )


def places(samples: Sequence[Sample]) -> list[str]:
    """Numbers in their order, names as they came."""
    found = dict.fromkeys(each.at for each in samples)
    return sorted(found, key=lambda at: (0, int(at)) if at.isdigit() else (1, 0))


def figure(samples: Sequence[Sample], part: str, at: str, key: str) -> float | None:
    """The median of a figure; None when no sample has it."""
    values = [
        each.figures[key]
        for each in samples
        if (each.part, each.at) == (part, at) and key in each.figures
    ]
    return median(values) if values else None


def plot(parts: Sequence[Part], samples: Sequence[Sample], file: Path) -> None:
    """One small picture for each curve."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as pyplot

    drawn = [part for part in parts if part.plotted and any(s.part == part.name for s in samples)]
    figure_, axes = pyplot.subplots(
        (len(drawn) + 1) // 2, 2, figsize=(11, 3.2 * ((len(drawn) + 1) // 2)), squeeze=False
    )
    for axis in axes.flat[len(drawn) :]:
        axis.set_visible(False)
    for part, axis in zip(drawn, axes.flat, strict=False):
        _draw(part, [each for each in samples if each.part == part.name], axis)
    figure_.tight_layout()
    figure_.savefig(file, metadata={"Date": None})


def _draw(part: Part, own: Sequence[Sample], axis: Any) -> None:
    ats = places(own)
    for key, called in part.plotted.items():
        points = [(int(at), figure(own, part.name, at, key)) for at in ats]
        known = [point for point in points if point[1] is not None]
        axis.plot(*zip(*known, strict=True), marker="o", markersize=3, label=called)
    if int(ats[-1]) >= WIDE:
        axis.set_xscale("symlog" if ats[0] == "0" else "log")
    axis.set_ylim(bottom=0)
    axis.set_xlabel(part.what)
    axis.set_ylabel(part.unit)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=7)
