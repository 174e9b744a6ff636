"""A short form of `make chaos`: real processes, real faults, the checks of what clients saw."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from harness import TESTS
from harness.chaos.course import Plan, run

from .cluster import DEADLINE_S

pytestmark = pytest.mark.soak

SECONDS = 5.0


FORGETS_COUNTS = """
from mirrorq.api.message import Message


Message.delivery_count = property(lambda self: 1)
Message.redelivered = property(lambda self: False)
"""
FORGETS_LOGS = """
from mirrorq.protocol.effects import QueueImage

from mirrorq.store.node_store import Store


Store.load = lambda self, queue_id: QueueImage(queue_id)
"""


@pytest.mark.parametrize(
    # Of two nodes, many are all: nobody is left who has what they forget.
    ("broken", "kind", "nodes"),
    [
        (FORGETS_COUNTS, "kill", 3),
        pytest.param(FORGETS_LOGS, "kill-many", 2, marks=pytest.mark.soak),
    ],
)
def test_a_broken_build_is_caught(
    broken: str, kind: str, nodes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run can fail: messages that come again say so no more; what was on disk is forgotten."""
    (tmp_path / "sitecustomize.py").write_text(broken)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    for seed in range(1, 6):
        found = run(Plan(seed, nodes, SECONDS, kinds=(kind,), heal_s=30.0)).findings
        if found.lost or found.duplicated or found.unexpected or found.misplaced:
            return
    pytest.fail(f"five runs of a broken build found nothing: {found}")


def test_an_interrupted_run_leaves_nothing_and_goes_on_later(tmp_path: Path) -> None:
    """Ctrl-C ends every process and says so; what is in the results file is not run again."""
    results = tmp_path / "results" / "chaos.jsonl"
    results.parent.mkdir()
    done = {
        "seed": 5,
        "nodes": 3,
        "wires": "proxies",
        "took_s": 1.0,
        "faults": {"kill": 1},
        "wrong": [],
    }
    names = ("attempts", "acknowledged", "ok", "lost", "unexpected", "duplicated", "recovered")
    results.write_text(json.dumps({**done, **dict.fromkeys(names, 7)}) + "\n")
    module = [sys.executable, "-m", "harness.chaos", "--results", str(results)]
    place = tmp_path / "tmp"
    place.mkdir()
    running = subprocess.Popen(
        [*module, "--seeds", "5-6", "--nodes", "3", "--seconds", "600"],
        cwd=TESTS,
        env={**os.environ, "TMPDIR": str(place)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        until_s = time.monotonic() + DEADLINE_S
        # A fault may keep some of them down at any one moment: wait for three nodes and two users.
        while len(children := children_of(running.pid)) < 5:
            assert time.monotonic() < until_s
            assert running.poll() is None
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        _, error = running.communicate(timeout=DEADLINE_S)
    finally:
        if running.poll() is None:
            # It has file systems to take down.
            running.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                running.wait(DEADLINE_S)
        running.kill()
    assert running.returncode == 130
    assert b"every process is ended" in error
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)
    assert not list(place.iterdir())
    again = subprocess.run(
        [*module, "--seeds", "5,", "--nodes", "3"],
        cwd=TESTS,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "1 runs, 0 failed" in again.stdout


def children_of(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[1]
            except OSError:
                continue
            if int(parent) == pid:
                found.append(int(entry.name))
    return found
