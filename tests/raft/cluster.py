"""A deterministic network, clock and disk for several consensus cores, and their checkers.

The driver of each node groups what it steps into commits, as a real one does: effects that
wait for the disk are carried out when the commit is done, and a crash before that loses
them. Links are FIFO in each direction, lose messages, and are cut by partitions.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

from mirrorq.cluster.raft.log import merge_writes
from mirrorq.cluster.raft.messages import (
    KIND_COMMAND,
    Compact,
    Found,
    Propose,
    RaftEffects,
    RaftEvent,
    RaftTick,
    Received,
)
from mirrorq.cluster.raft.raft import Raft
from mirrorq.config import Config
from mirrorq.protocol.effects import Persisted, RaftEntry, RaftImage, RaftSnapshot, RaftWrite
from mirrorq.protocol.identities import StoreId

CONFIG = Config(heartbeat_ms=50, election_ms=200, election_spread_ms=50)
"""Faster than the defaults beside the trips and commits: more elections in a run."""
STEPS_MAX = 200_000
"""Of one run: a machine that wakes itself without end is a failure, not a hang."""


def pages_of(catalog: bytes, count: int) -> list[bytes]:
    """Return a catalog as the pages of a snapshot, about so many."""
    size = len(catalog) // count + 1
    return [catalog[first : first + size] for first in range(0, len(catalog), size)] or [b""]


def written(image: RaftImage, write: RaftWrite, pages: dict[tuple[int, int], bytes]) -> RaftImage:
    """Return the disk after a write, done as `RaftWrite` says.

    Args:
        pages: of all snapshots, on that disk, by index and number.
    """
    pages.update(((page.index, page.number), page.data) for page in write.pages)
    state = write.state if write.state is not None else image.state
    snapshot, entries = image.snapshot, list(image.entries)
    if write.snapshot is not None:
        numbers = range(len(write.snapshot.pages))
        on_disk = tuple(pages.get((write.snapshot.index, number)) for number in numbers)
        assert on_disk == write.snapshot.pages, "a snapshot counts whose pages are not written"
        snapshot = write.snapshot
        held = any((e.index, e.term) == (snapshot.index, snapshot.term) for e in entries)
        entries = [e for e in entries if e.index > snapshot.index] if held else []
    if write.truncate_from is not None:
        entries = [e for e in entries if e.index < write.truncate_from]
    entries.extend(write.append)
    base = snapshot.index if snapshot is not None else 0
    assert [e.index for e in entries] == list(range(base + 1, base + 1 + len(entries)))
    return RaftImage(state, snapshot, tuple(entries))


class Node:
    """One process and its disk: the raft core, a catalog that is a chain of commands."""

    def __init__(self, store: StoreId) -> None:
        self.store = store
        self.image = RaftImage()
        self.pages: dict[tuple[int, int], bytes] = {}
        """Of snapshots, on its disk."""
        self.raft: Raft | None = None
        self.catalog = b""
        self.group: list[tuple[RaftEffects, list[RaftEntry]]] = []
        """Effects of steps, and what was applied after each."""
        self.is_committing = False
        self.life = 0
        self.wake_at_ms: int | None = None
        self.accepted: list[tuple[int, int, int]] = []
        self.rejected: list[int] = []

    @property
    def core(self) -> Raft:
        assert self.raft is not None
        return self.raft


class Cluster:
    """Virtual time; the same seed gives the same run."""

    def __init__(
        self,
        seed: int,
        *,
        commit_ms_max: int = 25,
        trip_ms_max: int = 10,
        is_fifo: bool = True,
        portion: int = 1000,
    ) -> None:
        self.random = random.Random(seed)
        self.now_ms = 0
        self.steps = 0
        self.nodes: dict[StoreId, Node] = {}
        self.loss = 0.0
        self.cut: set[tuple[StoreId, StoreId]] = set()
        self.commit_ms_max = commit_ms_max
        self.trip_ms_max = trip_ms_max
        self.is_fifo = is_fifo
        """Else messages of one link overtake each other, which no real link does."""
        self.portion = portion
        """So many entries are applied after one step."""
        self._calendar: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._link_free_ms: dict[tuple[StoreId, StoreId], int] = {}
        # What the checkers have seen.
        self.leaders: dict[int, StoreId] = {}
        self.entries: dict[tuple[int, int], tuple[int, bytes, int]] = {}
        self.applied: dict[int, RaftEntry] = {}
        self.catalogs: dict[int, bytes] = {1: b""}
        self.applied_max = 1

    # --- Nodes ----------------------------------------------------------------------------

    def add(self, store: StoreId, voters: tuple[StoreId, ...] = ()) -> Node:
        """Start a node with an empty disk; with `voters` as founded."""
        node = self.nodes[store] = Node(store)
        self.start(store)
        if voters:
            self.step(node, Found(voters))
        return node

    def start(self, store: StoreId) -> None:
        node = self.nodes[store]
        assert node.raft is None
        node.life += 1
        node.raft = Raft(store, node.image, CONFIG, self.random.getrandbits(32))
        snapshot = node.image.snapshot
        node.catalog = b"".join(snapshot.pages) if snapshot is not None else b""
        node.group = []
        node.is_committing = False
        self.step(node, RaftTick())

    def crash(self, store: StoreId) -> None:
        """Lose the process and all that was not synced."""
        node = self.nodes[store]
        node.raft = None
        node.life += 1

    def running(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.raft is not None]

    def leader(self) -> Node | None:
        """The leader of the highest term."""
        leaders = [n for n in self.running() if n.core.is_leader]
        return max(leaders, key=lambda n: n.core.term, default=None)

    # --- Driving --------------------------------------------------------------------------

    def step(self, node: Node, event: RaftEvent) -> RaftEffects:
        if node.raft is None:
            return RaftEffects()
        self.steps += 1
        assert self.steps < STEPS_MAX, "busy without end"
        was_leader = node.core.is_leader
        effects = node.core.step(self.now_ms, event)
        node.wake_at_ms = effects.wake_at_ms
        if effects.wake_at_ms is not None:
            self._at(effects.wake_at_ms, node, lambda: self._wake(node))
        node.accepted.extend(effects.accepted)
        node.rejected.extend(effects.rejected)
        self._check_step(node, effects, is_elected=node.core.is_leader and not was_leader)
        applied = self._take_committed(node.core)
        if effects.persist or effects.send or effects.install or applied:
            node.group.append((effects, applied))
            if not node.is_committing:
                self._commit(node)
        return effects

    def _take_committed(self, core: Raft) -> list[RaftEntry]:
        """A portion of it; the next one at the next step."""
        taken = []
        while len(taken) < self.portion and core.has_committed:
            entry = core.take_committed()
            assert entry is not None
            taken.append(entry)
        return taken

    def _wake(self, node: Node) -> None:
        if node.wake_at_ms is not None and node.wake_at_ms <= self.now_ms:
            self.step(node, RaftTick())

    def _commit(self, node: Node) -> None:
        group, node.group = node.group, []
        node.is_committing = True
        write: RaftWrite | None = None
        for effects, _ in group:
            write = merge_writes(write, effects.persist)
        delay_ms = self.random.randint(0, self.commit_ms_max) if write is not None else 0
        self._at(self.now_ms + delay_ms, node, lambda: self._committed(node, group, write))

    def _committed(
        self,
        node: Node,
        group: list[tuple[RaftEffects, list[RaftEntry]]],
        write: RaftWrite | None,
    ) -> None:
        if write is not None:
            node.image = written(node.image, write, node.pages)
        for effects, applied in group:
            for target, message in effects.send:
                self.transmit(node.store, target, message)
            if effects.install is not None:
                self._install(node, effects.install)
            for entry in applied:
                self._apply(node, entry)
        node.is_committing = False
        numbers = [effects.write_number for effects, _ in group]
        if max(numbers) > 0:
            self.step(node, Persisted(max(numbers)))
        if node.group and not node.is_committing:
            self._commit(node)

    def transmit(self, sender: StoreId, target: StoreId, message: object) -> None:
        if self.random.random() < self.loss or (sender, target) in self.cut:
            return
        if target not in self.nodes:
            return
        link = (sender, target)
        arrival = self.now_ms + self.random.randint(0, self.trip_ms_max)
        if self.is_fifo:
            arrival = max(arrival, self._link_free_ms.get(link, 0))
        self._link_free_ms[link] = arrival
        node = self.nodes[target]
        self._at(arrival, node, lambda: self._arrive(sender, node, message))

    def _arrive(self, sender: StoreId, node: Node, message: object) -> None:
        if (sender, node.store) not in self.cut:
            self.step(node, Received(sender, message))  # type: ignore[arg-type]

    def _at(self, time_ms: int, node: Node, action: Callable[[], None]) -> None:
        life = node.life

        def guarded() -> None:
            if node.life == life:
                action()

        self._count += 1
        heapq.heappush(self._calendar, (max(time_ms, self.now_ms), self._count, guarded))

    def run(self, duration_ms: int, until: Callable[[], bool] = lambda: False) -> bool:
        """Let time pass. Returns whether `until` came true."""
        end_ms = self.now_ms + duration_ms
        while not until():
            if not self._calendar or self._calendar[0][0] > end_ms:
                self.now_ms = end_ms
                return until()
            self.now_ms, _, action = heapq.heappop(self._calendar)
            action()
        return True

    # --- The catalog of a node ------------------------------------------------------------

    def _apply(self, node: Node, entry: RaftEntry) -> None:
        known = self.applied.setdefault(entry.index, entry)
        assert known == entry, f"state machine safety: {known} and {entry}"
        if entry.kind == KIND_COMMAND:
            node.catalog += entry.data + b";"
        seen = self.catalogs.setdefault(entry.index, node.catalog)
        assert seen == node.catalog, f"catalogs differ at {entry.index}"
        self.applied_max = max(self.applied_max, entry.index)

    def _install(self, node: Node, snapshot: RaftSnapshot) -> None:
        known = self.catalogs.get(snapshot.index)
        catalog = b"".join(snapshot.pages)
        assert known == catalog, f"catalogs differ at {snapshot.index}, of a snapshot"
        node.catalog = catalog

    def propose(self, node: Node, number: int) -> None:
        self.step(node, Propose(number, b"%d" % number))

    def compact(self, node: Node) -> None:
        """Compact at what the driver has applied: nothing may be waiting for a commit. A page is
        made now and then; a second snapshot may be begun before the first one is whole."""
        if not node.group and not node.is_committing:
            # Each node cuts it in its own way: pages of two do not make a whole.
            count = 3 + 5 * sorted(self.nodes).index(node.store)
            self._make_page(node, node.core.applied_index, pages_of(node.catalog, count), 0)

    def _make_page(self, node: Node, index: int, pages: list[bytes], number: int) -> None:
        following = number + 1
        self.step(node, Compact(index, pages[number], number, following == len(pages)))
        if following < len(pages):
            at_ms = self.now_ms + self.random.randint(0, 5)
            self._at(at_ms, node, lambda: self._make_page(node, index, pages, following))

    # --- Checkers -------------------------------------------------------------------------

    def _check_step(self, node: Node, effects: RaftEffects, *, is_elected: bool) -> None:
        core = node.core
        if core.is_leader:
            elected = self.leaders.setdefault(core.term, node.store)
            assert elected == node.store, f"election safety: two leaders of term {core.term}"
        if effects.persist is not None:
            self._check_log_matching(node, effects.persist)
        if is_elected:
            self._check_leader_completeness(core)

    def _check_log_matching(self, node: Node, write: RaftWrite) -> None:
        """By induction: an entry of an index and a term has one content and predecessor."""
        for entry in write.append:
            previous_term = node.core._log.term_at(entry.index - 1)
            assert previous_term is not None
            content = (entry.kind, entry.data, previous_term)
            known = self.entries.setdefault((entry.index, entry.term), content)
            assert known == content, f"log matching at {entry.index}, term {entry.term}"

    def _check_leader_completeness(self, core: Raft) -> None:
        for index in range(core.snapshot_index + 1, self.applied_max + 1):
            assert core._log.term_at(index) == self.applied[index].term, (
                f"leader completeness: {core.store} of term {core.term} lacks {index}"
            )
