"""What the kernel counts of a process: CPU time, instructions, memory, and the bytes that it sent.

Read from outside, so that nothing of it costs the process that is measured.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
from collections.abc import Sequence
from pathlib import Path

_CLOCK_HZ = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """CPU seconds that a process has used, user and system, in steps of 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _CLOCK_HZ


def counter(process: Path, key: str) -> int:
    """A number in `status` of a process or thread: `RssAnon` in KiB, context switches, …"""
    for line in (process / "status").read_text(encoding="ascii").splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1])
    return 0


def anonymous_mb(pid: int) -> float:
    """RssAnon, in MB: what a process holds besides mapped files, whose pages the kernel takes
    back when it needs them."""
    return counter(Path(f"/proc/{pid}"), "RssAnon") * 1024 / 1e6


# --- Instructions -----------------------------------------------------------------------------

_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}.get(os.uname().machine)
_INSTRUCTIONS = 1
_INHERIT = 1 << 1
_EXCLUDE_KERNEL = 1 << 5
_EXCLUDE_HYPERVISOR = 1 << 6
_ATTRIBUTES = struct.Struct("IIQQQQQ64x")
"""perf_event_attr of its second version, 112 bytes: type, size, config, period, sample_type,
read_format, flags, and what nobody needs here."""


class Instructions:
    """Counts the instructions (user) of all threads that these processes have now, and of those
    that these start. Other work on the machine hardly changes them.

    `count` gives what has come since the last call; None where the kernel does not let count.
    """

    def __init__(self, pids: Sequence[int]) -> None:
        self._counters: list[list[int]] = []
        self._seen: list[int] = []
        try:
            for pid in pids:
                self._counters.append([])
                for thread in os.listdir(f"/proc/{pid}/task"):
                    self._counters[-1].append(_open_counter(int(thread)))
        except OSError:
            self.close()
            self._counters = [[] for _ in pids]
        self._seen = self._totals()

    def count(self) -> list[int | None]:
        """Of each process since the last call."""
        totals = self._totals()
        found: list[int | None] = [
            now - was if counters else None
            for now, was, counters in zip(totals, self._seen, self._counters, strict=True)
        ]
        self._seen = totals
        return found

    def _totals(self) -> list[int]:
        return [
            sum(int.from_bytes(os.read(each, 8), "little") for each in counters)
            for counters in self._counters
        ]

    def close(self) -> None:
        for counters in self._counters:
            while counters:
                os.close(counters.pop())


def _open_counter(thread: int) -> int:
    if _PERF_EVENT_OPEN is None:
        raise OSError("no number of perf_event_open is known for this machine")
    flags = _INHERIT | _EXCLUDE_KERNEL | _EXCLUDE_HYPERVISOR
    size = _ATTRIBUTES.size
    attributes = ctypes.create_string_buffer(
        _ATTRIBUTES.pack(0, size, _INSTRUCTIONS, 0, 0, 0, flags), size
    )
    libc = ctypes.CDLL(None, use_errno=True)
    opened = int(libc.syscall(_PERF_EVENT_OPEN, attributes, thread, -1, -1, 0))
    if opened < 0:
        raise OSError(ctypes.get_errno(), "perf_event_open")
    return opened


# --- Bytes sent -------------------------------------------------------------------------------

_DUMP_SOCKETS = 20
_REQUEST_DUMP = 0x1 | 0x300
_DONE, _ERROR = 3, 2
_TCP_INFO = 2
_ESTABLISHED = 1 << 1
_BYTES_SENT = 200
"""Offset of tcpi_bytes_sent in the kernel's tcp_info."""
_HEADER = struct.Struct("=IHHII")
_MESSAGE_BYTES = 72
"""inet_diag_msg: ports at 4 and 6, the socket's inode at 68; attributes follow."""


def sent_bytes(pids: Sequence[int], ports: Sequence[int]) -> list[int]:
    """Bytes that each of these processes has sent over TCP connections that still stand and lead
    to one of these ports."""
    inodes = [_socket_inodes(pid) for pid in pids]
    sent = [0] * len(pids)
    for inode, port, count in _connections():
        if port in ports:
            for place, own in enumerate(inodes):
                if inode in own:
                    sent[place] += count
    return sent


def _socket_inodes(pid: int) -> set[int]:
    found: set[int] = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            kind, _, inode = os.readlink(descriptor).partition(":")
            if kind == "socket":
                found.add(int(inode.strip("[]")))
    return found


def _connections() -> list[tuple[int, int, int]]:
    """(inode, port of the other end, bytes sent) of all TCP connections, as `ss -ti` has them."""
    found: list[tuple[int, int, int]] = []
    for family in (socket.AF_INET, socket.AF_INET6):
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as diagnosis:
            asked = struct.pack(
                "=BBBBI48x", family, socket.IPPROTO_TCP, 1 << (_TCP_INFO - 1), 0, _ESTABLISHED
            )
            size = _HEADER.size + len(asked)
            diagnosis.send(_HEADER.pack(size, _DUMP_SOCKETS, _REQUEST_DUMP, 0, 0) + asked)
            while _read_answers(diagnosis.recv(1 << 18), found):
                pass
    return found


def _read_answers(data: bytes, found: list[tuple[int, int, int]]) -> bool:
    """Whether more will come."""
    while data:
        size, kind, *_ = _HEADER.unpack_from(data)
        if kind == _DONE:
            return False
        if kind == _ERROR:
            raise OSError("the kernel does not tell of its connections: CONFIG_INET_TCP_DIAG")
        body = data[_HEADER.size : size]
        port = int.from_bytes(body[6:8], "big")
        inode = int.from_bytes(body[68:72], "little")
        attributes = body[_MESSAGE_BYTES:]
        while len(attributes) >= 4:
            length, name = struct.unpack_from("=HH", attributes)
            if name == _TCP_INFO and length >= 4 + _BYTES_SENT + 8:
                count = int.from_bytes(attributes[4 + _BYTES_SENT : 12 + _BYTES_SENT], "little")
                found.append((inode, port, count))
            attributes = attributes[(length + 3) & ~3 :]
        data = data[(size + 3) & ~3 :]
    return True
