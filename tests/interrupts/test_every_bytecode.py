"""Every public call, interrupted at its bytecodes one after another, as a signal handler may.

After each interrupt another handle's put is confirmed, so the node thread waits for nobody; the
handle itself goes on; nothing confirmed is lost and nothing comes twice.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.interrupts.opcodes import run_interrupted
from tests.kit import DEADLINE_S, until

from mirrorq import AckRefused, Confirmation, Message, MirroredQueue, Node, Settlement, connect
from mirrorq.client.client import Client

BYTECODES_MAX = 100_000
"""A call has fewer, or does not end."""


class Scene:
    """A host with the queue that is used, and another one that watches."""

    def __init__(self, node: Node | Client, shards: int | None = None) -> None:
        self.node = node
        self.is_sharded = shards is not None
        self.queue = node.queue("used", shards=shards)
        self.watcher = node.queue("watched")
        self.watcher.put(b"first").result(DEADLINE_S)
        self.queue.put(b"first").result(DEADLINE_S)
        self.queue.get(timeout=DEADLINE_S).ack().result(DEADLINE_S)

    def check(self) -> None:
        """The node works, for this handle and for others."""
        self.watcher.put(b"works").result(DEADLINE_S)
        assert self.queue.wait_for_confirms(DEADLINE_S)
        counts = self.queue._handle.counts()
        assert (counts.unacknowledged, counts.ready) == (0, 0)

    def take(self) -> Message:
        return self.queue.get(timeout=DEADLINE_S)

    def drain(self) -> list[bytes]:
        """What is in the queue, which is empty then."""
        found = []
        while True:
            messages = self.queue.get_many(100, 0)
            if not messages:
                return found
            found += [message.body for message in messages]
            self.queue.ack_many(messages).result(DEADLINE_S)


Act = Callable[[Scene, int], bool]
"""Does everything for one bytecode: prepares, calls, checks. Returns whether it was reached."""


def put(scene: Scene, at: int) -> bool:
    def call() -> None:
        scene.queue.put(b"interrupted")

    return _published(scene, at, call, [b"interrupted"])


def put_many(scene: Scene, at: int) -> bool:
    def call() -> None:
        scene.queue.put_many([b"one", b"two", b"three"])

    return _published(scene, at, call, [b"one", b"two", b"three"])


def transaction(scene: Scene, at: int) -> bool:
    def call() -> None:
        with scene.queue.transaction() as step:
            step.put(b"one")
            step.put(b"two")

    return _published(scene, at, call, [b"one", b"two"])


def _published(scene: Scene, at: int, call: Callable[[], None], bodies: list[bytes]) -> bool:
    """What was interrupted is there once or not at all; what comes after it is confirmed."""
    was_raised = run_interrupted(call, at)
    first = scene.queue.put(b"after").result(DEADLINE_S)
    scene.watcher.put(b"works").result(DEADLINE_S)
    found = scene.drain()
    if scene.is_sharded:
        found.sort(key=[*bodies, b"after"].index)  # each shard has an order of its own
    assert found in ([*bodies, b"after"], [b"after"])
    assert was_raised or found == [*bodies, b"after"]
    # No gap: the numbers of the next one follow.
    following = scene.queue.put(b"next").result(DEADLINE_S)
    assert scene.is_sharded or following == first + 1
    assert scene.drain() == [b"next"]
    return was_raised


def get_waiting(scene: Scene, at: int) -> bool:
    scene.watcher.put(b"works").result(DEADLINE_S)
    scene.queue.put(b"one").result(DEADLINE_S)
    return _got(scene, at, [b"one"])


def get_ahead(scene: Scene, at: int) -> bool:
    bodies = [b"%d" % number for number in range(4)]
    scene.queue.put_many(bodies).result(DEADLINE_S)
    scene.take().ack().result(DEADLINE_S)
    return _got(scene, at, bodies[1:])


def _got(scene: Scene, at: int, expected: list[bytes]) -> bool:
    got: list[Message] = []

    def call() -> None:
        got.append(scene.queue.get(timeout=DEADLINE_S))

    was_raised = run_interrupted(call, at)
    # What the call has not returned comes again, at its place, as if it had never been away.
    while len(got) < len(expected):
        got.append(scene.take())
    assert [message.body for message in got] == expected
    assert [message.delivery_count for message in got] == [1] * len(expected)
    for message in got:
        message.ack().result(DEADLINE_S)
    scene.check()
    return was_raised


def get_many(scene: Scene, at: int) -> bool:
    bodies = [b"%d" % number for number in range(5)]
    scene.queue.put_many(bodies).result(DEADLINE_S)
    got: list[Message] = []

    def call() -> None:
        got.extend(scene.queue.get_many(3, DEADLINE_S))

    was_raised = run_interrupted(call, at)
    while len(got) < len(bodies):
        got += scene.queue.get_many(5, DEADLINE_S)
    assert [message.body for message in got] == bodies
    scene.queue.ack_many(got).result(DEADLINE_S)
    scene.check()
    return was_raised


def _settled(
    scene: Scene, at: int, settle: Callable[[list[Message]], Settlement], bodies: list[bytes]
) -> bool:
    """Interrupted and called again, it has taken effect once."""
    scene.queue.put_many(bodies).result(DEADLINE_S)
    messages: list[Message] = []
    while len(messages) < len(bodies):
        messages += scene.queue.get_many(len(bodies), DEADLINE_S)

    def call() -> None:
        settle(messages)

    was_raised = run_interrupted(call, at)
    error = settle(messages).exception(DEADLINE_S)
    assert error is None or (isinstance(error, AckRefused) and "settled before" in str(error))
    return was_raised


def ack(scene: Scene, at: int) -> bool:
    was_raised = _settled(scene, at, lambda messages: messages[0].ack(), [b"one"])
    scene.check()
    return was_raised


def ack_many(scene: Scene, at: int) -> bool:
    was_raised = _settled(scene, at, scene.queue.ack_many, [b"one", b"two", b"three"])
    scene.check()
    return was_raised


def nack(scene: Scene, at: int) -> bool:
    was_raised = _settled(scene, at, lambda messages: messages[0].nack(), [b"one"])
    again = scene.take()
    assert (again.body, again.delivery_count) == (b"one", 2)
    again.ack().result(DEADLINE_S)
    scene.check()
    return was_raised


def consume(scene: Scene, at: int) -> bool:
    consumers = []

    def call() -> None:
        consumers.append(scene.queue.consume(lambda message: message.ack()))

    was_raised = run_interrupted(call, at)
    for consumer in consumers:
        consumer.cancel()
    return _left(scene, was_raised)


def cancel(scene: Scene, at: int) -> bool:
    consumer = scene.queue.consume(lambda message: message.ack())
    was_raised = run_interrupted(consumer.cancel, at)
    consumer.cancel()
    assert not consumer.is_active
    return _left(scene, was_raised)


def _left(scene: Scene, was_raised: bool) -> bool:
    """No consumer is left that would take what a get waits for."""
    until(lambda: scene.queue._handle.counts().consumers == 0, "no consumer is left")
    assert not scene.queue._handle.consumers
    assert not any(ring.subscriptions for ring in scene.queue._handle.rings())
    scene.queue.put(b"mine").result(DEADLINE_S)
    scene.take().ack().result(DEADLINE_S)
    scene.check()
    return was_raised


def close(scene: Scene, at: int) -> bool:
    count = len(scene.node._driver._ports)
    handle = scene.node.queue("used")
    confirmations: list[Confirmation] = [handle.put(b"before")]
    was_raised = run_interrupted(handle.close, at)
    handle.close()
    assert confirmations[0].result(0) > 0
    assert handle._handle.is_closed
    ports = scene.node._driver._ports
    until(lambda: len(ports) == count, "the host knows no more of it")
    assert scene.drain() == [b"before"]
    scene.check()
    return was_raised


def browse(scene: Scene, at: int) -> bool:
    was_raised = run_interrupted(scene.queue.browse, at)
    assert scene.queue.browse() == []
    scene.check()
    return was_raised


def adapter_get(scene: Scene, at: int) -> bool:
    """Taken off the queue, or as if nothing had been called; what was lost is no task, either."""
    queue = scene.queue.as_queue()
    queue.put(b"one")
    got: list[bytes] = []

    def call() -> None:
        got.append(queue.get(timeout=DEADLINE_S))

    was_raised = run_interrupted(call, at)
    if not got and queue.qsize():
        got.append(queue.get(timeout=DEADLINE_S))
    for _ in got:
        queue.task_done()
    queue.join()
    scene.check()
    return was_raised


def adapter_task_done(scene: Scene, at: int) -> bool:
    """Interrupted and called again, it has ended one item; a third call has none left."""
    queue = scene.queue.as_queue(ack="task_done")
    queue.put(b"one")
    queue.get(timeout=DEADLINE_S)
    was_raised = run_interrupted(queue.task_done, at)
    with contextlib.suppress(ValueError):
        queue.task_done()
    with pytest.raises(ValueError, match="too many times"):
        queue.task_done()
    queue.join()
    scene.check()
    return was_raised


ACTS: dict[Act, int] = {
    adapter_get: 5,
    adapter_task_done: 5,
    put: 2,
    put_many: 7,
    transaction: 17,
    get_waiting: 3,
    get_ahead: 3,
    get_many: 5,
    ack: 1,
    ack_many: 5,
    nack: 5,
    consume: 17,
    cancel: 7,
    close: 3,
    browse: 11,
}
"""Calls, and of how many bytecodes each one is tried by `make test`."""
SHARDED = (put, put_many, get_waiting, ack, nack, consume, cancel, close)
"""Those that mean the same where there are shards."""

# What is raised in a weak reference's callback ends there.
pytestmark = [
    pytest.mark.real,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with Node("a", path=tmp_path) as node:
        yield Scene(node)


def _interrupt(scene: Scene, act: Act, step: int) -> int:
    at = tried = 0
    while act(scene, at):
        at += step
        tried += 1
        assert at < BYTECODES_MAX, f"{act.__name__} does not end"
    return tried


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_an_interrupted_call_leaves_nothing_behind(scene: Scene, act: Act) -> None:
    """No lock, no gap in a producer's numbers, no message that nobody has, no consumer."""
    assert _interrupt(scene, act, ACTS[act]) > 5


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_of_a_client(node: Node, act: Act) -> None:
    """The same where the host is a client, some bytecodes of each call."""
    with connect(node.endpoint) as client:
        assert _interrupt(Scene(client), act, 7 * ACTS[act] + 2) > 1


@pytest.mark.parametrize("act", SHARDED, ids=lambda act: act.__name__)
def test_of_a_sharded_queue(node: Node, act: Act) -> None:
    """The same on a queue with shards."""
    assert _interrupt(Scene(node, 2), act, 7 * ACTS[act] + 2) > 1


OUTER: dict[str, Callable[[MirroredQueue, list[Message]], object]] = {
    "put": lambda queue, _: queue.put(b"outer"),
    "put_many": lambda queue, _: queue.put_many([b"outer"]),
    "get": lambda queue, held: held.append(queue.get(timeout=DEADLINE_S)),
    "ack": lambda _, held: held[0].ack(),
    "nack": lambda _, held: held[0].nack(),
    "add_done_callback": lambda queue, _: queue.put(b"one").add_done_callback(print_nothing),
    "result": lambda queue, _: queue.put(b"one").result(DEADLINE_S),
}


def print_nothing(confirmation: Confirmation) -> None:
    """A callback."""


def _handled(scene: Scene, name: str, at: int) -> bool:
    """One call, with a handler that puts and acks at one of its bytecodes."""
    queue = scene.queue
    queue.put_many([b"held"] * 3).result(DEADLINE_S)
    held: list[Message] = []
    while len(held) < 2:
        held += queue.get_many(2 - len(held), DEADLINE_S)
    acked = held.pop()
    inner: list[Confirmation | Settlement] = []

    def handle() -> None:
        inner.extend((queue.put(b"inner"), acked.ack()))

    def call() -> None:
        OUTER[name](queue, held)

    is_inside = run_interrupted(call, at, handle)
    assert bool(inner) == is_inside
    for each in inner:
        each.result(DEADLINE_S)
    assert queue.wait_for_confirms(DEADLINE_S)
    for message in held:
        message.ack().exception(DEADLINE_S)
    scene.drain()
    return is_inside


@pytest.mark.parametrize("name", OUTER)
def test_a_handler_may_call(scene: Scene, name: str) -> None:
    """At bytecodes all over a call a handler puts and acks at the same handle, and goes on."""
    reached: list[int] = []

    def use() -> None:
        at = 0
        while _handled(scene, name, at):
            at += 3
        reached.append(at)

    # On a thread of its own: what hangs is seen, and ends with the process.
    thread = threading.Thread(target=use, daemon=True)
    thread.start()
    thread.join(6 * DEADLINE_S)
    assert not thread.is_alive(), "it hangs"
    assert reached
    assert reached[0] > 15


@pytest.mark.soak
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_at_every_bytecode(scene: Scene, act: Act) -> None:
    """The same, with none left out."""
    assert _interrupt(scene, act, 1) > 50
