"""`Security`: the keys of a node or a client; and the endpoints allowed without keys.

With security every connection is encrypted and both ends prove their identity (CURVE, ZeroMQ RFC 25
and 26). A node proves the key listed under its name, and a client proves a listed key. Without
security, any process that reaches the endpoint of a node can read and write its queues. So a node
listens on loopback only, unless its owner declares the network trusted.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path

from attrs import field, frozen

from mirrorq.errors import ConfigError
from mirrorq.security.roles import KEYS_NAME, Key, Role, is_key_text
from mirrorq.transport.curve import public_key_of
from mirrorq.transport.endpoint import Endpoint, parse_endpoint, parse_listen


def _keys(given: Iterable[Key]) -> tuple[Key, ...]:
    keys = tuple(given)
    owners: dict[str, str] = {}
    for key in keys:
        if not isinstance(key, Key):
            raise ConfigError(
                f"{key!r} is not a mirrorq.Key: make it as Key(name, public_key, role)"
            )
        if key.name in owners.values():
            raise ConfigError(f"two keys are named {key.name!r}: give each owner a name of its own")
        if key.public_key in owners:
            other = owners[key.public_key]
            raise ConfigError(f"{other!r} and {key.name!r} have one key: make each its own")
        owners[key.public_key] = key.name
    return keys


@frozen(repr=False)
class Security:
    """A secret key, and the public keys that its owner accepts.

    `Security.load` reads keys from files; the constructor takes keys from any other source.

    Args:
        secret_key: the node's or client's own, 40 characters.
        keys: who may connect (a node), or the nodes' keys (a client: other keys do no harm).

    Raises:
        ConfigError: a key is malformed, or a key or name occurs twice.

    The repr shows no secret. A pickle of loaded keys names the file, which is loaded again where it
    is unpickled; any other pickle holds the secret key.
    """

    secret_key: str = field(repr=False)
    """Secret key of the node or client, 40 characters."""
    keys: tuple[Key, ...] = field(converter=_keys)
    """Accepted public keys."""
    path: str = field(default="", kw_only=True)
    """File of the secret key, "" without a file; `keys.toml` is beside it."""

    def __attrs_post_init__(self) -> None:
        if not is_key_text(self.secret_key):
            raise ConfigError(
                "the secret key is not a key: give the 40 characters of mirrorq key new"
            )

    @classmethod
    def load(cls, path: str | os.PathLike[str], name: str | None = None) -> Security:
        """Read keys as `mirrorq key new` writes them, and return them.

        Args:
            path: a directory that holds `keys.toml` and the file of a secret key, NAME.secret;
                or the secret file itself.
            name: owner of the key; None: the only secret key in the directory.

        Raises:
            ConfigError: a file is missing or malformed, or has permissions that are too
                wide.
        """
        from mirrorq.security.key_files import find_secret, read_keys, read_secret, secret_path

        if not isinstance(path, str | os.PathLike):
            raise ConfigError(f"keys are in a directory or a file, given by its name, not {path!r}")
        place = Path(path)
        if place.is_dir():
            place = find_secret(place) if name is None else secret_path(place, name)
        secret = read_secret(place)
        return cls(secret, read_keys(place.with_name(KEYS_NAME)), path=str(place.absolute()))

    @property
    def public_key(self) -> str:
        """Public key that belongs to the secret key."""
        return public_key_of(self.secret_key)

    @property
    def name(self) -> str:
        """Name under which the keys list the owner of the secret key, "" when not listed."""
        own = self.public_key
        return next((key.name for key in self.keys if key.public_key == own), "")

    def node_keys(self) -> tuple[str, ...]:
        """Return the public keys of the nodes."""
        return tuple(key.public_key for key in self.keys if key.role is Role.PEER)

    def check_node(self, node: str, others: Iterable[str]) -> None:
        """Refuse keys with which the node could not be part of a cluster.

        Args:
            node: name of the node.
            others: names of the other nodes of its cluster.

        Raises:
            ConfigError: its key is not the key listed under its name, or another key is missing.
        """
        peers = {key.name: key.public_key for key in self.keys if key.role is Role.PEER}
        where = f"in {Path(self.path).with_name(KEYS_NAME)}" if self.path else "among the keys"
        for name in (node, *others):
            if name not in peers:
                raise ConfigError(
                    f"no key with the role peer is named {name!r} {where}: mirrorq key new "
                    f"{name} --role peer makes one"
                )
        if peers[node] != self.public_key:
            raise ConfigError(
                f"the secret key of node {node!r} is not the one that is listed {where}: others "
                "would refuse it. Use the right file, or list the new key"
            )

    def __repr__(self) -> str:
        names = ", ".join(key.name for key in self.keys)
        return f"Security(public_key={self.public_key!r}, keys of {names or 'nobody'})"

    def __reduce__(self) -> tuple[object, ...]:
        if self.path:
            return Security.load, (self.path,)
        return Security, (self.secret_key, self.keys)


def check_listen(listen: str, *, insecure: bool, security: Security | None = None) -> None:
    """Refuse to listen where strangers can come.

    Args:
        listen: the endpoint that a node is about to bind.
        insecure: the owner accepts the risk.
        security: keys, which keep strangers out.

    Raises:
        ConfigError: the endpoint is malformed, or reachable from other machines.
    """
    check_security(security)
    endpoint = parse_listen(listen)
    if insecure or security is not None or is_loopback(endpoint):
        return
    raise ConfigError(
        f"refused to listen on {listen} without security: whoever reaches it could read and "
        "write every queue. Give it keys (security=, made by mirrorq key new), listen on "
        "127.0.0.1, or pass insecure=True when the network is trusted"
    )


def check_security(security: object) -> None:
    """Refuse a value that is not a `Security`, or None.

    Raises:
        ConfigError: the value has another type.
    """
    if security is not None and not isinstance(security, Security):
        # Its value is not shown: it may be a secret key.
        raise ConfigError(
            f"security= takes a mirrorq.Security, not a {type(security).__name__}: make one with "
            "mirrorq.Security.load(directory)"
        )


def check_endpoints(
    endpoints: Sequence[str], doing: str, *, insecure: bool, security: Security | None
) -> None:
    """Refuse to talk to other machines when strangers could listen.

    Args:
        endpoints: endpoints to connect to.
        doing: purpose for the error, such as "connect to".

    Raises:
        ConfigError: an endpoint is malformed, or on another machine; or the keys name no node.
    """
    for text in endpoints:
        if not insecure and security is None and not is_loopback(parse_endpoint(text)):
            raise ConfigError(
                f"refused to {doing} {text} without security: whoever is on the way could read "
                "and change every message. Give it keys (security=), use 127.0.0.1 or ipc, or "
                "pass insecure=True when the network is trusted"
            )
    check_security(security)
    if security is not None and not security.node_keys():
        raise ConfigError(
            f"cannot {doing} {', '.join(endpoints)}: the keys given name no node (role peer), so "
            "nobody there could be trusted. Copy the cluster's keys.toml"
        )


def is_loopback(endpoint: Endpoint) -> bool:
    """Return true if only processes of the same machine reach the endpoint."""
    return endpoint.is_ipc or is_host_loopback(endpoint.host)


def is_host_loopback(host: str) -> bool:
    """Return true if an address, or every address of a name, is local to the machine."""
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        # The name cannot be resolved: not loopback. "*" comes here too.
        return False
    return bool(found) and all(
        ipaddress.ip_address(str(info[4][0]).partition("%")[0]).is_loopback for info in found
    )
