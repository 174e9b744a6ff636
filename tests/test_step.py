"""benches/step.py: that it counts, and counts the same in each run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.real, pytest.mark.soak]

BENCH = Path(__file__).parents[1] / "benches" / "step.py"


def run(path: Path) -> dict[tuple[str, str], int]:
    """Bytecodes by (what is done, where)."""
    command = [sys.executable, str(BENCH), "--count", "3", "--path", str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    rows = re.findall(r"^(put|ack) +(master|producer|other|user) +[\d.]+ +(\d+)", ran.stdout, re.M)
    return {(what, where): int(bytecodes) for what, where, bytecodes in rows}


def test_each_node_is_counted_by_itself_and_each_run_counts_the_same(tmp_path: Path) -> None:
    """To one part in a hundred: store ids are drawn anew, and have more or fewer digits."""
    found, again = run(tmp_path), run(tmp_path)
    assert len(found) == 8
    assert found.keys() == again.keys()
    for row, bytecodes in found.items():
        assert abs(again[row] - bytecodes) * 100 <= bytecodes, row
