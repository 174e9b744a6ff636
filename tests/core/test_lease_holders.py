"""What a lease holds, by which names."""

from __future__ import annotations

from mirrorq.api.lease_holder import LeaseHolder
from mirrorq.config import Config
from mirrorq.protocol.identities import SessionId
from mirrorq.protocol.sessions import Delivery
from mirrorq.session.machine import Session


def test_what_is_taken_again_while_a_lease_still_takes_has_its_new_name_alone() -> None:
    """Another master handed it to the same lease before that had all it wanted: settled by both
    names it would be acked twice (seed 9913)."""
    session = Session(SessionId("a", 1, 1), 1, Config())
    taker = LeaseHolder(1, 10)
    taker.add_deliveries(session, (Delivery(1, 33, 5, 6, 2), Delivery(1, 36, 10, 10, 2)))
    taker.add_deliveries(session, (Delivery(2, 2, 6, 6, 3),))
    assert taker.settle() == (
        Delivery(1, 33, 5, 5, 2),
        Delivery(1, 36, 10, 10, 2),
        Delivery(2, 2, 6, 6, 3),
    )
    assert list(taker.sequences) == [(5, 6), (10, 10)]
