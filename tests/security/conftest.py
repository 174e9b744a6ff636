"""Keys, a node that requires them, and clients that are closed at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.security.keys import KeyRing

from mirrorq.client.client import Client, connect
from mirrorq.node.node import Node
from mirrorq.security.settings import Security

Connecting = Callable[..., Client]


@pytest.fixture
def ring(tmp_path: Path) -> KeyRing:
    return KeyRing(tmp_path / "keys")


@pytest.fixture
def node(tmp_path: Path, ring: KeyRing) -> Iterator[Node]:
    """A cluster of one that requires keys."""
    listen = "tcp://127.0.0.1:0"
    with Node("a", path=tmp_path / "a", listen=listen, security=ring.of("a")) as node:
        node.wait_ready(30)
        yield node


@pytest.fixture
def connecting() -> Iterator[Connecting]:
    """`connect`, with the closing done at the end."""
    with ExitStack() as stack:

        def connect_and_keep(endpoint: str, security: Security | None = None) -> Client:
            return stack.enter_context(connect(endpoint, security=security, timeout=30))

        yield connect_and_keep
