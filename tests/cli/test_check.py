"""`mirrorq check`: what it calls wrong, and what its exit status says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import attrs
import pytest
from click.testing import CliRunner, Result
from tests import kit
from tests.kit import until

import mirrorq
from mirrorq.cli import main
from mirrorq.cli.check import _acknowledge
from mirrorq.monitoring.health import judge
from mirrorq.monitoring.status import NodeStatus, QueueStatus

from .running import COMMAND_S


def node(name: str, *, alive: bool = True, witness: bool = False) -> NodeStatus:
    return NodeStatus(name, f"tcp://{name}:1", 1, witness, alive, False)


def queue(holders: str, state: str = "running", shortfall: str = "", **how: bool) -> QueueStatus:
    """A queue in sync on these nodes, the master first."""
    mirrors = tuple(holders[1:])
    master = holders[0] if holders else None
    warnings = (shortfall,) if shortfall else ()
    return QueueStatus(
        "q", state, master, mirrors, mirrors, shortfall=shortfall, warnings=warnings, **how
    )


ABC = [node(name) for name in "abc"]


@pytest.mark.parametrize(
    ("nodes", "found", "kinds"),
    [
        (ABC, queue("abc"), []),
        (ABC, queue("ba"), []),
        (ABC, queue("b"), []),
        (ABC, queue("a"), ["last copy"]),
        (ABC, queue("a", exclusive=True), []),
        ([node("a"), node("b", alive=False), node("c")], queue("ab"),
         ["node", "majority", "last copy"]),
        ([node("a"), node("b"), node("c", alive=False), node("d"), node("e")], queue("ab"),
         ["node"]),
        ([node("a")], queue("a"), []),
        ([node("a"), node("w", witness=True), node("v", witness=True)], queue("a"), []),
        ([node("a"), node("b")], queue("ab"), ["majority"]),
        (ABC, queue("ab", shortfall="wanted 3 copies, have 2: c"), ["copies"]),
        (ABC, queue("", "down"), ["down"]),
        (ABC, queue("abc", "paused"), ["paused"]),
        (ABC, queue("abc", "syncing"), []),
    ],
)  # fmt: skip
def test_what_is_wrong(nodes: list[NodeStatus], found: QueueStatus, kinds: list[str]) -> None:
    """Each thing that is wrong has its kind; stopping a is thought of."""
    health = judge("a", nodes, [found])
    assert [trouble.kind for trouble in health.troubles] == kinds
    assert health.is_good == (not kinds)
    assert health.warnings == ()


def test_other_warnings_do_not_fail_it() -> None:
    """What was lost long ago is shown and is no reason to wake anybody."""
    lost = QueueStatus("q", "running", "a", ("b",), ("b",), warnings=("1 unclean promotions",))
    health = judge("a", ABC, [lost])
    assert health.is_good
    assert [warning.text for warning in health.warnings] == ["1 unclean promotions"]


class Losing:
    """A client of a cluster that has lost messages of some queues."""

    def __init__(self) -> None:
        self.acknowledged: list[tuple[str, int]] = []

    def queues(self, *, shards: bool) -> list[QueueStatus]:
        assert shards
        wide = QueueStatus("w", "running", shards=2, messages_lost=3)
        parts = [QueueStatus(f"w#shard{one}", "running", messages_lost=3 * one) for one in (0, 1)]
        return [QueueStatus("q", "running", messages_lost=5), wide, *parts]

    def acknowledge_losses(self, queue: str, messages: int) -> None:
        self.acknowledged.append((queue, messages))


def test_each_ring_is_acknowledged_for_what_it_has_lost() -> None:
    client = Losing()
    _acknowledge(cast("mirrorq.Client", client))
    assert client.acknowledged == [("q", 5), ("w#shard1", 3)]


def test_alarms_are_named_with_what_to_do() -> None:
    """Of every node; they fail nothing. One of a later version is named, too."""
    busy = attrs.evolve(ABC[1], alarms=("disk_low", "too_hot"))
    health = judge("a", [ABC[0], busy, ABC[2]], [queue("abc")])
    assert health.is_good
    assert [(one.kind, one.name) for one in health.warnings] == [("alarm", "b"), ("alarm", "b")]
    assert health.warnings[0].text == "disk_low: make space on the disk of the store"
    assert health.warnings[1].text == "too_hot: see docs/monitoring.md"


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[dict[str, mirrorq.Node]]:
    """Three nodes of one cluster, in this process."""
    with kit.nodes(tmp_path) as made:
        yield made


def check_until(
    endpoint: str, status: int, *arguments: str, is_it: Callable[[Result], bool] = lambda _: True
) -> Result:
    """Its outcome once its exit status is this, and all else is as wanted."""

    def look() -> Result | None:
        done = CliRunner().invoke(main, ["check", "--connect", endpoint, *arguments])
        return done if done.exit_code == status and is_it(done) else None

    return until(look, status)


def told(found: Result) -> list[str]:
    """Its lines, but for alarms: a machine with much to do raises some, which fail nothing."""
    return [line for line in found.stdout.splitlines() if not line.startswith("alarm\t")]


def test_a_queue_without_a_copy_to_read_is_not_called_whole(
    nodes: dict[str, mirrorq.Node],
) -> None:
    """`mirrorq store repair`: the only copy is on a node that has ended."""
    nodes["c"].set_policy("one", "single", {"ha-mode": "exactly", "ha-params": 1})
    nodes["c"].queue("single", timeout=COMMAND_S).put(b"x").result(COMMAND_S)
    nodes["c"].close()

    def repaired() -> Result | None:
        arguments = ["store", "repair", "--connect", nodes["a"].listening]
        done = CliRunner().invoke(main, arguments)
        return done if done.stderr.startswith("mirrorq: no copy of single could be read") else None

    assert until(repaired, "the queue's master is dead").exit_code == 1


def test_a_cluster_is_checked(nodes: dict[str, mirrorq.Node]) -> None:
    """All is well; a mirror that is not in sync and a node that has ended are named."""
    endpoint = nodes["a"].listening
    handle = nodes["a"].queue("orders", timeout=COMMAND_S)
    done = check_until(endpoint, 0, "--acknowledge")
    assert told(done) == ["3 nodes, 1 queue: all run, all copies are in sync, node a may stop"]
    assert done.stderr == ""

    nodes["a"].set_policy("one", "single", {"ha-mode": "exactly", "ha-params": 1})
    nodes["a"].queue("single", timeout=COMMAND_S)
    alone = ["last copy\tsingle\tnode a has the only copy in sync that runs"]
    done = check_until(endpoint, 1, is_it=lambda found: told(found) == alone)
    assert done.stderr == "mirrorq: 3 nodes, 2 queues: 1 x last copy\n"
    assert "node b may stop" in check_until(endpoint, 0, "--node", "b").stdout
    unknown = check_until(endpoint, 1, "--node", "x")
    assert unknown.stderr == "mirrorq: the cluster has no node 'x': its nodes are a, b, c\n"

    nodes["c"].close()
    troubles = {("node", "c"), ("majority", "b"), ("copies", "orders")}

    def all_is_told(found: Result) -> bool:
        # That it has ended and that the queue went on without it is not heard at one moment.
        shown = json.loads(found.stdout)
        named = {(one["kind"], one["name"]) for one in shown["troubles"]}
        return shown["ok"] is False and named == troubles

    check_until(endpoint, 1, "--node", "b", "--json", is_it=all_is_told)
    assert handle.put(b"goes on").result(COMMAND_S) == 1
