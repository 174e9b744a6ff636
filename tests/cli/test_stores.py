"""`mirrorq store verify`, `backup` and `restore`: stores as a user handles them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.kit import free_endpoint

import mirrorq
from mirrorq.store.environment import DATA_FILE

from .running import COMMAND_S, run_alone, start_node


def test_the_store_of_a_killed_node_is_good(tmp_path: Path) -> None:
    """Killed at work, its store is called good; damaged, what is wrong is listed; while the node
    runs, or where none was, one line says so."""
    endpoint = free_endpoint()
    path = tmp_path / "store"
    with start_node(tmp_path, endpoint) as node:
        # The last one is too large for the write-ahead log: LMDB has it, and all before it.
        bodies = b"one\ntwo\n" * 500 + b"x" * 100_000 + b"\n"
        run_alone("queue", "put", "orders", "--connect", endpoint, given=bodies)
        in_use = run_alone("store", "verify", str(path))
        node.kill()
    assert in_use.returncode == 1
    assert in_use.stderr.startswith(f"mirrorq: store {path} is open in another process".encode())
    assert in_use.stderr.count(b"\n") == 1

    good = run_alone("store", "verify", str(path))
    assert good.returncode == 0, good.stderr
    assert good.stdout.startswith(b"good: node a, store ")
    assert b"1 queues, 1001 messages" in good.stdout

    data = (path / DATA_FILE).read_bytes()
    at = data.index(b"onetwoonetwo")
    (path / DATA_FILE).write_bytes(data[:at] + b"O" + data[at + 1 :])
    damaged = run_alone("store", "verify", str(path), "--json")
    assert damaged.returncode == 1
    assert damaged.stderr.count(b"\n") == 1
    shown = json.loads(damaged.stdout)
    assert shown["ok"] is False
    assert "database 'messages'" in shown["problems"][0]


def test_what_is_no_store_is_called_so(tmp_path: Path) -> None:
    """Nothing there, something else there, an end cut off: one line, and status 1."""
    missing = run_alone("store", "verify", str(tmp_path / "nowhere"))
    (tmp_path / DATA_FILE).write_bytes(b"something else" * 1000)
    other = run_alone("store", "verify", str(tmp_path))
    for done in (missing, other):
        assert done.returncode == 1
        assert b"is not a store" in done.stderr
        assert done.stderr.count(b"\n") == 1
    with mirrorq.Node("a", path=tmp_path / "a") as node:
        node.queue("orders").put(b"x" * 100_000).result(COMMAND_S)
    shutil.copytree(tmp_path / "a", tmp_path / "cut")
    with (tmp_path / "cut" / DATA_FILE).open("r+b") as file:
        file.truncate(20_000)
    cut = run_alone("store", "verify", str(tmp_path / "cut"))
    assert cut.returncode == 1
    assert b"damaged\t" in cut.stdout


def test_a_store_whose_path_the_locale_cannot_write(tmp_path: Path) -> None:
    """In the C locale a name is its bytes: the store opens, is copied and put back by them."""
    path, backup, again = (str(tmp_path / name) for name in ("größe", "größer", "größte"))
    strange = [sys.executable, "-X", "utf8=0"]
    script = "import sys, mirrorq; q = mirrorq.MirroredQueue('q', path=sys.argv[1]); {}; q.close()"
    for words in (
        ["-c", script.format("q.put(b'one').result(30)"), path],
        ["-m", "mirrorq", "store", "backup", path, backup],
        ["-m", "mirrorq", "store", "verify", backup],
        ["-m", "mirrorq", "store", "restore", backup, again],
        ["-c", script.format("q.get(timeout=30).ack().result(30)"), again],
    ):
        done = subprocess.run(
            [*strange, *words],
            env={**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"},
            capture_output=True,
            timeout=COMMAND_S,
        )
        assert done.returncode == 0, done.stderr
