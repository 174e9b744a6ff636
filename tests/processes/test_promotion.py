"""Scenario 21 with real processes, and the planned stop of a master by SIGTERM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .cluster import DEADLINE_S, Cluster, PeerError, until
from .oracle import Traffic


def _out_of_sync(cluster: Cluster, **definition: str) -> None:
    """A is master with m1 and m2; its mirror B knows of both and has the body of m1 only."""
    told = {key.replace("_", "-"): value for key, value in definition.items()}
    cluster.found("abw", witnesses="w")
    policy = {"ha-sync-mode": "manual", **told}
    cluster["a"].ask("set_policy", name="p", pattern="^orders$", definition=policy)
    cluster.open("orders", "ab")
    cluster.wait_in_sync(1, on="a")
    assert cluster.ask("a", "put", body="m1") == 1
    cluster["b"].stop_cleanly()
    cluster.wait_in_sync(0, on="a")
    assert cluster.ask("a", "put", body="m2") == 2
    cluster.start("b")
    cluster.open("orders", "b", passive=True)
    until(lambda: _missing(cluster) == 1, lambda: cluster.status("a"))
    assert cluster.status("a")["synchronised_mirrors"] == []


def _missing(cluster: Cluster) -> int:
    """Bodies that B lacks; -1 before it is in the view."""
    return int(cluster["b"].ask("transferred", name="orders").get("missing", -1))


@pytest.mark.parametrize("end", ["cleanly", "killed"])
def test_scenario_21_always_serves_what_it_has(cluster: Cluster, end: str) -> None:
    """The mirror goes on without m2, says so, and the old master comes back as its mirror."""
    _out_of_sync(cluster, ha_promote_on_failure="always", ha_promote_on_shutdown="always")
    if end == "cleanly":
        cluster["a"].stop_cleanly()
    else:
        cluster.kill("a")
    cluster.wait_master("b", on="b")
    assert cluster.ask("b", "browse") == [[1, "m1"]]
    cluster.wait_warned("1 messages are known to be lost", on="b")
    until(lambda: "1 messages are known to be lost" in cluster.log_text("b"))
    assert cluster.ask("b", "put", body="m3") >= 1 << 40
    cluster.start("a")
    cluster.open("orders", "a", passive=True)
    until(lambda: cluster.status("b")["mirrors"] == ["a"], lambda: cluster.status("b"))
    cluster["b"].ask("sync_queue", name="orders")
    cluster.wait_in_sync(1, on="a")
    assert cluster.status("a")["master"] == "b"
    assert [body for _, body in cluster.ask("a", "browse")] == ["m1", "m3"]


@pytest.mark.parametrize("end", ["cleanly", "killed"])
def test_scenario_21_when_synced_waits_for_the_master(cluster: Cluster, end: str) -> None:
    """Down, with the name of the node that must come back; then everything is there. A shutdown
    is judged by its own key, and on-failure: when-synced outranks on-shutdown: always."""
    on_failure, on_shutdown = "always", "when-synced"
    if end == "killed":
        on_failure, on_shutdown = on_shutdown, on_failure
    _out_of_sync(cluster, ha_promote_on_failure=on_failure, ha_promote_on_shutdown=on_shutdown)
    if end == "cleanly":
        cluster["a"].stop_cleanly()
    else:
        cluster.kill("a")
    until(lambda: cluster.status("b")["state"] == "down", lambda: cluster.status("b"))
    how = "shut down" if end == "cleanly" else "failed"
    cluster.wait_warned(f"start a ({how})", on="b")
    with pytest.raises(PeerError, match=rf"QueueDown.*start a \({how}\)"):
        cluster.ask("b", "get", timeout=0.5)
    cluster.start("a")
    cluster.wait_master("a", on="b")
    assert cluster.ask("b", "browse") == [[1, "m1"], [2, "m2"]]


def test_scenario_21_who_was_out_of_the_ring_is_not_promoted(cluster: Cluster) -> None:
    """`always` lets a mirror that is late go on, not a copy from before: that may be a day old."""
    always = {"ha_promote_on_failure": "always", "ha_promote_on_shutdown": "always"}
    _out_of_sync(cluster, **always)
    cluster["b"].stop_cleanly()
    until(lambda: cluster.status("a")["mirrors"] == [], lambda: cluster.status("a"))
    cluster.kill("a")
    cluster.start("b")
    cluster.open("orders", "b", passive=True)
    until(lambda: cluster.status("b")["state"] == "down", lambda: cluster.status("b"))
    told = "start a (failed). The policy lets a mirror that is not in sync go on"
    cluster.wait_warned(told, on="b")
    cluster.start("a")
    cluster.wait_master("a", on="b")
    assert cluster.ask("b", "browse") == [[1, "m1"], [2, "m2"]]


def test_sigterm_hands_the_master_over(cluster: Cluster) -> None:
    """Every publish is confirmed, what was acked never comes again, and the process ends as
    SIGTERM ends one."""
    cluster.found("abc")
    cluster.open("orders", "abc")
    assert cluster.wait_in_sync(2, on="b")["master"] == "a"
    traffic = Traffic(cluster, producer="b", consumer="c", count=5000)
    traffic.wait_confirmed(500)
    process = cluster["a"].process
    process.terminate()
    assert process.wait(DEADLINE_S) == -signal.SIGTERM
    cluster.wait_master("bc", on="b")
    traffic.check(5000)
    assert "a (failed)" not in cluster.log_text("b")


def test_sigterm_and_what_was_acked(cluster: Cluster) -> None:
    """Three of six are acked, and the acks told: after the hand-over only the others come."""
    cluster.found("abc")
    cluster.open("orders", "ab")
    cluster.wait_in_sync(2, on="b")
    for number in range(1, 7):
        cluster.ask("b", "put", body=f"m{number}")
    taken = [cluster.ask("b", "get") for _ in range(3)]
    cluster.ask("b", "ack_many", messages=[one["number"] for one in taken])
    process = cluster["a"].process
    process.terminate()
    assert process.wait(DEADLINE_S) == -signal.SIGTERM
    cluster.wait_master("bc", on="b")
    rest = [cluster.ask("b", "get")["body"] for _ in range(3)]
    assert rest == ["m4", "m5", "m6"]


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
