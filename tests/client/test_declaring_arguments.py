"""Queues that are declared with arguments: by a node, by a client, in a loop."""

from __future__ import annotations

from pathlib import Path

import pytest

import mirrorq
from mirrorq import ConfigError, PreconditionFailed

WAIT_S = 60


def test_arguments_are_there_after_a_restart(tmp_path: Path) -> None:
    with (
        mirrorq.Node("b", path=tmp_path / "b") as node,
        node.queue("orders", max_length=3, message_ttl=60) as orders,
    ):
        before = orders.status().arguments
    with mirrorq.MirroredQueue("orders", path=tmp_path / "b", node="b", max_length=3) as orders:
        assert orders.status().arguments == before == {"max-length": 3, "message-ttl": 60_000}
        with pytest.raises(PreconditionFailed, match="max-length=3, not 4"):
            orders.node.queue("orders", max_length=4)  # type: ignore[attr-defined]


def test_a_spool_declares_a_queue_as_it_is(tmp_path: Path) -> None:
    wrong = "max_length=3 does not go with a spool"
    with mirrorq.Node("b", path=tmp_path / "b") as node, pytest.raises(ConfigError, match=wrong):
        node.queue("orders", spool=True, max_length=3)  # type: ignore[call-overload]
