"""A node, and connections of kombu to it that are closed at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import kombu
import pytest

import mirrorq
import mirrorq.contrib.kombu  # registers the transport


@pytest.fixture
def url(node: mirrorq.Node) -> str:
    """The node as a broker's URL."""
    return node.listening.replace("tcp://", "mirrorq://") + "//"


Connecting = Callable[..., Any]


@pytest.fixture
def connecting(url: str) -> Iterator[Connecting]:
    """`kombu.Connection`, with the closing done at the end."""
    made: list[Any] = []

    def connect(**options: Any) -> Any:
        made.append(kombu.Connection(url, transport_options=options))
        return made[-1]

    yield connect
    for connection in made:
        connection.release()
