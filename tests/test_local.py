"""benches/local.py: that it measures what it names, and counts each phase of a put."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.real, pytest.mark.soak]

BENCH = Path(__file__).parents[1] / "benches" / "local.py"


def test_a_put_is_compared_and_all_of_its_phases_are_counted(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCH), "--puts", "2", "--rounds", "1", "--path", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    compared, _, phases = ran.stdout.partition("one put, until")
    assert re.search(r"^bare write +\d+ +\d+ +1\.00$", compared, re.M), compared
    assert re.search(r"^local queue +\d+ +\d+ +\d+\.\d\d$", compared, re.M), compared
    counts = [int(count) for count in re.findall(r" (\d+)$", phases, re.M)]
    assert len(counts) == 11, phases
    assert abs(sum(counts[:-1]) - counts[-1]) <= len(counts), "the phases are the whole"
    assert min(counts) > 0, phases
