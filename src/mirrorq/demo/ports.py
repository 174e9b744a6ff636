"""Free TCP ports on loopback, for processes that are about to start."""

from __future__ import annotations

import fcntl
import os
import random
import socket
from collections import deque
from pathlib import Path

from mirrorq import system

_HELD_FILES = (Path(os.__file__), Path(__file__).parents[1] / "py.typed")
"""Files that all processes of this machine's Python see, or, if not writable, all processes of this
installation. A process that was given port n locks byte n; the files' content never changes."""
_HELD_MAX = 500
"""The latest ports of this process that are kept from other processes, at most."""
_LEAST = 10_000
_TRIES_MAX = 10_000

_held: deque[int] = deque()
_files: list[int] = []
"""The descriptor of one of `_HELD_FILES`, once open, for the lifetime of the process."""


def free_ports(count: int) -> list[int]:
    """Return ports without a listener that no other process was given of late: a process may not
    have bound its port yet, or may be dead and about to come back.

    The ports lie below the range from which the kernel takes the ports of outgoing connections.
    Otherwise a process that reconnects to a dead peer might get the peer's own port, and the peer
    could not come back.
    """
    found: list[int] = []
    candidates = random.SystemRandom()
    for _ in range(_TRIES_MAX):
        if len(found) == count:
            return found
        port = candidates.randrange(_LEAST, _first_outgoing())
        if port not in _held and _is_free(port) and _hold(port):
            found.append(port)
    raise OSError(f"no {count} free ports between {_LEAST} and {_first_outgoing()}")


def _first_outgoing() -> int:
    first = system.first_outgoing_port()
    return first if first > _LEAST + 1_000 else 65_536


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _hold(port: int) -> bool:
    """Keep a port from other processes of this installation; False: another has the port."""
    try:
        if not _files:
            _files.append(_open_held())
        fcntl.lockf(_files[0], fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except BlockingIOError:
        return False
    except OSError:
        pass  # somebody else's files: then the ports are free as far as anybody knows
    _held.append(port)
    if len(_held) > _HELD_MAX:
        oldest = _held.popleft()
        if _files:
            fcntl.lockf(_files[0], fcntl.LOCK_UN, 1, oldest)
    return True


def _open_held() -> int:
    """Open the first file that may be written.

    Raises:
        OSError: no file may be written.
    """
    for path in _HELD_FILES:
        if os.access(path, os.W_OK):
            return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    raise OSError(f"none of {', '.join(map(str, _HELD_FILES))} may be locked")
