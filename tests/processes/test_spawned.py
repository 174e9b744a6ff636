"""`Node.spawn`: a node as a process that its parent keeps."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from tests.kit import free_endpoint

import mirrorq
from mirrorq import (
    Config,
    ConfigError,
    MirrorQError,
    Node,
    Security,
    ShutDown,
    StoreLocked,
    connect,
)
from mirrorq.cli.keys import keygen
from mirrorq.security.roles import Key
from mirrorq.store.node_store import Store
from mirrorq.transport.curve import new_key_pair

from .cluster import DEADLINE_S, until


def is_running(pid: int) -> bool:
    """Whether there is such a process, and it is more than a name in the table."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.smoke
def test_it_is_kept_and_stopped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Killed, it is back at the same place with what was confirmed; its log is here; stopped,
    its store is free."""
    with caplog.at_level(logging.INFO, "mirrorq"), Node.spawn("a", path=tmp_path) as node:
        node.wait_ready(DEADLINE_S)
        assert node.endpoint == f"ipc://{tmp_path}/node.sock"
        first = node.pid
        assert first is not None
        with node.connect(timeout=DEADLINE_S) as client:
            queue = client.queue("q", timeout=DEADLINE_S)
            queue.put(b"1").result(DEADLINE_S)
            os.kill(first, signal.SIGKILL)
            assert queue.put(b"2").result(DEADLINE_S) == 2
            assert [queue.get(timeout=DEADLINE_S).body for _ in range(2)] == [b"1", b"2"]
        second = node.pid
        assert second not in (first, None)
        os.kill(second, signal.SIGTERM)  # in good order, but only its parent ends it
        until(lambda: node.restarts >= 2 and node.pid not in (second, None))
        node.wait_ready(DEADLINE_S)
        assert repr(node) == f"<SpawnedNode a at {node.endpoint}, process {node.pid}>"
    node.stop()
    assert node.pid is None
    assert "leads the catalog" in caplog.text
    assert "ended with status -9: it is started again in 0.1 s" in caplog.text
    Store(tmp_path, node="a", config=Config()).close()
    with pytest.raises(ShutDown, match="was stopped"):
        node.wait_ready(1)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"peers": {"b": "tcp://127.0.0.1:1"}}, "'a' is not among its peers b"),
        ({"peers": 5}, "peers is 5: it must be a mapping"),
        ({"config": {"failure_ms": 5000}}, "give a mirrorq.Config"),
        ({"security": "keys"}, "takes a mirrorq.Security, not a str"),
        ({"dashboard": 5}, "dashboard is a string, not 5"),
    ],
)
def test_what_node_refuses_is_raised(tmp_path: Path, options: Any, text: str) -> None:
    for make in (Node, Node.spawn):
        with pytest.raises(ConfigError, match=text):
            make("a", path=tmp_path / "a", **options)


def test_a_store_in_use_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirrorq.node.spawned.STOP_S", 0.5)
    with Node("a", path=tmp_path / "b"), pytest.raises(StoreLocked, match=str(os.getpid())):
        Node.spawn("a", path=tmp_path / "b")


def test_keys_that_stand_in_no_file(tmp_path: Path) -> None:
    """They go through the pipe, with all that is said of them; a client of the handle has them
    too."""
    keygen.main(["a", "--role", "peer", "--keys", str(tmp_path)], standalone_mode=False)
    loaded = Security.load(tmp_path, "a")
    public, secret = new_key_pair()
    web = Key("web", public, "client", configure=["*"], write=["*"], queues=1)  # type: ignore[arg-type]
    security = Security(loaded.secret_key, [*loaded.keys, web])
    peers = {"a": free_endpoint()}
    with Node.spawn("a", path=tmp_path / "a", peers=peers, security=security) as node:
        assert node.endpoint == peers["a"]
        node.wait_ready(DEADLINE_S)
        command = Path(f"/proc/{node.pid}/cmdline").read_bytes()
        assert security.secret_key.encode() not in command
        with connect(
            node.endpoint, security=Security(secret, security.keys), timeout=DEADLINE_S
        ) as client:
            client.queue("q1", timeout=DEADLINE_S)
            with pytest.raises(MirrorQError, match="1"):
                client.queue("q2", timeout=DEADLINE_S)


STARTER = """
import os, signal, sys
from pathlib import Path

site, way, path = sys.argv[1:]
standard = [at for at, one in enumerate(sys.path) if one.endswith("lib-dynload")]
sys.path.insert(standard[-1] + 1, site)
import mirrorq

assert mirrorq.__file__.startswith(site), mirrorq.__file__
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.chdir(site)
if way == "spawn":
    node = mirrorq.Node.spawn("a", path=path, listen="ipc://./relative.sock")
    pid, client = node.pid, node.connect(timeout=60)
    assert node.endpoint == f"ipc://{site}/relative.sock", node.endpoint
else:
    client = mirrorq.local(path, linger=0, timeout=60)
    pid = mirrorq.node.local.LocalFolder.of(path).pid()
os.chdir("/tmp")
client.queue("q", timeout=60).put(b"x").result(60)
status = Path(f"/proc/{pid}/status").read_text().split()
print(status[status.index("SigBlk:") + 1], os.readlink(f"/proc/{pid}/cwd"), pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("way", ["spawn", "local"])
def test_nothing_of_its_starter_is_inherited(tmp_path: Path, way: str) -> None:
    """Not its blocked signals, its working directory; and a package that lies beside mirrorq and
    has a standard module's name, as backports do, hides none. SIGTERM ends the process."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "mirrorq").symlink_to(Path(mirrorq.__file__).parent)
    for name in ("selectors", "enum", "queue", "uuid", "array"):
        (site / f"{name}.py").write_text("raise SystemExit('a backport was imported')")
    starter = subprocess.Popen(
        [sys.executable, "-Pc", STARTER, str(site), way, str(tmp_path / "store")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert starter.stdout is not None
    blocked, folder, pid = starter.stdout.readline().split()
    try:
        assert (int(blocked, 16), folder) == (0, "/")
        os.kill(int(pid), signal.SIGTERM)
        until(lambda: not is_running(int(pid)))
    finally:
        starter.kill()
        starter.communicate()
        until(lambda: not is_running(int(pid)))


PARENT = """
import os, sys, time
import mirrorq

node = mirrorq.Node.spawn("a", path=sys.argv[1])
child = os.fork()
if child == 0:
    node.stop()  # the parent's, not this process'
    assert node.pid is None
    node.wait_ready(60)
    os.write(1, b"the child reaches it\\n")
    time.sleep(600)
print(node.pid, child, node.endpoint, flush=True)
time.sleep(600)
"""


def test_it_ends_with_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed with SIGKILL, though a forked child lives on; a new parent waits for the store."""
    monkeypatch.setattr("mirrorq.node.spawned.STOP_S", DEADLINE_S)  # However busy the machine is.
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PARENT), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert parent.stdout is not None
        lines = [parent.stdout.readline() for _ in range(2)]
        assert "the child reaches it\n" in lines
        pid, child, endpoint = next(line for line in lines if line[0].isdigit()).split()
        parent.kill()
        parent.wait()
        with Node.spawn("a", path=tmp_path) as node:
            # It gives its store up before the last of it has ended.
            until(lambda: not is_running(int(pid)))
            assert is_running(int(child))
            assert node.endpoint == endpoint
            with connect(endpoint, timeout=DEADLINE_S) as client:
                client.wait_ready(DEADLINE_S)
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()
        assert parent.stdout is not None
        parent.stdout.close()


def test_a_program_that_is_no_python(tmp_path: Path) -> None:
    """Nothing comes of it: said at once, with what it was."""
    for python, text in (("/no/such", "cannot be run"), ("/bin/false", "ended with status 1")):
        with pytest.raises(Exception, match=text):
            Node.spawn("a", path=tmp_path, python=python)
