"""Which members a queue should have, and who of them its master: answered in one place.

Pure and deterministic: the same catalog and the same running nodes give the same answer, on
whichever node it is asked. `wanted_members` says where copies should be by the policy in
force; what is done about the difference, and in what order, is `controller`'s: first add, then
synchronise, then drop. `levelled` says which masters to move so that all nodes lead about as
many queues.

Where copies are (ha-mode)
    all      on every running node that holds queues.
    exactly  on N nodes: members that exist stay, in the order of the view; a member whose node
             was lost a moment ago keeps its place (`grace_periods`); the rest goes to the nodes
             with the fewest copies, then by name. Fewer nodes than N: all of them.
    nodes    on those listed that run, the first of the list preferred as master where the
             present one is not listed. When none of them runs the copies stay where they are.

Who is master of a new queue (queue-master-locator), among the nodes above
    client-local  the declaring node; when it is none of them, as min-masters.
    min-masters   the node that leads the fewest queues, then by name.
    random        spread evenly by a hash of the queue's name: the same on every node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from zlib import crc32

from attrs import define, evolve, field, frozen

from mirrorq.cluster.catalog.records import QueueRecord
from mirrorq.protocol.commands import DeclareQueue, DeclareShards
from mirrorq.protocol.identities import MemberId
from mirrorq.protocol.policy import Definition
from mirrorq.protocol.shard_names import shard_name


@define
class Spread:
    """Chooses the first members of each shard of a queue, one shard after the other.

    Shards exist so that several nodes work for one queue. So the masters are spread, whatever
    `queue-master-locator` says: a shard goes to the node that leads the fewest shards of this
    queue, then the fewest queues, then by name. Mirrors follow the policy. The first mirror, which
    takes over when the master dies, is spread in the same way: the death of a node falls on all
    others.
    """

    definition: Definition
    running: Sequence[MemberId]
    """Current incarnations of nodes that are up and hold queues."""
    loads: Loads
    """Of all queues."""
    _led: dict[str, int] = field(factory=dict)
    """Shards of this queue that each node leads."""
    _next: dict[str, int] = field(factory=dict)
    """Those in which it is the first mirror."""
    _held: dict[str, int] = field(factory=dict)

    def note(self, members: Sequence[MemberId]) -> None:
        """A shard has these members."""
        names = [member.node for member in members]
        _count(self._held, names)
        _count(self._led, names[:1])
        _count(self._next, names[1:2])

    def members(self, command: DeclareShards, shard: int) -> tuple[MemberId, ...]:
        """Return the members of the next shard, the master first; () when nobody can be one."""
        name = shard_name(command.name, shard)
        one = DeclareQueue(name, command.durable, False, False, command.declarer, None, ())
        definition = evolve(self.definition, queue_master_locator="min-masters")
        found = wanted_members(one, definition, self.running, self._loads())
        # Who is a mirror was decided by copies; who of them is the first, by who would take over.
        mirrors = sorted(found[1:], key=lambda member: self._next.get(member.node, 0))
        members = (*found[:1], *mirrors)
        self.note(members)
        return members

    def _loads(self) -> Loads:
        """Loads in which the shards of this queue count before everything else."""
        whole = self.loads
        above = 1 + max([*whole.masters.values(), *whole.copies.values()], default=0)
        names = [member.node for member in self.running]
        return Loads(
            {n: self._led.get(n, 0) * above + whole.masters.get(n, 0) for n in names},
            {n: self._held.get(n, 0) * above + whole.copies.get(n, 0) for n in names},
        )


def _count(counts: dict[str, int], names: Sequence[str]) -> None:
    for name in names:
        counts[name] = counts.get(name, 0) + 1


@frozen
class Loads:
    """What each node does for all queues (`load_counts`); an absent name does nothing."""

    masters: Mapping[str, int]
    copies: Mapping[str, int]


# --- Where copies should be -----------------------------------------------------------------


def wanted_members(
    queue: DeclareQueue | QueueRecord,
    definition: Definition,
    running: Sequence[MemberId],
    loads: Loads,
    lost: Sequence[str] = (),
) -> tuple[MemberId, ...]:
    """Return the members that the queue should have, in order of preference.

    Args:
        queue: a declaration (the answer is the first view, master first) or an existing queue.
        definition: what the policy in force says.
        running: current incarnations of nodes that are up and hold queues, no name twice.
        lost: names of nodes that had a copy until a moment ago: their places are kept.
    """
    if isinstance(queue, DeclareQueue):
        return _first_members(queue, definition, running, loads)
    known = [member for member in running if _place(queue, member) is not None]
    known.sort(key=lambda member: _place(queue, member) or 0)
    if queue.exclusive:
        # An exclusive queue never moves: it goes with its owner instead.
        return tuple(known[:1])
    newcomers = _newcomers(running, known, loads, lost)
    if definition.ha_mode == "nodes":
        return _listed(definition, running) or tuple(known)
    if isinstance(definition.ha_params, int):
        up = [member.node for member in running]
        kept_places = sum(name not in up for name in dict.fromkeys(lost))
        room = max(definition.ha_params - len(known) - kept_places, 0)
        return (*known[: definition.ha_params], *newcomers[:room])
    return (*known, *newcomers)


def _newcomers(
    running: Sequence[MemberId], known: Sequence[MemberId], loads: Loads, lost: Sequence[str]
) -> tuple[MemberId, ...]:
    """Running nodes without a copy: who had one lately first, then who holds the fewest."""
    others = [member for member in running if member not in known]
    others.sort(key=lambda m: (m.node not in lost, loads.copies.get(m.node, 0), m.node))
    return tuple(others)


def _listed(definition: Definition, members: Iterable[MemberId]) -> tuple[MemberId, ...]:
    names = definition.ha_params if isinstance(definition.ha_params, tuple) else ()
    """Those that are listed, in the order of the list."""
    listed = [member for member in members if member.node in names]
    return tuple(sorted(listed, key=lambda member: names.index(member.node)))


def _place(queue: QueueRecord, member: MemberId) -> int | None:
    """The place of the member's store in the view."""
    for place, known in enumerate(queue.view.members):
        if known.id.node == member.node and known.id.store == member.store:
            return place
    return None


def _first_members(
    queue: DeclareQueue, definition: Definition, running: Sequence[MemberId], loads: Loads
) -> tuple[MemberId, ...]:
    candidates = sorted(running, key=lambda member: member.node)
    count = len(candidates)
    if isinstance(definition.ha_params, int):
        count = definition.ha_params
    if definition.ha_mode == "nodes":
        listed = _listed(definition, candidates)
        # No listed node runs: one copy, where it would be without the list.
        candidates = sorted(listed, key=lambda member: member.node) or candidates
        count = max(len(listed), 1)
    if queue.exclusive:
        count = 1
    if not candidates:
        return ()
    master = _located(queue, definition, candidates, loads)
    mirrors = [member for member in candidates if member != master]
    mirrors.sort(key=lambda member: (loads.copies.get(member.node, 0), member.node))
    return (master, *mirrors[: count - 1])


def _located(
    queue: DeclareQueue, definition: Definition, candidates: Sequence[MemberId], loads: Loads
) -> MemberId:
    """The first master, of candidates sorted by name."""
    local = [member for member in candidates if member.node == queue.declarer]
    # An exclusive queue goes with its owner's connection, so it is where that is.
    if local and (queue.exclusive or definition.queue_master_locator == "client-local"):
        return local[0]
    if definition.queue_master_locator == "random":
        return candidates[crc32(queue.name.encode(errors="replace")) % len(candidates)]
    return min(candidates, key=lambda member: (loads.masters.get(member.node, 0), member.node))


# --- Levelling ------------------------------------------------------------------------------


@frozen
class QueueMaster:
    """One queue, who leads it, and who else could at once (in sync, running, wanted)."""

    queue_id: int
    master: str
    others: tuple[str, ...]


def levelled(queues: Sequence[QueueMaster], nodes: Sequence[str]) -> dict[int, str]:
    """Return which queues to move to which node so that no node leads more than it must.

    Masters move between nodes that could lead now, so nothing is copied. One queue is moved at
    a time along the shortest chain of such moves from a fuller node to one that leads at least
    two less, until there is no such chain: then no other choice has a lower maximum (an optimal
    semi-matching: Harvey, Ladner, Lovász, Tamir 2006, section 4).
    """
    masters = {queue.queue_id: queue.master for queue in queues}
    led: dict[str, dict[int, QueueMaster]] = {node: {} for node in sorted(nodes)}
    for queue in queues:
        led.setdefault(queue.master, {})[queue.queue_id] = queue
    while chain := _lowering_chain(led):
        for queue, source, target in chain:
            del led[source][queue.queue_id]
            led[target][queue.queue_id] = queue
            masters[queue.queue_id] = target
    return {s.queue_id: masters[s.queue_id] for s in queues if masters[s.queue_id] != s.master}


def _lowering_chain(
    led: Mapping[str, Mapping[int, QueueMaster]],
) -> list[tuple[QueueMaster, str, str]]:
    """Moves (queue, from, to) that take one master off a fuller node, [] when there are none."""
    for start in sorted(led, key=lambda node: (-len(led[node]), node)):
        came: dict[str, tuple[QueueMaster, str]] = {}
        row = [start]
        for node in row:
            for target, queue in _ways(led, node).items():
                if target == start or target in came or target not in led:
                    continue
                came[target] = (queue, node)
                row.append(target)
                if len(led[target]) <= len(led[start]) - 2:
                    return _chain(came, start, target)
    return []


def _ways(led: Mapping[str, Mapping[int, QueueMaster]], node: str) -> dict[str, QueueMaster]:
    """Where a queue that this node leads could go, the emptiest node first."""
    ways: dict[str, QueueMaster] = {}
    for queue in led[node].values():
        for other in (queue.master, *queue.others):
            if other != node:
                ways.setdefault(other, queue)
    return dict(sorted(ways.items(), key=lambda way: (len(led.get(way[0], ())), way[0])))


def _chain(
    came: Mapping[str, tuple[QueueMaster, str]], start: str, end: str
) -> list[tuple[QueueMaster, str, str]]:
    chain = []
    while end != start:
        queue, before = came[end]
        chain.append((queue, before, end))
        end = before
    return chain
