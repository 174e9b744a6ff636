"""The shortfall of a queue against its policy, in words: wanted 3 copies, have 2, and why. Pure.

An unmet policy is not an error: nodes come and go. `status().warnings` reports the shortfall.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mirrorq.cluster.catalog.records import QueueRecord
from mirrorq.protocol.identities import MemberId
from mirrorq.protocol.policy import Definition
from mirrorq.protocol.views import find_store


def shortfall(
    queue: QueueRecord,
    definition: Definition,
    holders: Mapping[str, MemberId],
    is_alive: Callable[[MemberId], bool],
) -> str:
    """Return the copies that the policy wants and the queue lacks; "": nothing is lacking.

    Args:
        holders: nodes of the cluster that may hold queues: name -> newest incarnation.
        is_alive: returns true if an incarnation runs, as far as known.
    """
    if queue.exclusive:
        return ""
    listed = definition.ha_params if isinstance(definition.ha_params, tuple) else ()
    names = listed or sorted(holders)
    lacks = {name: _lack(queue, definition, name, holders, is_alive) for name in names}
    have = sum(not lack for lack in lacks.values())
    if isinstance(definition.ha_params, int):
        wanted = definition.ha_params
        why = _why_fewer(queue, wanted, lacks, len(holders))
    else:
        wanted = len(names)
        why = [lack for lack in lacks.values() if lack]
    if have >= wanted:
        return ""
    master = queue.view.members[0].id.node
    if listed and master not in listed:
        why.append(f"the master stays on {master} until a listed node is in sync")
    return f"wanted {wanted} copies, have {have}: {'; '.join(why)}"


def missing(
    queue: QueueRecord,
    definition: Definition,
    holders: Mapping[str, MemberId],
    is_alive: Callable[[MemberId], bool],
) -> tuple[str, ...]:
    """Return the nodes that belong into the ring but are out of it because they do not run.

    With `exactly` any node would do. Stopped nodes are named while the ring is too small, unless
    more nodes are stopped than the ring lacks: the former members are not known then.
    """
    if queue.exclusive:
        return ()
    members = [member.id.node for member in queue.view.members]
    listed = definition.ha_params if isinstance(definition.ha_params, tuple) else ()
    out = []
    for name in listed or sorted(holders):
        holder = holders.get(name)
        if name not in members and holder is not None and not is_alive(holder):
            out.append(name)
    if isinstance(definition.ha_params, int) and len(out) > definition.ha_params - len(members):
        return ()
    return tuple(out)


def _lack(
    queue: QueueRecord,
    definition: Definition,
    name: str,
    holders: Mapping[str, MemberId],
    is_alive: Callable[[MemberId], bool],
) -> str:
    """Return why a node has no copy that counts; "": it has one."""
    holder = holders.get(name)
    if holder is None:
        return f"{name} is not a node of this cluster that holds queues"
    if not is_alive(holder):
        return f"{name} does not run"
    known = find_store(queue.view, holder.node, holder.store)
    if known is None or known.id != holder:
        return f"{name} has no copy yet"
    if known.in_sync:
        return ""
    if definition.ha_sync_mode == "manual":
        return f"{name} is not in sync: ha-sync-mode is manual, synchronise it with sync_queue"
    return f"{name} is synchronising"


def _why_fewer(
    queue: QueueRecord, wanted: int, lacks: Mapping[str, str], holder_count: int
) -> list[str]:
    """With `exactly` any node would do: nodes outside the view explain only a lack of nodes."""
    members = [member.id.node for member in queue.view.members]
    why = [lack for name, lack in lacks.items() if lack and name in members]
    if holder_count < wanted:
        why.insert(0, f"the cluster has {holder_count} nodes that hold queues")
    out = [lack for name, lack in lacks.items() if lack.endswith("does not run")]
    if len(lacks) - len(out) < wanted <= holder_count:
        why += [lack for lack in out if lack not in why]
    return why or ["another node is about to take a copy"]
