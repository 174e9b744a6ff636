"""Keys that are taken away while their client is connected."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.kit import DEADLINE_S, peers_of, until
from tests.security.conftest import Connecting
from tests.security.keys import KeyRing

from mirrorq.errors import AckRefused, AuthenticationError, ConfirmUnknown, Empty
from mirrorq.node.node import Node

pytestmark = pytest.mark.real


@pytest.fixture
def nodes(tmp_path: Path, ring: KeyRing) -> Iterator[list[Node]]:
    """Three that require keys."""
    peers = peers_of("abc")
    ring.client("worker", read=["jobs"], write=["jobs"])
    with ExitStack() as stack:
        made = [
            stack.enter_context(
                Node(name, path=tmp_path / name, peers=peers, security=ring.of(name))
            )
            for name in "abc"
        ]
        made[0].wait_ready(DEADLINE_S)
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
    jobs.put(b"m1").result(DEADLINE_S)
    listed = ring.directory / "keys.toml"
    text = listed.read_text()
    listed.write_text(text[: text.index('["worker"]')])
    until(lambda: len(worker._driver.refusals) == 3 and not worker.entry_node)
    caplog.clear()
    socket = worker._driver._home.socket
    with caplog.at_level(logging.WARNING):
        until(lambda: socket._lap_ms() >= 500)
        calls = (
            lambda: jobs.get(timeout=0.1),
            lambda: jobs.qsize(),
            lambda: worker.queue("jobs", timeout=DEADLINE_S),
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
    assert jobs.get(timeout=DEADLINE_S).body == b"m1"
    assert jobs.get(timeout=DEADLINE_S).body == b"m2"


def raises_refusal(call: Callable[[], object]) -> bool:
    """Whether the key does not allow this call, now."""
    try:
        call()
    except AuthenticationError:
        return True
    except (ConfirmUnknown, Empty, TimeoutError):
        pass
    return False


@pytest.mark.parametrize("shards", [None, 2])
def test_a_handle_that_has_put_and_taken_keeps_the_right_that_is_left(
    nodes: list[Node], ring: KeyRing, connecting: Connecting, shards: int | None
) -> None:
    """Without the right to write it goes on taking and acking, and says why it does not put."""
    nodes[0].queue("jobs", shards=shards)
    worker = connecting(",".join(node.endpoint for node in nodes), ring.of("worker"))
    jobs = worker.queue("jobs", shards=shards)
    for number in range(4):
        jobs.put(f"m{number}".encode(), key=str(number)).result(DEADLINE_S)
    held = jobs.get(timeout=DEADLINE_S)
    listed = ring.directory / "keys.toml"
    listed.write_text(without(listed.read_text(), "write"))
    until(lambda: raises_refusal(lambda: jobs.put(b"more", key="1").result(0.1)))
    with pytest.raises(AuthenticationError, match="may not write queue 'jobs"):
        jobs.put_many([b"more"], key="1")
    held.ack().result(DEADLINE_S)
    for _ in range(3):
        jobs.get(timeout=DEADLINE_S).ack().result(DEADLINE_S)


def test_a_handle_that_may_not_read_any_more_goes_on_putting(
    nodes: list[Node], ring: KeyRing, connecting: Connecting
) -> None:
    """What it held comes to others; a consumer of it ends and says why."""
    jobs = nodes[0].queue("jobs")
    worker = connecting(",".join(node.endpoint for node in nodes), ring.of("worker"))
    both = worker.queue("jobs")
    both.put(b"held").result(DEADLINE_S)
    held = both.get(timeout=DEADLINE_S)
    consumer = both.consume(lambda _: None)
    listed = ring.directory / "keys.toml"
    listed.write_text(without(listed.read_text(), "read"))
    until(lambda: raises_refusal(lambda: both.get(timeout=0.1)))
    with jobs.get(timeout=DEADLINE_S) as again:
        assert (again.body, again.redelivered) == (b"held", True)
    with pytest.raises(AckRefused):
        held.ack().result(DEADLINE_S)
    until(lambda: "may not read queue 'jobs'" in consumer.refused)
    assert both.put(b"more").result(DEADLINE_S) == 2
    with jobs.get(timeout=DEADLINE_S) as more:
        assert more.body == b"more"


def without(text: str, right: str) -> str:
    """The file of keys, the worker without one of its rights."""
    before, mark, entry = text.partition('["worker"]')
    lines = [line for line in entry.splitlines() if not line.startswith(right)]
    return before + mark + "\n".join(lines) + "\n"
