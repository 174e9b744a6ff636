"""One process of the demo: `python -m mirrorq.demo.peer SETTINGS`.

SETTINGS is a JSON object: `name`; for a peer `path` and `peers`; for a worker that is no node
`endpoints` instead. Commands come as JSON lines on standard input, reports go as JSON lines to
standard output (see `children`). The end of the input ends the process.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attrs import asdict

import mirrorq
from mirrorq.demo.reports import QueueState
from mirrorq.demo.roles import Consumer, Producer

QUEUE = "flights"
REPORT_S = 0.05
"""Interval of reports for the progress display."""
WAIT_S = 60.0
"""Longest wait for a majority of peers that are all just starting."""


class Peer:
    """State of this process: a node or a client, and its roles."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._output_lock = threading.Lock()
        self._stopping = threading.Event()
        self._roles: list[Producer | Consumer] = []
        self._threads: list[threading.Thread] = []
        self._node: mirrorq.Node | None = None
        if "endpoints" in settings:
            self._host: mirrorq.Node | mirrorq.Client = mirrorq.connect(settings["endpoints"])
            return
        self._node = mirrorq.Node(
            settings["name"], path=settings["path"], peers=settings.get("peers")
        )
        self._host = self._node

    def run(self) -> None:
        """Run commands until the input ends."""
        self._start(self._report_often)
        self._start(self._say_ready)
        for line in sys.stdin:
            command = json.loads(line)
            do = getattr(self, "do_" + command.pop("do"))
            do(**command)
        self._stopping.set()
        for role in self._roles:
            role.stop()
        self._host.close()
        for thread in self._threads:
            thread.join(1)

    def do_declare(self) -> None:
        self._host.queue(QUEUE, timeout=WAIT_S)
        self._say({"is": "declared"})

    def do_produce(self, rows: str, records: str, allowed: int, batch: int) -> None:
        queue = self._host.queue(QUEUE, timeout=WAIT_S)
        self._begin(Producer(queue, Path(rows), Path(records), allowed, batch))

    def do_consume(self, records: str, total: int) -> None:
        queue = self._host.queue(QUEUE, timeout=WAIT_S)
        self._begin(Consumer(queue, Path(records), total))

    def do_allow(self, count: int) -> None:
        for role in self._roles:
            if isinstance(role, Producer):
                role.allow(count)

    def _begin(self, role: Producer | Consumer) -> None:
        self._roles.append(role)
        self._start(role.run)

    def _start(self, function: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                function()
            except mirrorq.ShutDown:
                if not self._stopping.is_set():
                    self._fail()
            except BaseException:
                self._fail()

        thread = threading.Thread(target=guarded, name=function.__name__, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _fail(self) -> None:
        """End the process after the end of a needed thread; the parent sees the end."""
        logging.exception("the process ends")
        os._exit(1)

    def _say_ready(self) -> None:
        if self._node is not None:
            self._node.wait_ready(WAIT_S)
        self._say({"is": "ready"})

    def _report_often(self) -> None:
        while not self._stopping.wait(REPORT_S):
            self._report()

    def _report(self) -> None:
        for role in self._roles:
            self._say({"is": role.report, **asdict(role.counts)})
        if self._node is None:
            return
        for status in self._node.queues():
            in_sync = status.synchronised_mirrors
            seen = QueueState(status.state, status.master, status.epoch, in_sync, status.messages)
            self._say({"is": "status", **asdict(seen)})

    def _say(self, report: dict[str, Any]) -> None:
        with self._output_lock:
            sys.stdout.write(json.dumps(report) + "\n")
            sys.stdout.flush()


def main() -> None:
    """Run one process of the demo."""
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s")
    Peer(json.loads(sys.argv[1])).run()


if __name__ == "__main__":
    main()
