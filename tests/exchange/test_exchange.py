"""Exchanges on a real disk; what they do is in tests/conformance."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirrorq import (
    Node,
)
from mirrorq.api.exchange import Exchange

pytestmark = pytest.mark.real

DEADLINE_S = 60


def test_exchanges_survive_a_restart(tmp_path: Path) -> None:
    with Node("a", path=tmp_path) as node:
        node.queue("orders")
        node.exchange("events", "headers").bind("orders", arguments={"x-match": "any", "a": 1})
    with Node("a", path=tmp_path) as node:
        events: Exchange = node.exchange("events", passive=True, timeout=DEADLINE_S)
        assert events.publish("", b"1", headers={"a": 1}).result(DEADLINE_S) == {"orders": 1}
        assert events.publish("", b"2", headers={"b": 1}).result(DEADLINE_S) == {}
