"""Policies as a user gives them: the same calls on a node and on a client."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirrorq import Node

pytestmark = pytest.mark.real


def test_policies_survive_a_restart(tmp_path: Path) -> None:
    """They are in the catalog, on disk."""
    with Node("a", path=tmp_path) as node:
        node.set_policy("kept", "x", {"message-ttl": 60_000})
    with Node("a", path=tmp_path) as node:
        node.wait_ready(30)
        assert [policy.definition for policy in node.policies()] == [{"message-ttl": 60_000}]
