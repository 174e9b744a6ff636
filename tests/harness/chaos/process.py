"""One process of a chaos run: `python -m harness.chaos.process SETTINGS`.

SETTINGS is a JSON object: `name`, `config`; for a node `path`, `peers`, `listen`, for a worker
that is no node `endpoints` instead, and `spool` if it spools; `roles`, each `kind`, `name`, `file`,
`pause_s`. On standard output it says as JSON lines, some times a second, how it is. On standard
input a line `stop-producing` or `stop` ends its roles, `close` the node; the end of the input ends
the process, so it outlives nobody.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from pathlib import Path
from typing import Any

import mirrorq
from harness.chaos.roles import QUEUE, ROLES, Consumer, Getter, Producer, Role, Spooler

REPORT_S = 0.15
WAIT_S = 120.0
"""For a majority, at the start."""


class Process:
    """What this process has."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._roles: list[Role] = []
        self._lock = threading.Lock()
        self._stopping: tuple[type, ...] = ()
        """Kinds of roles that are to do nothing more."""
        config = mirrorq.Config(**settings["config"])
        self._config = config
        self._host: mirrorq.Node | mirrorq.Client
        self._node: mirrorq.Node | None = None
        if "spool" in settings:
            self._roles.append(self._spooler())
        elif "endpoints" in settings:
            self._host = mirrorq.connect(
                settings["endpoints"],
                config=config,
                timeout=WAIT_S,
                insecure=settings.get("insecure", False),
            )
        else:
            self._host = self._node = mirrorq.Node(
                settings["name"],
                path=settings["path"],
                peers=settings["peers"],
                listen=settings["listen"],
                config=config,
                insecure=settings.get("insecure", False),
            )

    def run(self) -> None:
        """Until the input ends."""
        for work in (self._report, self._work):
            threading.Thread(target=work, daemon=True).start()
        for line in sys.stdin:
            if line.strip() in ("stop", "stop-producing"):
                self._stop(is_all=line.strip() == "stop")
            elif line.strip() == "close":
                self._host.close()
                os._exit(0)
        os._exit(0)

    def _stop(self, *, is_all: bool) -> None:
        with self._lock:
            self._stopping = (Producer,) if not is_all else (Producer, Consumer, Getter)
            for role in self._roles:
                if isinstance(role, self._stopping):
                    role.stop()

    def _spooler(self) -> Spooler:
        settings, (role,) = self._settings, self._settings["roles"]

        def opened() -> mirrorq.SpoolClient[mirrorq.Client]:
            path: str = settings["spool"]
            return mirrorq.connect(
                settings["endpoints"],
                config=self._config,
                insecure=settings.get("insecure", False),
                spool=path,
            )

        return Spooler(opened(), opened, role["name"], Path(role["file"]))

    def _work(self) -> None:
        """Take up the roles as soon as the queue is served."""
        if "spool" in self._settings:
            return
        while self._settings["roles"]:
            try:
                queue = self._host.queue(QUEUE, timeout=WAIT_S)
            except (mirrorq.NoQuorum, mirrorq.QueueDown):
                continue
            with self._lock:
                for role in self._settings["roles"]:
                    make = ROLES[role["kind"]]
                    if make not in self._stopping:
                        file = Path(role["file"])
                        self._roles.append(make(queue, role["name"], file, role["pause_s"]))
            return

    def _report(self) -> None:
        pause = threading.Event()
        while True:
            roles = list(self._roles)
            puts = sum(role.open_count() for role in roles if isinstance(role, Producer))
            count = sum(role.open_count() for role in roles)
            say({"open": count, "open_puts": puts, **self._status()})
            pause.wait(REPORT_S)

    def _status(self) -> dict[str, Any]:
        node = self._node
        if node is None:
            return {"is_ready": bool(self._roles) or not self._settings["roles"]}
        try:
            found = [status for status in node.queues() if status.name == QUEUE]
        except mirrorq.MirrorQError as error:
            return {"failure": str(error)}
        if not found:
            return {"is_ready": any(known.leader for known in node.nodes())}
        status = found[0]
        return {
            "is_ready": True,
            "state": status.state,
            "master": status.master,
            "mirrors": len(status.mirrors),
            "in_sync": len(status.synchronised_mirrors),
            "epoch": status.epoch,
            "messages": status.messages,
            "age_ms": status.counts_age_ms,
        }


def say(report: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()


def main() -> None:
    settings = json.loads(sys.argv[1])
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(threadName)s %(message)s",
    )
    Process(settings).run()


if __name__ == "__main__":
    main()
