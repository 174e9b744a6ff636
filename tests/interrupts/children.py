"""What runs in processes of its own: `python -m tests.interrupts.children <name> <directory>`."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import random
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import mirrorq
from mirrorq import Empty, MirroredQueue, Node

ALARMS = 400
PUTS = 1000


class Alarm(Exception):
    """What a task runner's time-out raises."""


def alarms(path: str) -> None:
    """Alarms at random moments, each of which raises in whatever call it meets."""
    is_armed = False
    count = 0
    chance = random.Random(7)

    def on_alarm(number: int, frame: FrameType | None) -> None:
        nonlocal count
        if is_armed:
            count += 1
            raise Alarm

    signal.signal(signal.SIGALRM, on_alarm)
    seen: set[int] = set()
    with Node("a", path=path) as node:
        queue, watcher = node.queue("used"), node.queue("watched")
        while count < ALARMS:
            try:
                # In this order: an alarm that came between would be the last one.
                is_armed = True
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.00005, 0.003))
                while True:
                    queue.put(b"x" * 50)
                    queue.put_many([b"y"] * 3)
                    message = queue.get(timeout=20)
                    message.ack()
                    queue.ack_many(queue.get_many(2, 20))
            except Alarm:
                is_armed = False
            if count % 20 == 0:
                watcher.put(b"works").result(20)
        assert queue.wait_for_confirms(20)
        # Nothing is held by nobody: what calls had not returned is ready. What they had is this
        # handle's until it is closed.
        queue.close()
        with node.queue("used") as rest:
            while True:
                try:
                    found = rest.get(timeout=0)
                except Empty:
                    break
                assert found.sequence not in seen
                seen.add(found.sequence)
                found.ack()
            counts = rest._handle.counts()
            assert (counts.ready, counts.unacknowledged) == (0, 0), counts
        watcher.put(b"works").result(20)
    print("done")


def handlers(path: str) -> None:
    """A handler that puts, acks and gives back, in the middle of the same handle's calls."""
    handled: list[mirrorq.Confirmation] = []
    settled: list[mirrorq.Settlement] = []
    chance = random.Random(11)

    with Node("a", path=path) as node:
        queue = node.queue("used")
        own = node.queue("own")
        own.put_many([b"mine"] * ALARMS).result(20)
        held = []
        while len(held) < ALARMS:
            held += own.get_many(ALARMS - len(held), 20)

        def on_alarm(number: int, frame: FrameType | None) -> None:
            handled.append(queue.put(b"handler"))
            settled.append(held[len(settled)].ack())
            if len(handled) < ALARMS:
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.00002, 0.002))

        signal.signal(signal.SIGALRM, on_alarm)
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        put = 0
        confirmation = queue.put(b"main")
        while len(handled) < ALARMS:
            confirmation = queue.put(b"main")
            confirmation.add_done_callback(lambda _: None)
            queue.get(timeout=20).ack()
            put += 1
            if put % 50 == 0:
                confirmation.result(20)
        for each in handled:
            assert each.result(20) > 0
        for settlement in settled:
            settlement.result(20)
        assert queue.wait_for_confirms(20)
    print("done")


def collections(path: str) -> None:
    """Objects that close their queue when they are collected: in the middle of opening the next
    one, and on the node's own thread."""

    class Owner:
        def __init__(self, name: str) -> None:
            self.queue = MirroredQueue(name, path=f"{path}/{name}")
            self.queue.put(b"one").result(20)
            self.itself = self

        def __del__(self) -> None:
            self.queue.close()

    def collect() -> None:
        gc.collect()

    real = Node.__init__

    def made(self: Node, *arguments: Any, **named: Any) -> None:
        # In the middle of opening it, where the next queue's use of a node is noted.
        gc.collect()
        real(self, *arguments, **named)

    gc.disable()
    Node.__init__ = made  # type: ignore[method-assign]
    for number in range(6):
        Owner(f"q{number}")
        with MirroredQueue("next", path=f"{path}/next") as following:
            following.put(b"one").result(20)
    with MirroredQueue("last", path=f"{path}/last") as last:
        Owner("q-last")
        last.node._driver.call(collect)
        last.put(b"one").result(20)
        # The path is free: its node was closed, by a thread of its own.
        while True:
            try:
                with MirroredQueue("q-last", path=f"{path}/q-last") as again:
                    again.put(b"two").result(20)
                break
            except mirrorq.StoreLocked:
                continue
    print("done")


def leaves(path: str) -> None:
    """Puts, and ends without close()."""
    logging.basicConfig(level=logging.WARNING)
    queue = MirroredQueue("q", path=path)
    for number in range(PUTS):
        queue.put(b"%d" % number)


def leaves_client(endpoint: str) -> None:
    """The same of a client."""
    logging.basicConfig(level=logging.WARNING)
    queue = mirrorq.connect(endpoint).queue("q")
    for number in range(PUTS):
        queue.put(b"%d" % number)


def leaves_children(endpoint: str) -> None:
    """The same of children of multiprocessing, one forked and one fresh."""
    forked = multiprocessing.get_context("fork").Process(target=leaves_client, args=(endpoint,))
    fresh = multiprocessing.get_context("spawn").Process(target=leaves_client, args=(endpoint,))
    for child in (forked, fresh):
        child.start()
        child.join()
        assert child.exitcode == 0


def leaves_stuck(path: str) -> None:
    """The same where nothing is confirmed any more, and logging is set up."""
    logging.basicConfig(level=logging.WARNING)
    leaves_unheard(path)


def leaves_unheard(path: str) -> None:
    """The same in a program that sets up no logging."""
    node = Node("a", path=path, config=mirrorq.Config(exit_flush_ms=300))
    queue = node.queue("q")
    queue.put(b"confirmed").result(20)
    # Its disk takes nothing any more.
    node._driver.call(lambda: setattr(node._driver, "_commit", lambda _: False))
    node._calls.run(lambda: None, 20.0, None)
    for number in range(PUTS):
        queue.put(b"%d" % number)


CHILDREN: dict[str, Callable[[str], None]] = {
    each.__name__: each
    for each in (
        alarms,
        handlers,
        collections,
        leaves,
        leaves_client,
        leaves_children,
        leaves_stuck,
        leaves_unheard,
    )
}

if __name__ == "__main__":
    CHILDREN[sys.argv[1]](sys.argv[2])
