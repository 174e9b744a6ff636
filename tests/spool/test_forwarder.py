"""A forwarder between two real clusters of one node each, in this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.kit import DEADLINE_S

import mirrorq
from mirrorq.spool.forwarder import Forwarder, Moving

pytestmark = pytest.mark.real


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[tuple[mirrorq.Node, mirrorq.Node]]:
    with (
        mirrorq.Node("a", path=tmp_path / "a") as one,
        mirrorq.Node("b", path=tmp_path / "b") as other,
    ):
        yield one, other


def bodies_in(node: mirrorq.Node, name: str) -> list[bytes]:
    with node.queue(name) as queue:
        return [message.body for message in queue.browse()]


def move(one: mirrorq.Node, other: mirrorq.Node, **options: object) -> Forwarder:
    """All that is there."""
    with one.queue("orders") as source, other.queue("orders") as target:
        forwarder = Forwarder(source, target, **options)  # type: ignore[arg-type]
        forwarder.run(once=True)
        return forwarder


def test_all_is_moved_in_order_and_as_it_was(sites: tuple[mirrorq.Node, mirrorq.Node]) -> None:
    one, other = sites
    with one.queue("orders") as queue:
        queue.put(b"0", headers={"a": 1}, key="k", message_id="m", priority=2)
        queue.put_many([b"%d" % number for number in range(1, 500)])
        queue.put(b"500", delay=1000).result(DEADLINE_S)
    forwarder = move(one, other)
    assert (forwarder.status().moved, forwarder.status().left) == (501, 0)
    assert bodies_in(one, "orders") == []
    assert bodies_in(other, "orders") == [b"%d" % number for number in range(501)]
    with other.queue("orders") as queue:
        assert queue.status().messages_delayed == 1
        first = queue.get(timeout=DEADLINE_S)
        assert (first.headers, first.key, first.message_id) == ({"a": 1}, "k", "m")
        first.ack()
    assert move(one, other).status().moved == 0


def test_what_was_sent_and_not_acked_is_moved_once(
    sites: tuple[mirrorq.Node, mirrorq.Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The forwarder dies between the target's confirm and its own ack."""
    one, other = sites
    with one.queue("orders") as queue:
        for number in range(100):
            queue.put(b"%d" % number).result(DEADLINE_S)

    class Died(Exception):
        pass

    def die(self: Moving) -> None:
        if self.take_outcomes():
            raise Died

    with monkeypatch.context() as patch:
        patch.setattr(Moving, "_settle", die)
        with pytest.raises(Died):
            move(one, other)
    assert len(bodies_in(one, "orders")) == 100
    assert bodies_in(other, "orders")
    move(one, other)
    assert bodies_in(one, "orders") == []
    assert bodies_in(other, "orders") == [b"%d" % number for number in range(100)]


def test_a_target_that_was_deleted_and_made_anew(sites: tuple[mirrorq.Node, mirrorq.Node]) -> None:
    one, other = sites
    with one.queue("orders") as queue:
        queue.put(b"1").result(DEADLINE_S)
        move(one, other)
        other.queue("orders").delete()
        queue.put(b"2").result(DEADLINE_S)
    move(one, other)
    assert bodies_in(other, "orders") == [b"2"]


def test_only_one_key(sites: tuple[mirrorq.Node, mirrorq.Node]) -> None:
    one, other = sites
    with one.queue("orders") as queue:
        for number in range(30):
            queue.put(b"%d" % number, key="even" if number % 2 == 0 else "odd")
        queue.put(b"none").result(DEADLINE_S)
    move(one, other, key="even")
    assert bodies_in(other, "orders") == [b"%d" % number for number in range(0, 30, 2)]
    assert len(bodies_in(one, "orders")) == 16
    move(one, other)
    assert bodies_in(one, "orders") == []
    assert len(set(bodies_in(other, "orders"))) == len(bodies_in(other, "orders")) == 31


def test_what_the_target_refuses_stays(sites: tuple[mirrorq.Node, mirrorq.Node]) -> None:
    one, other = sites
    other.set_policy("short", "orders", {"max-length": 1, "overflow": "reject-publish"})
    with one.queue("orders") as queue:
        for number in range(3):
            queue.put(b"%d" % number).result(DEADLINE_S)
    status = move(one, other).status()
    assert (status.moved, status.kept) == (1, 2)
    assert status.why
    assert bodies_in(other, "orders") == [b"0"]
    assert bodies_in(one, "orders") == [b"1", b"2"]
    other.clear_policy("short")
    assert move(one, other).status().kept == 2
    assert move(one, other, label="again").status().moved == 2
    assert bodies_in(other, "orders") == [b"0", b"1", b"2"]


def test_two_never_have_one_source(
    sites: tuple[mirrorq.Node, mirrorq.Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mirrorq.spool.forwarder.CLAIM_S", 0.1)
    one, other = sites
    with one.queue("orders") as source, other.queue("orders") as target:
        first = Forwarder(source, target)
        begun = threading.Event()
        thread = threading.Thread(target=first.run, kwargs={"on_status": lambda _: begun.set()})
        thread.start()
        begun.wait(DEADLINE_S)
        with (
            one.queue("orders") as again,
            pytest.raises(mirrorq.PreconditionFailed, match="forwarder to orders"),
        ):
            Forwarder(again, target).run(once=True)
        first.stop()
        thread.join()


def test_a_queue_is_not_moved_into_itself(sites: tuple[mirrorq.Node, mirrorq.Node]) -> None:
    with (
        sites[0].queue("orders") as queue,
        pytest.raises(mirrorq.ConfigError, match="source and the target"),
    ):
        Forwarder(queue, queue)


def test_a_forwarder_may_run_again(sites: tuple[mirrorq.Node, mirrorq.Node]) -> None:
    one, other = sites
    with one.queue("orders") as source, other.queue("orders") as target:
        forwarder = Forwarder(source, target)
        assert forwarder.status().moved == 0
        for number in range(3):
            forwarder.run(once=True)
            assert forwarder.status().moved == number
            source.put(b"%d" % number).result(DEADLINE_S)
    assert bodies_in(other, "orders") == [b"0", b"1"]


def test_a_forwarder_ends_with_the_handle_on_its_target(
    sites: tuple[mirrorq.Node, mirrorq.Node],
) -> None:
    one, other = sites
    with one.queue("orders") as source:
        target = other.queue("orders")
        with pytest.raises(mirrorq.ShutDown, match="'orders' is closed"):
            Forwarder(source, target).run(on_status=lambda _: target.close())


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"rate": 0}, "rate is 0"),
        ({"rate": float("inf")}, "rate is inf"),
        ({"rate": float("nan")}, "rate is nan"),
        ({"key": b"k"}, "key is a string, not b'k'"),
    ],
)
def test_arguments_that_a_forwarder_does_not_take(
    sites: tuple[mirrorq.Node, mirrorq.Node], wrong: dict[str, Any], why: str
) -> None:
    one, other = sites
    with (
        one.queue("orders") as source,
        other.queue("orders") as target,
        pytest.raises(mirrorq.ConfigError, match=why),
    ):
        Forwarder(source, target, **wrong)
