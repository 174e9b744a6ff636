"""Queues that go only when they are empty, or used by nobody."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from mirrorq import Message, MirroredQueue, MirrorQError, Node, PreconditionFailed, ShutDown

pytestmark = pytest.mark.real

WAIT_S = 60.0
Declare = Callable[[], MirroredQueue]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node("a", path=tmp_path / "a") as made:
        made.wait_ready(WAIT_S)
        yield made


@pytest.fixture(params=[None, 3], ids=["one ring", "three shards"])
def declare(request: pytest.FixtureRequest, node: Node) -> Declare:
    """Another handle on the queue."""
    return lambda: node.queue("orders", shards=request.param, timeout=WAIT_S)


def refusal(queue: MirroredQueue) -> str:
    """Why it is not deleted as one that is used by nobody."""
    with pytest.raises(PreconditionFailed) as caught:
        queue.delete(if_unused=True)
    return str(caught.value)


def test_a_message_that_somebody_holds_keeps_the_queue(declare: Declare) -> None:
    """Another handle's or its own; when it is acked the queue may go. What a get() has fetched
    ahead is held by nobody."""
    queue, other = declare(), declare()
    queue.put_many([b"x"] * 50).result(WAIT_S)
    for handle in (other, queue):
        held = handle.get(timeout=WAIT_S)
        assert "is in use, it has " in refusal(queue)
        assert "message(s) that somebody holds: ack them or give them back" in refusal(queue)
        held.ack().result(WAIT_S)
        if handle is other:
            other.close()
    queue.delete(if_unused=True)
    with pytest.raises(ShutDown):
        queue.put(b"y").result(WAIT_S)


@pytest.mark.parametrize("whose", ["another's", "its own"])
def test_a_get_that_waits_keeps_the_queue(declare: Declare, whose: str) -> None:
    """It was told that the queue is deleted, by who wanted to delete it only if nobody cared."""
    queue = declare()
    waits = declare() if whose == "another's" else queue
    got: list[Message] = []

    def get() -> None:
        with suppress(MirrorQError):
            got.append(waits.get(timeout=WAIT_S))

    thread = threading.Thread(target=get)
    thread.start()
    pause = threading.Event()
    while not waits._handle.receiver.has_waiting:
        pause.wait(0.002)
    if whose == "another's":
        # Its wish has reached the master when that has answered what was asked behind it.
        waits.qsize()
    assert "is in use, it has a get() that waits" in refusal(queue)
    queue.put(b"x").result(WAIT_S)
    thread.join(WAIT_S)
    got[0].ack().result(WAIT_S)
    if waits is not queue:
        waits.close()
    queue.delete(if_unused=True)


def test_a_consumer_keeps_the_queue(declare: Declare) -> None:
    """Until it is cancelled."""
    queue = declare()
    consumer = queue.consume(lambda message: message.ack())
    assert "is in use, it has 1 consumer(s): cancel them first" in refusal(queue)
    consumer.cancel()
    queue.delete(if_unused=True)


def test_who_has_drained_a_queue_may_delete_it(declare: Declare) -> None:
    """Its own calls of get() that have ended are no use of it; what was just put is in it."""
    queue = declare()
    queue.put(b"x").result(WAIT_S)
    with pytest.raises(PreconditionFailed, match=r"1 message\(s\): purge it first"):
        queue.delete(if_empty=True)
    queue.get(timeout=WAIT_S).ack().result(WAIT_S)
    with pytest.raises(MirrorQError, match="no message"):
        queue.get(timeout=0.01)
    queue.delete(if_empty=True, if_unused=True)


def test_a_lease_and_a_claim_keep_the_queue(node: Node) -> None:
    """Messages that are held without their bodies, and a queue that somebody has for itself."""
    queue, other = (node.queue("orders", timeout=WAIT_S) for _ in range(2))
    queue.put(b"x").result(WAIT_S)
    with other.lease() as lease:
        assert "message(s) that somebody holds" in refusal(queue)
        lease.ack(WAIT_S)
    with other.claim():
        assert "1 consumer(s)" in refusal(queue)
    queue.delete(if_unused=True)
