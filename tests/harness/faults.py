"""Faults for a simulated cluster, each with its targets, each counted by kind.

A run has a mix of its own: each kind is in it or not. Unstable periods, in which faults come
one after another, take turns with stable ones, in which all is well for a while.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import combinations
from random import Random

from harness.cluster import SimulatedCluster, SimulatedNode
from harness.membership import MembershipFaults
from harness.policy_faults import PolicyFaults
from mirrorq.protocol.identities import StoreId
from mirrorq.testing.disk import SimulatedDisk

STEPS_MS = (20, 200, 700, 2000)
"""Between two faults of an unstable period."""
UNSTABLE_MS = (2000, 4000, 8000)
STABLE_MS = (500, 2000)
QUICK_COMMIT_MS = 5
SLOW_HOP_MS = 200
"""Between two messages of a hop that has a thousandth of its speed."""
SHORT_PAUSES_MS = (50, 150, 250)
LONG_PAUSES_MS = (350, 1200, 4000)
HANG_MS = 700
"""A commit that hangs takes so long."""
ENDS = ("kill", "stop", "failure", "hang")
"""How processes end, where that is drawn."""
REPLACED_MS = 3500
"""A master that stops for so long finds itself replaced."""
BACKUP_SHARE = 0.1
"""How often a node's store is copied, for one that comes back from yesterday."""
CHANGES_MS = (50, 1200)
"""Between two changes of policies or members, where there are such."""

TARGETS = ("one", "minority", "majority", "master", "successor", "last", "all")

Queues = Callable[[], Sequence[int]]
"""The ids of the queues that there are now."""


class Faults:
    """Breaks a cluster from time to time, and mends it again."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        random: Random,
        queues: Queues,
        *,
        policies: PolicyFaults | None = None,
        members: MembershipFaults | None = None,
    ) -> None:
        """Draw a mix. Policies and members change in any mix, where that is given."""
        self.cluster = cluster
        self.random = random
        self._policies = policies
        self._members = members
        self.counts: Counter[str] = Counter()
        """Kind, with its target where it has one -> how often it was done."""
        self._queues = queues
        self.ends: Random | None = None
        """Draws how processes end; None: all are killed."""
        self._is_over = False
        self._backups: dict[str, SimulatedDisk] = {}
        kinds = self._kinds()
        mix = [kind for kind in kinds if random.random() < 0.6]
        self._mix = mix or kinds
        if policies is not None and policies.may_lose:
            self._mix += [self._kill_alone] * (len(self._mix) // 2 + 1)
        self._changes: list[Callable[[], None]] = []
        if policies is not None:
            self._changes += [policies.change] * 3
        if members is not None:
            self._changes += [self._join, self._retire, self._forget]

    def draw_ends(self, random: Random) -> None:
        """Have processes end in all ways, and often."""
        self.ends = random
        self._mix += [self._kill] * (len(self._mix) // 2 + 1)

    def start(self) -> None:
        """Begin with an unstable period."""
        self._unstable_until_ms = self.cluster.now_ms + self.random.choice(UNSTABLE_MS)
        self._tick()
        if self._changes:
            self._tick_changes()

    def stop(self) -> None:
        """No more new ones."""
        self._is_over = True

    def end(self) -> None:
        """All is well again: links, disks and processes, those that are stopped too."""
        for node in self.cluster.nodes.values():
            node.paused_until_ms = min(node.paused_until_ms, self.cluster.now_ms)
        self._mend()

    def _kinds(self) -> list[Callable[[], None]]:
        one_node: list[Callable[[], None]] = []
        if len(self.cluster.nodes) > 1:
            one_node = [
                self._halves,
                self._isolate,
                self._one_link,
                self._one_direction,
                self._bridge,
                self._circle,
                self._delay,
                self._clog,
                self._slow_hop,
                self._lose_suffix,
                self._lose_suffix,
                self._wipe,
                self._restore_old,
            ]
        return [
            self._kill,
            self._kill,
            self._power_loss,
            self._restart_storm,
            self._pause_short,
            self._pause_long,
            self._pause_through_replacement,
            self._starve,
            self._slow_disk,
            self._full_disk,
            self._no_room,
            self._failing_disk,
            *one_node,
        ]

    def _tick(self) -> None:
        if self._is_over:
            return
        cluster = self.cluster
        if self.random.random() < BACKUP_SHARE:
            name = self.random.choice(tuple(cluster.nodes))
            self._backups[name] = cluster.nodes[name].disk.backup()
        if cluster.now_ms >= self._unstable_until_ms:
            self.counts["stable period"] += 1
            self._mend()
            pause_ms = self.random.choice(STABLE_MS)
            self._unstable_until_ms = cluster.now_ms + pause_ms + self.random.choice(UNSTABLE_MS)
            cluster.after(pause_ms, self._tick)
            return
        if self.random.random() < 0.7:
            self.random.choice(self._mix)()
        cluster.after(self.random.choice(STEPS_MS), self._tick)

    def _tick_changes(self) -> None:
        """In stable periods too: who is in the cluster and what is wanted is no mishap."""
        if not self._is_over:
            self.random.choice(self._changes)()
            self.cluster.after(self.random.randint(*CHANGES_MS), self._tick_changes)

    def _mend(self) -> None:
        cluster = self.cluster
        cluster.heal_all()
        for node in cluster.nodes.values():
            node.commit_ms = 1
            node.is_failing = node.fails_once = False
            node.hang_ms = 0
            node.late_ms = (0, 0)
            node.full_until_ms = node.no_room_until_ms = cluster.now_ms
        for name in cluster.nodes:
            self.start_node(name)

    @property
    def present(self) -> dict[str, SimulatedNode]:
        """The nodes that are to be in the cluster: not those that are gone for good."""
        gone = self._members.retired if self._members is not None else {}
        return {name: node for name, node in self.cluster.nodes.items() if name not in gone}

    def start_node(self, name: str) -> None:
        if name in self.present:
            self.cluster.start(name)

    # --- Policies and members ---------------------------------------------------------------

    def _join(self) -> None:
        assert self._members is not None
        self.counts["node joins"] += self._members.join()

    def _retire(self) -> None:
        assert self._members is not None
        self.counts["node gone for good"] += self._members.retire()

    def _forget(self) -> None:
        assert self._members is not None
        self.counts["forget"] += self._members.forget()

    # --- Targets ------------------------------------------------------------------------

    def _pick(self, kinds: Sequence[str] = TARGETS) -> tuple[str, tuple[str, ...]]:
        """A kind of target, and the running nodes that it means now; perhaps none."""
        kind = self.random.choice(kinds)
        return kind, tuple(n for n in self._named(kind) if n in self.cluster.running)

    def _named(self, kind: str) -> tuple[str, ...]:
        names = tuple(self.cluster.nodes)
        count = len(names)
        match kind:
            case "one":
                return (self.random.choice(names),)
            case "minority":
                return tuple(self.random.sample(names, max((count - 1) // 2, 1)))
            case "majority":
                return tuple(self.random.sample(names, count // 2 + 1))
            case "all":
                return names
        ring = self._ring()
        place = {"master": 0, "successor": 1, "last": len(ring) - 1}[kind]
        return ring[place : place + 1]

    def _ring(self) -> tuple[str, ...]:
        """The members of some queue in the newest view that a running node knows."""
        queues = self._queues()
        if not queues:
            return ()
        view = self.cluster.view(self.random.choice(queues))
        return tuple(member.id.node for member in view.members) if view is not None else ()

    # --- Processes ----------------------------------------------------------------------

    def _restart_later(self, name: str) -> None:
        self.cluster.after(self.random.choice((0, 10, 300, 1500, 4000)), self.start_node, name)

    def _end_process(self, name: str, kind: str) -> None:
        """Kill it; close it; close it in a commit that hangs, and kill it there or not; or have it
        fail, at once or in a commit that hangs: it closes by that."""
        cluster, node, ends = self.cluster, self.cluster.nodes[name], self.ends
        how = "kill" if ends is None else ends.choice(ENDS)
        self.counts[f"{how} {kind}"] += 1
        if ends is None or how == "kill":
            cluster.kill(name)
            return
        if how == "hang" or (how == "failure" and ends.random() < 0.5):
            node.hang_ms = HANG_MS
        if how == "failure":
            node.fails_once = True
            return
        cluster.stop(name)
        if how == "hang":
            cluster.after(ends.choice((10, 2 * HANG_MS)), self._kill_stopping, name)
            cluster.after(2 * HANG_MS, self.start_node, name)

    def _kill_stopping(self, name: str) -> None:
        if self.cluster.nodes[name].is_stopping:
            self.cluster.kill(name)

    def _kill(self) -> None:
        kind, names = self._pick(("one", "one", "minority", "majority", *TARGETS[3:6]))
        for name in names:
            self._end_process(name, kind)
            self._restart_later(name)

    def _kill_alone(self) -> None:
        """The only one in sync of some queue is gone for a while; where several are, all but the
        master are for a moment, and perhaps not in sync when they are back."""
        view = self.cluster.view(self.random.choice(self._queues()))
        in_sync = [m.id.node for m in view.members if m.in_sync] if view is not None else []
        is_alone = len(in_sync) == 1
        for name in in_sync if is_alone else in_sync[1:]:
            if name in self.cluster.running:
                self.counts["kill the only one in sync" if is_alone else "kill mirror"] += 1
                self.cluster.kill(name)
                self.cluster.after(4000 if is_alone else 600, self.start_node, name)

    def _power_loss(self) -> None:
        """Everything that is not synced is lost on all nodes in one moment."""
        if self.random.random() < 0.3:
            self.counts["kill all"] += 1
            for name in self.cluster.running:
                self.cluster.kill(name)
                self._restart_later(name)

    def _restart_storm(self) -> None:
        """Nodes are killed again and again, soon after each start."""
        kind, names = self._pick(("one", "master", "successor", "last"))
        at_ms = 0
        for name in names:
            self.counts[f"restart storm {kind}"] += 1
            for _ in range(self.random.randint(2, 6)):
                self.cluster.after(at_ms, self.cluster.kill, name)
                at_ms += self.random.choice((1, 20, 100))
                self.cluster.after(at_ms, self.start_node, name)
                at_ms += self.random.choice((1, 20, 100, 400))

    def _pause(self, text: str, durations: Sequence[int]) -> None:
        kind, names = self._pick()
        for name in names:
            self.counts[f"{text} {kind}"] += 1
            self.cluster.pause(name, self.random.choice(durations))

    def _pause_short(self) -> None:
        """Shorter than the lease: nobody notices."""
        self._pause("short pause", SHORT_PAUSES_MS)

    def _pause_long(self) -> None:
        self._pause("long pause", LONG_PAUSES_MS)

    def _pause_through_replacement(self) -> None:
        for name in self._pick(("master",))[1]:
            self.counts["pause through replacement"] += 1
            self.cluster.pause(name, REPLACED_MS)

    def _starve(self) -> None:
        """Processes get little time: they step late, until all is mended."""
        kind, names = self._pick(("one", "minority", "majority", "master", "all", "all"))
        least_ms, most_ms = self.random.choice(((1, 20), (50, 300), (200, 1000)))
        for name in names:
            self.counts[f"starved {kind}"] += 1
            self.cluster.nodes[name].late_ms = (least_ms, most_ms)

    # --- Links --------------------------------------------------------------------------

    def _cut(self, pairs: Iterable[tuple[str, str]], *, one_way: bool = False) -> None:
        """Cut links, loudly or silently, and heal them together after a while."""
        silent = one_way or self.random.random() < 0.5
        delay_ms = self.random.choice((50, 500, 2500))
        for one, other in pairs:
            self.cluster.cut(one, other, silent=silent, one_way=one_way)
            self.cluster.after(delay_ms, self.cluster.heal, one, other)

    def _shuffled(self) -> list[str]:
        names = list(self.cluster.nodes)
        self.random.shuffle(names)
        return names

    def _halves(self) -> None:
        names = self._shuffled()
        half = len(names) // 2
        self.counts["partition in halves"] += 1
        self._cut((one, other) for one in names[:half] for other in names[half:])

    def _isolate(self) -> None:
        kind, names = self._pick(("one", "master", "successor", "last"))
        for name in names:
            self.counts[f"isolated {kind}"] += 1
            self._cut((name, other) for other in self.cluster.nodes if other != name)

    def _one_link(self) -> None:
        self.counts["one link cut"] += 1
        self._cut([self._pair()])

    def _one_direction(self) -> None:
        self.counts["one direction cut"] += 1
        self._cut([self._pair()], one_way=True)

    def _bridge(self) -> None:
        """Two halves that have one node in common."""
        names = self._shuffled()
        half = (len(names) - 1) // 2
        if half:
            self.counts["bridge"] += 1
            self._cut((one, other) for one in names[:half] for other in names[half + 1 :])

    def _circle(self) -> None:
        """Each node hears its neighbours on a circle only: each sees another majority."""
        names = self._shuffled()
        count = len(names)
        apart = [
            (names[one], names[other])
            for one, other in combinations(range(count), 2)
            if other - one > 1 and (other - one < count - 1 or count == 3)
        ]
        if apart:
            self.counts["each sees another majority"] += 1
            self._cut(apart)

    def _pair(self) -> tuple[str, str]:
        one, other = self.random.sample(tuple(self.cluster.nodes), 2)
        return one, other

    def _heal_later(self, pair: tuple[str, str]) -> None:
        self.cluster.after(self.random.choice((50, 500, 2500)), self.cluster.heal, *pair)

    def _delay(self) -> None:
        pair = self._pair()
        self.counts["delay"] += 1
        self.cluster.network.link(*pair).delay_ms = self.random.choice((5, 50, 300))
        self._heal_later(pair)

    def _clog(self) -> None:
        """Nothing arrives for a while, then everything."""
        pair = self._pair()
        self.counts["clogged link"] += 1
        until_ms = self.cluster.now_ms + self.random.choice((50, 500, 2500))
        self.cluster.network.link(*pair).clogged_until_ms = until_ms
        self.cluster.note(f"clog {pair[0]} -> {pair[1]} until {until_ms}")

    def _slow_hop(self) -> None:
        pair = self._pair()
        self.counts["slow hop"] += 1
        self.cluster.network.link(*pair).gap_ms = SLOW_HOP_MS
        self.cluster.note(f"slow hop {pair[0]} -> {pair[1]}")
        self._heal_later(pair)

    def _lose_suffix(self) -> None:
        """Connections break and come back at once: what was on the way is gone."""
        for _ in range(self.random.randint(1, 3)):
            pair = self._pair()
            self.counts["lost suffix"] += 1
            self.cluster.cut(*pair)
            self.cluster.after(self.random.randint(0, 3), self.cluster.heal, *pair)

    # --- Disks --------------------------------------------------------------------------

    def _slow_disk(self) -> None:
        kind, names = self._pick()
        for name in names:
            self.counts[f"slow disk {kind}"] += 1
            self.cluster.nodes[name].commit_ms = self.random.choice((0, 1, 5, 30, 200))

    def _full_disk(self) -> None:
        """Each commit is refused for a while, and tried again."""
        kind, names = self._pick()
        for name in names:
            self.counts[f"full disk {kind}"] += 1
            self.cluster.fill_disk(name, self.random.choice((50, 500, 3000)))

    def _no_room(self) -> None:
        """The store says beforehand that it has no room for messages."""
        kind, names = self._pick()
        for name in names:
            self.counts[f"no room {kind}"] += 1
            self.cluster.fill_disk(name, self.random.choice((50, 500, 3000)), noticed=True)

    def _failing_disk(self) -> None:
        """The next commit fails: the node ends, as it must not speak for such a disk."""
        kind, names = self._pick(("one", "master", "successor", "last"))
        for name in names:
            self.counts[f"failing disk {kind}"] += 1
            self.cluster.nodes[name].is_failing = True
            delay_ms = self.random.choice((300, 1500, 4000))
            self.cluster.after(delay_ms, partial(self._replace_controller, name))

    def _replace_controller(self, name: str) -> None:
        self.cluster.nodes[name].is_failing = False
        self.start_node(name)

    def _wipe(self) -> None:
        """A store is lost, when that can lose nothing: everything else is well."""
        self._lose_store(self.random.choice(tuple(self.cluster.nodes)), "wiped store", None)

    def _restore_old(self) -> None:
        """A node comes back with yesterday's store, under a new identity as it must have."""
        names = tuple(name for name in self._backups if name in self.cluster.running)
        if names:
            name = self.random.choice(names)
            self._lose_store(name, "store of yesterday", self._backups[name])

    def _lose_store(self, name: str, text: str, backup: SimulatedDisk | None) -> None:
        if self._policies is not None:
            return  # one that wants a single copy may be under way: that copy would be lost
        if len(self.present) < 3 or name not in self.present or not self.is_well():
            return
        if self.cluster.is_damaged:
            return  # what is whole on this disk may be so nowhere else
        self.counts[text] += 1
        self.cluster.kill(name)
        self.cluster.wipe(name, backup)
        self._restart_later(name)

    def is_well(self) -> bool:
        """All nodes run, are voters with the stores they have, and hold each queue in sync."""
        cluster = self.cluster
        present = self.present
        stores = {StoreId(name, node.disk.store) for name, node in present.items()}
        data_nodes = {name for name, node in present.items() if not node.witness}
        return (
            len(cluster.running) == len(present)
            and all(set(cluster.engine(name).voters) == stores for name in cluster.running)
            and all(set(cluster.in_sync(queue_id)) == data_nodes for queue_id in self._queues())
            and all(
                node.commit_ms <= QUICK_COMMIT_MS
                and not (node.is_failing or node.fails_once or node.is_stopping or node.hang_ms)
                and not node.late_ms[1]
                and max(node.paused_until_ms, node.full_until_ms) < cluster.now_ms
                for node in present.values()
            )
            and not any(link.is_impaired(cluster.now_ms) for link in cluster.network.links.values())
        )
