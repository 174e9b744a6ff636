"""One seed: start nodes and workers, break things for a while, mend them, drain, judge."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any

from attrs import define, field, frozen

from harness.chaos.checks import Findings, check
from harness.chaos.disks import Disks, unmount_left
from harness.chaos.faults import Fault, draw
from harness.chaos.flips import DATA_FILE, Flip, flip_back, flip_some
from harness.chaos.history import History
from harness.chaos.namespaces import Namespaces
from harness.chaos.processes import Process, uninterrupted
from harness.chaos.proxy import Proxies
from mirrorq.demo.ports import free_ports

__all__ = ["Course", "Plan", "Report", "run"]

CONFIG = {"failure_ms": 800, "heartbeat_ms": 200, "lease_ms": 250, "election_ms": 800}
"""A little quicker than the defaults: more failovers in a run."""
START_S = 120.0
PAUSE_S = 0.01
"""Of a producer, between puts of 1 to 20 messages."""
TICK_S = 0.02
STALL_S = 0.4
"""A tick that takes longer than this is a machine that stands still: half of `failure_ms`."""
CALM_S = 30.0
"""A wipe waits so long for all to be well."""
ACTIVE_MAX = 2
FLIPS = 6
"""Frames that are changed on one disk at a time: the newest, some of which are still to be read."""
SPACES_S = (0.1, 0.5, 1.0, 2.0)


class NoProgressError(Exception):
    """What had to come did not."""


@frozen
class Plan:
    """What one run is."""

    seed: int
    nodes: int = 3
    seconds: float = 20.0
    """Of faults."""
    wires: str = "proxies"
    """What is between the nodes: proxies or namespaces."""
    kinds: tuple[str, ...] = ()
    """Of faults; empty: all."""
    heal_s: float = 180.0
    """After the end of all faults everything is in sync, resolved and drained within this, on a
    machine that has much else to do."""


@define
class Report:
    """What came of it."""

    plan: Plan
    findings: Findings = field(factory=Findings)
    faults: Counter[str] = field(factory=Counter)
    epochs: int = 0
    """The queue's last epoch: how often its ring changed."""
    took_s: float = 0.0
    stalled_s: float = 0.0
    """Time in which this process itself was not scheduled: then its nodes were not, either, and
    nothing can be said about how long they need."""
    trace: list[str] = field(factory=list)

    @property
    def wrong(self) -> list[str]:
        return self.findings.wrong


class Course:
    """A cluster behind proxies, with workers. A context manager: no process outlives it."""

    def __init__(self, plan: Plan, place: Path) -> None:
        self.names = tuple("abcdefg"[: plan.nodes])
        self.report = Report(plan)
        self.mortal: set[str] = set()
        """Roles whose process was killed."""
        self._place = place
        self._chance = Random(f"{plan.seed}/{plan.nodes}")
        self._nodes: dict[str, Process] = {}
        self._workers: list[Process] = []
        self._lives: Counter[str] = Counter()
        self._full: set[str] = set()
        self._flips: dict[str, list[Flip]] = {}
        self._began_s = time.monotonic()
        self.wires: Proxies | Namespaces = _wires(plan, self.names)
        self._disks = Disks(place, self.names)

    def __enter__(self) -> Course:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in (*self._workers, *self._nodes.values()):
            process.kill()
        self.wires.close()
        self._disks.close()
        self.report.took_s = time.monotonic() - self._began_s

    # --- The course -----------------------------------------------------------------------

    def play(self) -> Report:
        """All of it."""
        for name in self.names:
            self.start(name)
        self._wait(START_S, "the cluster is founded", lambda: all(self._each("is_ready")))
        self._start_workers()
        self._wait(START_S, "all members are in sync", self._is_well)
        self._break_things()
        self._mend_all()
        self._end_load()
        self.report.epochs = max(self._each("epoch"), default=0)
        self.judge(is_drained=True)
        return self.report

    def judge(self, *, is_drained: bool) -> None:
        """Check what was seen so far."""
        history = History.read(self._place.glob("*.history"))
        self.report.findings = check(history, frozenset(self.mortal), is_drained=is_drained)

    def _start_workers(self) -> None:
        endpoints = list(self.wires.endpoints.values())
        workers = (("producer", "consumer"), ("producer", "getter"), ("spooler",))
        for number, kinds in enumerate(workers):
            turned = endpoints[number:] + endpoints[:number]
            name = f"w{number}"
            settings = {
                "name": name,
                "endpoints": turned,
                "insecure": True,
                "config": CONFIG,
                "roles": [self._role(kind, name) for kind in kinds],
            }
            if kinds == ("spooler",):
                settings["spool"] = str(self._place / f"{name}.spool")
            with uninterrupted():
                self._workers.append(Process(settings, self._place / f"{name}.log"))

    def _role(self, kind: str, owner: str) -> dict[str, Any]:
        name = f"{owner}-{kind}"
        file = str(self._place / f"{name}.history")
        return {"kind": kind, "name": name, "file": file, "pause_s": PAUSE_S}

    def _break_things(self) -> None:
        end_s = time.monotonic() + self.report.plan.seconds
        next_s = time.monotonic()
        active: list[tuple[float, Fault]] = []
        while time.monotonic() < end_s:
            self._check_alive()
            now_s = time.monotonic()
            for item in [item for item in active if item[0] <= now_s]:
                active.remove(item)
                self._do("end", item[1], item[1].end)
            if now_s >= next_s and len(active) < ACTIVE_MAX:
                fault = draw(self, self._chance, self.report.plan.kinds)
                next_s = now_s + self._chance.choice(SPACES_S)
                if fault.is_alone and active:
                    continue
                self._do("begin", fault, fault.begin)
                self.report.faults[fault.kind] += 1
                active.append((time.monotonic() + fault.duration_s, fault))
            self._tick()
        for _, fault in active:
            self._do("end", fault, fault.end)

    def _do(self, what: str, fault: Fault, work: Callable[[], None]) -> None:
        self.note(f"{what} {fault.text}")
        work()

    def _mend_all(self) -> None:
        self.note("mend all")
        self.wires.heal()
        for name in self.names:
            self.drain(name)
            self.go_on(name)
            self.start(name)
        self._wait(self.report.plan.heal_s, "all members are in sync again", self._is_well)

    def _end_load(self) -> None:
        """No more puts; all outcomes, all messages; then nobody takes any more."""
        self.note("end of load")
        for process in self._workers:
            process.tell("stop-producing")
        for process in self._nodes.values():
            process.tell("stop-producing")
        self._wait(
            self.report.plan.heal_s,
            "every put has its outcome, the queue is empty",
            self._is_drained,
        )
        for process in (*self._workers, *self._nodes.values()):
            process.tell("stop")
        self._wait(self.report.plan.heal_s, "every ack has its outcome", self._is_silent)

    # --- What it waits for ----------------------------------------------------------------

    def note(self, text: str) -> None:
        self.report.trace.append(f"{time.monotonic() - self._began_s:7.2f} {text}")

    def _wait(self, seconds: float, what: str, condition: Callable[[], bool]) -> None:
        began_s = time.monotonic()
        stalled_s = self.report.stalled_s
        while not condition():
            self._check_alive()
            stood_s = self.report.stalled_s - stalled_s
            if time.monotonic() - began_s - stood_s > seconds:
                raise NoProgressError(f"no progress in {seconds} s until {what}: {self.seen()}")
            self._tick()
        self.note(f"{what}: after {time.monotonic() - began_s:.2f} s")

    def _tick(self) -> None:
        began_s = time.monotonic()
        time.sleep(TICK_S)
        slept_s = time.monotonic() - began_s
        if slept_s > STALL_S:
            self.report.stalled_s += slept_s
            self.note(f"the machine had no time for {slept_s:.1f} s")

    def _check_alive(self) -> None:
        for process in (*self._workers, *self._nodes.values()):
            if not process.is_running:
                raise NoProgressError(f"process {process.name} ended by itself: see its log")
            if "failure" in process.seen:
                raise NoProgressError(f"process {process.name}: {process.seen['failure']}")

    def seen(self) -> dict[str, dict[str, Any]]:
        """What each process said last."""
        return {p.name: p.seen for p in (*self._nodes.values(), *self._workers)}

    def _fresh(self) -> list[dict[str, Any]]:
        """What nodes say now; {} for one that has not spoken for a second."""
        since_s = time.monotonic() - 1.0
        return [process.seen_since(since_s) for process in self._nodes.values()]

    def _each(self, key: str) -> list[Any]:
        return [seen.get(key, 0) for seen in self._fresh()]

    def _is_well(self) -> bool:
        """Every node runs, and sees every member in sync."""
        mirrors = len(self.names) - 1
        seen = self._fresh()
        return (
            len(seen) == len(self.names)
            and len({each.get("epoch") for each in seen}) == 1
            and all(
                each.get("state") == "running"
                and each.get("mirrors") == each.get("in_sync") == mirrors
                for each in seen
            )
        )

    def _is_drained(self) -> bool:
        since_s = time.monotonic() - 1.0
        workers = [process.seen_since(since_s) for process in self._workers]
        are_open = [each.get("open_puts", 1) for each in (*workers, *self._fresh())]
        messages = self._each("messages")
        return not any(are_open) and not any(messages) and self._is_well()

    def _is_silent(self) -> bool:
        since_s = time.monotonic() - 1.0
        workers = [process.seen_since(since_s) for process in self._workers]
        return not any(each.get("open", 1) for each in (*workers, *self._fresh()))

    # --- What faults do -------------------------------------------------------------------

    def master(self) -> str | None:
        masters = Counter(seen.get("master") for seen in self._fresh() if seen.get("master"))
        return masters.most_common(1)[0][0] if masters else None

    def start(self, name: str) -> None:
        """Start a node that does not run, with a consumer or a producer of its own."""
        if name in self._nodes:
            return
        self._lives[name] += 1
        life = f"{name}{self._lives[name]}"
        kind = ("producer", "consumer", "getter")[self.names.index(name) % 3]
        settings = {
            "name": name,
            "path": str(self._disks.path(name)),
            "peers": dict(self.wires.seen_by[name]),
            "listen": self.wires.endpoints[name],
            "insecure": True,
            "config": CONFIG,
            "roles": [self._role(kind, life)],
        }
        log = self._place / f"{name}.log"
        with uninterrupted():
            self._nodes[name] = Process(settings, log, self.wires.prefix(name))

    def kill(self, name: str) -> None:
        with uninterrupted():
            process = self._nodes.pop(name, None)
            if process is not None:
                self.mortal.update(process.roles)
                process.kill()

    def close(self, name: str) -> None:
        """In good order; a node that stands still cannot, and is killed."""
        process = self._nodes.get(name)
        if process is not None:
            self.mortal.update(process.roles)
            process.kill() if process.is_stopped else process.close()
            del self._nodes[name]

    def stop(self, name: str) -> None:
        if name in self._nodes:
            self._nodes[name].stop()

    def go_on(self, name: str) -> None:
        if name in self._nodes:
            self._nodes[name].go_on()

    def fill(self, name: str) -> None:
        if name in self._nodes:
            self._full.add(name)
            self._disks.fill(name, self._nodes[name].pid)

    def drain(self, name: str) -> None:
        if name in self._full:
            self._full.discard(name)
            process = self._nodes.get(name)
            self._disks.drain(name, process.pid if process is not None else 0)

    def flip(self, name: str) -> None:
        store = self._disks.path(name)
        if (store / DATA_FILE).exists():
            self._flips[name] = flip_some(store, self._chance, FLIPS)

    def flip_back(self, name: str) -> None:
        flip_back(self._disks.path(name), self._flips.pop(name, []))

    def replace_store(self, name: str) -> None:
        until_s = time.monotonic() + CALM_S
        while not self._is_well():
            self._check_alive()
            if time.monotonic() > until_s:
                self.note(f"no wipe of {name}: not all is well")
                return
            self._tick()
        self.kill(name)
        self._disks.wipe(name)
        self.start(name)
        self._wait(
            self.report.plan.heal_s, f"{name} is in sync again with an empty store", self._is_well
        )


def _wires(plan: Plan, names: tuple[str, ...]) -> Proxies | Namespaces:
    if plan.wires == "namespaces":
        return Namespaces(names)
    ports = free_ports(len(names))
    return Proxies(
        {name: f"tcp://127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)}
    )


def run(plan: Plan, keep: Path | None = None) -> Report:
    """Play one seed. Its logs and histories are kept in `keep` when something is wrong.

    Raises:
        NamespaceError: the plan wants namespaces, and this machine does not allow them.
    """
    place = Path(tempfile.mkdtemp(prefix="mirrorq-chaos-"))
    try:
        course = Course(plan, place)
        with course:
            try:
                course.play()
            except NoProgressError as error:
                course.judge(is_drained=False)
                course.report.findings.wrong.append(str(error))
        if course.report.wrong and keep is not None:
            (place / "trace").write_text("\n".join(course.report.trace) + "\n")
            target = keep / f"chaos-{plan.seed}-{plan.nodes}-{plan.wires}"
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(place, target)
    finally:
        unmount_left(place)
        shutil.rmtree(place, ignore_errors=True)
    return course.report
