"""benches/compare: what it measures, what it skips, and what it writes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from tests.bench_program import run_bench

pytestmark = [pytest.mark.real, pytest.mark.soak]

run = partial(run_bench, "compare")


def test_the_embedded_ones_side_by_side(tmp_path: Path) -> None:
    results, page = tmp_path / "found.jsonl", tmp_path / "page.md"
    common = ("--sizes", "100", "--seconds", "0.05", "--results", str(results))
    done = run("--only", "queue.Queue,alone", "--rounds", "2", *common)
    assert done.returncode == 0, done.stderr
    samples = [json.loads(line) for line in results.read_text().splitlines()]
    assert [sample["peer"] for sample in samples] == 2 * [
        "mirrorq alone, batches",
        "mirrorq alone, without waiting",
        "queue.Queue",
    ]
    assert all(each["publish"] > 0 and each["take"] > 0 for each in samples)
    assert all(0 < each["p50_ms"] <= each["p99_ms"] for each in samples)
    assert "2 rounds" in done.stdout
    assert done.stdout.count("| mirrorq alone") == 2
    again = run("--rounds", "0", *common)
    assert again.returncode == 0, again.stderr
    assert "2 rounds" in again.stdout, "the report is of what is in the file"
    assert not page.exists()


def test_what_is_not_installed_is_skipped_with_a_sentence(tmp_path: Path) -> None:
    """On a path without programs, no server is found; a package may be missing before that."""
    done = run("--only", "nats", "--rounds", "2", path=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.count("skipped NATS JetStream R3: ") == 1, "not tried again in each round"
    assert "install nats" in done.stderr
    assert "nothing could be measured" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_name_that_is_none(tmp_path: Path) -> None:
    done = run("--only", "kafka")
    assert done.returncode == 2
    assert "RabbitMQ, quorum queue" in done.stderr
