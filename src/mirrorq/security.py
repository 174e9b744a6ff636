"""Who may be listened to.

Without keys whoever reaches the endpoint of a node can read and write its queues, so a node
listens on loopback only, unless its owner says that the network is trusted.
"""

from __future__ import annotations

import ipaddress
import socket

from mirrorq.errors import ConfigError
from mirrorq.transport.endpoint import Endpoint, parse_listen

__all__ = ["check_listen", "is_loopback"]


def check_listen(listen: str, *, insecure: bool) -> None:
    """Refuse to listen where strangers can come.

    Args:
        listen: the endpoint that a node is about to bind.
        insecure: the owner has said that this is wanted.

    Raises:
        ConfigError: the endpoint is malformed, or reachable from other machines.
    """
    endpoint = parse_listen(listen)
    if insecure or is_loopback(endpoint):
        return
    raise ConfigError(
        f"refused to listen on {listen} without security: whoever reaches it could read and "
        "write every queue. Listen on 127.0.0.1, or pass insecure=True when the network is "
        "trusted"
    )


def is_loopback(endpoint: Endpoint) -> bool:
    """Whether only processes of this machine reach the endpoint."""
    if endpoint.is_ipc:
        return True
    if endpoint.address is not None:
        return endpoint.address.is_loopback
    try:
        found = socket.getaddrinfo(endpoint.host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        # Nobody can say where this name leads: not loopback. "*" comes here too.
        return False
    return bool(found) and all(
        ipaddress.ip_address(str(info[4][0]).partition("%")[0]).is_loopback for info in found
    )
