"""benches/ceiling.py: the measuring stick itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.real, pytest.mark.soak]

CEILING = Path(__file__).parents[1] / "benches" / "ceiling.py"


def test_it_measures_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """Both parts of both runs give figures, and stores and processes are gone afterwards."""
    done = subprocess.run(
        [sys.executable, str(CEILING), "--json", "--seconds", "0.2", "--path", str(tmp_path)],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    results = json.loads(done.stdout)
    assert [result["busy"] for result in results] == [False, True]
    assert all(result["messages_per_second"] > 0 for result in results)
    assert all(0 < result["latency_p50_ms"] <= result["latency_p99_ms"] for result in results)
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """A wrong --path ends with a failure and starts no process that would wait for ever."""
    done = subprocess.run(
        [sys.executable, str(CEILING), "--path", str(tmp_path / "absent")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert "absent" in done.stderr
