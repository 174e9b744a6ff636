"""What is wrong with a setting, a node or an endpoint is told by name and value. Calls of handles
are in tests/conformance/test_errors.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.kit import DEADLINE_S

import mirrorq
from mirrorq import ConfigError

pytestmark = pytest.mark.real

HUGE = 2**70


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[mirrorq.Node]:
    path = tmp_path_factory.mktemp("arguments")
    with mirrorq.Node("a", path=path, listen="tcp://127.0.0.1:*") as node:
        node.wait_ready(DEADLINE_S)
        yield node


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"prefetch": 0}, "prefetch is 0: it must be a whole number from 1 up, 4096 by default"),
        ({"prefetch": "3"}, "prefetch is '3': it must be a whole number"),
        ({"failure_ms": True}, "failure_ms is True: it must be a whole number"),
        ({"store_bytes_max": HUGE}, f"store_bytes_max is {HUGE}"),
    ],
)
def test_a_wrong_setting(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        mirrorq.Config(**given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"name": 3}, "a node's name is a string, not 3"),
        ({"peers": ["a"]}, "peers is .*: it must be a mapping of each node's name to its endpoint"),
        ({"name": "a=b"}, "a node's name is 'a=b': it must not contain ="),
        ({"name": "a" * 256}, "a node's name has at most 255 characters, not 256"),
        ({"join": 5}, "join is 5: it must be 'tcp://host:port', or a list of these"),
        ({"join": [5]}, "join is .*: it must be 'tcp://host:port', or a list of these"),
        ({"peers": {"a": "ipc:///a", "b=": "ipc:///b"}}, "a peer's name is 'b='"),
        ({"peers": {"a": 7400}}, "the endpoint of peer 'a' is a string, not 7400"),
        ({"config": {"prefetch": 3}}, "config is .*: give a mirrorq.Config"),
    ],
)
def test_a_node_that_cannot_be(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    path = tmp_path / "a"
    with pytest.raises(ConfigError, match=words):
        mirrorq.Node(**{"name": "a", "path": path, **given})
    assert not path.exists()


class Text(str):
    """As numpy's texts are."""


def test_names_of_a_subclass_of_str(tmp_path: Path, endpoint: str) -> None:
    """The node writes them to its disk: it once failed there."""
    peers = {Text("a"): Text(endpoint)}
    with mirrorq.Node(Text("a"), path=Text(tmp_path / "a"), peers=peers) as node:
        node.queue(Text("q"), spool=True, timeout=DEADLINE_S).put(b"x").result(DEADLINE_S)
        assert node.queue("q").get(timeout=DEADLINE_S).body == b"x"
    with pytest.raises(TypeError, match="path is 5: it must be the name of a directory"):
        mirrorq.connect(endpoint, spool=5)  # type: ignore[call-overload]


def test_endpoints_that_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `os.environ.get()` of a variable that is not set: there is no MIRRORQ_URL either."""
    monkeypatch.delenv("MIRRORQ_URL", raising=False)
    with pytest.raises(ConfigError, match="no endpoints: name some, or a URL in MIRRORQ_URL"):
        mirrorq.connect(None)


def test_endpoints_as_the_peers_of_a_node(node: mirrorq.Node) -> None:
    with mirrorq.connect({"a": node.listening}) as client:
        assert [found.name for found in client.nodes()] == ["a"]
    with pytest.raises(ConfigError, match="'nowhere' is malformed"):
        mirrorq.connect({"a": "nowhere"})
