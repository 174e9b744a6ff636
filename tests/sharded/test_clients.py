"""Sharded queues from pickles and in a forked child."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator

import pytest
from tests.kit import DEADLINE_S

from mirrorq import (
    Client,
    Node,
    connect,
)

pytestmark = pytest.mark.real


@pytest.fixture
def client(node: Node) -> Iterator[Client]:
    with connect(node.listening) as made:
        yield made


def test_a_pickled_handle_has_its_shards(client: Client) -> None:
    """With a client of its own."""
    with client.queue("orders", shards=3) as queue:
        for number in range(9):
            queue.put(b"%d" % number).result(DEADLINE_S)
        with pickle.loads(pickle.dumps(queue)) as there:
            assert there.shards == 3
            bodies = [there.get(timeout=DEADLINE_S, auto_ack=True).body for _ in range(9)]
        assert sorted(bodies) == [b"%d" % number for number in range(9)]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_goes_on(client: Client) -> None:
    """With connections of its own; the parent's handle is untouched."""
    with client.queue("orders", shards=2) as queue:
        queue.put(b"parent", key="a").result(DEADLINE_S)
        child = os.fork()
        if not child:
            try:
                queue.put(b"child", key="a").result(DEADLINE_S)
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        queue.put(b"again", key="a").result(DEADLINE_S)
        bodies = [queue.get(timeout=DEADLINE_S).body for _ in range(3)]
        assert bodies == [b"parent", b"child", b"again"]
