"""Acks and puts that are one op: transactions, ack_and_put, redrive; on one real node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_host import FakeHost, wait_until

import mirrorq

pytestmark = pytest.mark.real


@pytest.fixture
def node(tmp_path: Path) -> Iterator[mirrorq.Node]:
    with mirrorq.Node("a", path=tmp_path / "a") as node:
        yield node


def test_a_transaction_takes_effect_as_one(node: mirrorq.Node) -> None:
    with node.queue("orders") as queue:
        queue.put_many([b"one", b"two"]).result(10)
        first, second = queue.get(timeout=10), queue.get(timeout=10)
        with queue.transaction() as step:
            step.ack(first)
            step.put(b"three", headers={"n": 3})
            step.put(b"four", key="k")
            step.ack(second)
            assert queue.qsize() == 0
        found = step.result(10)
        assert found == range(4, 6)
        third = queue.get(timeout=10)
        assert (third.body, third.sequence, third.headers) == (b"three", 4, {"n": 3})
        assert queue.get(timeout=10).key == "k"
        assert [message.sequence for message in queue.browse()] == [4, 5]


def test_an_exception_leaves_everything_as_it_was(node: mirrorq.Node) -> None:
    with node.queue("orders") as queue:
        queue.put(b"one").result(10)
        message = queue.get(timeout=10)
        step = queue.transaction()

        def fail() -> None:
            with step:
                step.ack(message)
                step.put(b"two")
                raise RuntimeError("no")

        with pytest.raises(RuntimeError):
            fail()
        assert [m.body for m in queue.browse()] == [b"one"]
        with pytest.raises(ValueError, match="no outcome"):
            step.result(1)
        with pytest.raises(ValueError, match="over"):
            step.put(b"more")
        message.ack().result(10)


def test_a_transaction_with_an_ack_that_is_not_taken_does_nothing() -> None:
    """A failover, and somebody else has the message: the puts are refused with the acks."""
    with FakeHost() as host, host.queue() as queue, host.queue() as other:
        queue.put(b"one").result(10)
        message = queue.get(timeout=10)
        host.fail_over()
        again = other.get(timeout=20)
        assert again.redelivered
        with queue.transaction() as step:
            step.ack(message)
            step.put(b"two")
        with pytest.raises(mirrorq.AckRefused, match="nothing was done"):
            step.result(10)
        again.ack().result(10)
        assert queue.qsize() == 0


def test_a_transaction_goes_on_over_a_failover() -> None:
    """What is held was handed out by the master before: its ack is taken, once."""
    with FakeHost() as host, host.queue() as queue:
        queue.put(b"one").result(10)
        message = queue.get(timeout=10)
        host.fail_over()
        with queue.transaction() as step:
            step.ack(message)
            step.put(b"two")
        assert len(step.result(20)) == 1
        assert [m.body for m in queue.browse()] == [b"two"]


def test_what_a_transaction_refuses(node: mirrorq.Node) -> None:
    with node.queue("orders") as queue, node.queue("other") as other:
        other.put(b"x").result(10)
        strange = other.get(timeout=10)
        queue.put(b"one").result(10)
        message = queue.get(timeout=10)
        with queue.transaction() as step:
            with pytest.raises(ValueError, match="did not come from this handle"):
                step.ack(strange)
            step.ack(message)
            with pytest.raises(ValueError, match="settled already"):
                step.ack(message)
            step.put(b"two")
            with pytest.raises(ValueError, match="same terms"):
                step.put(b"three", priority=2)
        assert len(step.result(10)) == 1
        with queue.transaction() as empty:
            pass
        assert empty.result(10) == range(0)
        with queue.transaction() as acks, pytest.raises(ValueError, match="settled already"):
            acks.ack(message)


def test_a_limit_holds_for_what_is_put(node: mirrorq.Node) -> None:
    node.set_policy("short", "^orders$", {"max-length": 2, "overflow": "reject-publish"})
    with node.queue("orders") as queue:
        queue.put_many([b"one", b"two"]).result(10)
        message = queue.get(timeout=10)
        with queue.transaction() as step:
            step.ack(message)
            step.put(b"three")
            step.put(b"four")
        with pytest.raises(mirrorq.NotConfirmed, match="max-length 2"):
            step.result(10)
        message.ack().result(10)
        with queue.transaction() as step:
            step.put(b"three")
        assert len(step.result(10)) == 1


def test_ack_and_put(node: mirrorq.Node) -> None:
    with node.queue("orders") as queue, node.queue("done") as done:
        queue.put_many([b"one", b"two"]).result(10)
        message = queue.get(timeout=10)
        settlement = message.ack_and_put("done", b"ONE", headers={"n": 1}, message_id="m", ttl=60)
        assert settlement.result(10) is None
        arrived = done.get(timeout=20)
        assert (arrived.body, arrived.headers, arrived.message_id) == (b"ONE", {"n": 1}, "m")
        with pytest.raises(ValueError, match="settled already"):
            message.ack_and_put(done, b"again")
        second = queue.get(timeout=10)
        with pytest.raises(mirrorq.QueueNotFound):
            second.ack_and_put("nowhere", b"x")
        with second:
            second.ack_and_put(done, b"TWO").result(10)
        assert done.get(timeout=20).body == b"TWO"
        assert queue.browse() == []


def test_ack_and_put_of_a_full_queue_does_not_wait(node: mirrorq.Node) -> None:
    node.set_policy("short", "^orders$", {"max-length": 1})
    with node.queue("orders") as queue, node.queue("done") as done:
        queue.put(b"one").result(10)
        message = queue.get(timeout=10)
        queue.put(b"two").result(10)
        assert queue.full()
        message.ack_and_put(done, b"ONE").result(10)
        assert done.get(timeout=20).body == b"ONE"


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


def test_redrive(node: mirrorq.Node) -> None:
    node.set_policy("letters", "^(orders|bills)$", {"dead-letter-queue": "dead"})
    with node.queue("orders") as orders, node.queue("bills") as bills, node.queue("dead") as dead:
        for queue, body in ((orders, b"o1"), (bills, b"b1"), (orders, b"o2")):
            queue.put(body, headers={"kept": True}).result(10)
            queue.get(timeout=10).nack(requeue=False).result(10)
            wait_until(lambda: dead.qsize() > 0)
        dead.put(b"stranger").result(10)
        wait_until(lambda: dead.qsize() == 4)
        assert dead.redrive(1) == 1
        back = orders.get(timeout=20)
        assert back.body == b"o1"
        assert back.headers["kept"] is True
        assert back.headers["x-death-count"] == 1
        assert "x-death-path" not in back.headers
        back.nack(requeue=False).result(10)
        wait_until(lambda: dead.qsize() == 4)
        last = dead.browse()[-1]
        assert (last.body, last.headers["x-death-count"]) == (b"o1", 2)
        assert dead.redrive() == 3
        wait_until(lambda: orders.qsize() == 2 and bills.qsize() == 1)
        assert sorted(m.body for m in orders.browse()) == [b"o1", b"o2"]
        assert [m.body for m in dead.browse()] == [b"stranger"]
        with pytest.raises(ValueError, match="count_max"):
            dead.redrive(-1)


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


def test_a_deleted_queue_with_an_outbox_is_gone_when_delete_returns(node: mirrorq.Node) -> None:
    """Its name is free again, as that of any queue."""
    node.set_policy("letters", "^orders$", {"dead-letter-queue": "dead"})
    dead = node.queue("dead")
    for turn in range(1, 4):
        queue = node.queue("orders")
        queue.put(b"one").result(10)
        queue.get(timeout=10).nack(requeue=False).result(10)
        queue.delete()
        wait_until(lambda turn=turn: dead.qsize() == turn)
