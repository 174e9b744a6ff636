"""Where pages are served: `host:port` as a user writes it."""

from __future__ import annotations

import errno

from mirrorq.errors import ConfigError

__all__ = ["split_address", "why_not"]


def split_address(address: str, example: str) -> tuple[str, int]:
    """Host and port of `host:port`, `:port` or `port`; without a host, loopback.

    Args:
        example: an address that would do, for the error.

    Raises:
        ConfigError: it is none of these.
    """
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"{address!r} is no address: give host:port, as {example}")
    return host.strip("[]") or "127.0.0.1", int(port)


def why_not(error: Exception) -> str:
    """Why nothing is served at an address, and what to do."""
    number = getattr(error, "errno", None)
    if number == errno.EADDRINUSE:
        return "something listens there already: stop it, or give another port"
    if number == errno.EADDRNOTAVAIL:
        return "this machine has no such address: give one of its own, or 127.0.0.1"
    if number == errno.EACCES:
        return "this user may not listen there: give a port above 1023"
    return str(error)
