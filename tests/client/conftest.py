"""A node that clients can reach, and clients that are closed at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from mirrorq.client.client import Client, connect
from mirrorq.config import Config

Connecting = Callable[..., Client]


@pytest.fixture
def connecting() -> Iterator[Connecting]:
    """`connect`, with the closing done at the end."""
    with ExitStack() as stack:

        def connect_and_keep(*endpoints: str, config: Config | None = None) -> Client:
            return stack.enter_context(connect(endpoints, config=config, timeout=30))

        yield connect_and_keep
