"""Callbacks that raise what is no Exception: sys.exit(), a cancellation, Ctrl-C's exception."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest
from tests.kit import DEADLINE_S, until

from mirrorq import Confirmation, Consumer, Message, Node
from mirrorq.protocol.effects import Notice

pytestmark = pytest.mark.real

RAISED = [SystemExit, asyncio.CancelledError, KeyboardInterrupt, GeneratorExit]


@pytest.mark.parametrize("shards", [None, 2])
@pytest.mark.parametrize("raised", RAISED)
def test_a_consumer_goes_on(
    node: Node, raised: type[BaseException], shards: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The message comes again, those behind it are served, and `is_active` is true."""
    queue = node.queue("q", shards=shards)
    seen: list[tuple[bytes, int]] = []

    def work(message: Message) -> None:
        seen.append((message.body, message.delivery_count))
        if message.body == b"bad" and message.delivery_count == 1:
            raise raised
        message.ack()

    consumer = queue.consume(work)
    queue.put(b"bad").result(DEADLINE_S)
    until(lambda: (b"bad", 1) in seen)
    queue.put(b"good").result(DEADLINE_S)
    until(lambda: {(b"good", 1), (b"bad", 2)} <= set(seen), "both are served")
    assert consumer.is_active
    assert "a callback failed on message" in caplog.text
    assert ("sys.exit() in a callback ends neither" in caplog.text) == (raised is SystemExit)
    consumer.cancel()
    assert not consumer.is_active


@pytest.mark.parametrize("raised", RAISED)
def test_callbacks_of_confirms_go_on(node: Node, raised: type[BaseException]) -> None:
    """Of one handle one after another: those after one that raised are called."""
    queue = node.queue("q")
    called: list[str] = []

    def bad(confirmation: Confirmation) -> None:
        called.append("bad")
        raise raised

    queue.add_confirm_listener(bad)
    queue.add_confirm_listener(lambda _: called.append("listener"))
    confirmation = queue.put(b"one", on_confirm=bad)
    confirmation.add_done_callback(bad)
    confirmation.add_done_callback(lambda _: called.append("callback"))
    until(lambda: {"listener", "callback"} <= set(called), "those behind it are called")
    assert called.count("bad") == 3


def test_listeners_of_a_node_go_on(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """One that raises ends neither the others nor the node; none runs on the node's thread."""
    told: dict[str, str] = {}

    def bad(notice: Notice) -> None:
        raise SystemExit

    node.add_listener(bad)
    node.add_listener(lambda one: told.update({one.kind: threading.current_thread().name}))
    node._driver.call(lambda: node._on_notice(Notice("loss", "made up by a test")))
    until(lambda: "loss" in told, "the second one is told")
    assert told["loss"] != node._driver.thread.name
    assert "of a put or an ack raised: the outcome stays as it is" in caplog.text


def test_on_cancel_may_raise(node: Node) -> None:
    """What is called when the queue ends a consumer is a callback like others."""
    queue, other = node.queue("q"), node.queue("q")
    called: list[object] = []

    def on_cancel(consumer: Consumer) -> None:
        called.append(consumer)
        raise SystemExit

    consumers = [queue.consume(Message.ack, on_cancel=on_cancel) for _ in range(2)]
    other.delete()
    until(lambda: len(called) == 2, "both are told")
    assert not any(consumer.is_active for consumer in consumers)


def test_a_consumer_that_fails_says_so(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """Its thread ends by something that is no callback: messages go back, and it is not active."""
    queue = node.queue("q")
    cancelled: list[Consumer] = []
    consumer = queue.consume(Message.ack, on_cancel=cancelled.append)
    caplog.set_level(logging.CRITICAL)

    def fail(message: Message) -> None:
        raise RuntimeError("made by a test")

    consumer._handle_one = fail  # type: ignore[method-assign]
    queue.put_many([b"one", b"two", b"three"]).result(DEADLINE_S)
    until(lambda: cancelled == [consumer], "its user is told")
    assert not consumer.is_active
    assert "has failed: its messages go back" in caplog.text
    assert {queue.get(timeout=DEADLINE_S).body for _ in range(3)} == {b"one", b"two", b"three"}


def test_a_log_handler_that_exits_ends_no_thread_unnoticed(node: Node) -> None:
    """On the node thread what is no Exception ends the node as a failure: nobody waits for ever."""
    queue = node.queue("q")

    def leave() -> None:
        raise SystemExit("made by a test")

    node._driver.call(leave)
    until(lambda: node._driver.failure is not None)
    until(lambda: queue._handle.is_closed, "its handles are told")
