"""A message is bounded where it is put, by all that it carries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mirrorq import MessageTooLarge
from mirrorq.client.client import connect
from mirrorq.config import Config
from mirrorq.errors import ConfigError, ShutDown
from mirrorq.node.node import Node
from mirrorq.protocol.sessions import Publish, SessionRequest
from mirrorq.transport.link import part_bytes_max

pytestmark = pytest.mark.real

LIMIT = 4000
SMALL = Config(message_bytes_max=LIMIT, frame_bytes_max=12_000)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node("a", path=tmp_path_factory.mktemp("a"), config=SMALL) as node:
        node.wait_ready(30)
        yield node


@pytest.mark.parametrize("options", [{"headers": {"x": "h" * LIMIT}}, {"key": "k" * LIMIT}])
def test_all_that_a_spooled_message_carries_counts(node: Node, options: dict[str, Any]) -> None:
    """Both numbers are said, and nothing is put; as of other puts in tests/conformance."""
    with node.queue("orders", spool=True) as spooled:
        for put in (spooled.put, lambda body, **given: spooled.put_many([body], **given)):
            with pytest.raises(MessageTooLarge, match=rf"[0-9]{{4}} bytes.*_bytes_max {LIMIT}"):
                put(b"b", **options)
    assert node.queue("orders").status().messages == 0


def test_what_the_catalog_is_asked_is_bounded(node: Node) -> None:
    """It says both numbers, and the node goes on."""
    names = [f"{number:0255}" for number in range(2000)]
    with pytest.raises(ConfigError, match=r"needs [0-9]{6} bytes in the catalog, more than 262144"):
        node.set_policy("p", ".*", {"ha-mode": "nodes", "ha-params": names})
    assert node.policies() == []


def test_a_call_that_cannot_be_sent_is_an_error(tmp_path: Path) -> None:
    """Its caller hears it, and the client goes on."""
    given = {"path": tmp_path / "a", "config": SMALL, "listen": "tcp://127.0.0.1:0"}
    with Node("a", **given) as node:  # type: ignore[arg-type]
        node.wait_ready(30)
        with connect(node.endpoint, config=SMALL, timeout=30) as client:
            size = part_bytes_max(SMALL)
            with pytest.raises(ConfigError, match=rf"bytes, more than the {size} "):
                client._disconnect("nobody", "x" * size, 30)
            assert client.queue("orders").put(b"b").result(30) == 1


def test_a_request_that_cannot_be_sent_to_another_node_ends_its_handle(tmp_path: Path) -> None:
    """No request of a handle is so large; one that is would get lost each time, in silence."""
    given = {"path": tmp_path / "a", "config": SMALL, "listen": "tcp://127.0.0.1:0"}
    with Node("a", **given) as node:  # type: ignore[arg-type]
        orders = node.queue("orders")
        handle, driver = orders._handle, node._driver
        frame = bytes(part_bytes_max(SMALL) + 1)
        request = SessionRequest(
            handle.queue_id, 1, handle.session_id, 1, 1, Publish(frame, whole=True)
        )
        driver.call(lambda: driver._send([("b", request)]))
        handle.ended.wait(30)
        with pytest.raises(ShutDown, match=r"a request cannot be sent to node b: it has [0-9]+"):
            orders.put(b"x")


def test_a_request_that_cannot_be_sent_to_the_entry_node_ends_its_handle(tmp_path: Path) -> None:
    given = {"path": tmp_path / "a", "config": SMALL, "listen": "tcp://127.0.0.1:0"}
    with (
        Node("a", **given) as node,  # type: ignore[arg-type]
        connect(node.endpoint, config=SMALL, timeout=30) as client,
    ):
        orders = client.queue("orders")
        handle = orders._handle
        frame = bytes(part_bytes_max(SMALL) + 1)
        handle.on_host(lambda: handle.session._send(Publish(frame, whole=True)))
        handle.ended.wait(30)
        with pytest.raises(ShutDown, match="a request cannot be sent: it has"):
            orders.put(b"x")
