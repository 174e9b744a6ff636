"""Calls and files of Linux alone: no other module uses any."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys
import time
from pathlib import Path

if sys.platform != "linux":
    raise ImportError(f"mirrorq runs on Linux only, and this is {sys.platform}")

CLOCK = time.CLOCK_BOOTTIME
"""Clock that goes on while the machine sleeps: a node must notice a sleep longer than its lease."""

IPC_PATH_BYTES_MAX = 107
"""Limit of a socket's path: there is room for 108 bytes with the 0 at the end."""

PRIVATE_FILE = 0o600
PRIVATE_DIRECTORY = 0o700
"""Mode of directories of a node, a spool, a backup and keys: for this user alone."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MOUNTS = Path("/proc/self/mountinfo")
_LOCKS = Path("/proc/locks")
_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST_OUTGOING = 32_768
_BYTES_RECEIVED = struct.Struct("=Q")
_BYTES_RECEIVED_AT = 128
"""Offset of tcpi_bytes_received in Linux' tcp_info."""


def boot_id() -> str:
    """Return the id of this boot of the machine; "" if unknown."""
    return _word(_BOOT_ID)


def file_system_of(path: Path) -> str:
    """Return the kind of file system of a directory, such as "ext4"; "" if unknown."""
    try:
        device = path.stat().st_dev
        mounts = _MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts:
        # 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
        mount, _, source = line.partition(" - ")
        if source and mount.split()[2] == wanted:
            return source.split()[0]
    return ""


def users_with_locks_on(file: os.stat_result) -> set[int]:
    """Return the users whose processes have locked a file; none if unknown."""
    found: set[int] = set()
    device = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}"
    try:
        for line in _LOCKS.read_text().splitlines():
            # 1: FLOCK  ADVISORY  WRITE 1234 08:02:131 0 EOF
            *_, process, locked, _, _ = line.split()
            if locked == f"{device}:{file.st_ino}":
                found.add(os.stat(f"/proc/{process}").st_uid)
    except OSError:
        return set()
    return found


def make_private_directory(path: Path) -> None:
    """Make a directory, and its missing parents, for this user alone, under any umask. An existing
    directory is left unchanged.

    Raises:
        OSError: the directory cannot be made, or the path is no directory.
    """
    try:
        path.mkdir(PRIVATE_DIRECTORY)
    except FileNotFoundError:
        make_private_directory(path.parent)
        path.mkdir(PRIVATE_DIRECTORY, exist_ok=True)
    except OSError:
        if not path.is_dir():
            raise


def first_outgoing_port() -> int:
    """Return the first port that the system gives to outgoing connections; a low guess if
    unknown."""
    first = _word(_PORT_RANGE)
    return int(first) if first.isdecimal() else _FIRST_OUTGOING


def sync(descriptor: int) -> None:
    """Return when all written bytes of the file are on disk."""
    os.fsync(descriptor)


def synced_writes() -> int:
    """Return the flag of `os.open` under which a write is on disk at its return."""
    return os.O_DSYNC


def go_past_cache(descriptor: int) -> bool:
    """Have what is written to a file go past the kernel's cache, which makes a synced write
    shorter: from then on whole pages of memory are written to pages of the file. False where that
    cannot be."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_DIRECT)
    except OSError:
        return False  # the file system does not know it
    return True


def go_through_cache(descriptor: int) -> None:
    """The end of `go_past_cache`."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)


def take_blocks(descriptor: int, start: int, end: int) -> None:
    """Allocate the blocks of a file from `start` up to `end`.

    Raises:
        OSError: the disk, a quota or a limit does not allow the blocks.
    """
    os.posix_fallocate(descriptor, start, end - start)


def may_open(count: int) -> bool:
    """Return true if this process can open `count` more files, by trying."""
    opened: list[int] = []
    try:
        while len(opened) < count:
            opened += os.pipe()
    except OSError:
        return False
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return True


def bytes_received(connection: socket.socket) -> int:
    """Return the bytes that the kernel has received on a connection; 0 if unknown."""
    wanted = _BYTES_RECEIVED_AT + _BYTES_RECEIVED.size
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, wanted)
    except OSError:
        return 0
    if len(info) < wanted:
        return 0
    (received,) = _BYTES_RECEIVED.unpack_from(info, _BYTES_RECEIVED_AT)
    return int(received)


def _word(path: Path) -> str:
    """The first word of a file of the kernel; "" where there is none."""
    try:
        return path.read_text(encoding="ascii").split()[0]
    except (OSError, IndexError):
        return ""
