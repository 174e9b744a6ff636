"""What a store rests on is deleted, replaced or opened twice: one process has it all the same, and
a start that is refused changes no byte."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mirrorq import ConfigError, Node
from mirrorq.errors import StoreError, StoreLocked
from mirrorq.protocol.effects import QueueWrite
from mirrorq.store.offline import OfflineStore
from mirrorq.store.pathlock import holder_of

from .writing import PYTHON, QUEUE, SOURCES, Writer, frames_of, open_store

pytestmark = pytest.mark.real

HOLDER = """
import os, sys
from mirrorq.config import Config
from mirrorq.store.node_store import Store

store = Store(sys.argv[1], node="a", config=Config())
child = os.fork() if sys.argv[2:] else 0
if not child:
    print(os.getpid(), flush=True)
sys.stdin.read()
"""


@contextmanager
def held(path: Path, *more: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Another process has the store open; with an argument it has a forked child as well."""
    holder = subprocess.Popen(
        [PYTHON, "-c", HOLDER, str(path), *more],
        env={"PYTHONPATH": SOURCES},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    try:
        yield holder, int(holder.stdout.readline())
    finally:
        holder.kill()
        holder.communicate()


def bytes_of(path: Path) -> dict[str, str]:
    """A digest of each file of a store."""
    files = sorted(one for one in path.rglob("*") if one.is_file())
    return {str(one): hashlib.sha256(one.read_bytes()).hexdigest() for one in files}


@pytest.mark.parametrize("name", ["mirrorq.lock", "data.mdb", "lock.mdb", "everything"])
def test_deleting_a_file_lets_nobody_in(path: Path, name: str) -> None:
    """The directory itself is locked."""
    open_store(path).close()
    with held(path):
        for file in list(path.iterdir()):
            if name in (file.name, "everything"):
                file.unlink()
        with pytest.raises(StoreLocked, match="open in another process"):
            open_store(path)
        assert holder_of(path) is not None
    open_store(path).close()


def test_a_lock_file_that_was_replaced_lets_nobody_in(path: Path) -> None:
    """Also where its record is of somebody else, or no record at all."""
    with held(path):
        for content in ("", "closed 1", "open"):
            (path / "mirrorq.lock").unlink()
            (path / "mirrorq.lock").write_text(content)
            with pytest.raises(StoreLocked):
                open_store(path)
            with pytest.raises(StoreLocked):
                OfflineStore(path)


def test_in_this_process_too(path: Path) -> None:
    """The lock file is deleted, and the store is asked for again where it is open."""
    store = open_store(path)
    (path / "mirrorq.lock").unlink()
    with pytest.raises(StoreLocked, match="already open in this process"):
        open_store(path)
    store.close()
    assert (path / "mirrorq.lock").read_text().split() == ["closed", str(os.getpid())]


def test_a_child_that_outlives_its_killed_parent_keeps_nobody_out(path: Path) -> None:
    """A fork has the descriptors of the locks, too."""
    with held(path, "fork") as (holder, child):
        with pytest.raises(StoreLocked):
            open_store(path)
        holder.kill()
        holder.wait()
        # It waits for the end of its input, which is still open: the child is there.
        os.kill(child, 0)
        open_store(path).close()


def test_a_start_that_is_refused_changes_nothing(path: Path) -> None:
    """A port in use, an endpoint that cannot be, a store of another node: a stopped store is, byte
    for byte, what it was, though it was not closed in good order."""
    open_store(path).close()
    with held(path):
        pass
    before = bytes_of(path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match="another process listens there"):
            Node("a", path=path, peers={"a": f"tcp://127.0.0.1:{port}"})
        with pytest.raises(ConfigError, match="dashboard"):
            Node("a", path=path, dashboard=f"127.0.0.1:{port}")
    with pytest.raises(ConfigError):
        Node("a", path=path, listen="tcp://192.0.2.1:1", insecure=True)
    with pytest.raises(StoreError, match="belongs to node 'a'"):
        Node("b", path=path)
    assert bytes_of(path) == before
    with Node("a", path=path) as node:
        node.wait_ready(30)
        running = bytes_of(path)
        with held(path.parent / "other"), pytest.raises(StoreLocked):
            open_store(path)
        assert bytes_of(path).keys() == running.keys()


def test_a_refused_start_makes_no_store(path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="another process listens there"):
            Node("a", path=path, peers={"a": f"tcp://127.0.0.1:{taken.getsockname()[1]}"})
    assert not list(path.iterdir())


@pytest.mark.parametrize("how", ["deleted", "moved", "replaced"])
def test_a_data_file_that_is_gone_takes_nothing_more(path: Path, how: str, writer: Writer) -> None:
    """Nothing that is written to it is found by the next start."""
    store = open_store(path)
    store.commit([QueueWrite(QUEUE, append=(writer.publish([b"a"]),))])
    data = path / "data.mdb"
    if how == "replaced":
        shutil.copy(data, path / "copy")
        os.replace(path / "copy", data)
    elif how == "moved":
        data.rename(path / "moved")
    else:
        data.unlink()
    for body in (b"small", bytes(100_000)):
        with pytest.raises(StoreError, match="was deleted while it was open, or replaced"):
            store.commit([QueueWrite(QUEUE, append=(writer.publish([body]),))])
    with pytest.raises(StoreError, match="was deleted while it was open, or replaced"):
        store.check()
    store.close()


def test_a_log_that_is_deleted_while_it_is_used(path: Path, writer: Writer) -> None:
    """LMDB gets what was in it with the next commit, and the log begins anew: a crash after that
    loses nothing."""
    store = open_store(path)
    entries = []
    for number in range(6):
        entries.append(writer.publish([b"%d" % number]))
        if number == 3:
            (path / "mirrorq.wal").unlink()
        store.commit([QueueWrite(QUEUE, append=(entries[-1],))])
    crashed = path.parent / "crashed"
    shutil.copytree(path, crashed)
    store.close()
    again = open_store(crashed)
    assert frames_of(again.load(QUEUE).entries) == [entry.frame for entry in entries]
    again.close()


def test_a_directory_that_was_moved_begins_no_log_in_its_successor(path: Path) -> None:
    """Another store is at the path now."""
    writer = Writer()
    store = open_store(path)
    path.rename(path.with_name("moved"))
    path.mkdir()
    for number in range(4):
        store.commit([QueueWrite(QUEUE, append=(writer.publish([b"%d" % number]),))])
    assert not list(path.iterdir())
    store.close()
