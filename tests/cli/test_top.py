"""`mirrorq top`: one table, JSON, and a terminal that is redrawn until Ctrl-C."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess

from mirrorq.demo.ports import free_ports

from .running import COMMAND, COMMAND_S, Run, run_alone


def test_it_prints_one_table_without_a_terminal(run: Run) -> None:
    """Nodes and queues, tabs between columns; as JSON with rates beside all of the status."""
    run("queue", "put", "seen", given=b"a\nb\n")
    text = run("top", "--interval", "0.1").stdout.decode()
    nodes, _, queues = text.partition("\n\n")
    assert nodes.splitlines()[0] == "node\tstate\tleads\tmasters\tin_sync\talarms\tspooled"
    assert nodes.splitlines()[1].startswith("a\trunning\tyes\t")
    (row,) = [line.split("\t") for line in queues.splitlines() if line.startswith("seen\t")]
    assert row[1:6] == ["running", "a", "1/1", "2", "0"]
    shown = json.loads(run("top", "--once", "--json", "--interval", "0.1").stdout)
    (seen,) = [queue for queue in shown["queues"] if queue["name"] == "seen"]
    assert seen["messages_ready"] == 2
    assert {"put_s", "get_s", "ack_s"} <= set(seen)


def test_it_is_redrawn_until_ctrl_c(run: Run, endpoint: str) -> None:
    """On a terminal: what comes is shown, and Ctrl-C ends it with status 0 and no traceback."""
    run("queue", "put", "first-queue", given=b"a\n")
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "200", "TERM": "xterm"}
    arguments = ["top", "--interval", "0.1", "--connect", endpoint]
    try:
        with subprocess.Popen(
            [*COMMAND, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
        ) as process:
            os.close(theirs)
            try:
                seen = read_until(ours, b"first-queue")
                run("queue", "put", "second-queue", given=b"a\n")
                seen += read_until(ours, b"second-queue")
                process.send_signal(signal.SIGINT)
                seen += read_until(ours, None)
                assert process.wait(COMMAND_S) == 0
            finally:
                process.kill()
    finally:
        os.close(ours)
    assert b"Traceback" not in seen


def read_until(descriptor: int, wanted: bytes | None) -> bytes:
    """What comes from a terminal, up to this, or to its end."""
    seen = b""
    while wanted is None or wanted not in seen:
        assert select.select([descriptor], [], [], COMMAND_S)[0], f"nothing came after {seen!r}"
        try:
            chunk = os.read(descriptor, 4096)
        except OSError:
            break
        if not chunk:
            break
        seen += chunk
    assert wanted is None or wanted in seen, seen
    return seen


def test_an_unreachable_cluster_is_one_line() -> None:
    """All endpoints are named."""
    endpoints = ",".join(f"tcp://127.0.0.1:{port}" for port in free_ports(2))
    done = run_alone("top", "--connect", endpoints, "--wait", "0.3")
    assert done.returncode == 1
    assert done.stderr.count(b"\n") == 1
    assert all(endpoint.encode() in done.stderr for endpoint in endpoints.split(","))
