"""A newcomer's mistakes, each made on the real thing: what he reads says what is wrong, and what to
do about it. No logging is set up where that matters: most programs begin without."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.kit import DEADLINE_S, until

import mirrorq
import mirrorq.aio
from mirrorq import clock, system
from mirrorq.client import client as client_module
from mirrorq.errors import (
    ConfigError,
    NoQuorum,
    StoreError,
    StoreLocked,
)
from mirrorq.transport.endpoint import parse_endpoint
from mirrorq.transport.greeting import silence_of

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[mirrorq.Node]:
    path = tmp_path_factory.mktemp("first") / "hour"
    with mirrorq.Node("a", path=path, listen="tcp://127.0.0.1:*") as node:
        node.wait_ready(DEADLINE_S)
        yield node


CLOSED_LATE = """
import mirrorq, sys

class Owner:
    def __init__(self, *owned):
        self.owned = owned

    def __del__(self):
        print(sys.is_finalizing())
        for one in self.owned:
            one.close()
        print("closed", flush=True)

node = mirrorq.Node("late", path=sys.argv[1], listen="tcp://127.0.0.1:*")
client = mirrorq.connect(node.listening)
owner = Owner(client.queue("orders"), client, node.queue("orders"), node)
"""


def test_a_close_at_the_end_of_the_interpreter_ends(tmp_path: Path) -> None:
    """In a `__del__` of what a module still holds: the threads that would do it are gone."""
    command = [sys.executable, "-c", CLOSED_LATE, str(tmp_path / "late")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    assert done.stdout.split() == ["True", "closed"]


LEFT_IN_A_BLOCK = """
import mirrorq, sys
from mirrorq import bulk

class Late:
    def __init__(self, host):
        self.host = host

    def __del__(self, ShutDown=mirrorq.ShutDown):
        try:
            self.host.queue("letters", spool=True)
        except ShutDown as error:
            print(error)

def claimed():
    with bulk.claim(node.queue("orders")):
        yield

node = mirrorq.Node("late", path=sys.argv[1])
late, work = Late(node), claimed()
next(work)
"""


def test_a_claim_and_a_spool_at_the_end_of_the_interpreter(tmp_path: Path) -> None:
    """Neither waits for threads that are gone."""
    command = [sys.executable, "-c", LEFT_IN_A_BLOCK, str(tmp_path / "late")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    assert "ending" in done.stdout or "closed" in done.stdout


Case = tuple[type[BaseException], list[str], Callable[[Any], object]]


ON_A_NODE: dict[str, Case] = {
    "a wrong port": (
        NoQuorum,
        ["nothing listens there", "correct the endpoints"],
        lambda _: mirrorq.connect("tcp://127.0.0.1:1", timeout=1),
    ),
    "a host that does not exist": (
        NoQuorum,
        ["no such host", "correct the endpoints"],
        lambda _: mirrorq.connect("tcp://no-such.invalid:7400", timeout=3, insecure=True),
    ),
    "an endpoint without tcp": (
        ConfigError,
        ["'127.0.0.1:7400' is malformed", "write tcp://host:port"],
        lambda _: mirrorq.connect("127.0.0.1:7400"),
    ),
    "no endpoint": (
        ConfigError,
        ["no endpoint", "name at least one"],
        lambda _: mirrorq.connect([]),
    ),
    "a connection's timeout as text": (
        TypeError,
        ["the timeout is '3'", "a number of seconds"],
        lambda node: mirrorq.connect(node.listening, timeout="3"),
    ),
    "another machine without keys": (
        ConfigError,
        ["without security", "Give it keys"],
        lambda _: mirrorq.connect("tcp://10.9.8.7:7400"),
    ),
    "keys that are not there": (
        ConfigError,
        ["cannot read the keys", "mirrorq key new"],
        lambda _: mirrorq.Security.load("/no/such/keys"),
    ),
    "one path for two nodes": (
        StoreLocked,
        ["already open in this process", "use the node that has it"],
        lambda node: mirrorq.Node("b", path=node.path),
    ),
    "a directory of somebody else": (
        StoreError,
        ["is not empty", "Nothing was written", "a directory of its own"],
        lambda node: mirrorq.Node("b", path=node.path.parent),
    ),
    "a node that is not among its peers": (
        ConfigError,
        ["'x' is not among its peers a, b", "this one included"],
        lambda node: mirrorq.Node(
            "x",
            path=node.path / "x",
            peers={"a": "tcp://127.0.0.1:1", "b": "tcp://127.0.0.1:2"},
        ),
    ),
    "a node to join and peers": (
        ConfigError,
        ["join= and the peers a"],
        lambda node: mirrorq.Node(
            "x",
            path=node.path / "x",
            peers={"x": "tcp://127.0.0.1:1", "a": "tcp://[::1]:2"},
            join="tcp://127.0.0.1:3",
        ),
    ),
    "a node to join on another machine": (
        ConfigError,
        ["without security"],
        lambda node: mirrorq.Node("x", path=node.path / "x", join="tcp://192.0.2.1:7"),
    ),
    "no node to join": (
        ConfigError,
        ["join= names no endpoint"],
        lambda node: mirrorq.Node("x", path=node.path / "x", join=[]),
    ),
    "peers as a list": (
        ConfigError,
        ["a mapping of each node's name", "such as"],
        lambda node: mirrorq.Node("x", path=node.path / "x", peers=["tcp://127.0.0.1:1"]),
    ),
    "no path": (
        TypeError,
        ["path is None", "the name of a directory, such as './data'"],
        lambda _: mirrorq.Node("x", path=None),
    ),
    "no folder": (
        TypeError,
        ["path is 5", "the name of a directory"],
        lambda _: mirrorq.local(5),
    ),
    "a path with a zero byte": (
        ConfigError,
        ["a zero byte"],
        lambda _: mirrorq.MirroredQueue("q", path="a\0b"),
    ),
    "a path that is too long": (
        StoreError,
        ["File name too long", "give a directory that can be written"],
        lambda node: mirrorq.Node("x", path=node.path / ("x" * 300)),
    ),
    "a socket's path that is too long": (
        ConfigError,
        ["too long for a socket's path", "107 bytes", "choose a shorter folder"],
        lambda node: mirrorq.local(node.path / ("x" * 110)),
    ),
    "a node for another process": (
        TypeError,
        ["node ", "runs in this process", "mirrorq.connect()"],
        pickle.dumps,
    ),
    "signs of life too seldom": (
        ConfigError,
        ["heartbeat_ms 5000 must be below failure_ms 1000"],
        lambda _: mirrorq.Config(heartbeat_ms=5000),
    ),
    "a setting without its unit": (
        TypeError,
        ["no setting 'heartbeat'", "did you mean 'heartbeat_ms', in milliseconds, 250 by default?"],
        lambda _: mirrorq.Config(heartbeat=5),
    ),
    "a setting that nobody has": (
        TypeError,
        ["no setting 'colour'", "it takes message_bytes_max"],
        lambda _: mirrorq.Config(colour=5),
    ),
    "a setting in seconds": (
        ConfigError,
        ["failure_ms is 0.5", "a whole number of milliseconds from 1 up, 1000 by default"],
        lambda _: mirrorq.Config(failure_ms=0.5),
    ),
    "a lease longer than a failure": (
        ConfigError,
        ["lease_ms 5000 must be below failure_ms 1000"],
        lambda _: mirrorq.Config(lease_ms=5000),
    ),
}


@pytest.mark.parametrize("mistake", ON_A_NODE)
def test_on_a_node(node: mirrorq.Node, mistake: str) -> None:
    kind, words, make = ON_A_NODE[mistake]
    with node.queue("q"), pytest.raises(kind) as raised:
        make(node)
    missing = [word for word in words if word not in str(raised.value)]
    assert not missing, str(raised.value)
    assert not (node.path / "x").exists()


@pytest.mark.parametrize(
    ("says", "words"),
    [
        (None, "says nothing"),
        (b"SSH-2.0-x\r\n", "is not a mirrorq node"),
        (b"", "ends the connection"),
    ],
)
def test_a_port_of_another_program(says: bytes | None, words: str) -> None:
    """One that says nothing and waits, one that speaks first, one that hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        kept: list[socket.socket] = []

        def serve() -> None:
            kept.append(server.accept()[0])
            if says:  # who has read enough of it hangs up, and then no shutdown can be done
                kept[0].sendall(says)
            elif says is not None:
                kept[0].shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=serve)
        thread.start()
        there = parse_endpoint(f"tcp://127.0.0.1:{server.getsockname()[1]}")
        told = silence_of(there, 0.2 if says is None else DEADLINE_S)
        thread.join()
        kept[0].close()
    assert words in told


@pytest.mark.parametrize("is_there", [False, True], ids=["nothing listens", "nobody answers"])
def test_a_node_says_why_its_peers_are_not_heard(tmp_path: Path, is_there: bool) -> None:
    """Which endpoint, and what was found there: a wrong port, or one where packets are dropped or
    another program hangs. A port that is bound and does not listen refuses."""
    with socket.socket() as port, socket.socket() as own:
        port.bind(("127.0.0.1", 0))
        own.bind(("127.0.0.1", 0))
        if is_there:
            port.listen()
        peers = {n: f"tcp://127.0.0.1:{s.getsockname()[1]}" for n, s in (("a", own), ("b", port))}
        own.close()
        with (
            mirrorq.Node("a", path=tmp_path / "a", peers=peers) as node,
            pytest.raises(NoQuorum) as raised,
        ):
            node.wait_ready(0.1)
    said = str(raised.value)
    assert f"No node answers at {peers['b']} (" in said
    words = ["no answer within", "says nothing"] if is_there else ["nothing listens there"]
    assert any(word in said for word in words), said
    assert "Start more of b, or correct endpoints or keys" in said


MOUNT = "36 35 {device} / {path} rw,noatime master:1 - {kind} server:/export rw\n"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("tmpfs", ["is in memory (tmpfs)", "a directory on a disk"]),
        ("nfs4", ["a network file system (nfs4)", "a disk of this machine"]),
        ("ext4", []),
    ],
)
def test_a_path_that_keeps_no_promise(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    words: list[str],
) -> None:
    """The node runs, and says once what its directory is."""
    device = tmp_path.stat().st_dev
    mounts = tmp_path / "mountinfo"
    shown = f"{os.major(device)}:{os.minor(device)}"
    mounts.write_text(
        MOUNT.format(device="0:999", path="/other", kind="xfs")
        + MOUNT.format(device=shown, path=tmp_path, kind=kind)
    )
    monkeypatch.setattr(system, "_MOUNTS", mounts)
    mirrorq.Node("a", path=tmp_path / "a").close()
    told = [one for one in caplog.messages if one.startswith(f"store {tmp_path / 'a'} is ")]
    assert len(told) == bool(words)
    assert all(word in told[0] for word in words)


@pytest.mark.parametrize(("wall_us", "date"), [(86_400_000_000, "1970-01-02"), (None, "")])
def test_a_clock_that_was_never_set(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    wall_us: int | None,
    date: str,
) -> None:
    """Told at the start; the node runs all the same, and durations are what they are."""
    if wall_us is not None:
        monkeypatch.setattr(clock, "wall_us", lambda: wall_us)
    with mirrorq.MirroredQueue("q", path=tmp_path / "a") as queue:
        queue.put(b"x", ttl=3600).result(DEADLINE_S)
        with queue.get(timeout=DEADLINE_S) as message:
            assert message.body == b"x"
    told = [one for one in caplog.messages if one.startswith("the clock of this machine says ")]
    assert len(told) == bool(date)
    assert all(date in one and "set it (NTP)" in one for one in told)


def test_an_older_python_is_refused() -> None:
    """At the import, in one line that says what is needed and what this is."""
    code = "import sys\nsys.version_info = (3, 10, 13, 'final', 0)\nimport mirrorq"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: mirrorq needs Python 3.11 or later, and this is 3.10 (")


def test_connect_says_for_whom_it_waits(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, and long before its time is over."""
    monkeypatch.setattr(client_module, "SILENCE_MS", 10)
    caplog.set_level(logging.INFO, "mirrorq")
    over: list[BaseException] = []

    def connect() -> None:
        try:
            mirrorq.connect("tcp://127.0.0.1:1", timeout=1.5)
        except NoQuorum as error:
            over.append(error)

    thread = threading.Thread(target=connect)
    thread.start()
    until(lambda: bool(caplog.messages))
    thread.join(DEADLINE_S)
    assert over
    told = [one for one in caplog.messages if one.startswith("connect() waits: ")]
    assert told == [
        "connect() waits: no node answers yet, of tcp://127.0.0.1:1 (nothing listens there)"
    ]


def test_an_ack_that_was_forgotten_is_told_at_the_end(
    node: mirrorq.Node, caplog: pytest.LogCaptureFixture
) -> None:
    """What `get` gave out and nobody acked; not what was fetched ahead, nor what was acked."""
    caplog.set_level(logging.INFO, "mirrorq")
    with node.queue("forgotten") as queue:
        queue.put_many([b"x"] * 5).result(DEADLINE_S)
        queue.get(timeout=DEADLINE_S).ack().result(DEADLINE_S)
        queue.get(timeout=DEADLINE_S)
        queue.get(timeout=DEADLINE_S)
    assert "the handle on queue forgotten is closed with 2 message(s)" in caplog.text
    caplog.clear()
    with node.queue("forgotten") as queue:
        for _ in range(4):
            queue.get(timeout=DEADLINE_S).ack().result(DEADLINE_S)
    assert "is closed with" not in caplog.text


def test_a_plain_function_as_a_coroutine(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is called all the same: whether it returns a coroutine nobody knows before."""

    async def serve() -> None:
        async with mirrorq.aio.MirroredQueue.open("q", path=tmp_path / "q") as queue:
            await queue.put(b"x")
            called = asyncio.Event()
            await queue.consume(lambda _: called.set())  # type: ignore[arg-type,return-value]
            await called.wait()

    asyncio.run(serve())
    assert "the callback returned None, no coroutine: make it an async def" in caplog.text


WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {packages!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
import {module}
"""


@pytest.mark.parametrize(
    ("module", "packages", "extra"),
    [
        ("mirrorq.metrics", ["prometheus_client"], "metrics"),
        ("mirrorq.contrib.kombu", ["kombu", "celery"], "celery"),
        ("mirrorq.contrib.dramatiq", ["dramatiq"], "dramatiq"),
        ("mirrorq.contrib.taskiq", ["taskiq"], "taskiq"),
        ("mirrorq.contrib.opentelemetry", ["opentelemetry"], "opentelemetry"),
    ],
)
def test_an_extra_that_is_not_installed(module: str, packages: list[str], extra: str) -> None:
    code = WITHOUT.format(packages=packages, module=module)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"{module} needs " in done.stderr
    assert f"pip install 'mirrorq[{extra}]'" in done.stderr


ENDS = """
import sys, mirrorq
from mirrorq.demo.ports import free_ports
peers = {n: f"tcp://127.0.0.1:{port}" for n, port in zip("abc", free_ports(3))}
nodes = {n: mirrorq.Node(n, path=f"{sys.argv[1]}/{n}", peers=peers,
                         config=mirrorq.Config(exit_flush_ms=100)) for n in peers}
queue = nodes["a"].queue("jobs")
queue.put(b"x").result(60)
nodes["b"].close()
nodes["c"].close()
paused = __import__("threading").Event()
nodes["a"].add_listener(lambda event: paused.set())
while not nodes["a"].is_paused:
    paused.wait(0.02)
queue.put_many([b"lost?"] * 3)
"""


def test_an_end_without_close_says_what_may_be_lost(tmp_path: Path) -> None:
    """On standard error, in a program without logging, and once."""
    done = subprocess.run(
        [sys.executable, "-c", ENDS, str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    said = done.stderr.splitlines()
    assert [line for line in said if "3 unconfirmed message(s) to queue jobs" in line] == said
    assert len(said) == 1
    assert "close() waits for them" in said[0]


@pytest.mark.parametrize(
    ("module", "asked", "name"),
    [
        ("gevent.monkey", "is_module_patched", "threading"),
        ("eventlet.patcher", "is_monkey_patched", "thread"),
    ],
)
def test_greenlets_in_place_of_threads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: str, asked: str, name: str
) -> None:
    """Refused at once, as nothing would move any more; the folder stays free for a real thread."""
    library = module.partition(".")[0]
    patcher = SimpleNamespace(**{asked: lambda one: one == name})
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, module, patcher)
        for make in (
            lambda: mirrorq.Node("a", path=tmp_path),
            lambda: mirrorq.MirroredQueue("q", path=tmp_path),
            lambda: mirrorq.connect("tcp://127.0.0.1:1"),
        ):
            with pytest.raises(ConfigError, match=rf"^{library} has put .*-P threads"):
                make()
    with mirrorq.Node("a", path=tmp_path) as node:
        assert node.queue("q").put(b"x").result(DEADLINE_S) == 1
