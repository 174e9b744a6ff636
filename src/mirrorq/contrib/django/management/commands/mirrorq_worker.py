"""`manage.py mirrorq_worker`: run tasks until SIGTERM or Ctrl-C."""

from __future__ import annotations

import os
import signal
import socket
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from mirrorq.contrib.django.api import (
    DEFAULT_TASK_BACKEND_ALIAS,
    InvalidTaskBackend,
    task_backends,
)
from mirrorq.contrib.django.backend import MirrorQBackend
from mirrorq.contrib.django.worker import Worker
from mirrorq.errors import MirrorQError, ShutDown

__all__ = ["Command"]


class Command(BaseCommand):  # type: ignore[misc]
    """Works on the tasks of one backend."""

    help = "Run tasks that mirrorq holds, until SIGTERM or Ctrl-C."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the command's options."""
        add = parser.add_argument
        add("--backend", default=DEFAULT_TASK_BACKEND_ALIAS, help="in TASKS; default: %(default)s")
        add(
            "--queue",
            action="append",
            default=[],
            help="take only from this one; may be repeated; default: all of its QUEUES",
        )
        add("--threads", type=int, default=1, help="tasks at once; default: %(default)s")
        add("--worker-id", default="", help="in results; default: host and process")

    def handle(self, **options: Any) -> None:
        """Run."""
        try:
            backend = task_backends[options["backend"]]
        except InvalidTaskBackend as error:
            raise CommandError(str(error)) from None
        if not isinstance(backend, MirrorQBackend):
            raise CommandError(f"TASKS[{options['backend']!r}] is not a MirrorQBackend: {backend}")
        queues = options["queue"] or sorted(backend.queues)
        if not queues:
            raise CommandError("its QUEUES name none: name them by --queue")
        unknown = [name for name in queues if backend.queues and name not in backend.queues]
        if unknown:
            raise CommandError(f"its QUEUES are {sorted(backend.queues)}, without {unknown}")
        if options["threads"] < 1:
            raise CommandError(f"--threads is {options['threads']}: it must be 1 or more")
        name = options["worker_id"] or f"{socket.gethostname()}-{os.getpid()}"
        worker = Worker(backend, queues, threads=options["threads"], name=name)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: worker.stop())
        try:
            worker.begin()
            self.stdout.write(f"worker {name} takes tasks from {', '.join(queues)}")
            worker.run()
        except (MirrorQError, OSError) as error:
            # A signal may have come while it waited for a node.
            if not (worker.is_stopping and isinstance(error, ShutDown)):
                raise CommandError(f"worker {name} cannot work: {error}") from error
