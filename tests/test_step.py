"""benches/step.py: that it counts, and counts the same in each run."""

import re
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[1] / "benches" / "step.py"


def run(path: Path) -> str:
    command = [sys.executable, str(BENCH), "--count", "3", "--path", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout


def test_each_node_is_counted_by_itself_and_each_run_counts_the_same(tmp_path: Path) -> None:
    found = run(tmp_path)
    rows = re.findall(r"^(put|ack) +(master|producer|other|user) +[\d.]+ +(\d+)", found, re.M)
    assert len(rows) == 8
    assert all(int(bytecodes) > 0 for _, _, bytecodes in rows)
    assert run(tmp_path) == found
