"""`SimulatedCluster`: your code against a whole cluster, on virtual time and with faults.

The nodes are real `mirrorq.Node`s with all their parts, and users hold real `MirroredQueue`s. Time,
threads (`schedule`), the network and disks are simulated. The same seed gives the same run.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from mirrorq.api.arguments import left_until
from mirrorq.client.client import Client
from mirrorq.client.driver import ClientDriver
from mirrorq.config import Config
from mirrorq.node.node import Node
from mirrorq.protocol.effects import Notice
from mirrorq.spool.spools import Spools
from mirrorq.testing import patching
from mirrorq.testing.disk import SimulatedDisk
from mirrorq.testing.network import Network, SimulatedClientSocket, SimulatedTransport
from mirrorq.testing.schedule import Process, Scheduler, SimulationError, Task
from mirrorq.testing.store import Drive, SimulatedStore

if TYPE_CHECKING:
    from mirrorq.api.exchange import Exchange
    from mirrorq.api.queue import MirroredQueue
    from mirrorq.client.connect_errors import Inquiry
    from mirrorq.store.node_store import Store
    from mirrorq.testing.network import End
    from mirrorq.transport.client import ClientSocket
    from mirrorq.transport.transport import Transport

NAMES = "abcdefghijklmnopqrstuvwxyz"
KINDS = ("crash", "partition", "freeze", "delay", "reset", "fill disk")
"""Kinds of faults for `trouble`."""
READY_S = 60.0
"""Limit for the start of a cluster without faults, which is far quicker."""


class NoSpools(Spools):
    """Refuses each spooled queue: its disk and its thread would be real."""

    def resume(self) -> None:
        """Look for no former spool."""

    def _open(self) -> None:
        raise SimulationError("spools are not simulated: put into the queue itself here")


class SimulatedNode(Node):
    """A real node whose process, disk and network belong to a `SimulatedCluster`."""

    def __init__(self, cluster: SimulatedCluster, process: Process, **arguments: Any) -> None:
        self._cluster = cluster
        self._process = process
        super().__init__(process.name, path=f"/simulated/{process.name}", **arguments)

    def _open_store(self) -> Store:
        cluster = self._cluster
        drive = cluster._drives[self.name]
        return cast("Store", SimulatedStore(cluster._scheduler, self.name, drive))

    def _silent_text(self) -> str:
        """Return "": the question to a silent node would use real sockets."""
        return ""

    def _make_spools(self) -> Spools:
        return NoSpools(self.path, self.config, lambda: self, self._open_queue)

    def _open_rail(self) -> None:
        """Open no rail: a rail is a thread of its own, beside the simulated time."""

    def _open_transport(self, address: str) -> Transport:
        network, incarnation = self._cluster._network, self._store.incarnation
        end = SimulatedTransport(network, self._process, incarnation, address, self.config)
        return cast("Transport", end)

    def _seed(self) -> int:
        return self._cluster._scheduler.random.getrandbits(32)

    def _end_with_process(self) -> None:
        """Do nothing: the simulated process ends the node."""

    def _on_notice(self, notice: Notice) -> None:
        self._cluster.note(f"{self.name}: {notice.text}")
        super()._on_notice(notice)


class SimulatedDriver(ClientDriver):
    """The thread of a `SimulatedClient`."""

    def __init__(self, cluster: SimulatedCluster, process: Process, client: Client) -> None:
        self._cluster = cluster
        self._process = process
        super().__init__(process.name, client.endpoints, client.config)

    def _open_socket(
        self, endpoints: Sequence[str], beside: ClientSocket | None = None
    ) -> ClientSocket:
        network = self._cluster._network
        other = cast("SimulatedClientSocket | None", beside)
        socket = SimulatedClientSocket(network, self._process, endpoints, self._config, other)
        return cast("ClientSocket", socket)

    def _chance(self) -> float:
        return self._cluster.random.random()


class SimulatedClient(Client):
    """A real client whose process and network belong to a `SimulatedCluster`."""

    def __init__(self, cluster: SimulatedCluster, process: Process, **arguments: Any) -> None:
        self._cluster = cluster
        self._process = process
        super().__init__(insecure=True, **arguments)

    def _own_name(self) -> str:
        return self._process.name

    def _open_driver(self) -> ClientDriver:
        return SimulatedDriver(self._cluster, self._process, self)

    def _is_late(self, deadline: float | None, silences: Inquiry) -> bool:
        """Return true at the end of the wait. No endpoint is asked: sockets would be real."""
        return left_until(deadline) == 0


class SimulatedCluster:
    """A cluster on virtual time, for tests of code that uses mirrorq.

    Used with `with`: entering starts all nodes and waits until they have found each other; leaving
    ends everything, and raises the first unreported error of a task.

    Args:
        nodes: how many (named a, b, c, …), or their names.
        seed: decides everything that happens by chance: how long messages and commits take, and
            which of several tasks goes on first.
        config: of all nodes.
        witnesses: names of nodes that vote and hold no queue.
        time_limit: virtual seconds that may pass in all, beside the seconds of `run`, `run_until`,
            `skip` and of a `time.sleep` of the test of a minute or more. Then `Stuck` is raised,
            and names the wait of every task.
        patch: Python's own `time`, `threading`, `queue` and `asyncio.run` are simulated
            too, for tasks; other threads keep the real modules. False: code under test must wait by
            mirrorq and by `sleep` only.

    *Threads*: the thread that has entered the cluster, and tasks (`spawn`). One of them runs at a
    time, until it waits; time passes when all wait.
    """

    def __init__(
        self,
        nodes: int | Sequence[str] = 3,
        *,
        seed: int = 0,
        config: Config | None = None,
        witnesses: Sequence[str] = (),
        time_limit: float = 600.0,
        patch: bool = True,
    ) -> None:
        names = _names_of(nodes)
        self.seed: int = seed
        """The given seed."""
        self.log: list[str] = []
        """Events of the run, a line each, with the time; equal for equal seeds."""
        self._config = config or Config()
        self._witnesses = tuple(witnesses)
        self._scheduler = Scheduler(seed, time_limit)
        self._network = Network(self._scheduler)
        self._peers = {name: f"tcp://{name}:7400" for name in names}
        self._processes: dict[str, Process] = {}
        self._nodes: dict[str, SimulatedNode] = {}
        """Name -> node of the process started last, running or not."""
        self._clients: dict[str, SimulatedClient] = {}
        """Name -> client of the process started last, running or not."""
        self._drives = {name: self._new_drive() for name in names}
        self._task_count = 0
        self._is_patched = patch

    def _new_drive(self) -> Drive:
        return Drive(SimulatedDisk(self._scheduler.random.getrandbits(62)))

    # --- Beginning and end --------------------------------------------------------------

    def __enter__(self) -> SimulatedCluster:
        _check_no_loop()
        self._scheduler.open()
        if self._is_patched:
            patching.patch()
        try:
            for name in self._peers:
                self.start(name)
            for node in self._nodes.values():
                node.wait_ready(READY_S)
        except BaseException:
            self._close()
            raise
        return self

    def _close(self) -> None:
        try:
            self._scheduler.close()
        finally:
            if self._is_patched:
                patching.restore()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._scheduler.raise_failed()
        finally:
            self._close()

    # --- Queues and tasks ---------------------------------------------------------------

    def node(self, name: str) -> Node:
        """Return the node of this name in its process: a real `mirrorq.Node`.

        Raises:
            SimulationError: the node does not run.
        """
        if name not in self.running:
            self._known(name)
            raise SimulationError(f"node {name} does not run: start it first")
        return self._nodes[name]

    def connect(
        self, name: str = "client", *, to: Iterable[str] = (), timeout: float = READY_S
    ) -> Client:
        """Return the client of a new process, connected, like `mirrorq.connect`.

        Args:
            name: of the process, for `on=` and for faults. After `crash(name)` another process may
                have the name.
            to: nodes to try, in this order; all nodes by default. When a node is gone, the client
                goes on to the next node.
            timeout: virtual seconds to wait for a node that answers.

        Raises:
            NoQuorum: no node answered in time.
            SimulationError: a name in `to` is no node's, or `name` is that of a process.
        """
        endpoints = [self._peers[self._peer(node)] for node in tuple(to) or self._peers]
        if name in self._peers or (name in self._processes and self._processes[name].is_alive):
            raise SimulationError(f"there is a process {name!r} already")
        self.note(f"connect {name}")
        process = self._processes[name] = Process(name)
        with self._scheduler.born_in(process):
            client = self._clients[name] = SimulatedClient(
                self, process, endpoints=endpoints, config=self._config, timeout=timeout
            )
        client._wait_connected(timeout)
        return client

    def _host(self, name: str) -> Node | Client:
        client = self._clients.get(name)
        if client is None:
            return self.node(name)
        if not self._processes[name].is_alive:
            raise SimulationError(f"client {name} does not run: connect another one")
        return client

    def queue(self, name: str, *, on: str, **arguments: Any) -> MirroredQueue:
        """Declare a queue on a node or client and return a handle, as `Node.queue` does.

        Args:
            on: name of the node or client. The handle ends with its process: after `crash` and
                `start` open another handle.
            arguments: see `Node.queue`; but `spool`, whose disk and thread are not simulated.
        """
        handle: MirroredQueue = self._host(on).queue(name, **arguments)
        return handle

    def exchange(self, name: str, kind: str, *, on: str, **arguments: Any) -> Exchange:
        """Declare an exchange and return a handle, as `Node.exchange` does."""
        return self._host(on).exchange(name, kind, **arguments)

    def spawn(
        self,
        function: Callable[..., object],
        *arguments: object,
        on: str | None = None,
        name: str = "",
        **keywords: object,
    ) -> Task:
        """Run code of yours as a task, which may make blocking calls.

        Args:
            keywords: passed to the function.
            function: called with the other arguments, on a thread of its own.
            on: the node or client whose process runs the task: both crash, stand still
                and end together. None: a process outside the nodes.
            name: for messages.

        Returns:
            The task.

        Raises:
            SimulationError: there is no such node or client.
            TypeError: the function is an async def or a generator.

        An error of the task is raised by `run`, or at the latest at the end of the cluster, unless
        `Task.result` has raised the error.
        """
        check_runs("the function", function)
        process = self._scheduler.test if on is None else self._processes[self._known(on)]
        if not process.is_alive:
            raise SimulationError(f"the process of {on} does not run: start it first")
        self._task_count += 1
        name = name or f"{getattr(function, '__name__', 'task')}-{self._task_count}"
        return self._scheduler.spawn(name, process, partial(function, *arguments, **keywords))

    # --- Time ---------------------------------------------------------------------------

    @property
    def random(self) -> Random:
        """Chance for the test itself, by the same seed."""
        return self._scheduler.random

    @property
    def now(self) -> float:
        """Virtual seconds since the beginning."""
        return self._scheduler.now_us / 1_000_000

    def run(self, seconds: float) -> None:
        """Let time pass, and raise the error of a failed task.

        Args:
            seconds: virtual ones.
        """
        self._scheduler.allow(_us(seconds))
        self.sleep(seconds)
        self._scheduler.raise_failed()

    def run_until(self, condition: Callable[[], bool], timeout: float = 60.0) -> None:
        """Let time pass until the condition holds, which is looked at every 10 ms.

        Raises:
            TimeoutError: it does not after `timeout` virtual seconds.
        """
        self._scheduler.allow(_us(timeout))
        deadline = self.now + timeout
        while not condition():
            if self.now >= deadline:
                raise TimeoutError(f"after {timeout} s the condition does not hold")
            self.sleep(0.01)
            self._scheduler.raise_failed()

    def sleep(self, seconds: float) -> None:
        """Sleep like `time.sleep`; for tasks.

        Args:
            seconds: virtual ones.
        """
        self._scheduler.sleep_us(_us(seconds))

    def skip(self, seconds: float) -> None:
        """Let all processes, tasks too, stand still, as on a sleeping computer. A skip of any
        length is quick. Events due meanwhile happen afterwards.

        Args:
            seconds: virtual ones.
        """
        self.note(f"skip {seconds:g} s")
        self._scheduler.leap(_us(seconds))

    # --- Faults of processes ------------------------------------------------------------

    @property
    def running(self) -> tuple[str, ...]:
        """Names of the running nodes."""
        return tuple(name for name in self._nodes if self._processes[name].is_alive)

    def start(self, name: str) -> Node:
        """Start the process of a stopped node, with the data on its disk. Returns the node at once:
        `wait_ready` waits.

        Args:
            name: of the node.

        Raises:
            SimulationError: the node runs.
        """
        self._known(name)
        if name in self.running:
            raise SimulationError(f"node {name} runs already")
        self.note(f"start {name}")
        process = self._processes[name] = Process(name)
        with self._scheduler.born_in(process):
            self._nodes[name] = SimulatedNode(
                self,
                process,
                peers=self._peers,
                config=self._config,
                witness=name in self._witnesses,
                insecure=True,
            )
        return self._nodes[name]

    def crash(self, name: str) -> None:
        """End a process at once, as SIGKILL and the loss of power do: uncommitted writes to its
        disk are lost, its handles end, its tasks end where they are waiting.

        Args:
            name: of the node, or client.
        """
        host = self._host(name)
        self.note(f"crash {name}")
        ends = [host._transport] if isinstance(host, Node) else host._driver.sockets
        for end in ends:
            cast("End", end).close()
        self._scheduler.kill_and_wait(self._processes[name])

    def stop(self, name: str) -> None:
        """End a process in order, by its `close`; its tasks end after that.

        Args:
            name: of the node, or client.
        """
        host = self._host(name)
        self.note(f"stop {name}")
        host.close()
        self._scheduler.kill_and_wait(self._processes[name])

    def restart(self, name: str, timeout: float = READY_S) -> Node:
        """Start a stopped node, and wait until the node takes part in the cluster again.

        Args:
            name: of the node.
            timeout: virtual seconds to wait.

        Returns:
            The node, of its new process.

        Raises:
            NoQuorum: the node was not ready in time.
        """
        node = self.start(name)
        node.wait_ready(timeout)
        return node

    def freeze(self, name: str, seconds: float) -> None:
        """A process does nothing for so long, and does not know (SIGSTOP, a long pause of the
        collector). Returns at once.

        Args:
            name: of the node, or client.
            seconds: virtual ones.
        """
        self._host(name)
        self.note(f"freeze {name} for {seconds:g} s")
        self._scheduler.freeze(self._processes[name], _us(seconds))

    # --- Faults of disks ----------------------------------------------------------------

    def wipe(self, name: str) -> None:
        """Replace the disk of a stopped node by an empty disk.

        Args:
            name: of the node.

        Raises:
            SimulationError: the node runs.
        """
        self._drive(name)
        if name in self.running:
            raise SimulationError(f"node {name} runs: crash or stop it before its disk goes")
        self.note(f"wipe {name}")
        self._drives[name] = self._new_drive()

    def fill_disk(self, name: str, seconds: float) -> None:
        """A node's disk is full for so long: every commit is refused, and tried again.

        Args:
            name: of the node.
            seconds: virtual ones.
        """
        drive = self._drive(name)
        self.note(f"disk of {name} full for {seconds:g} s")
        drive.full_until_us = self._scheduler.now_us + _us(seconds)

    def slow_disk(self, name: str, least: float = 0.0002, most: float = 0.002) -> None:
        """Set the seconds of each commit on this node from now on; the default without numbers.

        Args:
            name: of the node.
            least, most: seconds that each commit takes.
        """
        drive = self._drive(name)
        self.note(f"commits of {name} take {least:g} to {most:g} s")
        drive.commit_us = (_us(least), _us(most))

    # --- Faults of the network ----------------------------------------------------------

    def partition(self, *groups: Iterable[str], silent: bool = False) -> None:
        """Cut all links between groups of nodes and clients. Unnamed nodes and clients form a group
        of their own.

        Args:
            silent: packets vanish, and no end learns that connections have ended.
        """
        parts = [[self._known(name) for name in group] for group in groups]
        rest = [name for name in self._names if not any(name in part for part in parts)]
        for index, part in enumerate(parts):
            for other in [*parts[index + 1 :], rest]:
                for one in part:
                    for two in other:
                        self.cut(one, two, silent=silent)

    def cut(self, one: str, other: str, *, silent: bool = False, one_way: bool = False) -> None:
        """Cut the link between two nodes, or a client and a node.

        Args:
            silent: packets vanish, and no end is told.
            one_way: only messages from `one` to `other` are cut.

        Raises:
            SimulationError: both are the same, or there is no node or client of a name.
        """
        how = ", silently" if silent else ""
        if one == other:
            raise SimulationError(f"{one!r} has no link to itself: give two names")
        self.note(f"cut {self._known(one)} {'->' if one_way else '--'} {self._known(other)}{how}")
        self._network.cut(one, other, silent=silent, one_way=one_way)

    def reset(self, one: str, other: str) -> None:
        """Break the connections between two nodes once; they come up again. Messages on their way
        are lost.

        Args:
            one, other: nodes or clients.
        """
        self.note(f"reset {self._known(one)} -- {self._known(other)}")
        self._network.break_between(one, other)
        self._network.refresh()

    def delay(self, one: str, other: str, least: float, most: float | None = None) -> None:
        """From now on messages between two nodes take longer, by so many seconds; 0: no more.

        Args:
            one, other: nodes or clients.
            least, most: seconds; None: always `least`.
        """
        most = least if most is None else most
        self.note(f"delay {self._known(one)} -- {self._known(other)} by {least:g} to {most:g} s")
        for pair in ((one, other), (other, one)):
            span_us = (_us(least), _us(most))
            self._network.link(*pair).delay_us = span_us

    def heal(self) -> None:
        """Mend all links: nothing is cut or slow any more."""
        self.note("heal")
        for one in self._names:
            for other in self._names:
                if one < other:
                    self._network.heal(one, other)

    # --- Faults by chance ---------------------------------------------------------------

    def trouble(
        self,
        seconds: float,
        kinds: Sequence[str] = KINDS,
        *,
        every: float = 3.0,
    ) -> Task:
        """For `seconds`, let random faults happen, one at a time; each fault is over, and its node
        started again, before the next. Returns at once with the task.

        Args:
            kinds: allowed kinds of faults.
            every: seconds from one to the next, on average.

        Raises:
            ValueError: there is no such kind of trouble.
        """
        unknown = [kind for kind in kinds if kind not in KINDS]
        if unknown or not kinds:
            raise ValueError(f"kinds of faults are {', '.join(KINDS)}, not {unknown}")
        return self.spawn(self._make_trouble, seconds, tuple(kinds), every, name="trouble")

    def _make_trouble(self, seconds: float, kinds: tuple[str, ...], every: float) -> None:
        random, until = self._scheduler.random, self.now + seconds
        while True:
            self.sleep(random.expovariate(1 / every))
            if self.now >= until:
                return
            lasts = random.uniform(0.05, 1.0) * every
            self._one_fault(random.choice(kinds), random.choice(self.running), lasts)

    def _one_fault(self, kind: str, name: str, seconds: float) -> None:
        other = self._scheduler.random.choice([one for one in self._peers if one != name] or [name])
        match kind:
            case "crash":
                self.crash(name)
                self.sleep(seconds)
                self.restart(name)
            case "partition":
                self.partition({name}, silent=bool(self._scheduler.random.getrandbits(1)))
            case "freeze":
                self.freeze(name, seconds)
            case "delay":
                self.delay(name, other, 0, seconds)
            case "reset":
                self.reset(name, other)
            case "fill disk":
                self.fill_disk(name, seconds)
        self.sleep(seconds)
        if kind in ("partition", "delay"):
            self.heal()

    # --- State --------------------------------------------------------------------------

    def master(self, queue: str) -> str | None:
        """The master of a queue, as the first running node with a master in view reports."""
        for name in self.running:
            for status in self._nodes[name].queues():
                if status.name == queue and status.master is not None:
                    return status.master
        return None

    def note(self, text: str) -> None:
        """Add a line to `log`.

        Args:
            text: the line.
        """
        self.log.append(f"{self.now:10.6f} {text}")

    @property
    def _names(self) -> tuple[str, ...]:
        return (*self._peers, *self._clients)

    def _known(self, name: str) -> str:
        if name not in self._names:
            raise SimulationError(f"there is no {name!r}, only {', '.join(self._names)}")
        return name

    def _peer(self, name: str) -> str:
        if name not in self._peers:
            raise SimulationError(f"there is no node {name!r}, only {', '.join(self._peers)}")
        return name

    def _drive(self, name: str) -> Drive:
        if name not in self._drives:
            raise SimulationError(f"{name!r} has no disk, only {', '.join(self._drives)} have")
        return self._drives[name]


def check_runs(what: str, function: object) -> None:
    """Raise TypeError for a function whose call runs no line of its body."""
    kinds = (iscoroutinefunction, isasyncgenfunction, isgeneratorfunction)
    if any(is_one(function) for is_one in kinds):
        raise TypeError(
            f"{what} {function!r} is an async def or a generator, and would not run: give a plain "
            "function, and call asyncio.run in it"
        )


def _check_no_loop() -> None:
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise SimulationError(
            "this thread runs an event loop, in which a simulation would wait: make the test a "
            "plain function, and call asyncio.run within the simulation"
        )


def _names_of(nodes: int | Sequence[str]) -> tuple[str, ...]:
    if isinstance(nodes, int):
        if not 1 <= nodes <= len(NAMES):
            raise SimulationError(f"nodes={nodes}: 1 to {len(NAMES)}, or a list of names")
        return tuple(NAMES[:nodes])
    if not nodes or len(set(nodes)) < len(nodes):
        raise SimulationError(f"nodes={nodes!r}: one name at least, and each once")
    return tuple(nodes)


def _us(seconds: float) -> int:
    if not 0 <= seconds < math.inf:
        raise SimulationError(f"{seconds} s: give virtual seconds, 0 or more")
    return int(seconds * 1_000_000)
