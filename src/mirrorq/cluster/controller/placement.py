"""Members wanted for a queue, and its master: answered in one place.

Pure and deterministic: the same catalog and the same running nodes give the same answer on any
node. `wanted_members` says where copies should be by the policy in force. `controller` works off
the difference, in order: first add, then synchronise, then drop. `levelled` says which masters to
move until all nodes lead about as many queues.

Where copies are (ha-mode)
    all      on every running node with queues.
    exactly  on N nodes. Existing members stay, in the order of the view. A member on a node
             lost a moment ago keeps its place (`grace_periods`). The rest goes to the nodes
             with the fewest copies, then by name. Fewer nodes than N: all of them.
    nodes    on running nodes of the list. The first of the list is preferred as master where
             the list lacks the present master. Without a running node copies stay in place.

Master of a new queue (queue-master-locator), among the nodes above
    client-local  the declaring node; if not among the nodes, as min-masters.
    min-masters   the node with the fewest masters, then by name.
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
    """Chooses the first members of each shard of a queue, shard after shard.

    Shards exist so several nodes work for one queue. So the masters are spread, whatever
    `queue-master-locator` says. A shard goes to the node with the fewest masters of the queue's
    shards, then the fewest queues, then by name. Mirrors follow the policy. The first mirror takes
    over when the master dies, and is spread in the same way: the death of a node falls on all other
    nodes.
    """

    definition: Definition
    running: Sequence[MemberId]
    """Current incarnations of running nodes with queues."""
    loads: Loads
    """Masters and copies over all queues."""
    _led: dict[str, int] = field(factory=dict)
    """Number of the queue's shards led by each node."""
    _next: dict[str, int] = field(factory=dict)
    """Number of shards with the node as first mirror."""
    _held: dict[str, int] = field(factory=dict)

    def count_shard(self, members: Sequence[MemberId]) -> None:
        """Count a shard with these members."""
        names = [member.node for member in members]
        _count(self._held, names)
        _count(self._led, names[:1])
        _count(self._next, names[1:2])

    def members(self, command: DeclareShards, shard: int) -> tuple[MemberId, ...]:
        """Return the members of the next shard, the master first; () without a candidate."""
        name = shard_name(command.name, shard)
        one = DeclareQueue(name, command.durable, False, False, command.declarer, None, ())
        definition = evolve(self.definition, queue_master_locator="min-masters")
        found = wanted_members(one, definition, self.running, self._loads())
        # Copies decided the mirrors; `_next` decides the first mirror, which would take over.
        mirrors = sorted(found[1:], key=lambda member: self._next.get(member.node, 0))
        members = (*found[:1], *mirrors)
        self.count_shard(members)
        return members

    def _loads(self) -> Loads:
        """Return loads in which the shards of this queue outweigh all other queues."""
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
    """Load of each node over all queues (`load_counts`); an absent name has none."""

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
    """Return the members wanted for the queue, in order of preference.

    Args:
        queue: a declaration (the answer is the first view, master first) or an existing queue.
        definition: definition of the policy in force.
        running: current incarnations of running nodes with queues, no name twice.
        lost: names of nodes with a copy until a moment ago: their places are kept.
    """
    if isinstance(queue, DeclareQueue):
        return _first_members(queue, definition, running, loads)
    known = [member for member in running if _place(queue, member) is not None]
    known.sort(key=lambda member: _place(queue, member) or 0)
    if queue.exclusive:
        # An exclusive queue never moves, but ends with its owner.
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
    """Return running nodes without a copy: recent members first, then by fewest copies."""
    others = [member for member in running if member not in known]
    others.sort(key=lambda m: (m.node not in lost, loads.copies.get(m.node, 0), m.node))
    return tuple(others)


def _listed(definition: Definition, members: Iterable[MemberId]) -> tuple[MemberId, ...]:
    names = definition.ha_params if isinstance(definition.ha_params, tuple) else ()
    """Members in the policy's list, in the order of the list."""
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
        # No listed node runs: one copy, at its place without the list.
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
    # An exclusive queue ends with its owner's connection, so its copy is on the same node.
    if local and (queue.exclusive or definition.queue_master_locator == "client-local"):
        return local[0]
    if definition.queue_master_locator == "random":
        return candidates[crc32(queue.name.encode(errors="replace")) % len(candidates)]
    return min(candidates, key=lambda member: (loads.masters.get(member.node, 0), member.node))


# --- Levelling ------------------------------------------------------------------------------


@frozen
class QueueMaster:
    """One queue, its master, and the members able to lead at once (in sync, running, wanted)."""

    queue_id: int
    master: str
    others: tuple[str, ...]


class Levelling:
    """Moves of masters after which no node leads more than necessary.

    Masters move between nodes able to lead now, so nothing is copied. One queue is moved at a time,
    along the shortest chain of moves from a fuller node to a node with at least two masters less.
    Without a further chain no other choice has a lower maximum (an optimal semi-matching: Harvey,
    Ladner, Lovász, Tamir 2006, section 4). The work of a call grows with the nodes, not with the
    queues.

    Args:
        nodes: names of the nodes that run.
    """

    def __init__(self, nodes: Iterable[str]) -> None:
        self.moves: dict[int, str] = {}
        """Queue id -> its new master's node, as found so far."""
        self._counts: dict[str, int] = dict.fromkeys(sorted(nodes), 0)
        """Masters of each node."""
        self._ways: dict[str, dict[str, dict[int, QueueMaster]]] = {}
        """Node -> another node -> queues led by the first that the other could lead."""

    def add(self, queue: QueueMaster) -> None:
        """Take a queue into account."""
        self._lead(queue, queue.master)

    def lower(self) -> bool:
        """Take one master off a fuller node; return false if that is not possible any more."""
        chain = self._lowering_chain()
        for queue, source, target in chain:
            self._leave(queue, source)
            self._lead(queue, target)
        return bool(chain)

    def _lead(self, queue: QueueMaster, node: str) -> None:
        self._counts[node] = self._counts.get(node, 0) + 1
        ways = self._ways.setdefault(node, {})
        for other in _leaders(queue, but=node):
            ways.setdefault(other, {})[queue.queue_id] = queue
        if node == queue.master:
            self.moves.pop(queue.queue_id, None)
        else:
            self.moves[queue.queue_id] = node

    def _leave(self, queue: QueueMaster, node: str) -> None:
        self._counts[node] -= 1
        for other in _leaders(queue, but=node):
            del self._ways[node][other][queue.queue_id]

    def _lowering_chain(self) -> list[tuple[QueueMaster, str, str]]:
        """Return moves (queue, from, to) which take one master off a fuller node, [] if none."""
        counts = self._counts
        for start in sorted(counts, key=lambda node: (-counts[node], node)):
            came: dict[str, tuple[QueueMaster, str]] = {}
            row = [start]
            for node in row:
                for target, queue in self._next(node):
                    if target == start or target in came:
                        continue
                    came[target] = (queue, node)
                    row.append(target)
                    if counts[target] <= counts[start] - 2:
                        return _chain(came, start, target)
        return []

    def _next(self, node: str) -> list[tuple[str, QueueMaster]]:
        """Return targets for a queue led by the node, the emptiest node first."""
        counts = self._counts
        ways = [
            (target, next(iter(queues.values())))
            for target, queues in self._ways.get(node, {}).items()
            if queues and target in counts
        ]
        return sorted(ways, key=lambda way: (counts[way[0]], way[0]))


def _leaders(queue: QueueMaster, but: str) -> list[str]:
    """Return the nodes that can lead a queue, without one of them."""
    return [node for node in (queue.master, *queue.others) if node != but]


def _chain(
    came: Mapping[str, tuple[QueueMaster, str]], start: str, end: str
) -> list[tuple[QueueMaster, str, str]]:
    chain = []
    while end != start:
        queue, before = came[end]
        chain.append((queue, before, end))
        end = before
    return chain
