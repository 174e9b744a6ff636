"""One of three nodes is up, and no cluster is founded yet: everybody is told so, and whom it waits
for. An empty table would say that there is a cluster without nodes."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
from click.testing import CliRunner, Result
from tests.kit import DEADLINE_S, free_endpoint, peers_of, until

from mirrorq import Node, NoQuorum, connect
from mirrorq.cli import main
from mirrorq.cli.connecting import _knows_nothing
from mirrorq.dashboard.observer import Observer
from mirrorq.node import calls as node_calls
from mirrorq.node import watch
from mirrorq.testing import SimulatedCluster

Said = TypeVar("Said")
LOOKS = (
    ("status",),
    ("status", "--json"),
    (
        "queue",
        "ls",
    ),
    ("queue", "ls", "--json"),
    (
        "policy",
        "ls",
    ),
    (
        "client",
        "ls",
    ),
    (
        "client",
        "consumers",
    ),
    ("top", "--once"),
    ("check",),
    ("check", "--json"),
    ("dashboard", "--listen", "127.0.0.1:0"),
)
ACTS = (
    ("queue", "get", "q", "--count", "1"),
    ("queue", "put", "q"),
    ("queue", "purge", "q"),
    ("queue", "rm", "q"),
    ("policy", "set", "p", "q", '{"ha-mode": "all"}'),
    ("queue", "sync", "q"),
    ("queue", "move-master", "q", "a"),
    (
        "node",
        "rebalance",
    ),
    ("node", "forget", "b"),
)


@pytest.fixture(scope="module")
def peers() -> dict[str, str]:
    """Where three nodes are to be."""
    return peers_of("abc")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, peers: dict[str, str]) -> Iterator[Node]:
    """The first of them."""
    with Node("a", path=tmp_path_factory.mktemp("alone"), peers=peers) as node:
        yield node


@pytest.fixture
def whom(peers: dict[str, str]) -> str:
    return f"node a is not founded yet: waiting for b at {peers['b']}, c at {peers['c']}"


def heard(call: Callable[[float], Said], is_told: Callable[[Said], object]) -> tuple[float, Said]:
    """What is said by who waits for a moment. A machine that is too busy for its node to say
    anything within that gets more, and then as much as anybody needs."""
    for wait_s in (0.2, 2.0, DEADLINE_S):
        said = call(wait_s)
        if is_told(said):
            break
    return wait_s, said


def mirrorq(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, input="")


@pytest.mark.parametrize("command", LOOKS, ids=" ".join)
def test_who_looks_is_told(
    alone: Node, peers: dict[str, str], whom: str, command: tuple[str, ...]
) -> None:
    """At once, on standard error and with exit status 1; nothing on standard output."""
    done = mirrorq(*command, "--connect", peers["a"], "--wait", str(DEADLINE_S))
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", f"mirrorq: {whom}\n")


@pytest.mark.parametrize("command", ACTS, ids=" ".join)
def test_who_wants_something_done_is_told(
    alone: Node, peers: dict[str, str], whom: str, command: tuple[str, ...]
) -> None:
    """After --wait seconds: a node may come."""

    def told(wait_s: float) -> Result:
        return mirrorq(*command, "--connect", peers["a"], "--wait", str(wait_s))

    wait_s, done = heard(told, lambda done: whom in done.stderr)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith(f"mirrorq: no cluster answered within {wait_s} s: {whom}. Start")


def test_a_node_that_was_restarted_alone_is_no_empty_cluster() -> None:
    """It knows no queue before it has a majority: who looks must not take that for the state."""
    with SimulatedCluster() as cluster:
        cluster.queue("orders", on="a")
        assert not _knows_nothing(cluster.connect("early"))
        for name in "abc":
            cluster.crash(name)
        cluster.start("a")
        client = cluster.connect("late", to="a")
        assert _knows_nothing(client)
        cluster.restart("b")
        cluster.run_until(lambda: not _knows_nothing(client))


def test_all_endpoints_are_tried_before(alone: Node, peers: dict[str, str], whom: str) -> None:
    """Another node may be of a cluster; when none is it is not waited for any longer."""
    done = mirrorq("status", "--connect", ",".join(peers.values()), "--wait", str(10 * DEADLINE_S))
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", f"mirrorq: {whom}\n")


def test_calls_on_a_node_say_it(
    alone: Node,
    peers: dict[str, str],
    whom: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A warning after a moment, in the log, and the error at the end, name whom it waits for, and
    where nobody answers."""
    monkeypatch.setattr(node_calls, "SILENCE_S", 0.05)
    text = whom.removeprefix("node a ")

    def warnings(call: Callable[..., object], wait_s: float) -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.WARNING, "mirrorq"), pytest.raises(NoQuorum) as caught:
            call(timeout=wait_s)
        assert text in str(caught.value)
        return [r.getMessage() for r in caplog.records if "a call waits" in r.getMessage()]

    for call in (partial(alone.queue, "orders"), alone.wait_ready):
        _, warned = heard(partial(warnings, call), bool)
        assert len(warned) == 1
        silent = f"No node answers at {peers['b']} ("
        assert warned[0].startswith(f"node a: a call waits for the cluster: it {text}. {silent}")
    assert alone._unfounded == whom


def test_calls_on_a_client_say_it(alone: Node, peers: dict[str, str], whom: str) -> None:
    """Its error names whom its node waits for."""
    with connect(peers["a"], timeout=DEADLINE_S) as client:

        def error(call: Callable[..., object], wait_s: float) -> str:
            with pytest.raises(NoQuorum) as caught:
                call(timeout=wait_s)
            return str(caught.value)

        for call in (client.wait_ready, partial(client.queue, "q")):
            wait_s, said = heard(partial(error, call), lambda said: whom in said)
            assert f"no cluster answered within {wait_s} s" in said
            assert whom in said


def test_the_dashboard_says_it(alone: Node, whom: str) -> None:
    """A page of a node that is in no cluster shows why, and not an empty cluster."""
    observer = Observer(alone)
    observer._look()
    assert json.loads(observer.state())["error"] == whom


def test_a_node_that_runs_by_itself_says_it(
    tmp_path: Path, peers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`mirrorq node run` makes no call that could say it: so the node does, once, in its log; also
    one that is to join a cluster that is not there."""
    monkeypatch.setattr(watch, "WAIT_MS", 0)
    monkeypatch.setattr(watch, "LOOK_MS", 50)
    told: list[str] = []
    with Node("j", path=tmp_path, listen=free_endpoint(), join=peers["b"]) as node:
        node.add_listener(lambda notice: told.append(notice.text) if notice.kind == "waits" else 0)
        with pytest.raises(NoQuorum, match="waits to be admitted by the cluster at"):
            node.wait_ready(1.0)
        until(lambda: told)
    assert told == [f"waits to be admitted by the cluster at {peers['b']}"]


def test_without_a_majority_who_looks_sees_what_was_known(tmp_path: Path) -> None:
    """Two of three nodes of a founded cluster are gone: that is when one looks. It is shown, and
    said that it may be old."""
    peers = peers_of("abc")
    nodes = [Node(name, path=tmp_path / name, peers=peers) for name in peers]
    try:
        nodes[0].queue("orders", timeout=DEADLINE_S).close()
        for node in nodes:
            node.wait_ready(DEADLINE_S)
        for node in nodes[1:]:
            node.close()
        with connect(peers["a"], timeout=DEADLINE_S) as client:
            while not client.is_paused:
                client._queue_status(0)
        done = mirrorq("queue", "ls", "name", "--connect", peers["a"])
        assert (done.exit_code, done.stdout) == (0, "name\norders\n")
        assert done.stderr.startswith("mirrorq: node a has no contact with a majority: this is")
    finally:
        for node in nodes:
            node.close()
