"""benches/brokers: what it measures here, what it leaves out, and what a dead machine loses."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from tests.bench_program import run_bench

pytestmark = [pytest.mark.real, pytest.mark.soak]

run = partial(run_bench, "brokers")


def test_mirrorq_is_measured(tmp_path: Path) -> None:
    """One node, with both kinds of workers; nothing is left behind."""
    pytest.importorskip("celery")
    only = ("--only", "mirrorq, one", "--path", str(tmp_path))
    done = run("--tasks", "20", "--rounds", "1", "--kills", "0", *only)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("| mirrorq, one node |") == 2
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_installed_is_left_out_with_a_sentence(tmp_path: Path) -> None:
    only = ("--only", "Redis", "--path", str(tmp_path))
    done = run("--rounds", "1", "--kills", "0", *only, path=str(tmp_path))
    assert done.returncode == 0
    assert "left out Redis" in done.stderr
