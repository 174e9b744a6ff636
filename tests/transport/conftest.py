"""Sockets that are closed at the end of each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from loopback import Net


@pytest.fixture
def net() -> Iterator[Net]:
    net = Net()
    yield net
    for socket in net.sockets:
        socket.close()
