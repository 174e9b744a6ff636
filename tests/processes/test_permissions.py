"""What another user of the machine can do with a node's files and sockets: nothing."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import mirrorq
from mirrorq import Config, Node
from mirrorq.cli.keys import keygen
from mirrorq.node.local import LocalFolder
from mirrorq.store.node_store import Store
from mirrorq.store.pathlock import SharedPathLock

from .cluster import DEADLINE_S, until

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that everybody may enter, as pytest's own are not."""
    made = Path(tempfile.mkdtemp(prefix="mirrorq-permissions-"))
    made.chmod(0o777)
    try:
        yield made
    finally:
        shutil.rmtree(made)


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def beside(work: Callable[[], object]) -> Iterator[str]:
    """A process of another user has done this, and lives until the end; what came of it."""
    reader, writer = os.pipe()
    ends, end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(end)
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            try:
                told = repr(work())
            except Exception as error:
                told = type(error).__name__
            os.write(writer, told.encode())
            os.close(writer)
            os.read(ends, 1)
        finally:
            os._exit(0)
    os.close(writer)
    os.close(ends)
    try:
        with os.fdopen(reader) as pipe:
            yield pipe.read()
    finally:
        os.close(end)
        os.waitpid(pid, 0)


def as_nobody(work: Callable[[], object]) -> str:
    with beside(work) as told:
        return told


def open_to_others(top: Path) -> list[str]:
    """Whatever below a directory others have any right to; and the directory."""
    found = [top, *top.rglob("*")]
    return [str(one) for one in found if stat.S_IMODE(one.lstat().st_mode) & 0o077]


@pytest.mark.parametrize("mask", [0, pytest.param(0o022, marks=pytest.mark.soak), 0o077])
def test_everything_is_made_for_one_user(place: Path, mask: int) -> None:
    """Stores, logs, sockets, spools, backups and secret keys, whatever the umask says."""
    with umask(mask):
        with Node("a", path=place / "data" / "a", listen=f"ipc://{place}/data/a/a.sock") as node:
            node.wait_ready(DEADLINE_S)
            queue = node.queue("q", timeout=DEADLINE_S)
            spooled = node.queue("q", timeout=DEADLINE_S, spool=True)
            for body in (b"1", b"2", b"3"):
                queue.put(body).result(DEADLINE_S)
                spooled.put(body).result(DEADLINE_S)
            assert (place / "data" / "a" / "mirrorq.wal").exists()
            assert open_to_others(place / "data") == []
            command = [
                sys.executable,
                "-m",
                "mirrorq",
                "store",
                "backup",
                node.path,
                place / "kept" / "b",
            ]
            subprocess.run(command, check=True, capture_output=True, timeout=DEADLINE_S)
        assert open_to_others(place / "kept") == []
        with mirrorq.local(place / "local", linger=0, timeout=DEADLINE_S) as client:
            client.queue("q", timeout=DEADLINE_S).put(b"x").result(DEADLINE_S)
            assert {"node.sock", "node.log", "node.json", "linger"} <= set(
                os.listdir(place / "local")
            )
            assert open_to_others(place / "local") == []
        until(lambda: LocalFolder.of(place / "local").pid() is None)
        with Node.spawn("a", path=place / "spawned") as spawned:
            spawned.wait_ready(DEADLINE_S)
            assert open_to_others(place / "spawned") == []
        keys = place / "keys"
        keygen.main(["a", "--role", "peer", "--keys", str(keys)], standalone_mode=False)
        assert open_to_others(keys) == [str(keys / "keys.toml")]  # of public keys only


def test_what_was_open_to_others_is_closed(place: Path) -> None:
    """A store that was copied by hand, or made under a directory of a package: its own user takes
    the rights of others away."""
    path = place / "a"
    path.mkdir()
    path.chmod(0o755)
    Store(path, node="a", config=Config()).close()
    assert open_to_others(path) == []
    for one in (path, *path.iterdir()):
        one.chmod(0o777)
    Store(path, node="a", config=Config()).close()
    assert open_to_others(path) == []


@as_root
def test_another_users_directory_is_left_and_told_of(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = place / "a"
    path.mkdir()
    os.chown(path, NOBODY, NOBODY)
    path.chmod(0o755)
    Store(path, node="a", config=Config()).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    assert f"belongs to user {NOBODY} and has mode 0755" in caplog.text
    assert open_to_others(path) == [str(path)]


@as_root
def test_another_user_reads_nothing(place: Path) -> None:
    with umask(0), Node("a", path=place / "a") as node:
        node.wait_ready(DEADLINE_S)
        node.queue("q", timeout=DEADLINE_S).put(b"secret").result(DEADLINE_S)
        for name in ("data.mdb", "mirrorq.wal", "mirrorq.lock"):
            assert as_nobody(lambda name=name: (place / "a" / name).read_bytes()) == (  # type: ignore[misc]
                "PermissionError"
            )
        assert as_nobody(lambda: os.listdir(place / "a")) == "PermissionError"


@as_root
def test_another_user_is_served_at_no_socket(place: Path) -> None:
    """Its mode keeps them out, and where somebody has changed that, the kernel says who comes."""
    path = f"{place}/a.sock"

    def greeting() -> bytes:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(DEADLINE_S)
            probe.connect(path)
            return probe.recv(1)

    with umask(0), Node("a", path=place / "a", listen=f"ipc://{path}") as node:
        node.wait_ready(DEADLINE_S)
        assert greeting() == b"\xff"
        assert as_nobody(greeting) == "PermissionError"
        os.chmod(path, 0o777)
        assert as_nobody(greeting) in ("b''", "ConnectionResetError")
        assert greeting() == b"\xff"


@as_root
@pytest.mark.parametrize("how", [fcntl.LOCK_SH, fcntl.LOCK_EX])
def test_another_users_lock_keeps_no_node_from_starting(place: Path, how: int) -> None:
    """On a directory that was open to others, and on what was in it; our own still count."""
    path = place / "a"
    Store(path, node="a", config=Config()).close()
    path.chmod(0o755)
    (path / "mirrorq.lock").chmod(0o666)

    def lock() -> str:
        for name in (path, path / "mirrorq.lock"):
            fcntl.flock(os.open(name, os.O_RDONLY), how)
        fcntl.lockf(os.open(path / "mirrorq.lock", os.O_RDWR), how)
        return "locked"

    with beside(lock) as told:
        assert told == "'locked'"
        SharedPathLock(path).release()
        store = Store(path, node="a", config=Config())
        with pytest.raises(mirrorq.StoreLocked):
            Store(path, node="a", config=Config())
        store.close()
        shared = SharedPathLock(path)
        with pytest.raises(mirrorq.StoreLocked):
            Store(path, node="a", config=Config())
        shared.release()
        assert open_to_others(path) == []
        assert as_nobody(lambda: os.open(path, os.O_RDONLY)) == "PermissionError"
