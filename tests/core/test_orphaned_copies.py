"""When a copy that no view names is asked for."""

from __future__ import annotations

from mirrorq.engine.orphaned_copies import AT_ONCE, OrphanedCopies

WAIT_MS = 5000


def test_a_copy_is_asked_for_after_the_wait_and_again() -> None:
    """Noted more than once it is still one; each answer of no is followed by another wait."""
    leftovers = OrphanedCopies(WAIT_MS)
    leftovers.mark(1, True)
    assert leftovers.due(100) == ()
    leftovers.mark(1, True)
    assert leftovers.due(100 + WAIT_MS - 1) == ()
    assert leftovers.due(100 + WAIT_MS) == (1,)
    assert leftovers.due(101 + WAIT_MS) == ()
    assert leftovers.due(100 + 2 * WAIT_MS) == (1,)


def test_a_member_again_begins_anew() -> None:
    """A node that a view names in between is asked for nothing, and waits in full later."""
    leftovers = OrphanedCopies(WAIT_MS)
    leftovers.mark(1, True)
    leftovers.due(0)
    leftovers.mark(1, False)
    assert leftovers.due(WAIT_MS) == ()
    leftovers.mark(1, True)
    assert leftovers.due(WAIT_MS) == ()
    assert leftovers.due(2 * WAIT_MS) == (1,)


def test_many_are_asked_for_little_by_little() -> None:
    """All come to their turn."""
    leftovers = OrphanedCopies(WAIT_MS)
    for queue_id in range(40):
        leftovers.mark(queue_id, True)
    leftovers.due(0)
    asked = [leftovers.due(WAIT_MS + later) for later in range(3)]
    assert [len(part) for part in asked] == [AT_ONCE, AT_ONCE, 40 - 2 * AT_ONCE]
    assert sorted(one for part in asked for one in part) == list(range(40))
