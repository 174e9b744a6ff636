"""A node that comes back to many queues: they take it in a few at a time."""

from __future__ import annotations

from itertools import pairwise

from mirrorq.cluster.controller.join_throttle import BEGIN_MAX, PAUSE_MS
from mirrorq.protocol.commands import ChangeView, DeclareQueue
from mirrorq.protocol.views import joining_ids

from .test_supervisor import A, B, C, Leader, again

QUEUES = 3 * BEGIN_MAX - 1


def with_queues() -> Leader:
    leader = Leader(A, B, C)
    for number in range(QUEUES):
        leader.commit(DeclareQueue(f"q{number}", True, False, False, "a", None, (A, B, C)))
    return leader


def taken_in(leader: Leader) -> int:
    """How many queues the node that came back is a member of."""
    views = [queue.view for queue in leader.catalog.queues()]
    return sum(again(C) in joining_ids(view) for view in views)


def test_a_node_comes_back_to_a_few_queues_at_a_time() -> None:
    """However the leader comes to judge them all; at last all have it, one view each."""
    leader = with_queues()
    leader.kill(C)
    leader.run(1000)
    leader.proposed.clear()
    seen = [0]
    leader.start(again(C))
    seen.append(taken_in(leader))
    for _ in range(6):
        leader.run(PAUSE_MS // 2)
        seen.append(taken_in(leader))
    assert all(after - before <= BEGIN_MAX for before, after in pairwise(seen))
    leader.run(5 * PAUSE_MS)
    assert taken_in(leader) == QUEUES
    assert len(leader.proposed) == QUEUES


def test_a_turn_that_comes_while_a_view_is_proposed_is_not_lost() -> None:
    """A node is back at once: one view removes its old incarnation, and takes the new one in where
    it is a queue's turn. The others have their turn before that view is committed."""
    leader = with_queues()
    leader.commits = False
    leader.start(again(C))
    leader.run(PAUSE_MS + 10)
    late, leader.proposed = leader.proposed, []
    assert len(late) == QUEUES
    leader.commits = True
    for command in late:
        leader.commit(command)
    leader.run(5 * PAUSE_MS)
    assert taken_in(leader) == QUEUES


def test_nobody_waits_for_its_turn_to_lose_a_master() -> None:
    """Queues that lose their master, or a mirror, are all judged at once."""
    leader = with_queues()
    leader.kill(A)
    leader.run(1000)
    assert [type(one) for one in leader.proposed] == [ChangeView] * QUEUES
    assert all(queue.view.members[0].id == B for queue in leader.catalog.queues())
