"""From an older mirrorq to this one, node by node, under load.

Needs another mirrorq: `make upgrade OLD=COMMIT` builds it and runs this.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .cluster import DEADLINE_S, Cluster, until
from .oracle import Traffic

OLD = os.environ.get("MIRRORQ_OLD", "")
NEW = str(Path(__file__).parents[2] / "src")
TOP = 400_000
"""More than is ever sent: the producer is stopped."""
VERY_PATIENT = {
    "failure_ms": 8000,
    "session_expiry_ms": 8000,
    "lag_ms_max": 8000,
    "election_ms": 4000,
}
"""Versions are tried here, not how little time the machine may give them."""

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not OLD, reason="make upgrade names the other version"),
]


def home_of(old: bool) -> str:
    return str(Path(OLD).resolve()) if old else NEW


def settings_of(*, rail: bool) -> dict[str, bool]:
    """Settings that an old node may not know."""
    return {"star": rail, "rail": rail}


def replace(cluster: Cluster, name: str, *, old: bool, on: str, rail: bool = False) -> None:
    """Stop a node in good order, start the other version on its store, wait until it is in sync."""
    cluster[name].stop_cleanly()
    config = {**cluster.config, **({} if old else settings_of(rail=rail))}
    cluster.launch(name, home=home_of(old), config=config)
    cluster[name].wait_started()
    assert cluster[name].ask("home") == home_of(old)
    cluster[name].ask("wait_ready")
    cluster.open("orders", on=name, timeout=DEADLINE_S)
    cluster.wait_in_sync(2, on=on)
    cluster.wait_in_sync(2, on=name)


def wait_railed(cluster: Cluster) -> None:
    """Until a rail takes something, of messages of which each waits for the one before: those of
    loads overlap on a slow machine, and go along the row then."""
    queue = cluster["b"].ask("queue", name="beside", timeout=DEADLINE_S)
    logs = [cluster.path / name / "mirrorq.rail" for name in "abc"]

    def is_railed() -> bool:
        cluster["b"].ask("put", queue=queue, body="waits")
        return any(any(log.read_bytes()) for log in logs)

    until(is_railed, "a rail takes something")


@pytest.mark.parametrize("rail", [False, True], ids=["neither", "star and rail"])
@pytest.mark.parametrize("ways", ["there", "there and back"])
def test_nodes_are_replaced_one_by_one_under_load(cluster: Cluster, ways: str, rail: bool) -> None:
    """Mirrors first, the master last. A client of each version publishes, the other consumes;
    nothing is lost, nothing comes twice unflagged, and what waited before is still there. The way
    back, for who thinks better of it; also of star and rail, which old nodes do not know."""
    assert home_of(old=True) != NEW
    cluster.config = dict(VERY_PATIENT)
    cluster.name_all("abc")
    for name in "abc":
        cluster.launch(name, home=home_of(old=True))
    for name in "abc":
        cluster[name].wait_started()
        assert cluster[name].ask("home") == home_of(old=True)
        cluster[name].ask("wait_ready")
    cluster.open("kept", on="abc", timeout=DEADLINE_S)
    cluster.ask("a", "put_many", bodies=[str(number) for number in range(1000)])
    cluster.open("orders", on="abc", timeout=DEADLINE_S)
    cluster.wait_in_sync(2, on="a")

    old_client = cluster.client("old", home=home_of(old=True))
    new_client = cluster.client("new", home=NEW)
    assert old_client.ask("home") != new_client.ask("home")
    ends = (old_client, new_client) if ways == "there" else (new_client, old_client)
    load = Traffic(*ends, TOP, pause_s=0.002)
    load.wait_more_confirmed(200)
    for old in [False] if ways == "there" else [False, True]:
        for name, on in (("c", "a"), ("b", "a"), ("a", "b")):
            replace(cluster, name, old=old, on=on, rail=rail)
            load.wait_more_confirmed(200)
        if rail and not old:
            wait_railed(cluster)
    load.stop()
    assert load.check() > 1000

    cluster.open("kept", on="c", timeout=DEADLINE_S)
    kept = [message["body"] for message in cluster.ask("c", "take", count=1000)]
    assert kept == [str(number) for number in range(1000)]
    for name in "abc":
        log = cluster.log_text(name)
        assert not [line for line in log.splitlines() if "garbage" in line or "version" in line]


PUT_AND_DIE = """
import os, signal, sys
from mirrorq import MirroredQueue

handle = MirroredQueue("q", path=sys.argv[1])
for number in range(5):
    handle.put(b"%d" % number).result(60)
os.kill(os.getpid(), signal.SIGKILL)
"""
OPEN = """
import sys
from mirrorq import MirroredQueue

with MirroredQueue("q", path=sys.argv[1]) as handle:
    print(handle.qsize())
"""


def run(script: str, path: Path, *, old: bool) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, str(path)],
        env={**os.environ, "PYTHONPATH": home_of(old)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


def test_a_killed_store_goes_back_when_it_was_closed(tmp_path: Path) -> None:
    """Of a node that was killed the last commits are in the write-ahead log, which the old version
    does not know: it refuses the store, and takes it when this version has started and ended."""
    path = tmp_path / "store"
    assert run(OPEN, path, old=True).stdout == "0\n"
    assert run(PUT_AND_DIE, path, old=False).returncode == -signal.SIGKILL
    refused = run(OPEN, path, old=True)
    assert "has format 2, this mirrorq reads 1" in refused.stderr, refused
    for old in (False, True, False):
        assert run(OPEN, path, old=old).stdout == "5\n"
