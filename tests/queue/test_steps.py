"""Acks and puts that are one op: transactions, ack_and_put, redrive; on one real node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_host import wait_until

import mirrorq

pytestmark = pytest.mark.real


@pytest.fixture
def node(tmp_path: Path) -> Iterator[mirrorq.Node]:
    with mirrorq.Node("a", path=tmp_path / "a") as node:
        yield node


def test_a_restart_keeps_what_is_on_its_way(tmp_path: Path) -> None:
    """Transactions and outbox are read again from the disk."""
    with mirrorq.Node("a", path=tmp_path / "a") as node, node.queue("orders") as queue:
        queue.put_many([b"%d" % n for n in range(20)]).result(10)
        node.queue("done")
        for message in queue.get_many(20, 10):
            message.ack_and_put("done", b"<%s>" % message.body)
        with queue.transaction() as step:
            step.put(b"last")
        step.result(10)
    with mirrorq.Node("a", path=tmp_path / "a") as node, node.queue("done") as done:
        wait_until(lambda: done.qsize() == 20)
        assert sorted(m.body for m in done.browse()) == sorted(b"<%d>" % n for n in range(20))
        with node.queue("orders") as queue:
            assert [m.body for m in queue.browse()] == [b"last"]


def test_a_redrive_that_fails_holds_nothing(
    node: mirrorq.Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a queue is cannot be asked just now: what was taken to be moved comes again."""
    node.set_policy("letters", "^(orders|bills)$", {"dead-letter-queue": "dead"})
    with node.queue("orders") as orders, node.queue("bills") as bills, node.queue("dead") as dead:
        for count, queue in enumerate((orders, bills), 1):
            queue.put(b"1").result(10)
            queue.get(timeout=10).nack(requeue=False).result(10)
            wait_until(lambda count=count: dead.qsize() == count)
        handle = dead._handle
        id_of = handle.id_of

        def lost(name: str) -> int:
            if name == "bills":
                raise mirrorq.NoQuorum("no majority")
            return id_of(name)

        monkeypatch.setattr(handle, "id_of", lost)
        with pytest.raises(mirrorq.NoQuorum):
            dead.redrive()
        monkeypatch.undo()
        wait_until(lambda: dead.qsize() == 2)
        assert dead.redrive() == 2
        wait_until(lambda: orders.qsize() == bills.qsize() == 1)
