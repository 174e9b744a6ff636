"""A node is closed while its disk works on a commit for longer than close() waits."""

from __future__ import annotations

import errno
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import lmdb
import pytest

from mirrorq.errors import StoreError, StoreLocked
from mirrorq.node import node as node_module
from mirrorq.node.node import Node
from mirrorq.protocol.effects import QueueWrite, RaftWrite
from mirrorq.store.pathlock import FILE_NAME

from .cluster import until

BODY = bytes(200_000)
"""Too large for the log: it goes to LMDB."""
LONG_S = 120.0
"""What a machine under load may take for anything here."""


class SlowDisk:
    """LMDB, each commit of which waits until the disk goes on."""

    def __init__(self, real: Any) -> None:
        self.real = real
        self.goes_on = threading.Event()
        self.is_at_work = threading.Event()
        self.has_failed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def begin(self, *args: Any, **options: Any) -> Any:
        txn = self.real.begin(*args, **options)
        return SlowTransaction(txn, self) if options.get("write") else txn


class SlowTransaction:
    def __init__(self, txn: Any, disk: SlowDisk) -> None:
        self.txn, self.disk = txn, disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self.txn, name)

    def commit(self) -> None:
        self.disk.is_at_work.set()
        assert self.disk.goes_on.wait(LONG_S)
        if self.disk.has_failed:
            self.txn.abort()
            error = lmdb.Error("mdb_txn_commit: Input/output error")
            error.code = errno.EIO  # type: ignore[misc]
            raise error
        self.txn.commit()


class Slow:
    """A node whose thread is in a commit."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.node = self.opened()
        self.node.wait_ready(LONG_S)
        self.queue = self.node.queue("jobs", timeout=LONG_S)
        store = self.node._store
        environment, commit = store._environment, store.commit
        self.disk = SlowDisk(environment._lmdb)

        def slow_commit(queues: Sequence[QueueWrite], raft: RaftWrite | None = None) -> None:
            appended = (entry for write in queues for entry in write.append)
            if any(len(entry.frame) > len(BODY) for entry in appended):
                environment._lmdb = self.disk  # type: ignore[assignment]
            commit(queues, raft)

        store.commit = slow_commit  # type: ignore[method-assign]
        self.queue.put(BODY)
        assert self.disk.is_at_work.wait(LONG_S)

    def opened(self) -> Node:
        return Node("a", path=self.path, peers={"a": "tcp://127.0.0.1:0"})

    def close(self) -> None:
        """As a user does, but not for ever."""
        thread = threading.Thread(target=self.node.close, daemon=True)
        thread.start()
        thread.join(LONG_S)
        assert not thread.is_alive(), "close() has no end"


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    monkeypatch.setattr(node_module, "CLOSE_S", 0.3)
    monkeypatch.setattr(node_module, "STOP_S_MIN", 0.1, raising=False)
    monkeypatch.setattr(node_module, "HAND_OVER_S", 0.1)
    made = Slow(tmp_path / "a")
    try:
        yield made
    finally:
        made.disk.goes_on.set()
        made.close()
        until(lambda: not made.node._driver.is_running)


def test_nothing_is_taken_from_under_a_commit(slow: Slow, caplog: pytest.LogCaptureFixture) -> None:
    """close() returns and says what it leaves; the thread ends when the disk has answered, and
    only then another node may have the store, with all that was written."""
    node = slow.node
    with caplog.at_level(logging.WARNING, "mirrorq"):
        slow.close()
    assert "has not ended" in caplog.text
    assert node._driver.is_running
    for part in ("_transport", "_rail"):
        assert getattr(node, part) is not None
    if node._rail is not None:
        node._rail._native.number()
    for _ in range(2):
        with pytest.raises(StoreLocked, match="was closed and has not ended yet"):
            slow.opened()
    node.close()
    slow.disk.goes_on.set()
    until(lambda: not node._driver.is_running)
    assert node._driver.failure is None
    with slow.opened() as again:
        again.wait_ready(LONG_S)
        found = again.queue("jobs", timeout=LONG_S).browse()
        assert [message.body for message in found] == [BODY]


def test_a_commit_that_fails_after_the_close_ends_the_node(slow: Slow) -> None:
    """The disk answers late, and says that it has failed: the store is left as by a kill."""
    slow.close()
    slow.disk.has_failed = True
    slow.disk.goes_on.set()
    until(lambda: not slow.node._driver.is_running)
    assert isinstance(slow.node._driver.failure, StoreError)
    assert (slow.path / FILE_NAME).read_text().split()[0] == "open"
    with slow.opened() as again:
        again.wait_ready(LONG_S)


PROGRAM = """
import sys, threading, time
sys.path.insert(0, {tests!r})
from pathlib import Path
from mirrorq.node import node as node_module
node_module.CLOSE_S, node_module.STOP_S_MIN, node_module.HAND_OVER_S = 0.3, 0.1, 0.1
from processes.test_slow_close import Slow
slow = Slow(Path({path!r}))
if {closes}:
    slow.node.close()
print("ends", flush=True)
"""


@pytest.mark.parametrize("closes", [True, False])
def test_the_process_ends_all_the_same(tmp_path: Path, closes: bool) -> None:
    """The interpreter ends under the node's thread, and under the rail's."""
    tests = str(Path(__file__).parents[1])
    program = PROGRAM.format(tests=tests, path=str(tmp_path / "a"), closes=closes)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=LONG_S
    )
    assert (done.returncode, done.stdout) == (0, "ends\n"), done.stderr
