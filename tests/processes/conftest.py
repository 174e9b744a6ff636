"""A cluster that is dead when its test is over."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from .cluster import Cluster, Peer
from .stalls import delay_rounds


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--stalls", metavar="SEED", help="nodes and clients stand still again and again"
    )


def pytest_configure(config: pytest.Config) -> None:
    Peer.stall_seed = config.getoption("--stalls", default=None)
    if Peer.stall_seed is not None:
        delay_rounds(Peer.stall_seed)
        # Who is ended so ends its peers, too: one that stands still would not see that it is alone.
        signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    try:
        yield made
    finally:
        made.end()
