"""One curve, or one group of rows: how it is measured, and how its samples become a table."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import msgspec


class Sample(msgspec.Struct):
    """What one run found at one place of a curve."""

    part: str
    at: str
    """Where on the curve, or which row."""
    figures: dict[str, float]
    """By the keys of the part's columns."""
    day: str
    load: float
    """Load average of the machine before the run: other work, mostly."""


class Column(NamedTuple):
    """One column of a part's table: the median of a figure over the samples."""

    key: str
    head: str
    digits: int = 0


class Settings(NamedTuple):
    """What the command line asks for."""

    path: Path | None
    """Directory on the disk that counts; None: the temporary one."""
    seconds: float
    """About so long is each thing measured."""
    levels: dict[str, list[int]]
    """Where on its curve each part measures."""
    messages: int
    """How many the churn turns over."""


class Part(NamedTuple):
    """What can be chosen with `--only`."""

    name: str
    what: str
    """Head of the first column."""
    run: Callable[[Settings], Iterator[Sample]]
    columns: Sequence[Column]
    plotted: Mapping[str, str] = MappingProxyType({})
    """What the picture shows: keys of figures, and what they are called there."""
    unit: str = ""
    """Of what is plotted."""


def found(part: str, at: object, **figures: float | None) -> Sample:
    """A sample of now; figures that could not be taken are left out."""
    known = {key: float(f"{value:.5g}") for key, value in figures.items() if value is not None}
    return Sample(part, str(at), known, time.strftime("%Y-%m-%d"), round(os.getloadavg()[0], 1))


def tell(text: str) -> None:
    """Show progress, over what was shown before."""
    shown = text[:78]
    print(f"\r{shown:78}", end="", file=sys.stderr, flush=True)


def read(file: Path | None) -> list[Sample]:
    if file is None or not file.exists():
        return []
    return [msgspec.json.decode(line, type=Sample) for line in file.read_bytes().splitlines()]


def append(file: Path | None, sample: Sample) -> None:
    if file is not None:
        with file.open("ab") as opened:
            opened.write(msgspec.json.encode(sample) + b"\n")


def each(settings: Settings, part: str, what: str) -> Iterator[int]:
    """The places of a curve, with progress."""
    levels = settings.levels[part]
    for number, level in enumerate(levels):
        tell(f"{part}: {level:,} {what} ({number + 1} of {len(levels)})")
        yield level
