"""A cluster of one that clients can reach."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrorq import Node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node("a", path=tmp_path / "a", listen="tcp://127.0.0.1:0") as made:
        made.wait_ready(60)
        yield made
