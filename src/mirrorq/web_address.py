"""Where pages are served: `host:port` as a user writes it."""

from __future__ import annotations

from mirrorq.errors import ConfigError

__all__ = ["split_address"]


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
