"""Free TCP ports on loopback, for processes that are about to start."""

from __future__ import annotations

import random
import socket
from pathlib import Path

__all__ = ["free_ports"]

_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LEAST = 10_000
_TRIES_MAX = 10_000


def free_ports(count: int) -> list[int]:
    """Return ports that nothing listens on now.

    They lie below the range from which the kernel takes the ports of outgoing connections:
    while a peer is dead, those that try to reach it again would otherwise sometimes be given
    its own port, and it could not come back.
    """
    found: list[int] = []
    candidates = random.SystemRandom()
    for _ in range(_TRIES_MAX):
        if len(found) == count:
            return found
        port = candidates.randrange(_LEAST, _first_outgoing())
        if port not in found and _is_free(port):
            found.append(port)
    raise OSError(f"no {count} free ports between {_LEAST} and {_first_outgoing()}")


def _first_outgoing() -> int:
    try:
        first = int(_RANGE_FILE.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768
    return first if first > _LEAST + 1_000 else 65_536


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
