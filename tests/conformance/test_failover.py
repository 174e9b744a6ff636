"""The master ends, stands still or is cut off while a call is under way: the call goes on, and its
effect is there once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from conformance.faces import ITEMS, WAIT_S, Stage, case, fill, got, raised, taken
from mirrorq import Message, NoQuorum

LONG_S = 120.0
"""Virtual. A call that waits for another master is over within this."""
ENDS: dict[str, Callable[[Stage], None]] = {
    "crash": lambda stage: stage.cluster.crash("a"),
    "freeze": lambda stage: stage.cluster.freeze("a", 60),
    "cut": lambda stage: stage.cluster.partition({"a"}),
    "silent cut": lambda stage: stage.cluster.partition({"a"}, silent=True),
}
"""Ways in which the master is gone for the others."""


def transact(queue: Any, held: Message) -> None:
    with queue.transaction() as step:
        step.ack(held)
        step.put(b"new")
    step.confirmation.result(LONG_S)


CALLS: dict[str, tuple[Callable[[Any, Message], object], list[bytes]]] = {
    "put": (lambda queue, _: queue.put(b"new").result(LONG_S), [b"0", b"1", b"2", b"new"]),
    "put_many": (
        lambda queue, _: queue.put_many([b"new", b"er"]).result(LONG_S),
        [b"0", b"1", b"2", b"new", b"er"],
    ),
    "get": (lambda queue, _: queue.get(timeout=LONG_S).ack().result(LONG_S), [b"1", b"2"]),
    "get_many": (
        lambda queue, _: queue.ack_many(queue.get_many(1, LONG_S)).result(LONG_S),
        [b"1", b"2"],
    ),
    "ack": (lambda _, held: held.ack().result(LONG_S), [b"1", b"2"]),
    "nack": (lambda _, held: held.nack().result(LONG_S), [b"0", b"1", b"2"]),
    "reject": (lambda _, held: held.nack(requeue=False).result(LONG_S), [b"1", b"2"]),
    "browse": (lambda queue, _: queue.browse(), [b"0", b"1", b"2"]),
    "qsize": (lambda queue, _: queue.qsize(), [b"0", b"1", b"2"]),
    "transaction": (transact, [b"1", b"2", b"new"]),
    "ack_and_put": (
        lambda _, held: held.ack_and_put("orders", b"new").result(LONG_S),
        [b"1", b"2", b"new"],
    ),
}
"""A call on a handle that holds the first of three messages, and what the queue has then. What is
held comes again at the next master, to a call that waits there."""


@case(nodes=3)
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("name", CALLS)
def test_a_call_outlives_its_master(stage: Stage, name: str, end: str) -> None:
    """What was held is the handle's still, and can be settled."""
    call, bodies = CALLS[name]
    queue = stage.queue()
    fill(queue, 3)
    held = queue.get(timeout=WAIT_S)
    stage.run(1)
    ENDS[end](stage)
    calling = stage.begin(call, queue, held)
    if name == "qsize":
        assert calling.is_done or raised(calling.result, LONG_S) is None
    else:
        calling.result(LONG_S)
    stage.run(1)
    shown = queue.browse()
    assert sorted(message.body for message in shown) == sorted(bodies)
    assert len({message.sequence for message in shown}) == len(bodies)
    if held.body in bodies and name != "nack":
        assert held.ack().result(LONG_S) is None


@case(ITEMS, nodes=3)
@pytest.mark.parametrize("end", ENDS)
def test_puts_and_gets_go_on_at_the_next_master(stage: Stage, end: str) -> None:
    """In the order of the puts, nothing twice that was acked, and the old master comes back."""
    queue, other = stage.queue(), stage.queue()
    for number in range(5):
        queue.put(b"%d" % number, timeout=LONG_S)
    stage.until(lambda: stage.messages() == 5)
    assert taken(other, 2) == [b"0", b"1"]
    stage.until(lambda: stage.messages() == 3)
    ENDS[end](stage)
    for number in range(5, 10):
        queue.put(b"%d" % number, timeout=LONG_S)
    messages = [other.get(timeout=LONG_S) for _ in range(8)]
    assert [message.body for message in messages] == [b"%d" % number for number in range(2, 10)]
    for message in messages:
        message.ack()
    stage.until(lambda: stage.messages() == 0)
    stage.cluster.heal()
    if end == "crash":
        stage.cluster.restart("a")
    stage.run(90)
    queue.put(b"after", timeout=LONG_S)
    assert taken(other, 1) == [b"after"]


@case(ITEMS, nodes=3)
@pytest.mark.parametrize("silent", [False, True])
def test_a_handle_that_is_cut_off_confirms_nothing_and_goes_on(stage: Stage, silent: bool) -> None:
    """Its node or client has no majority: calls wait, or say so in time; what it held goes to
    others, and what it put is there once."""
    queue = stage.queue()
    queue.put(b"0", timeout=WAIT_S)
    stage.until(lambda: stage.messages() == 1)
    host = "web" if stage.face.name in ("client", "aio") else "c"
    stage.cluster.partition({host}, silent=silent)
    stage.run(5)
    putting = stage.begin(queue.put, b"1", timeout=LONG_S)
    if host == "c":
        assert isinstance(raised(queue.get, timeout=0.1), NoQuorum)
    assert stage.messages(at="a") == 1
    stage.cluster.heal()
    putting.result(LONG_S)
    stage.until(lambda: stage.messages() == 2)
    assert [message.body for message in got(queue, 2)] == [b"0", b"1"]
