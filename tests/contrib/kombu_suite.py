"""kombu's own integration suite, unchanged, over mirrorq: `make kombu-suite` fetches it.

Run by pytest with the unpacked sdist of kombu in KOMBU_SUITE. A node is started for the session;
what is skipped below is skipped with the reason.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kombu
import pytest

import mirrorq
import mirrorq.contrib.kombu

sys.path.insert(0, os.environ["KOMBU_SUITE"])

from t.integration import common

DEAD = "mirrorq://localhost:12345"


@pytest.fixture(scope="session")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A node, and where it listens."""
    path: Path = tmp_path_factory.mktemp("node")
    with mirrorq.Node("a", path=path, listen="tcp://127.0.0.1:0") as node:
        node.wait_ready(30)
        yield node.listening.removeprefix("tcp://")


@pytest.fixture
def connection(endpoint: str) -> Any:
    return kombu.Connection(f"mirrorq://{endpoint}")


@pytest.fixture
def invalid_connection() -> Any:
    return kombu.Connection(DEAD, connect_timeout=1)


@pytest.fixture
def failover_connection(endpoint: str) -> Any:
    return kombu.Connection(f"{DEAD};mirrorq://{endpoint}", connect_timeout=1)


class TestBasicFunctionality(common.BasicFunctionality):
    pass


class TestExchangeTypes(common.BaseExchangeTypes):
    pass


class TestTimeToLive(common.BaseTimeToLive):
    pass


class TestPriority(common.BasePriority):
    pass


class TestMessage(common.BaseMessage):
    pass


class TestEventLoop(common.BaseEventLoop):
    pass


class TestFailover(common.BaseFailover):
    pass
