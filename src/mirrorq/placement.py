"""Which members a queue should have: one question, answered in one place.

Without policies a queue has a copy on every running node that holds queues (`ha-mode: all`),
an exclusive one on its declarer's node only. A policy engine replaces `wanted_members` and
nothing else; callers assume no more than that the answer is a subset of `running`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mirrorq.catalog import QueueRecord
from mirrorq.messages import DeclareQueue, MemberId
from mirrorq.view import find_store

__all__ = ["wanted_members"]


def wanted_members(
    queue: DeclareQueue | QueueRecord, running: Sequence[MemberId], masters: Mapping[str, int]
) -> tuple[MemberId, ...]:
    """Return the members that the queue should have, in order of preference.

    Args:
        queue: a declaration (the answer is the first view, master first) or an existing queue.
        running: current incarnations of nodes that are up and hold queues, no name twice.
        masters: how many queues each node name masters now; absent is none.
    """
    if isinstance(queue, DeclareQueue):
        ordered = sorted(running, key=lambda member: _first_choice(queue, member, masters))
    else:
        ordered = sorted(running, key=lambda member: _standing(queue, member))
    if not queue.exclusive:
        return tuple(ordered)
    if isinstance(queue, DeclareQueue):
        return tuple(ordered[:1])
    # An exclusive queue never moves: it goes with its owner instead.
    return tuple(m for m in ordered if find_store(queue.view, m.node, m.store) is not None)[:1]


def _first_choice(
    queue: DeclareQueue, member: MemberId, masters: Mapping[str, int]
) -> tuple[bool, int, str]:
    """Locator client-local: the declarer; when it holds no queues, the least loaded node."""
    return (member.node != queue.declarer, masters.get(member.node, 0), member.node)


def _standing(queue: QueueRecord, member: MemberId) -> tuple[int, str]:
    """Members of the view keep their order, newcomers follow by name."""
    for place, known in enumerate(queue.view.members):
        if known.id.node == member.node and known.id.store == member.store:
            return (place, member.node)
    return (len(queue.view.members), member.node)
