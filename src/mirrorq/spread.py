"""Where the shards of a queue begin: the first view of each, spread over the nodes. Pure.

Shards are there so that several nodes work for one queue, so their masters are spread whatever
`queue-master-locator` says: each goes to the node that leads the fewest shards of this queue, then
the fewest queues, then by name. Mirrors follow the policy; the first of them, which takes over when
the master dies, is spread in the same way, so that one node's death falls on all others.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, evolve, field

from mirrorq.messages import DeclareQueue, DeclareShards, MemberId
from mirrorq.placement import Loads, wanted_members
from mirrorq.policy import Definition
from mirrorq.shards import shard_name

__all__ = ["Spread"]


@define
class Spread:
    """Gives one shard of a queue after the other its members."""

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
