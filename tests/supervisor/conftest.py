"""A leader and its queue, of the class `Leader` that the test's module has."""

from __future__ import annotations

from typing import Any

import pytest

from .test_supervisor import A, B, C


@pytest.fixture
def leader(request: pytest.FixtureRequest) -> Any:
    """Three nodes have the queue."""
    leader = request.module.Leader(A, B, C)
    leader.declare(A, B, C)
    return leader


@pytest.fixture
def pair(request: pytest.FixtureRequest) -> Any:
    """Two nodes have the queue."""
    leader = request.module.Leader(A, B)
    leader.declare(A, B)
    return leader
