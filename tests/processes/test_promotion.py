"""Scenario 21 with real processes, and the planned stop of a master by SIGTERM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .cluster import DEADLINE_S, Cluster
from .oracle import Traffic


@pytest.mark.smoke
def test_sigterm_hands_the_master_over(cluster: Cluster) -> None:
    """Every publish is confirmed, what was acked never comes again, and the process ends as
    SIGTERM ends one."""
    cluster.serve("abc")
    traffic = Traffic(cluster["b"], cluster["c"], 5000)
    traffic.wait_confirmed(500)
    process = cluster["a"].process
    process.terminate()
    assert process.wait(DEADLINE_S) == -signal.SIGTERM
    cluster.wait_master("bc", on="b")
    traffic.check()
    assert "a (failed)" not in cluster.log_text("b")


PROGRAM = """
import os, signal, sys, threading, time, mirrorq
kind, path = sys.argv[1:]
if kind == "before":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
if kind == "ignored":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if kind == "thread":
    def make():
        global node
        node = mirrorq.Node("a", path=path)
    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
else:
    node = mirrorq.Node("a", path=path)
if kind == "after":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(8))
if kind == "closed":
    node.close()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
if kind == "fork":
    ready, told = os.pipe()
    child = os.fork()
    if not child:
        os.write(told, b"!")
        while True:  # a signal that comes just before a sleep is looked at after it
            time.sleep(0.05)
    os.read(ready, 1)  # before that Python forgets signals in a child
    os.kill(child, signal.SIGTERM)
    status = os.waitpid(child, 0)[1]
    assert os.WTERMSIG(status) == signal.SIGTERM, status
queue = None if kind == "closed" else node.queue("q")
os.kill(os.getpid(), signal.SIGTERM)
if kind == "ignored":
    os._exit(9)
if kind == "main ends":
    sys.exit(3)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("kind", "status", "is_closed"),
    [
        ("default", -signal.SIGTERM, True),
        ("main ends", -signal.SIGTERM, True),
        ("fork", -signal.SIGTERM, True),
        ("closed", -signal.SIGTERM, True),
        ("before", 7, False),
        ("after", 8, False),
        ("ignored", 9, False),
        ("thread", -signal.SIGTERM, False),
    ],
)
def test_who_is_in_charge_of_sigterm(
    kind: str, status: int, is_closed: bool, tmp_path: Path
) -> None:
    """The default disposition and a node made in the main thread: the store is closed in good
    order, and the process ends by SIGTERM. Anything else is as if mirrorq were not there."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, kind, str(tmp_path / "a")],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env=dict(os.environ),
    )
    assert done.returncode == status, done.stderr
    lock = (tmp_path / "a" / "mirrorq.lock").read_text()
    assert lock.startswith("closed") == is_closed, lock
