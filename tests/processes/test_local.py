"""`mirrorq.local`: one node for all processes of a machine that name the same folder."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner

import mirrorq
from mirrorq import ConfigError, MirrorQError, Node, StoreError, StoreLocked, clock
from mirrorq.cli import main
from mirrorq.demo.ports import free_ports
from mirrorq.node import local as local_module
from mirrorq.node import local_process
from mirrorq.node.local import LocalFolder
from mirrorq.protocol.effects import Notice

from .cluster import DEADLINE_S, until
from .test_spawned import is_running


@pytest.fixture
def place(tmp_path: Path) -> Iterator[LocalFolder]:
    """A folder whose node, if any runs there, is ended with the test."""
    place = LocalFolder.of(tmp_path / "shared")
    yield place
    pid = place.pid() if place.path.exists() else None
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
        until(lambda: place.pid() is None)


def local(place: LocalFolder, **how: object) -> mirrorq.Client:
    return mirrorq.local(place.path, timeout=DEADLINE_S, **how)  # type: ignore[arg-type]


def command(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["local", *map(str, words)])
    return result.exit_code, result.output


USER = """
import os, sys
import mirrorq

client = mirrorq.local(sys.argv[1], linger=float("inf"), timeout=60)
queue = client.queue("q")
print("ready", flush=True)
for line in sys.stdin:
    if line == "put\\n":
        print(queue.put(str(os.getpid()).encode()).result(60), flush=True)
    else:
        print(queue.get(timeout=60).body.decode(), flush=True)
"""


class User:
    """A process that uses the node."""

    def __init__(self, place: LocalFolder) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(USER), str(place.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def heard(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, word: str) -> str:
        assert self.process.stdin is not None
        print(word, file=self.process.stdin, flush=True)
        return self.heard()

    def end(self, *, kill: bool = False) -> None:
        if kill:
            self.process.kill()
        self.process.communicate()


@pytest.mark.smoke
def test_two_first_processes_have_one_node(place: LocalFolder) -> None:
    """Both start one at the same moment; it outlives the first, killed with SIGKILL, and the other,
    which then leaves; and it is nobody's child."""
    users = [User(place), User(place)]
    try:
        assert [user.heard() for user in users] == ["ready", "ready"]
        pid = place.pid()
        assert pid is not None
        assert [user.ask("put") for user in users] == ["1", "2"]
        users[0].end(kill=True)
        assert users[1].ask("put") == "3"
        users[1].end()
        assert is_running(pid)
        with local(place) as client:
            queue = client.queue("q", passive=True)
            bodies = [int(queue.get(timeout=DEADLINE_S).body) for _ in range(3)]
        ids = [user.process.pid for user in users]
        assert sorted(bodies[:2]) == sorted(ids)
        assert bodies[2] == ids[1]
        assert place.pid() == pid
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        assert parent not in (*ids, os.getpid())
    finally:
        for user in users:
            user.end(kill=True)


def test_a_killed_node_is_started_by_who_is_left(place: LocalFolder) -> None:
    """Its starter is dead, too: what was confirmed is there, and who waited goes on by itself."""
    first = User(place)
    try:
        assert first.heard() == "ready"
        other = User(place)
        assert other.heard() == "ready"
        assert first.ask("put") == "1"
        first.end(kill=True)
        pid = place.pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert other.ask("put") == "2"
        assert int(other.ask("get")) == first.process.pid
        assert place.pid() not in (pid, None)
    finally:
        first.end(kill=True)
        other.end(kill=True)


def test_a_killed_node_is_started_by_who_comes_next(place: LocalFolder) -> None:
    with local(place, linger=math.inf) as client:
        client.queue("q").put(b"1").result(DEADLINE_S)
    pid = place.pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    with local(place) as client:
        assert client.queue("q").get(timeout=DEADLINE_S).body == b"1"


def test_it_ends_when_nobody_has_used_it_for_its_linger(place: LocalFolder) -> None:
    """The linger is kept in the folder; the next one starts it again."""
    with local(place, linger=0):
        pid = place.pid()
        assert pid is not None
        with local(place):
            pass
        assert place.pid() == pid
    until(lambda: place.record()["ended"] == "idle" and place.pid() is None)
    with local(place):
        assert place.pid() not in (pid, None)
    until(lambda: place.pid() is None)


def test_it_does_not_end_while_somebody_uses_it(tmp_path: Path) -> None:
    """Looked at again and again: with clients, then with none for less than its linger, then for
    longer."""
    place = LocalFolder.of(tmp_path)
    place.write_linger(5)
    now_ms = clock.now_ms()
    left = iter([(1, 0), (2, 0), (0, now_ms), (1, 0), (0, now_ms - 6000), (0, now_ms)])
    gateway = SimpleNamespace(client_count=1, left_ms=0)

    def look(_timeout: float) -> bool:
        gateway.client_count, gateway.left_ms = next(left)
        return False

    node = SimpleNamespace(is_closed=False, _driver=SimpleNamespace(gateway=gateway))
    told = SimpleNamespace(wait=look)
    assert local_process._wait(node, place, told) == "idle"  # type: ignore[arg-type]
    assert list(left) == [(0, now_ms)]


def test_the_command_shows_and_stops_it(place: LocalFolder) -> None:
    """Stopped it stays so, though a client is left; that one goes on when it is started again."""
    assert command(place.path) == (1, f"mirrorq: no local node runs in {place.path}\n")
    with local(place) as client:
        queue = client.queue("q")
        queue.put(b"1").result(DEADLINE_S)
        status, text = command(place.path, "--json", "--linger", "inf")
        said = json.loads(text)
        assert (status, said["state"], said["pid"]) == (0, "runs", place.pid())
        assert said["linger_s"] is None
        assert command(place.path, "--stop")[0] == 0
        assert place.pid() is None
        until(lambda: not client.entry_node)
        status, text = command(place.path)
        assert (status, "(stopped)" in text) == (1, True)
        waiting = queue.put(b"2")
        with local(place, linger=0):
            assert waiting.result(DEADLINE_S) == 2
    assert "ends node local: stopped" in place.log_path.read_text()


def test_a_forked_child_has_it_too(place: LocalFolder) -> None:
    """And starts it again by itself, when it has used it and the parent does nothing about it."""
    script = """
    import os, signal, sys
    import mirrorq
    from mirrorq.node.local import LocalFolder

    place = LocalFolder.of(sys.argv[1])
    client = mirrorq.local(place.path, linger=0, timeout=60)
    queue = client.queue("q")
    child = os.fork()
    if child == 0:
        queue.put(b"child").result(60)
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(place.pid(), signal.SIGKILL)
        queue.put(b"alone").result(60)
        print([queue.get(timeout=60).body for _ in range(2)], flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(place.path)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=DEADLINE_S,
    )
    assert run.returncode == -signal.SIGKILL
    assert run.stdout == "[b'child', b'alone']\n"


def test_a_pipe_of_its_starter_is_not_kept_open(place: LocalFolder) -> None:
    """Who reads what the first process prints is not kept waiting by a node that lives on."""
    run = subprocess.run(
        [sys.executable, "-c", "import sys, mirrorq; mirrorq.local(sys.argv[1])", place.path],
        capture_output=True,
        timeout=DEADLINE_S,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, b"", b"")
    pid = place.pid()
    assert pid is not None
    targets = {os.readlink(f"/proc/{pid}/fd/{number}") for number in range(3)}
    assert targets == {"/dev/null", str(place.log_path)}


def test_what_cannot_be_is_refused(place: LocalFolder) -> None:
    with pytest.raises(ConfigError, match=r"linger is -1: it must be a number of seconds"):
        local(place, linger=-1)
    with pytest.raises(ConfigError, match="may have 107 bytes"):
        mirrorq.local(place.path / ("long" * 25))
    with Node("a", path=place.path):
        place.write_linger(0)  # A process that still waits for the store ends soon.
        with pytest.raises(StoreLocked, match=str(os.getpid())):
            mirrorq.local(place.path, name="a", timeout=3)


def test_the_store_of_another_node(place: LocalFolder) -> None:
    """It is used under its name."""
    Node("a", path=place.path).close()
    with pytest.raises(StoreError, match="belongs to node 'a', not to 'local'"):
        local(place)
    with local(place, name="a"):
        assert place.record()["ended"] == ""


def test_a_member_of_a_cluster_is_no_local_node(place: LocalFolder) -> None:
    ends = [f"tcp://127.0.0.1:{port}" for port in free_ports(2)]
    other = Node("b", path=place.path.parent / "b", peers={"b": ends[1]})
    with other, Node("a", path=place.path, peers={"a": ends[0]}, join=ends[1]) as node:
        node.wait_ready(DEADLINE_S)
        until(lambda: len(node.nodes()) == 2)
    with pytest.raises(ConfigError, match="part of a cluster with b"):
        local(place, name="a")


@pytest.mark.soak
def test_a_node_that_ends_as_somebody_comes_is_started_again(
    place: LocalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was seen, and is gone before it has served."""
    start, seen = local_module.start, []

    def look(*given: object) -> None:
        seen.append(given)
        if len(seen) > 1:
            start(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(local_module, "start", look)
    with local(place) as client:
        assert client.queue("q").put(b"1").result(DEADLINE_S) == 1
    assert len(seen) > 1


def test_who_starts_a_process_that_ends_at_once_is_told_so(
    place: LocalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it has heard what it is to run, too."""

    started = subprocess.Popen

    def ended(_command: list[str], **how: Any) -> subprocess.Popen[bytes]:
        process = started([sys.executable, "-c", ""], **how)
        process.wait()
        return process

    monkeypatch.setattr(subprocess, "Popen", ended)
    with pytest.raises(MirrorQError, match="said nothing"):
        local(place)


@pytest.mark.soak
def test_a_process_with_very_many_files_starts_a_node(place: LocalFolder) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        with local(place) as client:
            assert client.queue("q").put(b"1").result(DEADLINE_S) == 1
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.soak
def test_two_threads_name_a_linger_at_once(
    place: LocalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.path.mkdir()
    replace = os.replace
    others = [threading.Thread(target=place.write_linger, args=(2.0,))]

    def late(source: Path, target: Path) -> None:
        """The other one comes between this one's writing and its end."""
        if others:
            other = others.pop()
            other.start()
            other.join()
        replace(source, target)

    monkeypatch.setattr(os, "replace", late)
    place.write_linger(1.0)
    assert place.linger_s() == 1.0


class ServedForAMoment:
    """A client whose node ends just when it is seen to serve."""

    def __init__(self) -> None:
        self.is_started = threading.Event()
        self._seen = 0

    def closed(self) -> bool:
        return False

    @property
    def entry_node(self) -> str:
        self._seen += 1
        if self._seen == 1:
            self.reviver.on_notice(Notice("disconnected", "it has ended"))
            return "local"
        return "local" if self.is_started.is_set() else ""

    reviver: local_module.Reviver


@pytest.mark.soak
def test_a_node_that_ends_as_it_is_seen_to_serve_is_started_again(
    place: LocalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notice of it comes to a reviver that is at work and is about to end."""
    client = ServedForAMoment()
    monkeypatch.setattr(local_module, "start", lambda *_: client.is_started.set())
    client.reviver = local_module.Reviver(cast("mirrorq.Client", client), place, {})
    client.reviver.start()
    assert client.is_started.wait(DEADLINE_S)
