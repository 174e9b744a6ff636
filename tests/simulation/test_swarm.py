"""Whole clusters under random faults, on virtual time."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from mirrorq.testing.__main__ import describe
from mirrorq.testing.swarm import Swarm

PRINT_TRACE = "from mirrorq.testing.swarm import Swarm; print('\\n'.join(Swarm(7).run().trace))"


@pytest.mark.parametrize("seed", range(40))
def test_nothing_is_lost_whatever_breaks(seed: int) -> None:
    """After faults, heal and drain every checker is content."""
    report = Swarm(seed).run()
    assert not report.wrong, describe(report)


def test_the_same_seed_gives_the_same_run() -> None:
    """A failing seed can be replayed: one trace in each process, whatever its hashes are."""
    traces = [
        subprocess.run(
            [sys.executable, "-c", PRINT_TRACE],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert len(traces[0].splitlines()) > 50
    assert traces[0] == traces[1]
