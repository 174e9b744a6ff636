"""What a node tells its listeners."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from mirrorq import Node
from mirrorq.protocol.effects import Notice

pytestmark = pytest.mark.real


def test_a_listener_hears_of_mastership_and_may_raise(tmp_path: Path) -> None:
    """A listener that raises hurts neither the node nor the next listener; none runs on the
    node's thread."""
    heard: list[tuple[str, str]] = []
    done = threading.Event()

    def raises(notice: Notice) -> None:
        raise RuntimeError("a listener's own fault")

    def listens(notice: Notice) -> None:
        heard.append((notice.kind, threading.current_thread().name))
        if notice.kind == "became master":
            done.set()

    with Node("a", path=tmp_path / "a") as node:
        node.add_listener(raises)
        node.add_listener(listens)
        queue = node.queue("orders")
        assert done.wait(30)
        assert queue.put(b"still alive").result(30) == 1
        queue.close()
    assert all(thread != "mirrorq-node" for _, thread in heard)
