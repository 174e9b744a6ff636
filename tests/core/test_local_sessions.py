"""Which handles of a node are told of a queue's master."""

from __future__ import annotations

from mirrorq.engine.events import MasterChange
from mirrorq.engine.local_sessions import LocalSessions
from mirrorq.protocol.identities import SessionId

QUEUE, OTHER = 7, 8


def session(number: int) -> SessionId:
    return SessionId("a", 1, number)


def test_a_change_is_told_to_all_and_what_is_known_to_new_handles_only() -> None:
    """A thousand open handles are not told again for the next one."""
    sessions = LocalSessions()
    sessions.open(session(1), QUEUE)
    sessions.open(session(2), QUEUE)
    assert sessions.tell(QUEUE, 5, True) == MasterChange(QUEUE, 5, True)
    assert sessions.tell(QUEUE, 5, True) is None
    sessions.open(session(3), QUEUE)
    sessions.open(session(4), OTHER)
    assert sessions.tell(QUEUE, 5, True) == MasterChange(QUEUE, 5, True, (session(3),))
    assert sessions.tell(QUEUE, 5, True) is None
    sessions.open(session(5), QUEUE)
    assert sessions.tell(QUEUE, 5, False) == MasterChange(QUEUE, 5, False)
    assert sessions.tell(QUEUE, 5, False) is None


def test_a_handle_after_the_last_one_is_told_as_the_first() -> None:
    sessions = LocalSessions()
    for number in (1, 2):
        sessions.open(session(number), QUEUE)
        assert sessions.tell(QUEUE, 5, True) == MasterChange(QUEUE, 5, True)
        sessions.close(session(number), QUEUE)
    sessions.open(session(3), QUEUE)
    sessions.close(session(3), QUEUE)
    sessions.open(session(4), QUEUE)
    assert sessions.tell(QUEUE, 5, True) == MasterChange(QUEUE, 5, True)
