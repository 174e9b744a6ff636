"""One process at a time has a store open, and not its forks."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from mirrorq.errors import StoreError, StoreLocked
from mirrorq.protocol.effects import QueueWrite

from .writing import PYTHON, QUEUE, SOURCES, Writer, frames_of, open_store, starts_before

pytestmark = pytest.mark.real

HOLDER = """
import sys
from mirrorq.config import Config

from mirrorq.store.node_store import Store


store = Store(sys.argv[1], node="a", config=Config())
print("open", flush=True)
sys.stdin.read()
"""


def test_a_store_of_another_process_is_locked(path: Path) -> None:
    """The error names path and pid; when that process is gone, however it ended, the store
    opens."""
    holder = subprocess.Popen(
        [PYTHON, "-c", HOLDER, str(path)],
        env={"PYTHONPATH": SOURCES},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdin is not None
    assert holder.stdout.readline() == "open\n"
    for _ in range(2):
        with pytest.raises(StoreLocked) as caught:
            open_store(path)
        assert str(path) in str(caught.value)
        assert f"pid {holder.pid}" in str(caught.value)
    holder.kill()
    holder.communicate()
    store = open_store(path)
    assert starts_before(store) == 1
    store.close()


def test_a_store_opens_once_in_a_process(path: Path) -> None:
    """Also through another name of the path; and the failed try does not weaken the lock."""
    store = open_store(path)
    link = path.parent / "link"
    link.symlink_to(path)
    for name in (path, link):
        with pytest.raises(StoreLocked, match=f"already open in this process .pid {os.getpid()}"):
            open_store(name)
    held = subprocess.run(
        [PYTHON, "-c", HOLDER, str(path)],
        env={"PYTHONPATH": SOURCES},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "StoreLocked" in held.stderr
    assert f"pid {os.getpid()}" in held.stderr
    store.commit([QueueWrite(QUEUE, stable=1)])
    store.close()
    open_store(link).close()


def in_fork(work: Callable[[], str]) -> str:
    """What `work` returns in a forked child."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, work().encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        told = pipe.read()
    os.waitpid(pid, 0)
    return told


def error_of(work: Callable[[], object]) -> str:
    try:
        work()
    except StoreError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def test_a_fork_cannot_use_the_store(path: Path) -> None:
    """Every method raises StoreError in the child, close() does nothing there, the child cannot
    open the path anew, and the parent goes on undisturbed."""
    store = open_store(path)
    entry = Writer().publish([b"x"])
    uses: list[Callable[[], object]] = [
        lambda: store.commit([QueueWrite(QUEUE, append=(entry,))]),
        lambda: store.read(QUEUE, 1, 1, 1),
        lambda: store.load(QUEUE),
        store.queue_ids,
        store.raft_image,
        store.store_bytes,
        store.collect,
        lambda: store.put_meta("a", b""),
        lambda: store.get_meta("a"),
    ]
    for use in uses:
        told = in_fork(lambda use=use: error_of(use))  # type: ignore[misc]
        assert told.startswith("StoreError: ")
        assert f"opened by process {os.getpid()}" in told
    assert in_fork(lambda: error_of(store.close)) == "no error"
    told = in_fork(lambda: error_of(lambda: open_store(path)))
    assert told.startswith("StoreLocked: ")
    assert f"pid {os.getpid()}" in told
    store.commit([QueueWrite(QUEUE, append=(entry,))])
    assert frames_of(store.load(QUEUE).entries) == [entry.frame]
    store.close()


def test_a_fork_may_open_what_its_parent_has_closed(path: Path) -> None:
    """Pre-fork servers: open after the fork."""
    open_store(path).close()
    assert in_fork(lambda: error_of(lambda: open_store(path).close())) == "no error"
    store = open_store(path)
    assert starts_before(store) == 2
    store.close()
