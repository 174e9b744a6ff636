"""`SimulatedCluster`: whole nodes on virtual time, disks, network and crashes. One seed, one run.

Every node runs the real `engine.Engine`; only what `node.Node` does with the outside world is
played here: commits take time and are lost in a crash, messages travel with a delay on
per-link FIFOs, time jumps from event to event. The same seed gives the same trace, under any
PYTHONHASHSEED.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from heapq import heappop, heappush
from random import Random

from attrs import define, evolve, field
from msgspec.structs import replace

from harness.network import Link, Network
from harness.onlooker import Copy, Onlooker
from harness.rail import MARKED, RECEIVED, STOPPED, TAKEN, Rail, RailDisk
from harness.wakeups import asleep
from mirrorq.config import Config
from mirrorq.containers.ranges import Range
from mirrorq.containers.timers import FOREVER_MS
from mirrorq.engine import hosting
from mirrorq.engine.engine import Engine
from mirrorq.engine.events import (
    Answer,
    Ask,
    Committed,
    EngineEffects,
    EngineEvent,
    FromPeer,
    FromSession,
    LinkDown,
    LinkUp,
    MasterChange,
    MasterLinkLost,
    Probed,
    Release,
    SessionClosed,
    SessionOpened,
    ToCopy,
    WriteAll,
)
from mirrorq.errors import StoreCorrupt
from mirrorq.node.ending import Ending, endings
from mirrorq.node.outbox_packing import packed
from mirrorq.node.steady_time import SteadyTime
from mirrorq.protocol.commands import CatalogCommand, DeclareQueue
from mirrorq.protocol.effects import OutboxLoaded, RailArm
from mirrorq.protocol.identities import MemberId, SessionId, StoreId
from mirrorq.protocol.ops import Entry
from mirrorq.protocol.raft import AppendRequest
from mirrorq.protocol.ring import STAR, Data, FetchFrames, FrameChunk
from mirrorq.protocol.sessions import Deliver, SessionReply, SessionRequest
from mirrorq.protocol.views import View
from mirrorq.replication.disk_budget import PLENTY
from mirrorq.replication.events import FrameDamaged, Railed, RailStopped, Undelivered
from mirrorq.testing.disk import SimulatedDisk
from mirrorq.wire import frames
from mirrorq.wire.ops import FrameCodec

SessionPort = Callable[[object], None]
"""Called with a MasterChange, MasterLinkLost or SessionReply for one session."""

START_US = 1_700_000_000_000_000
CHUNK_FRAMES = 4
"""Frames in one chunk of a transfer."""
LATE_MS = 10
"""What the rail has taken is handed over within this."""
IDLE_STEPS_MAX = 10
"""After so many steps that nothing came for and that did not wait, it never ends."""
PORTION_STEPS_MAX = 5000
"""The same of steps that each do a portion of something."""
UNREAD_STEPS_MAX = 30
"""Frames that one node finds damaged one after the other, each in a step of its own."""
CARRY_ENTRIES = (Data, FrameChunk, AppendRequest)
"""Messages with ops, frames or commands in them."""
BEHIND_MS = 500
"""A node whose commits wait for so long says what it has to say too late."""
RETRY_MS = 100
"""A commit that found the disk full is tried again after this, as in `driver`."""


@define
class SimulatedNode:
    """One node: a name with a disk, and a process when it runs."""

    name: str
    disk: RailDisk
    witness: bool = False
    joins: tuple[str, ...] | None = None
    """Nodes through which it joins the cluster; None: it is one of the peers."""
    contacts: dict[str, str] = field(factory=dict)
    """To whom it keeps connections: as its engine calls it -> name."""
    engine: Engine | None = None
    life: int = 0
    """Counts starts and ends: what was scheduled for an older life is void."""
    paused_until_ms: int = 0
    late_ms: tuple[int, int] = (0, 0)
    """By how much it steps late, at least and at most: its process is starved of time."""
    clock_offset_ms: int = 0
    clock_gain: int = 0
    """Thousandths by which this node's clock runs faster than true time."""
    wall_ahead_ms: int = 0
    """By how much the wall clock of its machine is wrong: somebody has set it."""
    wall_seen_ms: int = 0
    """The same when it was last looked at."""
    boots: int = 0
    """How often its machine was booted: `clock_offset_ms` is of the last time."""
    steady: SteadyTime | None = None
    """Of this life: the wall clock without its steps."""
    full_until_ms: int = 0
    """Its disk refuses every commit before this."""
    is_failing: bool = False
    """Its next commit fails, and that ends the process."""
    fails_once: bool = False
    """Its next commit fails, and its disk works again: the node ends by that, and is closed. Its
    rail has heard of nothing."""
    has_failed: bool = False
    """It ends, and not in order."""
    hang_ms: int = 0
    """Its next commit takes so much longer, and its thread does nothing meanwhile."""
    hung_until_ms: int = 0
    is_stopping: bool = False
    """It was told to close: it ends after the commit that it is in."""
    is_wanted: bool = False
    """It is to start again when it has ended."""
    no_room_until_ms: int = 0
    """Its store says before this that it has no room for messages; commits still work."""
    inbox: list[EngineEvent] = field(factory=list)
    run_scheduled: bool = False
    idle_steps: int = 0
    """Steps one after another for which nothing came, and that want the next one at once."""
    portion_steps: int = 0
    """The same of those in which a master goes on with something by portions."""
    unread_steps: int = 0
    """Steps one after another in which it handed out something damaged."""
    wake_ms: int | None = None
    """When it wants to be stepped though nothing came."""
    timer_ms: int | None = None
    """When the simulator looks next whether it does."""
    commits: deque[EngineEffects] = field(factory=deque)
    commit_ms: int = 1
    """How long a commit takes on this disk."""
    rail: Rail | None = None
    """Of this life; None: it has none."""
    is_rail_busy: bool = False
    """A group is on its way to the disk."""
    railed: dict[int, int] = field(factory=dict)
    """Round -> the last record of the rail that was taken before it."""
    taken: int = 0
    """The last record that was taken."""
    ports: dict[SessionId, tuple[int, SessionPort]] = field(factory=dict)
    answers: dict[int, Answer] = field(factory=dict)

    @property
    def store(self) -> StoreId:
        """Whose promises it keeps: another disk is another store."""
        return StoreId(self.name, self.disk.store)

    @property
    def has_seen_wall(self) -> bool:
        """Whether its process has looked at the wall clock since that was set."""
        return self.wall_seen_ms == self.wall_ahead_ms

    def is_impaired(self, now_ms: int) -> bool:
        """Whether it stands still, or says late what it has to say: that waits for its disk."""
        is_stopped = now_ms < max(self.paused_until_ms, self.full_until_ms)
        return is_stopped or self.late_ms[1] > 0 or len(self.commits) * self.commit_ms > BEHIND_MS


class SimulatedCluster:
    """Nodes by name, all made with the same `peers`."""

    def __init__(
        self,
        names: tuple[str, ...] = ("a", "b", "c"),
        *,
        seed: int = 0,
        config: Config | None = None,
        witnesses: tuple[str, ...] = (),
        is_jittery: bool = True,
    ) -> None:
        self.is_jittery = is_jittery
        """Each message takes 0 or 1 ms by chance; else always 1 ms."""
        self.random = Random(seed)
        """What decides all that happens by chance."""
        self.config = config or Config()
        """Of all nodes."""
        self.without_star = ""
        """A node that does not take part in the star."""
        self.rail_counts: Counter[str] = Counter()
        """What rails have done, and what was done to nodes whose rail had a queue."""
        self.now_ms = 0
        """Virtual time."""
        self.network = Network()
        """What is between the nodes: cuts, delays, losses."""
        self.trace: list[str] = []
        """What happened, a line each; equal for equal seeds."""
        self.handed_ms: dict[tuple[int, int, int], int] = {}
        """(queue, epoch, delivery number) -> when the master's node sent it."""
        self.onlooker = Onlooker()
        """Compares what the nodes do with the rules: its `wrong` says which were broken."""
        self.entries_sent: dict[str, int] = {}
        """Node -> ops and frames of messages that were sent to it by others."""
        self.nodes: dict[str, SimulatedNode] = {}
        """Those that run and those that are stopped."""
        self._codec = FrameCodec()
        self._events: list[tuple[int, int, Callable[..., None], tuple[object, ...]]] = []
        self._order = 0
        self._tokens = 0
        self._session_number = 0
        self._lives: dict[str, int] = {}
        """Of nodes that were thrown away: who comes under such a name is not taken for it."""
        for name in names:
            disk = RailDisk(self.random.getrandbits(62))
            self.nodes[name] = SimulatedNode(name, disk, name in witnesses)

    # --- Time ---------------------------------------------------------------------------

    def at(self, time_ms: int, action: Callable[..., None], *arguments: object) -> None:
        """Do something at a time; at once when that is past."""
        self._order += 1
        when_ms = time_ms if time_ms > self.now_ms else self.now_ms
        heappush(self._events, (when_ms, self._order, action, arguments))

    def after(self, delay_ms: int, action: Callable[..., None], *arguments: object) -> None:
        """Have the action called in so many milliseconds."""
        self.at(self.now_ms + delay_ms, action, *arguments)

    def run(self, duration_ms: int) -> None:
        """Let virtual time pass."""
        end_ms = self.now_ms + duration_ms
        events = self._events
        while events and events[0][0] <= end_ms:
            self.now_ms, _, action, arguments = heappop(events)
            action(*arguments)
        self.now_ms = end_ms

    def run_until(self, condition: Callable[[], bool], limit_ms: int = 60_000) -> bool:
        """Let time pass until the condition holds; False when it does not by the limit."""
        end_ms = self.now_ms + limit_ms
        while not condition():
            if not self._events or self._events[0][0] > end_ms:
                self.now_ms = end_ms
                return condition()
            self._step()
        return True

    def _step(self) -> None:
        self.now_ms, _, action, arguments = heappop(self._events)
        action(*arguments)

    def quiet_down(self, queue_ids: Iterable[int], quiet_ms: int, most_ms: int) -> None:
        """Let so much time pass, and more while a node makes a checkpoint, is about to, or takes
        pages off its disk before it may: with it the last messages leave the disk. With tiny pages
        a deep queue's are thousands of commits; an op may come late, such as a horizon."""
        end_ms = self.now_ms + most_ms
        self.run(quiet_ms)
        while self.now_ms < end_ms and any(map(self._will_checkpoint, queue_ids)):
            self.run(quiet_ms)

    def _will_checkpoint(self, queue_id: int) -> bool:
        copies = (
            (node.disk.queues.get(queue_id), node.engine.replicas.get(queue_id))
            for node in self.nodes.values()
            if node.engine is not None
        )
        return any(
            files.ops and (copy._writes._is_making or copy._writes._quiet.at_ms < FOREVER_MS)
            for files, copy in copies
            if files is not None and copy is not None
        )

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{self.now_ms:>8} {text}")

    # --- Nodes --------------------------------------------------------------------------

    def start(self, *names: str) -> None:
        """Start the processes of these nodes (all when none is named)."""
        for name in names or tuple(self.nodes):
            self._start(self.nodes[name])

    def _start(self, node: SimulatedNode) -> None:
        if node.engine is not None:
            node.is_wanted = node.is_stopping
            return
        node.life += 1
        self.rail_counts["groups replayed"] += len(node.disk.records)
        incarnation = node.disk.start()
        me = MemberId(node.name, node.disk.store, incarnation)
        self.note(f"start {node.name} incarnation {incarnation}")
        images = node.disk.images(whole=False)
        self.onlooker.on_start(node.store, images)
        node.contacts.clear()
        config = self.config
        if node.name == self.without_star:
            config = evolve(config, star=False)
        node.rail = Rail() if config.star and config.rail else None
        node.is_rail_busy, node.taken = False, 0
        node.railed.clear()
        node.engine = Engine(
            me,
            f"sim://{node.name}",
            self._peers_of(node),
            config,
            self._codec,
            node.disk.raft_image(),
            images,
            join=tuple(f"sim://{name}" for name in node.joins or ()),
            witness=node.witness,
            seed=self.random.getrandbits(32),
            now_ms=self.clock_ms(node),
            read_page=node.disk.page,
        )
        node.steady = SteadyTime(
            self.clock_ms(node) * 1000, self.wall_us(node), f"boot {node.boots}", node.disk.steady
        )
        node.inbox.clear()
        node.commits.clear()
        node.run_scheduled = False
        node.wake_ms = node.timer_ms = None
        for other in self.nodes.values():
            if other is not node and other.engine is not None:
                self._connect(node, other)
        self._schedule(node)

    def _peers_of(self, node: SimulatedNode) -> dict[str, str]:
        """What the node's configuration says: all that were there from the start."""
        if node.joins is not None:
            return {}
        return {name: f"sim://{name}" for name, one in self.nodes.items() if one.joins is None}

    def add(self, name: str, *joins: str, witness: bool = False) -> None:
        """A node with an empty disk that is to join the cluster through these; not started."""
        disk = RailDisk(self.random.getrandbits(62))
        node = self.nodes[name] = SimulatedNode(name, disk, witness, joins)
        node.life = self._lives.get(name, 0)

    def remove(self, name: str) -> None:
        """The stopped node is thrown away, with its disk."""
        assert self.nodes[name].engine is None
        self._lives[name] = self.nodes.pop(name).life

    def _connect(self, node: SimulatedNode, other: SimulatedNode) -> None:
        """Both processes run and hear each other: connections that they want come up."""
        if self.network.is_connected(node.name, other.name):
            for one, peer in ((node, other), (other, node)):
                for key, name in one.contacts.items():
                    if name == peer.name:
                        self._tell(one, LinkUp(key), 1)

    def _change_contacts(self, node: SimulatedNode, wanted: Mapping[str, str]) -> None:
        for key in tuple(node.contacts):
            if key not in wanted:
                del node.contacts[key]
        for key, endpoint in wanted.items():
            name = endpoint.removeprefix("sim://")
            if node.contacts.get(key) == name:
                continue
            node.contacts[key] = name
            other = self.nodes.get(name)
            is_there = other is not None and other.engine is not None
            if is_there and self.network.is_connected(node.name, name):
                self._tell(node, LinkUp(key), 1)

    def _contact(self, node: SimulatedNode, key: str) -> SimulatedNode | None:
        """The running node that this one calls so and keeps a connection to."""
        other = self.nodes.get(node.contacts.get(key, ""))
        return None if other is None or other.engine is None else other

    def kill(self, name: str) -> None:
        """SIGKILL: what was not synced is lost, connections end at once."""
        node = self.nodes[name]
        if node.engine is None:
            return
        self.note(f"kill {name}")
        if node.rail is not None and node.rail.queues:
            self.rail_counts["killed while armed"] += 1
        self._hang_up(node)

    def _hang_up(self, node: SimulatedNode) -> None:
        """A process is no more, for itself and for others."""
        name = node.name
        node.engine = None
        node.life += 1
        node.inbox.clear()
        node.commits.clear()
        node.ports.clear()
        node.paused_until_ms = 0
        if node.is_wanted:
            self.after(1, self.start, name)
        node.fails_once = node.is_stopping = node.is_wanted = False
        node.hang_ms = node.hung_until_ms = 0
        for other in self.nodes.values():
            if other is not node:
                for link in (
                    self.network.link(name, other.name),
                    self.network.link(other.name, name),
                ):
                    link.generation += 1
                if self.network.is_connected(name, other.name):
                    self._tell_down(other, name)

    def stop(self, name: str) -> None:
        """`close()`: the node ends in order, when the commit that it is in is done."""
        node = self.nodes[name]
        if node.engine is not None and not node.is_stopping:
            self.note(f"stop {name}")
            self._tell(node, Release())
            node.is_stopping = True
            self.after(1, self._stop, node, node.life)

    def _stop(self, node: SimulatedNode, life: int) -> None:
        if node.life != life or node.engine is None:
            return
        if self.now_ms < node.paused_until_ms:
            self.at(node.paused_until_ms, self._stop, node, life)
        elif not node.commits or self.now_ms < node.full_until_ms:
            self._end(node, has_failed=False)

    def _end(self, node: SimulatedNode, *, has_failed: bool) -> None:
        """What a node's thread does at its end, in the order of `node.ending`."""
        node.has_failed = has_failed
        if node.rail is not None and (node.rail.out or node.rail.group):
            self.rail_counts["ended with something untaken"] += 1
        self.note(f"end {node.name}{' after a failure' * has_failed}")
        for step in endings(lambda: node.has_failed):
            match step:
                case Ending.STOP_RAIL if node.rail is not None:
                    self._write_group(node, node.rail)
                case Ending.WRITE_REST:
                    node.has_failed = not self._has_written_rest(node)
                case Ending.CLOSE_TRANSPORT | Ending.ABANDON_TRANSPORT:
                    self._hang_up(node)
                case Ending.CLOSE_STORE if self.now_ms >= node.full_until_ms:
                    node.disk.end_log(node.taken)

    def _has_written_rest(self, node: SimulatedNode) -> bool:
        """Make the last round; False: its commit has failed."""
        node.inbox.append(WriteAll())
        self._step_node(node)
        if self.now_ms < node.full_until_ms:
            return True  # what has no room is lost, as of a process that is killed
        while node.commits:
            if not node.commits[0].round:
                self._carry_out(node, node.commits.popleft())
            elif node.is_failing or node.fails_once:
                return False
            else:
                self._write_round(node)
        return True

    def wipe(self, name: str, backup: SimulatedDisk | None = None) -> None:
        """The stopped node's disk is replaced by an empty one, or by one with an old copy's
        queues. It is another store in both cases: what it had promised is forgotten."""
        assert self.nodes[name].engine is None
        disk = RailDisk(self.random.getrandbits(62))
        if backup is not None:
            disk.queues, disk.steady = backup.backup().queues, backup.steady
        self.nodes[name].disk = disk
        self.note(f"wipe {name}{', an old copy is put in its place' if backup else ''}")

    def damage(self, name: str, queue_id: int, first: int) -> None:
        """A byte changes on a node's disk, in the frame that begins with this message."""
        files = self.nodes[name].disk.queues[queue_id]
        entry = files.frames[first]
        at = frames.HEADER_SIZE + 4 * (entry.header.count + 1)
        changed = bytearray(entry.frame)
        changed[at] ^= 0x10
        files.frames[first] = replace(entry, frame=bytes(changed))
        files.damaged[first] = None
        self.note(f"damage {name} queue {queue_id} frame {first}")

    def damage_state(self, name: str, queue_id: int) -> None:
        """The same in the checkpoint of a copy; whoever reads it is a process that starts."""
        self.nodes[name].disk.queues[queue_id].is_state_damaged = True
        self.note(f"damage {name} queue {queue_id} checkpoint")

    @property
    def is_damaged(self) -> bool:
        """Whether anything on any disk is not as it was written."""
        return any(node.disk.is_damaged for node in self.nodes.values())

    def pause(self, name: str, duration_ms: int) -> None:
        """SIGSTOP and SIGCONT: the process does nothing for a while, and does not know."""
        node = self.nodes[name]
        node.paused_until_ms = self.now_ms + duration_ms
        self.note(f"pause {name} for {duration_ms} ms")
        self.at(node.paused_until_ms, self._schedule, node)

    def freeze(self, name: str, duration_ms: int) -> None:
        """A hypervisor stops the whole machine for a while, all its clocks too: its process finds
        that no time has passed."""
        node = self.nodes[name]

        def thaw() -> None:
            node.clock_offset_ms -= duration_ms * (1000 + node.clock_gain) // 1000
            node.wall_ahead_ms -= duration_ms
            self._set_timer(node, self.now_ms)

        node.paused_until_ms = self.now_ms + duration_ms
        self.note(f"freeze {name} for {duration_ms} ms")
        self.at(node.paused_until_ms, thaw)

    def starve(self, least_ms: int = 0, most_ms: int = 0) -> None:
        """From now on every node steps late by so much each time; 0: in time again."""
        for node in self.nodes.values():
            node.late_ms = (least_ms, most_ms)
        self.note(f"steps are late by {least_ms} to {most_ms} ms")

    def engine(self, name: str) -> Engine:
        """The core of a node that runs."""
        engine = self.nodes[name].engine
        assert engine is not None, f"node {name} does not run"
        return engine

    @property
    def running(self) -> tuple[str, ...]:
        """Names of the nodes that run."""
        return tuple(name for name, node in self.nodes.items() if node.engine is not None)

    def _reported_ms(self, node: SimulatedNode, queue_id: int) -> int:
        """When this node last heard what a queue's master counts; -1: never."""
        assert node.engine is not None
        report = node.engine.hosting.reports.get(queue_id)
        return -1 if report is None else self._read_ms(node, report[1])

    def clock_ms(self, node: SimulatedNode) -> int:
        """What the node's own clock says."""
        now_ms = self.now_ms
        if not node.clock_gain:
            return now_ms + node.clock_offset_ms
        return now_ms + node.clock_offset_ms + now_ms * node.clock_gain // 1000

    def wall_us(self, node: SimulatedNode) -> int:
        """What the wall clock of the node's machine says. Boot times differ, wall clocks by their
        drift, and by as much as somebody has set them wrong."""
        return START_US + (self.clock_ms(node) - node.clock_offset_ms + node.wall_ahead_ms) * 1000

    def set_wall(self, name: str, ahead_ms: int) -> None:
        """The wall clock of the node's machine is set to be so far ahead of the true time."""
        self.nodes[name].wall_ahead_ms = ahead_ms
        self.note(f"wall clock of {name} set to be {ahead_ms} ms ahead")

    def boot(self, name: str) -> None:
        """The stopped node's machine is booted: its clock that is never set begins anew."""
        node = self.nodes[name]
        assert node.engine is None
        node.boots += 1
        node.clock_offset_ms = -self.now_ms - self.now_ms * node.clock_gain // 1000
        self.note(f"boot {name}")

    def true_ms(self, node: SimulatedNode, clock_ms: int) -> int:
        """When the node's clock will have come so far; the next moment when it has."""
        return max(self._read_ms(node, clock_ms), self.now_ms + 1)

    def _read_ms(self, node: SimulatedNode, clock_ms: int) -> int:
        """When the node's clock says this for the first time, in the past too."""
        gone_ms = (clock_ms - node.clock_offset_ms) * 1000
        return -(-gone_ms // (1000 + node.clock_gain))

    def fill_disk(self, name: str, duration_ms: int, *, noticed: bool = False) -> None:
        """The disk is full for a while: every commit is refused, and tried again.

        With `noticed` the store knows it beforehand, and only messages are kept out.
        """
        node = self.nodes[name]
        until_ms = self.now_ms + duration_ms
        if noticed:
            node.no_room_until_ms = until_ms
            self._schedule(node)
        else:
            node.full_until_ms = until_ms
        self.note(f"disk of {name} full for {duration_ms} ms{', noticed' if noticed else ''}")

    # --- Links --------------------------------------------------------------------------

    def cut(
        self,
        one: str,
        other: str,
        *,
        silent: bool = False,
        one_way: bool = False,
        refusing: bool = False,
    ) -> None:
        """Cut the link between two nodes (or only from `one` to `other`)."""
        how = " silently" if silent else ", and refuse new connections" if refusing else ""
        self.note(f"cut {one} {'->' if one_way else '--'} {other}{how}")
        pairs = [(one, other)] if one_way else [(one, other), (other, one)]
        was_connected = self.network.is_connected(one, other)
        for pair in pairs:
            link = self.network.link(*pair)
            link.generation += 1
            link.refuses = refusing
            if silent:
                link.silent = True
            else:
                link.cut = True
        if was_connected and not silent:
            self._break(one, other)

    def heal(self, one: str, other: str) -> None:
        """Let the link between two nodes work again, both ways."""
        was_connected = self.network.is_connected(one, other)
        for pair in ((one, other), (other, one)):
            self.network.link(*pair).mend()
        self.note(f"heal {one} -- {other}")
        first, second = self.nodes[one], self.nodes[other]
        if first.engine is not None and second.engine is not None:
            if was_connected:
                self._break(one, other)
            self._connect(first, second)

    def heal_all(self) -> None:
        """Mend every cut between two nodes."""
        for one in self.nodes:
            for other in self.nodes:
                if one < other:
                    self.heal(one, other)

    def _break(self, one: str, other: str) -> None:
        for name, peer in ((one, other), (other, one)):
            if self.nodes[name].engine is not None:
                self._tell_down(self.nodes[name], peer)

    def _tell_down(self, node: SimulatedNode, peer: str) -> None:
        for key, name in node.contacts.items():
            if name == peer:
                self._tell(node, LinkDown(key), 1)

    def tell(self, name: str, event: EngineEvent) -> None:
        """Give a node an event that its driver would give it."""
        self._tell(self.nodes[name], event)

    # --- Running a node -----------------------------------------------------------------

    def _tell(self, node: SimulatedNode, event: EngineEvent, delay_ms: int = 0) -> None:
        """Give an event to a node's present life."""
        self.after(delay_ms, self._arrive, node, node.life, event)

    def _arrive(self, node: SimulatedNode, life: int, event: EngineEvent) -> None:
        if node.life == life and node.engine is not None:
            node.inbox.append(event)
            self._schedule(node)

    def _schedule(self, node: SimulatedNode) -> None:
        """Have the node step at this moment, with all that arrives in it."""
        now_ms = self.now_ms
        if node.run_scheduled or node.engine is None or now_ms < node.paused_until_ms:
            return
        node.run_scheduled = True
        if node.late_ms[1]:
            now_ms += self.random.randint(*node.late_ms)
        self._order += 1
        heappush(self._events, (now_ms, self._order, self._run_node, (node, node.life)))

    def _set_timer(self, node: SimulatedNode, wake_ms: int | None) -> None:
        """Have the node step at `wake_ms` if nothing else comes before. One timer a node."""
        node.wake_ms = wake_ms
        if wake_ms is not None and (node.timer_ms is None or wake_ms < node.timer_ms):
            node.timer_ms = wake_ms
            self.at(wake_ms, self._on_timer, node, node.life, wake_ms)

    def _on_timer(self, node: SimulatedNode, life: int, timer_ms: int) -> None:
        if node.life != life or node.timer_ms != timer_ms:
            return
        node.timer_ms = None
        if node.wake_ms is not None and node.wake_ms > self.now_ms:
            self._set_timer(node, node.wake_ms)
        elif node.wake_ms is not None:
            self._schedule(node)

    def _run_node(self, node: SimulatedNode, life: int) -> None:
        if node.life != life or node.engine is None:
            return
        node.run_scheduled = False
        if self.now_ms < max(node.paused_until_ms, node.hung_until_ms):
            return
        if node.is_stopping and node.commits:
            return
        self._step_node(node)

    def _step_node(self, node: SimulatedNode) -> None:
        assert node.engine is not None
        events, node.inbox = node.inbox, []
        if node.rail is not None:
            events = [*self._taken(node, node.rail), *events]
        clock_ms = self.clock_ms(node)
        room = 0 if self.now_ms < node.no_room_until_ms else PLENTY
        node.engine.room.set(room, room, "")
        assert node.steady is not None
        steady_us = node.steady.read(clock_ms * 1000, self.wall_us(node))
        node.wall_seen_ms = node.wall_ahead_ms
        if node.steady.is_due:
            node.disk.steady = node.steady.image()
            node.steady.on_kept()
        effects = node.engine.step(clock_ms, steady_us, events)
        node.railed[effects.round] = node.taken
        engine = node.engine
        if engine.is_registered:
            node.disk.known = engine.me.incarnation
        stepped = engine.hosting.stepped
        if stepped or effects.writes:
            is_deleted, replicas = engine.catalog.is_deleted, engine.replicas
            self.onlooker.on_step(
                node.name,
                effects.writes,
                replicas,
                stepped,
                is_deleted,
                self.now_ms,
                partial(self._reported_ms, node),
            )
        for text in asleep(engine, clock_ms):
            self.onlooker.wrong.append(f"asleep: {node.name}: {text}")
        wants_more = effects.wake_at_ms is not None and effects.wake_at_ms <= clock_ms
        # A starved node meets a repeated request in each step: it was due meanwhile.
        self._count_idle(node, engine, wants_more and not events and node.late_ms == (0, 0))
        if effects.contacts is not None:
            self._change_contacts(node, effects.contacts)
        if effects.send_first:
            self._send(node, effects.send_first)
        unread = self._note_unread(node, effects.replies)
        for reply in effects.replies:
            if isinstance(reply.reply, Deliver) and reply.queue_id in unread:
                self._tell(node, ToCopy(reply.queue_id, Undelivered(reply.session, reply.reply)))
            else:
                self._reply(node, reply)
        for change in effects.changes:
            self._tell_ports(node, change)
        if node.rail is not None:
            self._tend_rail(node, node.rail, effects)
        if effects.round or node.commits:
            node.commits.append(effects)
            if len(node.commits) == 1:
                self._commit_next(node)
        else:
            self._carry_out(node, effects)
        wake_ms = effects.wake_at_ms
        self._set_timer(node, None if wake_ms is None else self.true_ms(node, wake_ms))

    def _count_idle(self, node: SimulatedNode, engine: Engine, is_idle: bool) -> None:
        """A node that goes on though nothing came does so for a cause, and not for ever."""
        is_portion = is_idle and _goes_on(engine)
        node.portion_steps = node.portion_steps + 1 if is_portion else 0
        node.idle_steps = node.idle_steps + 1 if is_idle and not is_portion else 0
        if node.idle_steps == IDLE_STEPS_MAX or node.portion_steps == PORTION_STEPS_MAX:
            self.onlooker.wrong.append(f"busy: {node.name} steps without end and without a cause")

    def _commit_next(self, node: SimulatedNode) -> None:
        """Carry out rounds in order; what has to be written takes time first."""
        while node.commits:
            effects = node.commits[0]
            if effects.round:
                until_ms = self.now_ms + node.commit_ms + node.hang_ms
                self.at(until_ms, self._committed, node, node.life)
                if node.hang_ms:
                    node.hang_ms, node.hung_until_ms = 0, until_ms
                    self.at(until_ms, self._schedule, node)
                return
            node.commits.popleft()
            self._carry_out(node, effects)

    def _committed(self, node: SimulatedNode, life: int) -> None:
        if node.life != life or node.engine is None:
            return
        if self.now_ms < node.paused_until_ms:
            self.at(node.paused_until_ms, self._committed, node, life)
            return
        if node.is_failing:
            self.kill(node.name)
            return
        if node.fails_once:
            self._end(node, has_failed=True)
            return
        if self.now_ms < node.full_until_ms:
            self.after(RETRY_MS, self._committed, node, life)
            return
        self._write_round(node)
        self._commit_next(node)
        if node.is_stopping:
            self._stop(node, life)

    def _write_round(self, node: SimulatedNode) -> None:
        """The first of the rounds that wait is on the disk."""
        effects = node.commits.popleft()
        railed = node.railed.pop(effects.round)
        node.disk.commit_railed(effects.writes, effects.raft, railed)
        self.onlooker.on_commit(node.store, effects.writes)
        node.inbox.append(Committed(effects.round))
        self._schedule(node)
        self._carry_out(node, effects)

    def _carry_out(self, node: SimulatedNode, effects: EngineEffects) -> None:
        if effects.send:
            self._send(node, effects.send)
        if not effects.has_rest:
            return
        for peer, fetch in effects.reads:
            chunk, damaged = _chunk(node, fetch)
            self._send(node, [(peer, chunk)])
            for error in damaged:
                self._note_damage(node, fetch.queue_id, error)
        for load in effects.loads:
            try:
                loaded = packed(load, self._reader(node, load.queue_id))
                self._tell(node, ToCopy(load.queue_id, loaded))
            except StoreCorrupt as error:
                self._note_damage(node, load.queue_id, error)
                nothing = OutboxLoaded(load.queue_id, load.target, load.number, 0, 0, b"")
                self._tell(node, ToCopy(load.queue_id, nothing))
        for answer in effects.answers:
            node.answers[answer.token] = answer
        for notice in effects.notices:
            self.note(f"{node.name}: {notice.text}")
        for peer in effects.probes:
            self._probe(node, peer)

    def _note_unread(self, node: SimulatedNode, replies: list[SessionReply]) -> list[int]:
        """Queues of which something that is to be handed out now is damaged on this disk: nothing
        of them is, or one consumer would be ahead of the other."""
        unread: list[int] = []
        if not node.disk.is_damaged:
            node.unread_steps = 0
            return unread
        for reply in replies:
            if isinstance(reply.reply, Deliver) and not reply.reply.frames:
                try:
                    self._filled(node, reply)
                except StoreCorrupt as error:
                    self._note_damage(node, reply.queue_id, error)
                    unread.append(reply.queue_id)
        self._judge_unread(node, is_unread=bool(unread))
        return unread

    def _judge_unread(self, node: SimulatedNode, *, is_unread: bool) -> None:
        """What could not be read is not to be handed out again and again."""
        node.unread_steps = node.unread_steps + 1 if is_unread else 0
        if node.unread_steps == UNREAD_STEPS_MAX:
            text = f"busy: {node.name} hands out without end what it cannot read"
            self.onlooker.wrong.append(text)
        if node.unread_steps >= UNREAD_STEPS_MAX:
            self.pause(node.name, RETRY_MS)  # so that time passes

    def _note_damage(self, node: SimulatedNode, queue_id: int, error: StoreCorrupt) -> None:
        assert error.span is not None
        self._tell(node, ToCopy(queue_id, FrameDamaged(*error.span, str(error))))

    def _reader(self, node: SimulatedNode, queue_id: int) -> Callable[..., list[bytes]]:
        """Frames of a queue on this node, as `FrameReader` gives them."""
        return lambda first, last, _: [
            entry.frame for entry in _frames(node, queue_id, first, last)
        ]

    def _send(self, node: SimulatedNode, messages: list[tuple[str, object]]) -> None:
        assert node.engine is not None
        incarnation = node.engine.me.incarnation
        name, now_ms, events = node.name, self.now_ms, self._events
        for key, message in messages:
            other = self._contact(node, key)
            if other is None:
                continue
            delay_ms = self.random.getrandbits(1) if self.is_jittery else 1
            link = self.network.link(name, other.name)
            arrival_ms = link.arrival_ms(now_ms + delay_ms)
            if arrival_ms is None:
                continue
            if type(message) in CARRY_ENTRIES:
                count: int = len(message.entries)  # type: ignore[attr-defined]
                self.entries_sent[other.name] = self.entries_sent.get(other.name, 0) + count
            event = FromPeer(name, incarnation, message)
            self._order += 1
            sent = (link, link.generation, other, other.life, event)
            heappush(events, (arrival_ms, self._order, self._arrive_over, sent))

    def _arrive_over(
        self, link: Link, generation: int, other: SimulatedNode, life: int, event: FromPeer
    ) -> None:
        if link.generation == generation and other.life == life:
            message = event.message
            if other.rail is not None and type(message) is Data and message.mode == STAR:
                self._hear_rail(other, other.rail, event)
                return
            other.inbox.append(event)
            self._schedule(other)

    # --- The rail -----------------------------------------------------------------------

    def _hear_rail(self, node: SimulatedNode, rail: Rail, event: FromPeer) -> None:
        """A message of the star: the rail has it before the node's thread, also of one that is
        paused. (A stopped process stops its rail, too: see `_sync_rail`.)"""
        assert isinstance(event.message, Data)
        rail.hear((event.node, event.incarnation), event.message)
        self._hurry_rail(node, rail)

    def _hurry_rail(self, node: SimulatedNode, rail: Rail) -> None:
        """What it has to do next is done in a moment."""
        if rail.group and not node.is_rail_busy:
            node.is_rail_busy = True
            is_logging = any(one.kind == TAKEN for one in rail.group)
            self.after(node.commit_ms if is_logging else 0, self._sync_rail, node, node.life)
        if rail.out:
            late_ms = 0 if any(one.kind not in MARKED for one in rail.out) else LATE_MS
            self.after(self.random.randint(0, late_ms), self._arouse, node, node.life)

    def _arouse(self, node: SimulatedNode, life: int) -> None:
        if node.life == life and node.engine is not None:
            self._schedule(node)

    def _sync_rail(self, node: SimulatedNode, life: int) -> None:
        if node.life != life or node.engine is None or node.rail is None:
            return
        if self.now_ms < node.paused_until_ms:
            self.at(node.paused_until_ms, self._sync_rail, node, life)
            return
        self._write_group(node, node.rail)
        node.is_rail_busy = False
        self._hurry_rail(node, node.rail)

    def _write_group(self, node: SimulatedNode, rail: Rail) -> None:
        """What its rail has heard is on its disk, and the masters are told; or the disk fails."""
        is_logging = any(one.kind == TAKEN for one in rail.group)
        if is_logging and (self.now_ms < node.full_until_ms or node.is_failing):
            self.rail_counts["groups refused by the disk"] += bool(rail.group)
            rail.fail()
            return
        record, marks = rail.sync()
        if record is not None:
            self.rail_counts["groups synced"] += 1
            node.disk.records.append(record)
            self.onlooker.on_railed(node.store, record.messages)
        self._send(node, [(master[0], mark) for master, mark in marks])

    def _taken(self, node: SimulatedNode, rail: Rail) -> list[EngineEvent]:
        """What the rail hands over, first of all in a step."""
        events: list[EngineEvent] = []
        if self.now_ms < node.no_room_until_ms:
            for queue_id in sorted(rail.queues):
                rail.disarm(queue_id)
        for one in rail.take():
            self.rail_counts[f"handed over: {one.kind}"] += 1
            if one.kind == STOPPED:
                events.append(ToCopy(one.queue_id, RailStopped()))
                continue
            assert one.data is not None
            if one.kind == TAKEN:
                node.taken = one.number
            if one.kind in MARKED:
                events.append(ToCopy(one.data.queue_id, Railed(one.data)))
            else:
                events.append(FromPeer(*one.sender, one.data))
        return events

    def _tend_rail(self, node: SimulatedNode, rail: Rail, effects: EngineEffects) -> None:
        for queue_id, wish in effects.rail:
            if isinstance(wish, RailArm) and self.now_ms < node.no_room_until_ms:
                self._tell(node, ToCopy(queue_id, RailStopped()))
                self.rail_counts["arming refused"] += 1
            elif isinstance(wish, RailArm):
                rail.arm(queue_id, wish)
                self.rail_counts["armed" if queue_id in rail.queues else "arming refused"] += 1
            else:
                self.rail_counts["disarmed"] += queue_id in rail.queues
                rail.disarm(queue_id)
        self._hurry_rail(node, rail)

    def _probe(self, node: SimulatedNode, peer: str) -> None:
        name = node.contacts.get(peer, peer)
        other = self.nodes.get(name)
        reachable = self.network.is_connected(node.name, name)
        is_gone = other is None or other.engine is None
        refused = (reachable and is_gone) or self.network.link(node.name, name).refuses
        self._tell(node, Probed(peer, refused), 1 if refused else self.config.failure_ms)

    # --- Sessions -----------------------------------------------------------------------

    def new_session(self, name: str) -> SessionId:
        """The id of a handle to be on this node."""
        self._session_number += 1
        return SessionId(name, self.engine(name).me.incarnation, self._session_number)

    def open_session(
        self, name: str, queue_id: int, port: SessionPort, owner: SessionId | None = None
    ) -> SessionId:
        """A handle on this node. `port` is called with what concerns it."""
        node = self.nodes[name]
        session = owner or self.new_session(name)
        node.ports[session] = (queue_id, port)
        self._tell(node, SessionOpened(session, queue_id))
        return session

    def close_session(self, session: SessionId) -> None:
        node = self.nodes[session.node]
        known = node.ports.pop(session, None)
        if known is not None:
            self._tell(node, SessionClosed(session, known[0]))

    def request(self, request: SessionRequest) -> None:
        node = self.nodes[request.session.node]
        engine = node.engine
        if engine is not None and engine.me.incarnation == request.session.incarnation:
            self._tell(node, FromSession(request))

    def _reply(self, node: SimulatedNode, reply: SessionReply) -> None:
        engine = node.engine
        assert engine is not None
        if isinstance(reply.reply, Deliver) and not reply.reply.frames:
            if not engine.may_deliver(reply, self.clock_ms(node)):
                self._tell(node, ToCopy(reply.queue_id, Undelivered(reply.session, reply.reply)))
                return
            reply = self._filled(node, reply)
        replica = engine.replicas.get(reply.queue_id)
        master = replica.master if replica is not None else None
        if replica is not None and master is not None and master.master_epoch == reply.epoch:
            around = (self._disk_of, self._copy_of, self.now_ms)
            self.onlooker.on_reply(node.name, reply, replica, *around)
        if reply.session.node != node.name:
            self._send(node, [(reply.session.node, reply)])
            return
        known = node.ports.get(reply.session)
        if known is not None:
            known[1](reply)

    def _disk_of(self, name: str) -> SimulatedDisk:
        return self.nodes[name].disk

    def _copy_of(self, member: MemberId, queue_id: int) -> Copy | None:
        """The copy of one life of a node, while that goes on, and what the rail holds for it."""
        node = self.nodes.get(member.node)
        engine = None if node is None else node.engine
        if node is None or engine is None or engine.me != member:
            return None
        replica = engine.replicas.get(queue_id)
        out = () if node.rail is None else node.rail.out
        marked = [
            one.data
            for one in out
            if one.queue_id == queue_id and one.kind == RECEIVED and one.data is not None
        ]
        return None if replica is None else (replica, marked)

    def _filled(self, node: SimulatedNode, reply: SessionReply) -> SessionReply:
        """Put the bodies in, as the real driver does from its store."""
        deliver = reply.reply
        assert isinstance(deliver, Deliver)
        found: list[bytes] = []
        for piece in deliver.deliveries:
            first = piece.first
            while first <= piece.last:
                got = _frames(node, reply.queue_id, first, piece.last)
                assert got, f"message {first} is handed out and not on the disk of {node.name}"
                for entry in got:
                    header = entry.header
                    start = max(first - header.first_sequence, 0)
                    stop = min(piece.last + 1 - header.first_sequence, header.count)
                    found.append(self._codec.cut(entry.frame, start, stop))
                    first = header.first_sequence + stop
        for piece in deliver.deliveries:
            self.handed_ms[reply.queue_id, piece.epoch, piece.number] = self.now_ms
        return replace(reply, reply=replace(deliver, frames=tuple(found)))

    def _tell_ports(self, node: SimulatedNode, change: MasterChange | MasterLinkLost) -> None:
        new = change.sessions if isinstance(change, MasterChange) else ()
        for session, (queue_id, port) in list(node.ports.items()):
            if queue_id == change.queue_id and (not new or session in new):
                port(change)

    # --- Catalog ------------------------------------------------------------------------

    def new_token(self) -> int:
        """For an `Ask`; its answer appears in the node's `answers`."""
        self._tokens += 1
        return self._tokens

    def ask(self, name: str, command: CatalogCommand, limit_ms: int = 60_000) -> Answer:
        """Have a catalog command done through this node; time passes until it is."""
        token = self.new_token()
        node = self.nodes[name]
        self._tell(node, Ask(token, command))
        done = self.run_until(lambda: token in node.answers, limit_ms)
        assert done, f"{command} is not answered after {limit_ms} ms"
        return node.answers.pop(token)

    def declare(
        self,
        name: str,
        queue: str,
        *,
        durable: bool = True,
        auto_delete: bool = False,
        owner: SessionId | None = None,
    ) -> int:
        """Declare a queue through this node; return its id when its master serves.

        With an owner it is exclusive.
        """
        exclusive = owner is not None
        command = DeclareQueue(queue, durable, exclusive, auto_delete, name, owner, ())
        answer = self.ask(name, command)
        assert not answer.error, answer.text
        assert self.run_until(lambda: self.master(answer.value) is not None)
        return answer.value

    def master(self, queue_id: int) -> str | None:
        """The node that serves the queue now, by its own belief and the newest epoch."""
        best: tuple[int, str] | None = None
        for name in self.running:
            replica = self.engine(name).replicas.get(queue_id)
            if replica is not None and replica.is_serving:
                found = (replica.ring.epoch, name)
                best = max(best, found) if best else found
        return best[1] if best else None

    def view(self, queue_id: int) -> View | None:
        """The newest view that any running node knows."""
        views = [
            record.view
            for name in self.running
            if (record := self.engine(name).catalog.queue(queue_id)) is not None
        ]
        return max(views, key=lambda view: view.epoch, default=None)

    def in_sync(self, queue_id: int) -> tuple[str, ...]:
        """Nodes in sync in that view."""
        newest = self.view(queue_id)
        if newest is None:
            return ()
        return tuple(member.id.node for member in newest.members if member.in_sync)


def _frames(node: SimulatedNode, queue_id: int, first: int, last: int) -> list[Entry]:
    """Messages on the disk, and those that are written behind, as `FrameReader` gives them."""
    replica = node.engine.replicas.get(queue_id) if node.engine is not None else None
    if replica is None or not replica.state.staging.origins:
        return _stored(node, queue_id, first, last)
    found: list[Entry] = []
    while first <= last:
        end, shift = replica.state.staging.piece(first, last)
        try:
            stored = _stored(node, queue_id, first - shift, end - shift)
        except StoreCorrupt:
            if found:
                return found
            raise
        for entry in stored:
            found.append(entry)
            if shift:
                span = (first - shift, end - shift, shift)
                stamp_us = replica.state.columns.stamp_ms(first) * 1000
                frame = frames.shifted(entry.frame, *span, stamp_us)
                found[-1] = Entry(frames.header(frame), None, frame)
        if stored and stored[-1].header.last_sequence < end - shift:
            return found
        first = end + 1
    return found


def _stored(node: SimulatedNode, queue_id: int, first: int, last: int) -> list[Entry]:
    """Publish ops as they were written, as `FrameReader` gives them: up to the first damaged one.

    Raises:
        StoreCorrupt: that is the very first.
    """
    replica = node.engine.replicas.get(queue_id) if node.engine is not None else None
    behind = replica.ring.log.behind(first, last) if replica is not None else []
    if not behind:
        return node.disk.served(queue_id, first, last)
    edge = behind[0].header.first_sequence
    found = node.disk.served(queue_id, first, edge - 1) if first < edge else []
    if len(found) < len(node.disk.read(queue_id, first, edge - 1)):
        return found
    return [entry for entry in found if entry.header.first_sequence < edge] + behind


def _chunk(node: SimulatedNode, fetch: FetchFrames) -> tuple[FrameChunk, list[StoreCorrupt]]:
    """What a node answers to a transfer's question, as `bodies.chunk_of` does: a few frames at a
    time, without those that are damaged."""
    entries: list[Entry] = []
    damaged: list[StoreCorrupt] = []
    at = fetch.after_sequence + 1
    while at <= fetch.upto_sequence:
        try:
            got = _stored(node, fetch.queue_id, at, fetch.upto_sequence)
        except StoreCorrupt as error:
            damaged.append(error)
            at = max(error.span[1] if error.span else 0, at) + 1
            continue
        if not got:
            break
        entries += got
        at = got[-1].header.last_sequence + 1
    if fetch.is_continued:
        entries = [e for e in entries if e.header.first_sequence > fetch.after_sequence]
    taken = tuple(entries[:CHUNK_FRAMES])
    is_last = len(taken) == len(entries)
    upto = fetch.upto_sequence if is_last else taken[-1].header.last_sequence
    replica = node.engine.replicas.get(fetch.queue_id) if node.engine is not None else None
    lost: list[Range] = []
    if replica is not None and replica.ring.in_sync:
        lost = replica.transfer.lost.within(fetch.after_sequence + 1, fetch.upto_sequence)
    return (
        FrameChunk(
            fetch.queue_id,
            fetch.epoch,
            fetch.number,
            fetch.after_sequence,
            upto,
            taken,
            tuple(lost),
        ),
        damaged,
    )


def _goes_on(engine: Engine) -> bool:
    """Whether the node, or a master that was stepped, has a next portion: a cause for a step."""
    if engine.has_portions or len(tuple(engine.hosting.stepped)) >= hosting.RUN_MAX:
        return True
    wake_ms = engine._leadership._controller._agenda.wake_at_ms(engine._wanted_ms)
    if wake_ms is not None and wake_ms <= engine._wanted_ms + 1:
        return True
    stepped = (engine.replicas.get(queue_id) for queue_id in engine.hosting.stepped)
    masters = (replica.master for replica in stepped if replica is not None)
    return any(
        master is not None and (master.is_beginning or master.length_limit.is_counting)
        for master in masters
    )


def states(cluster: SimulatedCluster, queue_id: int) -> Mapping[str, bytes]:
    """The applied state of each running copy, as bytes: equal when copies are equal."""
    return {
        name: replica.state.encode()
        for name in cluster.running
        if (replica := cluster.engine(name).replicas.get(queue_id)) is not None
    }
