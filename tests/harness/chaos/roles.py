"""Producers and consumers that write down what they saw; they run until they are stopped."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast

import mirrorq
from harness.chaos.history import Recorder, body_of, value_of

__all__ = ["QUEUE", "Consumer", "Getter", "Producer", "Role", "Spooler"]

QUEUE = "orders"
OPEN_MAX = 300
"""Puts of one producer without an outcome; then it waits."""
NACK_SHARE = 0.03
PREFETCH = 20
GET_S = 0.2
SPOOL_PAUSE_S = 0.02
REOPEN_SHARE = 0.01
"""How often a spool is closed and opened again, at each of its puts."""
Reopen = Callable[[], "mirrorq.SpoolClient[mirrorq.Client]"]


class Role(Protocol):
    """What a process does with the queue."""

    def stop(self) -> None:
        """Begin nothing more."""
        ...

    def open_count(self) -> int:
        """Outcomes that are still to come, and what is still being done."""
        ...


class Producer:
    """Puts values `id.1`, `id.2`, … singly and many at a time."""

    def __init__(self, queue: mirrorq.MirroredQueue, name: str, file: Path, pause_s: float) -> None:
        self._queue = queue
        self._name = name
        self._recorder = Recorder(file)
        self._pause_s = pause_s
        self._chance = random.Random(name)
        self._changed = threading.Condition()
        self._open = 0
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()

    def open_count(self) -> int:
        return self._open + self._thread.is_alive()

    def _run(self) -> None:
        number = 0
        while self._may_go_on():
            count = self._chance.choice((1, 1, 1, 5, 20))
            values = [f"{self._name}.{number + index}" for index in range(1, count + 1)]
            number += count
            self._recorder.write_all("a", [(value,) for value in values])
            with self._changed:
                self._open += count
            try:
                self._put(values)
            except mirrorq.MirrorQError as error:
                self._end(values, "u", [_words(error)] * count)
                return

    def _put(self, values: list[str]) -> None:
        bodies = [body_of(value) for value in values]
        put = self._queue.put(bodies[0]) if len(values) == 1 else self._queue.put_many(bodies)
        put.add_done_callback(partial(self._on_outcome, values))

    def _may_go_on(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopping, self._pause_s)
            self._changed.wait_for(lambda: self._is_stopping or self._open < OPEN_MAX)
            return not self._is_stopping

    def _on_outcome(self, values: list[str], put: mirrorq.Confirmation) -> None:
        error = put.exception(0)
        if error is None:
            result: Any = put.result(0)
            self._end(values, "o", result if isinstance(result, range) else [result])
        else:
            kind = "n" if isinstance(error, mirrorq.NotConfirmed) else "u"
            self._end(values, kind, [_words(error)] * len(values))

    def _end(self, values: list[str], kind: str, rest: Any) -> None:
        self._recorder.write_all(kind, zip(values, rest, strict=True))
        with self._changed:
            self._open -= len(values)
            self._changed.notify_all()


class Spooler(Producer):
    """The same into a spool, which it closes and opens again from time to time."""

    def __init__(
        self, client: mirrorq.SpoolClient[mirrorq.Client], reopen: Reopen, name: str, file: Path
    ) -> None:
        self._client = client
        self._reopen = reopen
        self._spooled = client.queue(QUEUE)
        super().__init__(cast(mirrorq.MirroredQueue, self._spooled), name, file, SPOOL_PAUSE_S)

    def open_count(self) -> int:
        return self._spooled.status().messages + self._thread.is_alive()

    def _may_go_on(self) -> bool:
        if self._chance.random() < REOPEN_SHARE:
            self._client.close()
            self._client = self._reopen()
            self._spooled = self._client.queue(QUEUE)
            self._queue = cast(mirrorq.MirroredQueue, self._spooled)
            with self._changed:
                self._open = 0
        return super()._may_go_on()

    def _put(self, values: list[str]) -> None:
        put = self._spooled.put_many([body_of(value) for value in values])
        put.add_accept_callback(partial(self._on_accept, values))

    def _on_accept(self, values: list[str], put: mirrorq.SpoolConfirmation) -> None:
        kind = "s" if put.is_accepted else "u"
        self._recorder.write_all(kind, [(value, "-") for value in values])
        with self._changed:
            self._open -= len(values)
            self._changed.notify_all()


class _Taker:
    """What both kinds of consumers do with a message."""

    def __init__(self, queue: mirrorq.MirroredQueue, name: str, file: Path) -> None:
        self._queue = queue
        self._recorder = Recorder(file)
        self._chance = random.Random(name)
        self._lock = threading.Lock()
        self._open = 0

    def open_count(self) -> int:
        return self._open

    def _take(self, message: mirrorq.Message) -> None:
        value = value_of(message.body)
        if value is None:
            self._recorder.write("x", repr(message.body[:60]).replace(" ", "_"))
            value = "?"
        count = message.delivery_count
        self._recorder.write("d", value, message.sequence, count, int(message.redelivered))
        with self._lock:
            self._open += 1
        try:
            is_ack = self._chance.random() >= NACK_SHARE
            settled = message.ack() if is_ack else message.nack()
        except mirrorq.MirrorQError:
            self._on_settled(value, count, False, None)
            return
        settled.add_done_callback(partial(self._on_settled, value, count, is_ack))

    def _on_settled(
        self, value: str, count: int, is_ack: bool, settled: mirrorq.Settlement | None
    ) -> None:
        if settled is not None and is_ack:
            error = settled.exception(0)
            if error is None:
                self._recorder.write("k", value, count)
            else:
                self._recorder.write("r", value, count, _words(error))
        with self._lock:
            self._open -= 1


class Consumer(_Taker):
    """A callback, as most users have it."""

    def __init__(self, queue: mirrorq.MirroredQueue, name: str, file: Path, _: float) -> None:
        super().__init__(queue, name, file)
        self._consumer = queue.consume(self._take, prefetch=PREFETCH)

    def stop(self) -> None:
        self._consumer.cancel()


class Getter(_Taker):
    """A thread that calls `get_many`."""

    def __init__(self, queue: mirrorq.MirroredQueue, name: str, file: Path, _: float) -> None:
        super().__init__(queue, name, file)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def open_count(self) -> int:
        return super().open_count() + self._thread.is_alive() * self._stopping.is_set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                messages = self._queue.get_many(self._chance.randint(1, 8), timeout=GET_S)
            except (mirrorq.NoQuorum, mirrorq.QueueDown):
                continue
            except mirrorq.MirrorQError:
                return
            for message in messages:
                self._take(message)


ROLES: dict[str, Callable[[mirrorq.MirroredQueue, str, Path, float], Role]] = {
    "producer": Producer,
    "consumer": Consumer,
    "getter": Getter,
}


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}:{error}".replace(" ", "_").replace("\n", "_")
