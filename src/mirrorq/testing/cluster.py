"""`SimulatedCluster`: your code against a whole cluster, on virtual time and with faults.

The nodes are real `mirrorq.Node`s with everything that is in them, and what users hold are real
`MirroredQueue`s. Played are time, threads (`schedule`), the network and disks. The same seed
gives the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from mirrorq import clock
from mirrorq.client.client import Client
from mirrorq.client.driver import ClientDriver
from mirrorq.config import Config
from mirrorq.node.node import Node
from mirrorq.protocol.effects import Notice
from mirrorq.testing import patching
from mirrorq.testing.disk import SimulatedDisk
from mirrorq.testing.network import Network, SimulatedClientSocket, SimulatedTransport
from mirrorq.testing.schedule import Process, Scheduler, SimulationError, Task
from mirrorq.testing.store import Drive, SimulatedStore

if TYPE_CHECKING:
    from mirrorq.api.exchange import Exchange
    from mirrorq.api.queue import MirroredQueue
    from mirrorq.client.connect_errors import Inquiry
    from mirrorq.security.settings import Security
    from mirrorq.store.node_store import Store
    from mirrorq.testing.network import End
    from mirrorq.transport.client import ClientSocket
    from mirrorq.transport.transport import Transport

NAMES = "abcdefghijklmnopqrstuvwxyz"
KINDS = ("crash", "partition", "freeze", "delay", "reset", "fill disk")
"""Of faults that `trouble` knows."""
READY_S = 60.0
"""A cluster without faults is ready within this, and far sooner."""


class SimulatedNode(Node):
    """A real node whose process, disk and network are of a `SimulatedCluster`."""

    def __init__(self, cluster: SimulatedCluster, process: Process, **arguments: Any) -> None:
        self._cluster = cluster
        self._process = process
        super().__init__(process.name, path=f"/simulated/{process.name}", **arguments)

    def _open_store(self) -> Store:
        cluster = self._cluster
        drive = cluster._drives[self.name]
        return cast("Store", SimulatedStore(cluster._scheduler, self.name, drive))

    def _silent_text(self) -> str:
        """No node is asked why it is silent: it would be asked by real sockets."""
        return ""

    def _open_rail(self) -> None:
        """None: it is a thread of its own, beside the simulated time."""

    def _open_transport(self, address: str) -> Transport:
        network, incarnation = self._cluster._network, self._store.incarnation
        end = SimulatedTransport(network, self._process, incarnation, address, self.config)
        return cast("Transport", end)

    def _seed(self) -> int:
        return self._cluster._scheduler.random.getrandbits(32)

    def _end_with_process(self) -> None:
        """It ends with a simulated one."""

    def _on_notice(self, notice: Notice) -> None:
        self._cluster.note(f"{self.name}: {notice.text}")
        super()._on_notice(notice)


class SimulatedDriver(ClientDriver):
    """The thread of a `SimulatedClient`."""

    def __init__(self, cluster: SimulatedCluster, process: Process, client: Client) -> None:
        self._cluster = cluster
        self._process = process
        super().__init__(process.name, client.endpoints, client.config)

    def _open_socket(self, endpoints: Sequence[str], security: Security | None) -> ClientSocket:
        network = self._cluster._network
        socket = SimulatedClientSocket(network, self._process, endpoints, self._config)
        return cast("ClientSocket", socket)

    def _chance(self) -> float:
        return self._cluster.random.random()


class SimulatedClient(Client):
    """A real client whose process and network are of a `SimulatedCluster`."""

    def __init__(self, cluster: SimulatedCluster, process: Process, **arguments: Any) -> None:
        self._cluster = cluster
        self._process = process
        super().__init__(insecure=True, **arguments)

    def _own_name(self) -> str:
        return self._process.name

    def _open_driver(self) -> ClientDriver:
        return SimulatedDriver(self._cluster, self._process, self)

    def _is_late(self, deadline: int | None, silences: Inquiry) -> bool:
        """No endpoint is asked why it is silent: it would be asked by real sockets."""
        return deadline is not None and clock.now_ms() >= deadline


class SimulatedCluster:
    """A cluster on virtual time, for tests of code that uses mirrorq.

    Used with `with`: entering it starts all nodes and waits until they have found each other;
    leaving it ends everything, and raises what a task has raised that nobody was told.

    Args:
        nodes: how many (named a, b, c, …), or their names.
        seed: decides everything that happens by chance: how long messages and commits take, and
            which of several tasks goes on first.
        config: of all nodes.
        witnesses: names of nodes that vote and hold no queue.
        time_limit: virtual seconds that may pass in all, beside those that `run`, `run_until`
            and `skip` were told to let pass. Then `Stuck` is raised, which says what every task
            is waiting for.
        patch: Python's own `time`, `threading`, `queue` and `asyncio.run` are the simulation's
            too, for its tasks; other threads keep theirs. False: code under test must wait by
            mirrorq and by `sleep` only.

    *Threads*: the thread that has entered it, and tasks (`spawn`). Of all these one runs at a
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
        names = tuple(NAMES[:nodes]) if isinstance(nodes, int) else tuple(nodes)
        self.seed: int = seed
        """As given."""
        self.log: list[str] = []
        """What happened, a line each, with its time; equal for equal seeds."""
        self._config = config or Config()
        self._witnesses = tuple(witnesses)
        self._scheduler = Scheduler(seed, time_limit)
        self._network = Network(self._scheduler)
        self._peers = {name: f"tcp://{name}:7400" for name in names}
        self._processes: dict[str, Process] = {}
        self._nodes: dict[str, SimulatedNode] = {}
        """Those whose processes were started last, running or not."""
        self._clients: dict[str, SimulatedClient] = {}
        """The same of clients."""
        self._drives = {name: self._new_drive() for name in names}
        self._task_count = 0
        self._is_patched = patch

    def _new_drive(self) -> Drive:
        return Drive(SimulatedDisk(self._scheduler.random.getrandbits(62)))

    # --- Beginning and end --------------------------------------------------------------

    def __enter__(self) -> SimulatedCluster:
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
        """The node of this name, as its process has it: a real `mirrorq.Node`.

        Raises:
            SimulationError: it does not run.
        """
        if name not in self.running:
            self._known(name)
            raise SimulationError(f"node {name} does not run: start it first")
        return self._nodes[name]

    def connect(
        self, name: str = "client", *, to: Iterable[str] = (), timeout: float = READY_S
    ) -> Client:
        """A process that is no node, connected: what `mirrorq.connect` returns elsewhere.

        Args:
            name: of the process, for `on=` and for faults. After `crash(name)` another one may
                have it.
            to: nodes that it tries, in this order; all when none is named. It goes on to the next
                one when one is gone.
            timeout: virtual seconds to wait for one that answers.

        Raises:
            NoQuorum: none answered in time.
        """
        if name in self._peers or (name in self._processes and self._processes[name].is_alive):
            raise SimulationError(f"there is a process {name!r} already")
        self.note(f"connect {name}")
        process = self._processes[name] = Process(name)
        endpoints = [self._peers[node] for node in tuple(to) or self._peers]
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
        """Declare a queue on a node or client and return a handle on it, as `Node.queue` does.

        Args:
            on: its name. The handle ends with its process: after `crash` and `start` it takes
                another one.
            arguments: see `Node.queue`; but `spool`, whose disk and thread are not played.
        """
        if arguments.get("spool"):
            raise SimulationError("spools are not simulated: put into the queue itself here")
        handle: MirroredQueue = self._host(on).queue(name, **arguments)
        return handle

    def exchange(self, name: str, kind: str, *, on: str, **arguments: Any) -> Exchange:
        """Declare an exchange and return a handle on it, as `Node.exchange` does."""
        return self._host(on).exchange(name, kind, **arguments)

    def spawn(
        self,
        function: Callable[..., object],
        *arguments: object,
        on: str | None = None,
        name: str = "",
        **keywords: object,
    ) -> Task:
        """Run code of yours as a task: it may call whatever blocks.

        Args:
            keywords: passed to the function.
            function: called with the other arguments, on a thread of its own.
            on: the node or client in whose process it runs: with this it crashes, stands still
                and ends. None: beside them all.
            name: for messages.

        Returns:
            The task.

        Raises:
            SimulationError: there is no such node or client.

        What it raises is raised by `run`, or at the latest when the cluster is left, unless
        somebody is told by `Task.result`.
        """
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
        """Let time pass, and raise what a task has raised.

        Args:
            seconds: virtual ones.
        """
        self._scheduler.allow(int(seconds * 1_000_000))
        self.sleep(seconds)
        self._scheduler.raise_failed()

    def run_until(self, condition: Callable[[], bool], timeout: float = 60.0) -> None:
        """Let time pass until the condition holds, which is looked at every 10 ms.

        Raises:
            TimeoutError: it does not after `timeout` virtual seconds.
        """
        self._scheduler.allow(int(timeout * 1_000_000))
        deadline = self.now + timeout
        while not condition():
            if self.now >= deadline:
                raise TimeoutError(f"after {timeout} s the condition does not hold")
            self.sleep(0.01)
            self._scheduler.raise_failed()

    def sleep(self, seconds: float) -> None:
        """What `time.sleep` is elsewhere; for tasks.

        Args:
            seconds: virtual ones.
        """
        self._scheduler.sleep_us(int(seconds * 1_000_000))

    def skip(self, seconds: float) -> None:
        """All processes, tasks too, stand still for so long, as on a computer that sleeps: it
        costs nothing, however long. What was due meanwhile happens after it.

        Args:
            seconds: virtual ones.
        """
        self.note(f"skip {seconds:g} s")
        self._scheduler.leap(int(seconds * 1_000_000))

    # --- Faults of processes ------------------------------------------------------------

    @property
    def running(self) -> tuple[str, ...]:
        """Names of the nodes that run."""
        return tuple(name for name in self._nodes if self._processes[name].is_alive)

    def start(self, name: str) -> Node:
        """Start the process of a node that does not run, with what is on its disk. Returns at
        once: `wait_ready` of what it returns waits.

        Args:
            name: of the node.

        Raises:
            SimulationError: it runs.
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
        """End a process at once, as SIGKILL and the loss of power do: what no commit has put on
        its disk is lost, handles on it end, tasks on it end where they are waiting.

        Args:
            name: of the node, or client.
        """
        host = self._host(name)
        self.note(f"crash {name}")
        end = host._transport if isinstance(host, Node) else host._driver._socket
        cast("End", end).close()
        self._scheduler.kill_and_wait(self._processes[name])

    def stop(self, name: str) -> None:
        """End a process in order, by its `close`; tasks on it end after that.

        Args:
            name: of the node, or client.
        """
        host = self._host(name)
        self.note(f"stop {name}")
        host.close()
        self._scheduler.kill_and_wait(self._processes[name])

    def restart(self, name: str, timeout: float = READY_S) -> Node:
        """Start a node that does not run, and wait until it takes part in the cluster again.

        Args:
            name: of the node.
            timeout: virtual seconds to wait.

        Returns:
            The node, of its new process.

        Raises:
            NoQuorum: it did not come about in time.
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
        self._scheduler.freeze(self._processes[name], int(seconds * 1_000_000))

    # --- Faults of disks ----------------------------------------------------------------

    def wipe(self, name: str) -> None:
        """The disk of a node that does not run is replaced by an empty one.

        Args:
            name: of the node.

        Raises:
            SimulationError: it runs.
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
        drive.full_until_us = self._scheduler.now_us + int(seconds * 1_000_000)

    def slow_disk(self, name: str, least: float = 0.0002, most: float = 0.002) -> None:
        """From now on a commit on this node takes so many seconds; without numbers as before.

        Args:
            name: of the node.
            least, most: seconds that each commit takes.
        """
        drive = self._drive(name)
        self.note(f"commits of {name} take {least:g} to {most:g} s")
        drive.commit_us = (int(least * 1_000_000), int(most * 1_000_000))

    # --- Faults of the network ----------------------------------------------------------

    def partition(self, *groups: Iterable[str], silent: bool = False) -> None:
        """Cut all links between groups of nodes and clients. Who is named in none is a group with
        the others of that kind.

        Args:
            silent: packets vanish, and nobody is told that connections have ended.
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
            silent: packets vanish, and nobody is told.
            one_way: only what `one` sends to `other` is cut.
        """
        how = ", silently" if silent else ""
        self.note(f"cut {self._known(one)} {'->' if one_way else '--'} {self._known(other)}{how}")
        self._network.cut(one, other, silent=silent, one_way=one_way)

    def reset(self, one: str, other: str) -> None:
        """The connections between two nodes break once, and come up again: what was on its way
        is lost.

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
            span_us = (int(least * 1_000_000), int(most * 1_000_000))
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
        """For so long, let a fault of the seed's choice happen now and then, one at a time; each
        is over, and its node started again, before the next. Returns at once.

        Args:
            kinds: which ones.
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

    # --- What happened ------------------------------------------------------------------

    def master(self, queue: str) -> str | None:
        """The node that serves a queue, as the first that runs and knows it says."""
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

    def _drive(self, name: str) -> Drive:
        if name not in self._drives:
            raise SimulationError(f"{name!r} has no disk, only {', '.join(self._drives)} have")
        return self._drives[name]
