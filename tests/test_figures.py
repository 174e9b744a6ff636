"""Figures of speed on the pages are written by commands, from files of results."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
BENCHES = ROOT / "benches"
PERFORMANCE = "docs/performance.md"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHES)


def results(file: str, module: str, kind: str) -> Any:
    found = importlib.import_module("compare.results").Results(
        getattr(importlib.import_module(module), kind), BENCHES / "results" / file
    )
    assert found.samples, f"{file} has no results"
    return found


def summary() -> str:
    main, report = importlib.import_module("compare.__main__"), "compare.report"
    found = results("compare.jsonl", "compare.measure", "Sample")
    return str(importlib.import_module(report).summary(main.PEERS, found))


def readme() -> str:
    main, report = (importlib.import_module(f"compare.{name}") for name in ("__main__", "report"))
    found = results("compare.jsonl", "compare.measure", "Sample")
    return str(report.summary(main.PEERS, found, report.README))


def all_sizes() -> str:
    main, report = (importlib.import_module(f"compare.{name}") for name in ("__main__", "report"))
    return str(report.tables(main.PEERS, results("compare.jsonl", "compare.measure", "Sample")))


def steady() -> str:
    module = importlib.import_module("compare.steady")
    return str(module.table(results("steady.jsonl", "compare.steady", "Steady")))


def tail() -> str:
    module = importlib.import_module("tail")
    return str(module.table(results("tail.jsonl", "tail", "Tail")))


def brokers() -> str:
    module = importlib.import_module("brokers.__main__")
    return str(module.table(results("brokers.jsonl", "brokers.__main__", "Tasks")))


def hosts() -> str:
    module = importlib.import_module("hosts")
    return str(module.table(results("hosts.jsonl", "hosts", "Found")))


@pytest.mark.parametrize(
    ("page", "name", "made"),
    [
        ("README.md", "compare readme", readme),
        (PERFORMANCE, "compare summary", summary),
        (PERFORMANCE, "steady", steady),
        (PERFORMANCE, "tail", tail),
        (PERFORMANCE, "brokers", brokers),
        (PERFORMANCE, "hosts", hosts),
        ("benches/RESULTS.md", "compare", all_sizes),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_table_is_what_its_command_makes_of_the_results(
    page: str, name: str, made: Callable[[], str]
) -> None:
    text = (ROOT / page).read_text("utf-8")
    replaced = importlib.import_module("compare.results").replaced(text, made(), name)
    assert replaced == text, f"{page}: run the command of the table {name} with --rounds 0 --page"


MADE = re.compile(r"<!-- (.+?): begin -->.*?<!-- \1: end -->", re.DOTALL)
SPEED = re.compile(
    r"\d[\d,.]*\s*(?:k|M)?\s*(?:messages?|puts?|tasks?|rows?|MB|confirms?)?\s*(?:a|per) second"
    r"|\d[\d,.]*\s*(?:messages|puts|tasks|rows|MB)/s\b"
    r"|\d[\d,.]* times (?:as|faster|what|the rate|quicker)",
    re.IGNORECASE,
)
SETTINGS = re.compile(
    r"--rate|max-rate|rate=|at most|bytes_per_s|up to|once a second|once per second"
)
"""A line with one of these words says what is set, not what was measured."""
MEASURED_IN = {
    "docs/reliability.md": "the times of failovers, from results/failover.jsonl",
    "docs/sizing.md": "traffic of idle clusters, by `make sim-scale`",
}
"""Pages with figures of their own, and which."""


@pytest.mark.parametrize("page", sorted(path.name for path in (ROOT / "docs").glob("*.md")))
def test_speed_is_said_on_the_page_of_performance(page: str) -> None:
    if f"docs/{page}" in MEASURED_IN:
        return
    text = MADE.sub("", (ROOT / "docs" / page).read_text("utf-8"))
    found = [
        f"{number}: {line.strip()[:120]}"
        for number, line in enumerate(text.splitlines(), 1)
        if SPEED.search(line) and not SETTINGS.search(line)
    ]
    assert not found, f"{page}: link to performance.md in place of {found}"
