"""One module alone makes Linux' own calls."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrorq import system
from mirrorq.store.write_ahead import LogFile

SOURCES = Path(system.__file__).parent
LINUX_ALONE = re.compile(
    r"/proc/|CLOCK_BOOTTIME|\bos\.fsync|\bfdatasync|O_DSYNC|O_DIRECT\b|posix_fallocate|TCP_INFO|eventfd|prctl"
    r"|pidfd|setns|unshare|memfd|sched_setaffinity|SO_PEERCRED|sys\.platform"
)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 5000)
    descriptor = os.open(path, os.O_RDWR)
    yield path, descriptor
    os.close(descriptor)


def code_of(path: Path) -> Iterator[str]:
    """Its lines, without what is only said in a text."""
    text = re.sub(r'""".*?"""', "", path.read_text("utf-8"), flags=re.DOTALL)
    yield from (line.partition("#")[0] for line in text.splitlines())


def test_one_module_alone_knows_linux() -> None:
    """Another system would need another module, and nothing else. What builds the C part imports
    nothing of mirrorq, and names a linker's libraries."""
    knowing = {SOURCES / "system.py", SOURCES / "_native" / "build.py"}
    others = [path for path in sorted(SOURCES.rglob("*.py")) if path not in knowing]
    found = [
        f"{path.relative_to(SOURCES)}: {line.strip()}"
        for path in others
        for line in code_of(path)
        if LINUX_ALONE.search(line)
    ]
    assert found == []


def test_blocks_are_owned_and_what_was_there_stays(file: tuple[Path, int]) -> None:
    """From where the caller knows them, or from the file's end where that has grown since."""
    path, descriptor = file
    end = 3 << 20
    system.take_blocks(descriptor, 4096, end)
    assert path.stat().st_size == end
    assert path.stat().st_blocks * 512 >= end
    assert path.read_bytes() == b"x" * 5000 + bytes(end - 5000)


def test_blocks_that_are_not_given_are_an_error(
    file: tuple[Path, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError("no space")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(OSError, match="no space"):
        system.take_blocks(file[1], 5000, 9000)


@pytest.mark.real
def test_what_was_received_is_counted() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    with listening, socket.create_connection(listening.getsockname()) as ours:
        theirs, _ = listening.accept()
        with theirs:
            ours.sendall(b"x" * 1000)
            assert len(theirs.recv(1000, socket.MSG_WAITALL)) == 1000
            assert system.bytes_received(theirs) == 1000


@pytest.mark.real
def test_what_no_socket_says_is_not_known() -> None:
    left, right = socket.socketpair()
    with left, right:
        assert system.bytes_received(left) == 0


def test_the_kernel_tells_which_boot_this_is() -> None:
    assert system.boot_id()
    assert 1024 < system.first_outgoing_port() < 65536


def test_a_write_to_the_log_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the flag of its file: no sync follows."""
    log = LogFile(tmp_path)
    calls: list[str] = []
    whole, sync = os.pwritev, os.fsync

    def short(descriptor: int, pieces: list[bytes], offset: int) -> int:
        calls.append("write")
        return whole(descriptor, [b"".join(pieces)[:600]], offset)

    monkeypatch.setattr(os, "pwritev", short)
    monkeypatch.setattr(os, "fsync", lambda d: (calls.append("sync"), sync(d)))
    log.write(0, [b"x" * 1000])
    log.close()
    assert calls == ["write", "write"]
