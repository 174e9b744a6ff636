"""One node (or client) in a process of its own: `python peer.py SETTINGS`.

SETTINGS is a JSON object: `name`, `path`, `peers`, `listen`, `witness`, `config`, or for a client
`endpoints`. Commands come as JSON lines `{"id", "do", …}` on standard input, each runs on a
thread of its own, answers go as JSON lines `{"id", "value"}` or `{"id", "error", "text"}` to
standard output. The end of the input ends the process, so nothing outlives a test.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import resource
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import mirrorq

WAIT_S = 60.0
"""Longest wait inside one command; no command waits for it when all is well."""


class Countdown:
    """The producer of the oracle: N, N-1, … 1, each confirmed, at most once."""

    def __init__(self, queue: mirrorq.MirroredQueue, count: int, pause_s: float) -> None:
        self.offered = 0
        self.confirmed = 0
        self.wrong: list[str] = []
        self.finished = threading.Event()
        self._stop = threading.Event()
        self._queue = queue
        self._count = count
        self._pause_s = pause_s
        self._outcomes: dict[int, int] = {}
        self._sequences: set[int] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        for number in range(self._count, 0, -1):
            if self._stop.is_set():
                break
            confirmation = self._queue.put(str(number).encode())
            with self._lock:
                self.offered += 1
            confirmation.add_done_callback(
                lambda ended, number=number: self._on_outcome(number, ended)
            )
            if self._pause_s:
                self._stop.wait(self._pause_s)
        self.finished.set()

    def _on_outcome(self, number: int, ended: mirrorq.Confirmation) -> None:
        with self._lock:
            self._outcomes[number] = self._outcomes.get(number, 0) + 1
            if self._outcomes[number] > 1:
                self.wrong.append(f"{number} has a second outcome")
            error = ended.exception(0)
            if error is not None:
                self.wrong.append(f"{number}: {type(error).__name__}: {error}")
                return
            sequence = ended.result(0)
            if sequence in self._sequences:
                self.wrong.append(f"{number}: sequence {sequence} was given twice")
            self._sequences.add(sequence)
            self.confirmed += 1

    def stop(self) -> None:
        self._stop.set()

    def report(self) -> dict[str, Any]:
        with self._lock:
            return {
                "offered": self.offered,
                "confirmed": self.confirmed,
                "open": self.offered - len(self._outcomes),
                "finished": self.finished.is_set(),
                "wrong": self.wrong[:20],
            }


class Watch:
    """The consumer of the oracle: every number once without the flag, in order, no gap.

    When a client goes on at another entry node (`moves`), what the one before had of it comes when
    that one takes it for gone: later, and flagged.
    """

    def __init__(self, top: int, *, moves: bool) -> None:
        self.lowest = top + 1
        self.wrong: list[str] = []
        self.acks: list[mirrorq.Settlement] = []
        self.handed_out = 0
        self.missing: set[int] = set()
        """Passed over, and not seen yet."""
        self._moves = moves
        self._lock = threading.Lock()

    def __call__(self, message: mirrorq.Message) -> None:
        number = int(message.body)
        with self._lock:
            self.handed_out += 1
            self.missing.discard(number)
            if number < self.lowest - 1 and self._moves:
                self.missing.update(range(number + 1, self.lowest))
            elif number < self.lowest - 1:
                self.wrong.append(f"gap: {number} after {self.lowest}")
            if number >= self.lowest and not message.redelivered:
                self.wrong.append(f"{number} again, unflagged")
            self.lowest = min(self.lowest, number)
            self.acks.append(message.ack())

    def report(self) -> dict[str, Any]:
        with self._lock:
            refused = sum(1 for ack in self.acks if ack.done() and ack.exception(0) is not None)
            return {
                "lowest": self.lowest,
                "missing": sorted(self.missing)[:20],
                "handed_out": self.handed_out,
                "acked": sum(1 for ack in self.acks if ack.done()) - refused,
                "refused": refused,
                "open": sum(1 for ack in self.acks if not ack.done()),
                "wrong": self.wrong[:20],
            }


class Peer:
    """What this process has, and what it can be asked."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._numbers = itertools.count(1)
        self._queues: dict[int, mirrorq.MirroredQueue] = {}
        self._messages: dict[int, mirrorq.Message] = {}
        self._confirmations: dict[int, Any] = {}
        self._producers: dict[int, Countdown] = {}
        self._watches: dict[int, Watch] = {}
        # Python's own default, but what a limit of `limit_files` comes to rests on it.
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        config = mirrorq.Config(**settings.get("config", {}))
        self._node: mirrorq.Node | None = None
        self._host: mirrorq.Node | mirrorq.Client
        if "endpoints" in settings:
            self._host = mirrorq.connect(settings["endpoints"], config=config)
            return
        self._host = self._node = mirrorq.Node(
            settings["name"],
            path=settings["path"],
            peers=settings.get("peers"),
            listen=settings.get("listen"),
            witness=settings.get("witness", False),
            join=settings.get("join"),
            config=config,
        )

    # --- The host ---

    def do_wait_ready(self, timeout: float = WAIT_S) -> None:
        assert self._node is not None
        self._node.wait_ready(timeout)

    def do_queue(self, name: str, **how: Any) -> int:
        handle = self._host.queue(name, **{"timeout": WAIT_S, **how})
        number = next(self._numbers)
        self._queues[number] = handle
        return number

    def do_nodes(self) -> list[dict[str, Any]]:
        return [
            {"name": node.name, "alive": node.alive, "leader": node.leader}
            for node in self._host.nodes()
        ]

    def do_queues(self) -> list[str]:
        return [queue.name for queue in self._host.queues()]

    def do_entry_node(self) -> str:
        assert isinstance(self._host, mirrorq.Client)
        return self._host.entry_node

    def do_home(self) -> str:
        """Where this mirrorq was imported from."""
        return str(Path(mirrorq.__file__).parents[1])

    def do_listening(self) -> str:
        assert self._node is not None
        return self._node.listening

    def do_waits_for(self, timeout: float) -> str:
        """Why the node is not ready after so long, "" when it is."""
        assert self._node is not None
        try:
            self._node.wait_ready(timeout)
        except mirrorq.NoQuorum as error:
            return str(error)
        return ""

    def do_is_alive(self) -> bool:
        return not self._host.is_closed

    def do_close_node(self) -> None:
        self._host.close()

    def do_limit_files(self, size: int | None) -> None:
        soft = resource.RLIM_INFINITY if size is None else size
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, resource.RLIM_INFINITY))

    def do_fail_disk(self) -> None:
        """The next commit fails as on a broken disk, and with it the node."""
        assert self._node is not None

        def fail(*_: object) -> None:
            raise mirrorq.StoreError("the commit failed: Input/output error")

        self._node._store.commit = fail  # type: ignore[method-assign]

    def do_set_policy(self, name: str, pattern: str, definition: dict[str, Any]) -> None:
        self._host.set_policy(name, pattern, definition, timeout=WAIT_S)

    def do_transferred(self, name: str) -> dict[str, Any]:
        """What the own copy of a queue has fetched as a joiner, and whether by a state."""
        node = self._node
        assert node is not None
        engine = node._driver.engine
        record = engine.catalog.queue_named(name)
        assert record is not None
        replica = engine.replicas.get(record.id)
        if replica is None:
            return {"has_state": False}
        return {
            "frames": replica.transfer.fetched_count,
            "messages": replica.transfer.meter.messages,
            "in_sync": replica.ring.in_sync,
            "has_state": replica.ring.has_state and replica.ring.repaired,
            "missing": replica.transfer.missing.count,
            "live": replica.state.live.count,
        }

    # --- Handles ---

    def do_put(self, queue: int, body: str, **how: Any) -> int:
        return self._confirmed(self._queues[queue].put(body.encode(), **how))

    def do_put_open(self, queue: int, bodies: list[str], size: int = 0) -> list[int]:
        """Publish each by itself; numbers of the confirmations, for `outcome`."""
        found = []
        for body in bodies:
            number = next(self._numbers)
            put = self._queues[queue].put(body.encode().ljust(size))
            self._confirmations[number] = put
            found.append(number)
        return found

    def do_outcome(self, number: int, timeout: float = WAIT_S) -> Any:
        return self._confirmed(self._confirmations[number], timeout)

    def do_is_done(self, number: int) -> bool:
        return bool(self._confirmations[number].done())

    def _confirmed(self, confirmation: Any, timeout: float = WAIT_S) -> Any:
        value = confirmation.result(timeout)
        return [value.start, value.stop] if isinstance(value, range) else value

    def do_put_many(self, queue: int, bodies: list[str]) -> Any:
        return self._confirmed(self._queues[queue].put_many([b.encode() for b in bodies]))

    def do_fill(self, queue: int, count: int, size: int, batch: int = 1000) -> None:
        """Publish `count` messages of `size` bytes, confirmed."""
        handle = self._queues[queue]
        puts = []
        for first in range(0, count, batch):
            numbers = range(first, min(first + batch, count))
            puts.append(handle.put_many([str(n).encode().ljust(size) for n in numbers]))
        for put in puts:
            put.result(WAIT_S)

    def do_get(self, queue: int, timeout: float = WAIT_S, auto_ack: bool = False) -> dict[str, Any]:
        return self._seen(self._queues[queue].get(timeout=timeout, auto_ack=auto_ack))

    def do_take(self, queue: int, count: int) -> list[dict[str, Any]]:
        return [self.do_get(queue) for _ in range(count)]

    def _seen(self, message: mirrorq.Message) -> dict[str, Any]:
        number = next(self._numbers)
        self._messages[number] = message
        return {
            "number": number,
            "body": message.body.decode().strip(),
            "sequence": message.sequence,
            "redelivered": message.redelivered,
            "count": message.delivery_count,
            "headers": message.headers,
            "message_id": message.message_id,
            "key": message.key,
            "reply_to": getattr(message, "reply_to", None),
        }

    def do_ack(self, message: int, timeout: float = WAIT_S) -> None:
        self._messages.pop(message).ack().result(timeout)

    def do_browse(self, queue: int, count_max: int = 1000) -> list[list[Any]]:
        found = self._queues[queue].browse(count_max=count_max)
        return [[m.sequence, m.body.decode().strip()] for m in found]

    def do_status(self, queue: int) -> dict[str, Any]:
        status = self._queues[queue].status()
        return {name: getattr(status, name) for name in status.__slots__ if name[:1] != "_"}

    def do_qsize(self, queue: int) -> int:
        return self._queues[queue].qsize()

    def do_purge(self, queue: int) -> int:
        return self._queues[queue].purge()

    # --- The oracle ---

    def do_produce(self, queue: int, count: int, pause_s: float = 0.0) -> int:
        number = next(self._numbers)
        self._producers[number] = Countdown(self._queues[queue], count, pause_s)
        return number

    def do_produced(self, number: int) -> dict[str, Any]:
        return self._producers[number].report()

    def do_stop_producing(self, number: int) -> None:
        self._producers[number].stop()

    def do_consume(self, queue: int, top: int, **how: Any) -> int:
        number = next(self._numbers)
        watch = self._watches[number] = Watch(top, moves=self._node is None)
        self._queues[queue].consume(watch, **how)
        return number

    def do_consumed(self, number: int) -> dict[str, Any]:
        return self._watches[number].report()

    # --- Life ---

    def run(self) -> None:
        for line in sys.stdin:
            command = json.loads(line)
            threading.Thread(target=self._obey, args=(command,), daemon=True).start()
        os._exit(0)

    def _obey(self, command: dict[str, Any]) -> None:
        number = command.pop("id")
        try:
            value = getattr(self, "do_" + command.pop("do"))(**command)
        except Exception as error:
            say({"id": number, "error": type(error).__name__, "text": str(error)})
        else:
            say({"id": number, "value": value})


OUTPUT = threading.Lock()


def say(answer: dict[str, Any]) -> None:
    with OUTPUT:
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def main() -> None:
    settings = json.loads(sys.argv[1])
    Path(settings["log"]).parent.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(
        filename=settings["log"],
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(threadName)s %(message)s",
    )
    try:
        peer = Peer(settings)
    except Exception as error:
        say({"id": 0, "error": type(error).__name__, "text": str(error)})
        sys.exit(1)
    say({"id": 0, "value": os.getpid()})
    peer.run()


if __name__ == "__main__":
    main()
