"""Policies as a user gives them: the same calls on a node and on a client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mirrorq import Client, Node, PolicyError, connect

pytestmark = pytest.mark.real


@pytest.fixture(params=["node", "client"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Node | Client]:
    """A cluster of one, asked directly or through `connect()`."""
    with Node("a", path=tmp_path / "a", listen="tcp://127.0.0.1:0") as node:
        node.wait_ready(30)
        if request.param == "node":
            yield node
            return
        with connect(node.listening) as client:
            yield client


def policy_of(cluster: Node | Client, queue: str) -> str | None:
    (found,) = [status for status in cluster.queues() if status.name == queue]
    return found.policy


def test_policies_are_set_listed_and_cleared(cluster: Node | Client) -> None:
    """What was given comes back as it was given, by name; clearing twice is no error."""
    definition = {"ha-mode": "nodes", "ha-params": ["a"], "max-length": 5}
    cluster.set_policy("second", "^b", {"ha-mode": "all"}, priority=-3, apply_to="all")
    cluster.set_policy("first", "a.c", definition)
    first, second = cluster.policies()
    assert (first.name, first.pattern, first.definition) == ("first", "a.c", definition)
    assert (first.priority, first.apply_to) == (0, "queues")
    assert (second.name, second.priority, second.apply_to) == ("second", -3, "all")
    for _ in range(2):
        cluster.clear_policy("first")
        assert [policy.name for policy in cluster.policies()] == ["second"]


def test_22_a_policy_holds_at_once_for_queues_that_exist(cluster: Node | Client) -> None:
    """The highest priority wins, then the name that sorts first; patterns are unanchored."""
    queue = cluster.queue("orders.eu")
    other = cluster.queue("bills")
    assert queue.status().policy is None
    for name, pattern, priority in (("m", "orders", 1), ("z", "eu$", 2), ("b", "ders", 2)):
        cluster.set_policy(name, pattern, {"ha-mode": "all"}, priority)
    assert queue.status().policy == policy_of(cluster, "orders.eu") == "b"
    assert other.status().policy is None
    cluster.clear_policy("b")
    assert queue.status().policy == "z"
    cluster.set_policy("z", "^eu", {"ha-mode": "all"}, 2)
    assert queue.status().policy == "m"
    cluster.clear_policy("m")
    assert queue.status().policy is None


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("p", "x", {"ha-modes": "all"}), "ha-modes"),
        (("p", "x", {"ha-mode": "exactly", "ha-params": "2"}), "'2'"),
        (("p", "x", {"ha-mode": "exactly"}), "ha-params"),
        (("p", "(", {"ha-mode": "all"}), "regular expression"),
        (("p", "x", {}), "mapping"),
        (("p", "x", {"ha-mode": "all"}, "high"), "priority"),
        (("p", "x", {"ha-mode": "all"}, 0, "exchanges"), "exchanges"),
        (("", "x", {"ha-mode": "all"}), "name"),
    ],
)
def test_22_what_is_wrong_changes_nothing(
    cluster: Node | Client, arguments: tuple[Any, ...], named: str
) -> None:
    """PolicyError with the value that is wrong; the policy of that name stays as it was."""
    cluster.set_policy("p", "y", {"ha-mode": "all"})
    before = cluster.policies()
    with pytest.raises(PolicyError, match=named.replace("(", r"\(")):
        cluster.set_policy(*arguments)
    assert cluster.policies() == before
    with pytest.raises(PolicyError):
        cluster.clear_policy("")


def test_policies_survive_a_restart(tmp_path: Path) -> None:
    """They are in the catalog, on disk."""
    with Node("a", path=tmp_path) as node:
        node.set_policy("kept", "x", {"message-ttl": 60_000})
    with Node("a", path=tmp_path) as node:
        node.wait_ready(30)
        assert [policy.definition for policy in node.policies()] == [{"message-ttl": 60_000}]
