"""A package of benches/ run as a program: `python -m compare`, `python -m brokers`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

BENCHES = Path(__file__).parents[1] / "benches"


def run_bench(
    program: str, *arguments: str, path: str = os.environ["PATH"]
) -> subprocess.CompletedProcess[str]:
    """Run it to its end.

    Args:
        path: the environment's `PATH`: what is not on it is not installed.
    """
    return subprocess.run(
        [sys.executable, "-m", program, *arguments],
        cwd=BENCHES,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
