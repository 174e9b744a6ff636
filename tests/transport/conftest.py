"""Sockets that are closed at the end of each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from loopback import Net

from mirrorq.transport.transport import Transport


@pytest.fixture
def net() -> Iterator[Net]:
    net = Net()
    yield net
    for socket in net.sockets:
        socket.close()


@pytest.fixture
def a(net: Net) -> Transport:
    return net.transport("a")
