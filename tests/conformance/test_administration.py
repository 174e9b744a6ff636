"""Declaring queues with arguments, policies, and what a host says of its cluster."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest

from conformance.faces import ONE_RING, WAIT_S, Stage, case, fill, got, raised
from mirrorq import NotConfirmed, PolicyError, PreconditionFailed, QueueNotFound, ShutDown
from mirrorq.node import overview

GIVEN: dict[str, Any] = {
    "expires": timedelta(days=1),
    "message_ttl": 3600,
    "max_length": 3,
    "max_length_bytes": 10_000,
    "overflow": "reject-publish",
    "dead_letter_queue": "dead",
    "delivery_limit": 5,
    "consumer_timeout": 0,
}
SHOWN = {
    "consumer-timeout": 0,
    "dead-letter-queue": "dead",
    "delivery-limit": 5,
    "expires": 24 * 3600 * 1000,
    "max-length": 3,
    "max-length-bytes": 10_000,
    "message-ttl": 3600 * 1000,
    "overflow": "reject-publish",
}


def test_a_queue_is_made_with_arguments_and_shows_them(stage: Stage) -> None:
    """They hold: a fourth message is refused, and what is rejected goes to the queue named."""
    dead, orders = stage.queue("dead"), stage.queue(**GIVEN)
    assert orders.status().arguments == SHOWN
    fill(orders, 3)
    with pytest.raises(NotConfirmed):
        orders.put(b"one more").result(WAIT_S)
    orders.get(timeout=WAIT_S).nack(requeue=False).result(WAIT_S)
    assert dead.get(timeout=WAIT_S).body == b"0"
    for options in ({}, GIVEN, {"passive": True, "max_length": 9}):
        assert stage.queue(**options).status().arguments == SHOWN


def test_an_infinite_time_out_is_no_bound(stage: Stage) -> None:
    queue = stage.queue()
    stage.host.wait_ready(math.inf)
    stage.host.set_policy("long", "^orders$", {"max-length": 5}, timeout=math.inf)
    fill(queue, 1)
    queue.get(timeout=math.inf).ack().result(math.inf)
    stage.cluster.connect("other", timeout=math.inf).close()


def test_other_arguments_are_refused_by_name(stage: Stage) -> None:
    queue = stage.queue(max_length=3)
    assert queue.status().arguments == {"max-length": 3}
    with pytest.raises(PreconditionFailed, match="max-length=3, not 4: declare it with equal"):
        stage.queue(max_length=4)
    with pytest.raises(PreconditionFailed, match="expires=None, not 1000"):
        stage.queue(expires=1)


@case(ONE_RING)
def test_an_exclusive_queue_ends_with_its_connection(stage: Stage) -> None:
    """Nobody else may open it; closing the host ends it, and its messages with it."""
    mine = stage.queue("mine", exclusive=True)
    fill(mine, 1)
    other = stage.cluster.connect("other")
    with pytest.raises(PreconditionFailed, match="'mine' is exclusive"):
        other.queue("mine", passive=True)
    assert mine.get(timeout=WAIT_S).body == b"0"
    if stage.face.name == "node":
        mine.delete()
    else:
        stage.host.close()
    stage.until(lambda: isinstance(raised(other.queue, "mine", passive=True), QueueNotFound))
    with pytest.raises(ShutDown):
        mine.put(b"x")


@case(ONE_RING)
def test_an_auto_delete_queue_ends_with_its_last_consumer(stage: Stage) -> None:
    queue, other = (stage.queue("answers", auto_delete=True) for _ in range(2))
    consumers = [handle.consume(lambda message: message.ack()) for handle in (queue, other)]
    consumers[0].cancel()
    fill(queue, 1)
    consumers[1].cancel()
    stage.until(lambda: stage.host.queues() == [])


@case(nodes=3)
def test_each_host_says_the_same(stage: Stage, queue: Any) -> None:
    """Of queues, nodes and policies, whoever is asked; a new master is at the node named."""
    stage.queue("bills")
    node = stage.cluster.node("b")
    stage.until(lambda: stage.host.nodes() == node.nodes())
    assert [row.name for row in stage.host.queues()] == ["bills", "orders"]
    assert [row.name for row in stage.host.nodes()] == ["a", "b", "c"]
    if stage.face.name != "sharded":
        assert (queue.status().master, set(queue.status().mirrors)) == ("a", {"b", "c"})
        stage.host.transfer_master("orders", "b")
        stage.until(lambda: queue.status().master == "b")
        stage.host.rebalance()
    fill(queue, 3)
    assert [message.body for message in got(queue, 3)] == [b"0", b"1", b"2"]
    stage.until(lambda: queue.status().messages_unacknowledged == 3)


def test_policies_are_set_listed_and_cleared(stage: Stage) -> None:
    """What was given comes back as it was given, by name; clearing twice is no error."""
    host, definition = stage.host, {"ha-mode": "nodes", "ha-params": ["a"], "max-length": 5}
    host.set_policy("second", "^b", {"ha-mode": "all"}, priority=-3, apply_to="all")
    host.set_policy("first", "a.c", definition)
    first, second = host.policies()
    assert (first.name, first.pattern, first.definition) == ("first", "a.c", definition)
    assert (first.priority, first.apply_to) == (0, "queues")
    assert (second.name, second.priority, second.apply_to) == ("second", -3, "all")
    for _ in range(2):
        host.clear_policy("first")
        assert [policy.name for policy in host.policies()] == ["second"]


def test_a_policy_holds_at_once_for_queues_that_exist(stage: Stage) -> None:
    """The highest priority wins, then the name that sorts first; patterns are unanchored."""
    host, queue, other = stage.host, stage.queue("orders.eu"), stage.queue("bills")
    assert queue.status().policy is None
    for name, pattern, priority in (("m", "orders", 1), ("z", "eu$", 2), ("b", "ders", 2)):
        host.set_policy(name, pattern, {"ha-mode": "all"}, priority)
    assert queue.status().policy == host.queues()[1].policy == "b"
    assert other.status().policy is None
    host.clear_policy("b")
    assert queue.status().policy == "z"
    host.set_policy("z", "^eu", {"ha-mode": "all"}, 2)
    assert queue.status().policy == "m"
    host.clear_policy("m")
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
@case(ONE_RING)
def test_what_is_wrong_with_a_policy_changes_nothing(
    stage: Stage, arguments: tuple[Any, ...], named: str
) -> None:
    """PolicyError with the value that is wrong; the policy of that name stays as it was."""
    stage.host.set_policy("p", "y", {"ha-mode": "all"})
    before = stage.host.policies()
    with pytest.raises(PolicyError, match=named):
        stage.host.set_policy(*arguments)
    assert stage.host.policies() == before
    with pytest.raises(PolicyError):
        stage.host.clear_policy("")


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_queues_are_listed_page_by_page(
    stage: Stage, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each once, by name, whatever a page holds; a sharded queue's shards stand in one page."""
    monkeypatch.setattr(overview, "LISTED_MAX", size)
    names = [f"q{number}" for number in range(5)]
    for name in names:
        stage.queue(name)
    stage.host.queue("many", shards=3)
    stage.until(lambda: [row.name for row in stage.host.queues()] == ["many", *names])
    shards = 3 if stage.face.name == "sharded" else 0
    expected = ["many", *(f"many#shard{shard}" for shard in range(3))]
    for name in names:
        expected += [name, *(f"{name}#shard{shard}" for shard in range(shards))]
    assert [row.name for row in stage.host.queues(shards=True)] == expected
