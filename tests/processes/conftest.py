"""A cluster that is dead when its test is over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.chaos.proxy import Proxies

from .cluster import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    try:
        yield made
    finally:
        made.end()


@pytest.fixture
def proxies(cluster: Cluster) -> Iterator[Proxies]:
    """Links between the nodes a, b and c of the cluster, which is not yet started."""
    cluster.name_all("abc")
    made = Proxies(cluster.endpoints)
    cluster.seen_by = made.seen_by
    try:
        yield made
    finally:
        made.close()
