"""Calls of asyncio that wait until their outcome is known."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.faces import AWAITED, WAIT_S, Stage, case
from mirrorq import AckRefused, Confirmation, Full, NoQuorum, NotConfirmed


@case(AWAITED)
def test_a_put_returns_its_sequence(stage: Stage, queue: Any) -> None:
    """`put` and `put_many` end with what was stored; `send` returns what can be awaited."""
    assert queue.awaiting("put", b"1", headers={"n": 1}) == 1
    assert queue.awaiting("put_many", [b"2", b"3"]) == range(2, 4)
    sent = queue.awaiting("send", b"4")
    assert isinstance(sent, Confirmation)
    assert sent.result(WAIT_S) == 4
    assert queue.get(timeout=WAIT_S).headers == {"n": 1}


@case(AWAITED)
def test_what_was_refused_is_raised(stage: Stage) -> None:
    """The awaited call raises what its confirmation would have."""
    stage.host.set_policy("short", "^orders$", {"max-length": 1, "overflow": "reject-publish"})
    queue = stage.queue()
    assert queue.awaiting("put", b"1") == 1
    with pytest.raises(NotConfirmed, match="max-length 1"):
        queue.awaiting("put", b"2")
    message = queue.get(timeout=WAIT_S)
    message.ack().result(WAIT_S)
    with pytest.raises(ValueError, match="settled already"):
        queue.awaiting("ack_and_put", message, "orders", b"3")


@case(AWAITED)
def test_a_publish_returns_a_sequence_for_each_queue(stage: Stage) -> None:
    queue, other = stage.queue(), stage.queue("other")
    news = stage.exchange("news", "fanout")
    news.bind("orders")
    news.bind("other")
    assert news.awaiting("publish", "", b"x") == {"orders": 1, "other": 1}
    assert [one.get(timeout=WAIT_S).body for one in (queue, other)] == [b"x", b"x"]


@case(AWAITED)
def test_an_ack_with_a_put_is_waited_for(stage: Stage) -> None:
    """The message is gone and the other one is there when the call returns; an ack that comes too
    late raises."""
    queue, done = stage.queue(), stage.queue("done")
    queue.awaiting("put_many", [b"1", b"2"])
    one, two = queue.get(timeout=WAIT_S), queue.get(timeout=WAIT_S)
    assert queue.awaiting("ack_and_put", one, "done", b"one") is None
    assert done.get(timeout=WAIT_S).body == b"one"
    two.nack().result(WAIT_S)
    with pytest.raises((AckRefused, ValueError)):
        queue.awaiting("ack_and_put", two, "done", b"two")


@case(AWAITED, nodes=3)
def test_one_bound_for_room_and_outcome(stage: Stage, queue: Any) -> None:
    """Without a majority a put that was accepted is out of time, and is published later all the
    same. A put without room says that nobody has room, and why."""
    assert queue.awaiting("put", b"1") == 1
    stage.cut_off()
    with pytest.raises(TimeoutError, match=r"no outcome after .* it stays open"):
        queue.awaiting("put", b"2", timeout=20)
    stage.cluster.heal()
    stage.until(lambda: queue.qsize() == 2)


@case(AWAITED, nodes=3, unconfirmed_count_max=2)
def test_a_put_without_room_is_full_for_a_reason(stage: Stage, queue: Any) -> None:
    queue.awaiting("put", b"1")
    stage.cut_off()
    for body in (b"2", b"3"):
        queue.put(body)
    with pytest.raises(Full) as refusal:
        queue.awaiting("put", b"4", timeout=20)
    assert isinstance(refusal.value, NoQuorum)
