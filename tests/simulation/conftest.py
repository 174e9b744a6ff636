"""A cluster for tests that ask for nothing in particular."""

from __future__ import annotations

import pytest

from .world import World


@pytest.fixture
def world() -> World:
    """Three nodes with the queue "orders" in sync, and node a as its master."""
    return World()
