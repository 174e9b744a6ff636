"""The course of the demo: start, publish and consume, kill, restart, catch up, check.

A killed peer hosts no worker: the producer and the consumer live on peers that stay, the producer
not on the master where there is a choice. When no peer stays (`--kill all`, or one peer alone), the
workers are processes of their own that `connect()` to all peers.

The demo leaves no files or processes: the peers' directories are in one temporary directory, and
all processes end before its removal, whatever the reason for the end.
"""

from __future__ import annotations

import queue
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType

from attrs import define, field, frozen
from rich.console import Console

from mirrorq import clock
from mirrorq.demo.check import check, failover_ms
from mirrorq.demo.children import Child, Report
from mirrorq.demo.ports import free_ports
from mirrorq.demo.progress import Display, findings_table
from mirrorq.demo.records import Confirmed, read_confirmed, read_taken
from mirrorq.demo.reports import Consumed, Produced, QueueState
from mirrorq.demo.source import rows
from mirrorq.errors import ConfigError, MirrorQError

NODES_MAX = 26
BATCH_ROWS_MAX = 250
"""One put_many: about 90 kB of flights."""
START_S = 60.0
"""Longest wait for processes to start, and for the queue to be declared."""
STALL_S = 60.0
"""The demo gives up when nothing at all has moved for this long."""
TICK_S = 0.05
_ENDING = (signal.SIGINT, signal.SIGTERM)


@frozen
class Plan:
    """Settings of the demo."""

    nodes: int = 3
    kill: str = "master"
    """none, mirror, master or all."""
    input: Path | None = None
    """A file of lines; None: the demo's own orders, or the flights."""
    flights: bool = False
    limit: int | None = None
    """Only so many rows."""

    def __attrs_post_init__(self) -> None:
        if not 1 <= self.nodes <= NODES_MAX:
            raise ConfigError(f"--nodes is 1 to {NODES_MAX}, not {self.nodes}")
        if self.kill == "mirror" and self.nodes == 1:
            raise ConfigError("--kill mirror needs a mirror: --nodes 2 or more")


@define
class _Timing:
    """Times of events, in milliseconds since boot; 0: not yet."""

    killed: int = 0
    restarted: int = 0
    caught_up: int = 0


@define
class _Seen:
    """The newest reports."""

    produced: Produced = field(factory=Produced)
    consumed: Consumed = field(factory=Consumed)
    queue: QueueState = field(factory=QueueState)
    said: set[tuple[str, str]] = field(factory=set)
    """(child, report) of reports that come once."""


def run(plan: Plan, console: Console) -> bool:
    """Run the demo; return whether nothing was lost and no duplicate came unflagged.

    Raises:
        ConfigError: the input is not there.
        MirrorQError: a process ended by itself, or nothing moved any more.
        KeyboardInterrupt: on SIGINT and SIGTERM, after everything has been cleaned up.
    """
    with ExitStack() as stack:
        stack.enter_context(_signals())
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mirrorq-demo-")))
        with console.status("preparing the rows"):
            total = _write_rows(plan, place / "rows")
        if total == 0:
            raise ConfigError("the input has no rows")
        course = Course(plan, place, total)
        stack.callback(course.kill_all)
        stack.callback(_ignore_signals)
        with Display(console, total) as display:
            course.play(display)
        course.end()
        return _conclude(course, console)


class Course:
    """One run: its processes and their reports."""

    def __init__(self, plan: Plan, place: Path, total: int) -> None:
        self.plan = plan
        self.total = total
        self.timing = _Timing()
        self.seen = _Seen()
        self.produced = place / "confirmed"
        self.consumed = place / "taken"
        self.victims: tuple[str, ...] = ()
        self.first_master = ""
        self._place = place
        self._reports: queue.Queue[tuple[Child, Report]] = queue.Queue()
        self._children: dict[str, Child] = {}
        names = [chr(ord("a") + index) for index in range(plan.nodes)]
        ports = free_ports(plan.nodes)
        self.peers = {
            name: f"tcp://127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)
        }
        self._moving: tuple[object, ...] = ()
        self._moved_ms = 0
        self._producer = ""
        self._epoch_killed = 0
        self._event = ""
        self._display: Display | None = None

    # --- The course ---------------------------------------------------------------------

    def play(self, display: Display) -> None:
        """Run to the end of the traffic."""
        self._display = display
        for name in self.peers:
            self._start_peer(name)
        for name in self.peers:
            self._wait_said(name, "ready")
        self._children["a"].command("declare")
        self._wait_said("a", "declared")
        self._wait(lambda: self.seen.queue.master is not None, "the queue has no master")
        self.first_master = self.seen.queue.master or ""
        self._start_workers()
        while not self._is_over():
            self._kill_and_restart()
            self._take_reports()

    def end(self) -> None:
        """End all processes. May be repeated."""
        children, self._children = self._children, {}
        for child in children.values():
            child.ask_to_stop()
        for child in children.values():
            child.end()

    def kill_all(self) -> None:
        """End all running processes at once: their state is no longer needed."""
        children, self._children = self._children, {}
        for child in children.values():
            child.kill()

    def _start_workers(self) -> None:
        self.victims = self._choose_victims()
        stay = [name for name in self.peers if name not in self.victims]
        stay.sort(key=lambda name: name == self.first_master)
        if stay:
            producer, consumer = stay[0], stay[1 % len(stay)]
        else:
            producer, consumer = "producer", "consumer"
            endpoints = ",".join(self.peers.values())
            for name in (producer, consumer):
                self._start({"name": name, "endpoints": endpoints})
        self._producer = producer
        self._children[consumer].command("consume", records=str(self.consumed), total=self.total)
        self._children[producer].command(
            "produce",
            rows=str(self._place / "rows"),
            records=str(self.produced),
            # Enough batches for some publishing before and after the kill.
            batch=max(1, min(BATCH_ROWS_MAX, self.total // 8)),
            # The rest waits for the kill, else a short input would be over before the kill.
            allowed=self.total * 5 // 8 if self.victims else self.total,
        )

    def _choose_victims(self) -> tuple[str, ...]:
        match self.plan.kill:
            case "master":
                return (self.first_master,)
            case "mirror":
                return tuple(name for name in self.peers if name != self.first_master)[-1:]
            case "all":
                return tuple(self.peers)
        return ()

    def _kill_and_restart(self) -> None:
        if not self.victims:
            return
        if not self.timing.killed:
            if self.seen.produced.confirmed * 2 >= self.total:
                self._kill()
        elif not self.timing.restarted:
            if not self.has_majority or self.seen.produced.confirmed * 4 >= self.total * 3:
                self._restart()
        elif not self.timing.caught_up and self._is_whole():
            self.timing.caught_up = clock.now_ms()
            self._event = "all in sync again"

    @property
    def has_majority(self) -> bool:
        """Return true if the surviving peers have a majority."""
        return 2 * (len(self.peers) - len(self.victims)) > len(self.peers)

    def _kill(self) -> None:
        for name in self.victims:
            self._children.pop(name).kill()
        self.timing.killed = clock.now_ms()
        self._event = f"killed {', '.join(self.victims)}"
        self._epoch_killed = self.seen.queue.epoch
        self.seen.said.clear()
        self._children[self._producer].command("allow", count=self.total)

    def _restart(self) -> None:
        self.timing.restarted = clock.now_ms()
        self._event = f"restarted {', '.join(self.victims)}"
        for name in self.victims:
            self._start_peer(name)

    def _is_whole(self) -> bool:
        """Return true if all peers are in sync in a later view than the view of the kill."""
        if any((name, "ready") not in self.seen.said for name in self.victims):
            return False
        queue = self.seen.queue
        members = {queue.master, *queue.in_sync}
        return queue.epoch > self._epoch_killed and members == set(self.peers)

    def _is_over(self) -> bool:
        produced, consumed = self.seen.produced, self.seen.consumed
        if self.victims and not self.timing.caught_up:
            return False
        all_came = consumed.distinct >= produced.confirmed and self.seen.queue.messages == 0
        settled = consumed.acked + consumed.refused == consumed.taken
        return produced.is_done and all_came and settled

    # --- Processes and their reports ----------------------------------------------------

    def _start_peer(self, name: str) -> None:
        self._start({"name": name, "path": str(self._place / name), "peers": self.peers})

    def _start(self, settings: dict[str, object]) -> None:
        name = str(settings["name"])
        self._children[name] = Child(settings, self._place / f"{name}.log", self._reports)

    def _wait_said(self, name: str, what: str) -> None:
        self._wait(lambda: (name, what) in self.seen.said, f"process {name} is not {what}")

    def _wait(self, condition: Callable[[], bool], otherwise: str) -> None:
        deadline = clock.now_ms() + int(START_S * 1000)
        while not condition():
            self._take_reports()
            if clock.now_ms() >= deadline:
                raise MirrorQError(f"{otherwise} after {START_S:.0f} s")

    def _take_reports(self) -> None:
        """Process new reports, after a short wait for the first; update the display."""
        with suppress(queue.Empty):
            self._take(*self._reports.get(timeout=TICK_S))
            while True:
                self._take(*self._reports.get_nowait())
        self._look_for_stall()
        self._show()

    def _take(self, child: Child, report: Report) -> None:
        if self._children.get(child.name) is not child:
            return  # the last words of one that was killed
        seen, said = self.seen, dict(report)
        match said.pop("is"):
            case "ended":
                raise child.failure()
            case "produced":
                seen.produced = Produced(**said)
            case "consumed":
                seen.consumed = Consumed(**said)
            case "status":
                self._take_status(child, QueueState(**said))
            case name:
                seen.said.add((child.name, name))

    def _take_status(self, child: Child, queue: QueueState) -> None:
        """Take a status of the master; other peers' reports count only without a master."""
        if queue.master == child.name or self.seen.queue.master not in self._children:
            self.seen.queue = queue

    def _look_for_stall(self) -> None:
        produced, consumed, queue = self.seen.produced, self.seen.consumed, self.seen.queue
        progress = (produced.confirmed, consumed.taken, consumed.acked)
        moving = (*progress, queue.master, *queue.in_sync)
        now_ms = clock.now_ms()
        if moving != self._moving:
            self._moving = moving
            self._moved_ms = now_ms
        if now_ms - self._moved_ms >= STALL_S * 1000:
            raise MirrorQError(
                f"nothing has moved for {STALL_S:.0f} s: {produced.confirmed} of {self.total} "
                f"confirmed, {consumed.distinct} delivered, {queue.messages} in the queue, state "
                f"{queue.state}, master {queue.master}, in sync "
                + (", ".join(queue.in_sync) or "none")
            )

    def _show(self) -> None:
        if self._display is None:
            return
        produced, consumed = self.seen.produced, self.seen.consumed
        rows = {
            "published": produced.published,
            "confirmed": produced.confirmed,
            "consumed": consumed.distinct,
        }
        self._display.show(rows, self.seen.queue, self._event)


def _conclude(course: Course, console: Console) -> bool:
    """Check, and print the table and the last lines."""
    plan, seen = course.plan, course.seen
    confirmed = list(read_confirmed(course.produced))
    with console.status("checking every row"):
        findings = check(
            rows(plan.input, plan.limit, flights=plan.flights),
            confirmed,
            read_taken(course.consumed),
        )
    failover = _failover_ms(course, confirmed)
    took_ms = seen.consumed.last_ms - seen.produced.started_ms
    rate = round(findings.delivered * 1000 / max(took_ms, 1))
    if not console.is_terminal:
        console.print()
    console.print(findings_table(findings, _facts(course)))
    for name, value in (
        ("confirmed", findings.confirmed),
        ("lost", findings.lost),
        ("duplicates flagged", findings.duplicates_flagged),
        ("duplicates unflagged", findings.duplicates_unflagged),
        ("failover ms", failover),
        ("messages per second", rate),
    ):
        console.file.write(f"{name}: {value}\n")
    return findings.is_good


def _failover_ms(course: Course, confirmed: Iterable[Confirmed]) -> int:
    """Return the time from the kill to the next confirm, without the later restart."""
    timing = course.timing
    if not timing.killed:
        return 0
    confirms = [record.at_ms for record in confirmed]
    if course.has_majority:
        confirms = [at for at in confirms if at <= timing.restarted]
    return failover_ms(confirms, timing.killed)


def _facts(course: Course) -> list[tuple[str, str]]:
    seen, timing = course.seen, course.timing
    facts = [("peers", ", ".join(course.peers)), ("master at first", course.first_master)]
    if timing.killed:
        facts += [
            ("killed with SIGKILL", ", ".join(course.victims)),
            ("master at the end", seen.queue.master or "none"),
            ("in sync again after its restart", f"{timing.caught_up - timing.restarted:,} ms"),
        ]
    facts += [("acked", f"{seen.consumed.acked:,}")]
    if seen.consumed.refused:
        facts += [("acks refused, so delivered again", f"{seen.consumed.refused:,}")]
    if seen.produced.refused:
        facts += [("not confirmed", f"{seen.produced.refused:,}")]
    return facts


def _write_rows(plan: Plan, path: Path) -> int:
    """Write the messages to a file, so that making them does not slow the producer down."""
    count = 0
    with path.open("wb") as target:
        for row in rows(plan.input, plan.limit, flights=plan.flights):
            target.write(row + b"\n")
            count += 1
    return count


@contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM cleans up as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in _ENDING}
    for number in _ENDING:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignore_signals() -> None:
    """A second Ctrl-C must not end the cleaning up."""
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
