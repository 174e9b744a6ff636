"""Keys that are taken away while their client is connected."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.security.conftest import Connecting
from tests.security.keys import KeyRing, free_endpoint, until

from mirrorq.errors import AuthenticationError
from mirrorq.node.node import Node

pytestmark = pytest.mark.real

WAIT_S = 60.0


@pytest.fixture
def nodes(tmp_path: Path, ring: KeyRing) -> Iterator[list[Node]]:
    """Three that require keys."""
    peers = {name: free_endpoint() for name in "abc"}
    ring.client("worker", read=["jobs"], write=["jobs"])
    with ExitStack() as stack:
        made = [
            stack.enter_context(
                Node(name, path=tmp_path / name, peers=peers, security=ring.of(name))
            )
            for name in "abc"
        ]
        made[0].wait_ready(WAIT_S)
        yield made


def test_calls_of_a_client_whose_key_was_removed_say_so(
    nodes: list[Node],
    ring: KeyRing,
    connecting: Connecting,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It comes back ever less often, logs each node's refusal once, and goes on when its key is
    listed again."""
    nodes[0].queue("jobs")
    endpoints = ",".join(node.endpoint for node in nodes)
    worker = connecting(endpoints, ring.of("worker"))
    jobs = worker.queue("jobs")
    jobs.put(b"m1").result(WAIT_S)
    listed = ring.directory / "keys.toml"
    text = listed.read_text()
    listed.write_text(text[: text.index('["worker"]')])
    until(lambda: len(worker._driver.refusals) == 3 and not worker.entry_node)
    caplog.clear()
    socket = worker._driver._socket
    with caplog.at_level(logging.WARNING):
        until(lambda: socket._lap_ms() >= 2000)
        calls = (
            lambda: jobs.get(timeout=0.1),
            lambda: jobs.qsize(),
            lambda: worker.queue("jobs", timeout=WAIT_S),
            lambda: worker.queues(),
            lambda: worker.wait_ready(0.1),
            lambda: jobs.put(b"m2").result(0.1),
        )
        for call in calls[:-1]:
            with pytest.raises(AuthenticationError, match="key refused by"):
                call()
        with pytest.raises(TimeoutError, match="key refused by"):
            calls[-1]()
    said = [record for record in caplog.records if record.message.startswith("client client-")]
    assert len(said) <= 6, [record.message for record in said]
    listed.write_text(text)
    assert jobs.get(timeout=WAIT_S).body == b"m1"
    assert jobs.get(timeout=WAIT_S).body == b"m2"
