"""Who may ask to be a voter: an empty store that is expected, or one with this cluster's log."""

from __future__ import annotations

import pytest

from mirrorq.catalog import Catalog
from mirrorq.doorkeeper import Doorkeeper
from mirrorq.engine_events import EngineEffects
from mirrorq.founding import AdmissionRequest
from mirrorq.messages import Directory, MemberId, NameCluster, Unwelcome

OURS, ANOTHERS = 5, 7
STORE = MemberId("e", 3, 1)


@pytest.mark.parametrize(
    ("request_", "may_ask", "answer"),
    [
        (AdmissionRequest(True), True, Directory),
        (AdmissionRequest(False), False, Unwelcome),
        (AdmissionRequest(True, OURS), True, Directory),
        (AdmissionRequest(True, ANOTHERS), False, None),
    ],
)
def test_a_store_with_the_log_of_another_cluster_may_not_ask(
    request_: AdmissionRequest, may_ask: bool, answer: type | None
) -> None:
    """Its log and this one's may have the same terms and indices: Raft would take them for one."""
    catalog = Catalog()
    catalog.apply(1, NameCluster(OURS))
    doorkeeper = Doorkeeper(MemberId("a", 1, 1), "sim://a", {"a": "sim://a"}, (), 1000)
    doorkeeper.begin(out := EngineEffects())
    assert doorkeeper.may_ask(STORE, request_, catalog, False) is may_ask
    assert [type(message) for _, message in out.send] == ([answer] if answer else [])
