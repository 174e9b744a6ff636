"""`mirrorq worker`: a function works on a queue's messages, on threads, in a loop or in processes.

*Signals*: the first SIGTERM or Ctrl-C lets each running function return, and begins no other. The
second signal ends the process at once: unacked messages come again. Handlers only count, because a
handler may run while the main thread holds any lock.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mirrorq import clock
from mirrorq.cli.connecting import (
    Failed,
    Misused,
    Number,
    checked_time,
    cluster_options,
    connected,
    echo,
    failing,
)
from mirrorq.cli.ending import signals_counted
from mirrorq.cli.node import check_metrics

if TYPE_CHECKING:
    from mirrorq.api.consumer import Consumer
    from mirrorq.api.message import Message
    from mirrorq.api.queue import MirroredQueue
    from mirrorq.client.client import Client

LOOK_S = 0.1
"""Interval of the main thread's checks for signals and ended consumers."""
TOLD_S = 10.0
"""Interval in which a worker prints its progress."""
AGAIN_S = 1.0
AGAIN_MAX_S = 30.0
"""Longest pause before an ended process is replaced: doubled while each ends within 60 s."""
LIVED_S = 60.0
PARENT = "MIRRORQ_WORKER_PARENT"
"""Environment variable of a process of several: id of the supervising parent process."""
MISUSED = 2
"""Exit status of a process that cannot import its function: no other process can."""
STOPPED = (0, -signal.SIGTERM)
"""Exit statuses of a process that was told to stop, perhaps while starting."""


@click.command()
@click.argument("function", metavar="MODULE:FUNCTION")
@click.option("--queue", required=True, metavar="NAME", help="The queue to take from.")
@click.option(
    "--concurrency",
    default=1,
    show_default=True,
    type=click.IntRange(1, 10_000),
    help="Messages worked on at once in each process: by threads, or by tasks of an async def.",
)
@click.option(
    "--processes",
    default=1,
    show_default=True,
    type=click.IntRange(1, 1_000),
    help="Processes; one that dies is replaced.",
)
@click.option(
    "--prefetch",
    default=1,
    show_default=True,
    type=click.IntRange(1, 100_000),
    help="Messages that each thread or task holds, the one it works on included.",
)
@click.option(
    "--retry-delay",
    default="100ms",
    show_default=True,
    callback=checked_time,
    help="After which a message whose call has raised comes again, doubled with each delivery.",
)
@click.option(
    "--retry-delay-max",
    default="1m",
    show_default=True,
    callback=checked_time,
    help="The longest of these.",
)
@click.option(
    "--stop-timeout",
    default=30.0,
    show_default=True,
    type=Number(min=0),
    help="Seconds that SIGTERM and Ctrl-C leave to the messages being worked on.",
)
@click.option(
    "--directory",
    default=".",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Where MODULE is looked for first. Default: here.",
)
@click.option(
    "--metrics",
    metavar="[HOST:]PORT",
    help="Serve the worker's counts for Prometheus there; on loopback without a host.",
)
@cluster_options(required=True)
def worker(
    function: str,
    queue: str,
    concurrency: int,
    processes: int,
    prefetch: int,
    retry_delay: str | float,
    retry_delay_max: str | float,
    stop_timeout: float,
    directory: Path,
    metrics: str | None,
    endpoints: str,
    insecure: bool,
    wait: float,
    keys: Path | None,
) -> None:
    """Call MODULE:FUNCTION with each message of a queue until SIGTERM or Ctrl-C.

    A message is acked when the function returns. When it raises, the message comes again, each
    time later; a policy's delivery-limit ends that. The first signal lets running functions
    return; the second one ends at once.

    Exit status: 0 stopped; 1 the queue ended the worker, or a function did not return in time; 2
    the function cannot be imported.
    """
    if processes > 1:
        if metrics is not None:
            raise Misused("--metrics serves one process: leave --processes out")
        arguments = [function, f"--queue={queue}", f"--concurrency={concurrency}"]
        arguments += [f"--prefetch={prefetch}", f"--stop-timeout={stop_timeout}"]
        arguments += [f"--retry-delay={retry_delay}", f"--retry-delay-max={retry_delay_max}"]
        arguments += [f"--directory={directory}", f"--connect={endpoints}", f"--wait={wait}"]
        arguments += ["--insecure"] * insecure + [f"--keys={keys}"] * (keys is not None)
        Processes(arguments, processes, stop_timeout).run()
        return
    options = {
        "prefetch": prefetch,
        "retry_delay": retry_delay,
        "retry_delay_max": retry_delay_max,
    }
    work = Work(queue, imported(function, directory), concurrency, options, stop_timeout)
    with failing(), ExitStack() as ending:
        check_metrics(metrics, insecure)
        client = ending.enter_context(connected(endpoints, insecure=insecure, wait=wait, keys=keys))
        if metrics is not None:
            ending.callback(work.serve_metrics(metrics))
        work.run(client)


def imported(name: str, directory: Path) -> Callable[[Message], Any]:
    """Import a function by its name, as `module:function`.

    Raises:
        Misused: there is no function, or its module cannot be imported; the traceback of an error
            in the module is printed.
    """
    module_name, _, path = name.partition(":")
    if not module_name or not path:
        raise Misused(f"{name!r} names no function: give module:function, as in tasks:resize")
    sys.path.insert(0, str(directory.resolve()))
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        if not isinstance(error, ModuleNotFoundError) or error.name != module_name:
            traceback.print_exc()
        text = f"module {module_name!r} cannot be imported ({type(error).__name__}: {error})"
        raise Misused(f"{text}: its directory is given by --directory") from None
    for part in path.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise Misused(f"module {module_name!r} has no function {path!r}")
    return found  # type: ignore[no-any-return]


class Work:
    """One process's work on a queue, and its counts.

    Args:
        count: how many threads or tasks.
        options: options of `consume`.
        stop_timeout: seconds for messages in hand at the end.

    *Threads*: a function's threads change the counts under a lock; the main thread reads them.
    """

    def __init__(
        self,
        queue: str,
        function: Callable[[Message], Any],
        count: int,
        options: dict[str, Any],
        stop_timeout: float,
    ) -> None:
        self.done = 0
        self.failed = 0
        self.in_hand = 0
        """Messages that the function works on now."""
        self._queue = queue
        self._function = function
        self._count = count
        self._options = options
        self._stop_timeout = stop_timeout
        self._is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            type(function).__call__
        )
        self._lock = threading.Lock()
        self._ended: list[Consumer] = []
        """Consumers that the queue has ended."""
        self._told_at = clock.monotonic()
        self._told_done = 0

    def run(self, client: Client) -> None:
        """Work until a signal.

        Raises:
            Failed: the queue has ended a consumer, or a function did not return in time.
        """
        with signals_counted() as signals:
            count = f"{self._count} {'tasks' if self._is_async else 'threads'}"
            echo(f"worker of queue {self._queue} runs: {count}", err=True)
            run = self._run_in_loop if self._is_async else self._run_on_threads
            run(client.queue(self._queue), signals)
        self._tell()
        if self.in_hand:
            raise Failed(
                f"{self.in_hand} messages of queue {self._queue} were not finished within "
                f"{self._stop_timeout:g} s: they come again. Give --stop-timeout the longest one's "
                "time"
            )
        if self._ended:
            why = self._ended[0].refused or "the handle was closed"
            raise Failed(f"queue {self._queue} has ended the worker: {why}")

    def _run_on_threads(self, queue: MirroredQueue, signals: list[int]) -> None:
        consumers = [
            queue.consume(self._work, on_cancel=self._ended.append, **self._options)
            for _ in range(self._count)
        ]
        while not self._is_over(signals):
            time.sleep(LOOK_S)
        for consumer in consumers:
            consumer.cancel(wait=False)
        until = self._stop_by()
        self._wait_idle(until)
        for consumer in () if self.in_hand else consumers:
            consumer.cancel()
        self._wait_idle(until)  # for those that were about to begin

    def _wait_idle(self, until: float) -> None:
        while self.in_hand and clock.monotonic() < until:
            time.sleep(LOOK_S)

    def _run_in_loop(self, handle: MirroredQueue, signals: list[int]) -> None:
        from mirrorq import aio

        async def main() -> None:
            queue = aio.MirroredQueue(handle)
            consumers = [
                await queue.consume(
                    self._work_in_loop, on_cancel=self._ended.append, **self._options
                )
                for _ in range(self._count)
            ]
            while not self._is_over(signals):
                await asyncio.sleep(LOOK_S)
            for consumer in consumers:
                consumer.cancel()
            until = self._stop_by()
            while self.in_hand and clock.monotonic() < until:
                await asyncio.sleep(LOOK_S)

        asyncio.run(main())

    def _work(self, message: Message) -> None:
        from mirrorq.api.arguments import check_returned

        with self._counted():
            check_returned("the function", self._function(message))

    async def _work_in_loop(self, message: Message) -> None:
        with self._counted():
            # A task of its own: a job that cancels its task ends no consumer.
            await asyncio.ensure_future(self._function(message))

    @contextmanager
    def _counted(self) -> Iterator[None]:
        from mirrorq.aio.consumer import ends_task

        with self._lock:
            self.in_hand += 1
        try:
            yield
        except BaseException as error:
            with self._lock:
                # A task that is cancelled at the end has not finished its message.
                is_cut = self._is_async and ends_task(error)
                self.failed += not is_cut
                self.in_hand -= not is_cut
            raise
        with self._lock:
            self.done += 1
            self.in_hand -= 1

    def _is_over(self, signals: list[int]) -> bool:
        """Return true if the worker must stop; print the progress when due."""
        if clock.monotonic() - self._told_at >= TOLD_S:
            self._tell()
        return bool(signals or self._ended) or is_orphan()

    def _stop_by(self) -> float:
        """Say that the worker stops; return when the messages in hand are given up."""
        if self.in_hand:
            text = f"worker of queue {self._queue} stops: {self.in_hand} messages in hand get "
            echo(f"{text}{self._stop_timeout:g} s; a second signal ends it at once", err=True)
        return clock.monotonic() + self._stop_timeout

    def _tell(self) -> None:
        now = clock.monotonic()
        rate = (self.done - self._told_done) / max(now - self._told_at, LOOK_S)
        if self.done != self._told_done or self.in_hand:
            echo(
                f"worker of queue {self._queue}: {self.done:,} done ({rate:,.1f}/s), "
                f"{self.failed:,} failed, {self.in_hand} in hand",
                err=True,
            )
        self._told_at, self._told_done = now, self.done

    def serve_metrics(self, address: str) -> Callable[[], None]:
        """Serve the counts over HTTP; return a function that ends the server."""
        from mirrorq.metrics import serve_values

        values = {
            "mirrorq_worker_done": ("Messages acked", lambda: self.done),
            "mirrorq_worker_failed": ("Calls of the function that raised", lambda: self.failed),
            "mirrorq_worker_in_hand": ("Messages worked on now", lambda: self.in_hand),
        }
        return serve_values(address, self._queue, values)


class Processes:
    """Several processes of one worker: a dead process is replaced, all stop together."""

    def __init__(self, arguments: list[str], count: int, stop_timeout: float) -> None:
        self._command = [sys.executable, "-m", "mirrorq", "worker", *arguments]
        self._places = [ProcessSlot() for _ in range(count)]
        self._stop_timeout = stop_timeout

    def run(self) -> None:
        """Run the processes until a signal.

        Raises:
            Misused: a process cannot import its function.
            Failed: a process has failed during its stop, or was killed because it did not stop.
        """
        with signals_counted(self._kill) as signals:
            while not signals and not any(one.status == MISUSED for one in self._places):
                for place in self._places:
                    place.look(self._command)
                time.sleep(LOOK_S)
            self._stop()
        if any(place.status == MISUSED for place in self._places):
            raise Misused("no process could import the function")
        if any(place.status not in STOPPED for place in self._places):
            statuses = ", ".join(str(place.status) for place in self._places)
            raise Failed(f"processes of the worker have ended with status {statuses}")

    def _stop(self) -> None:
        for place in self._places:
            if place.runs():
                place.send(signal.SIGTERM)
            elif place.status != MISUSED:
                place.status = 0  # how the last one has ended was told
        # Each process needs its stop timeout, and closes its client after that.
        until = clock.monotonic() + self._stop_timeout + 10
        while any(place.runs() for place in self._places) and clock.monotonic() < until:
            time.sleep(LOOK_S)
        self._kill()

    def _kill(self) -> None:
        for place in self._places:
            place.send(signal.SIGKILL)


class ProcessSlot:
    """The place of one process, and its present process."""

    def __init__(self) -> None:
        self.status = 0
        """Exit status of the last process that has ended."""
        self._process: subprocess.Popen[bytes] | None = None
        self._begun_at = 0.0
        self._pause_s = 0.0

    def runs(self) -> bool:
        """Return true if a process runs here; else note its exit status."""
        if self._process is not None and self._process.poll() is not None:
            self.status, self._process = self._process.returncode, None
        return self._process is not None

    def look(self, command: list[str]) -> None:
        """Start a process here if none runs and the pause after the last process is over."""
        now = clock.monotonic()
        had_one = self._process is not None
        if self.runs():
            return
        if had_one and self.status == MISUSED:
            return
        if had_one:
            is_short = now - self._begun_at < LIVED_S
            self._pause_s = min(max(self._pause_s * 2, AGAIN_S), AGAIN_MAX_S) if is_short else 0.0
            text = f"a process of the worker has ended with status {self.status}"
            echo(f"{text}: another one starts in {self._pause_s:g} s", err=True)
            self._begun_at = now
        elif now - self._begun_at >= self._pause_s:
            self._begun_at = now
            self._process = subprocess.Popen(
                command,
                env={**os.environ, PARENT: str(os.getpid())},
                start_new_session=True,  # Ctrl-C reaches this process alone, which passes it on
            )

    def send(self, number: int) -> None:
        """Send a signal to the process here."""
        if self.runs():
            assert self._process is not None
            self._process.send_signal(number)


def is_orphan() -> bool:
    """Return true if this process is one of several, and its parent process is gone."""
    parent = os.environ.get(PARENT)
    return parent is not None and parent != str(os.getppid())
