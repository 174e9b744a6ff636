"""`Security`: the keys of a node or a client; and where one may listen without any.

With security every connection is encrypted and both ends prove who they are (CURVE, ZeroMQ RFC
25 and 26): a node that it has the key under its name, a client that it has one that is listed.
Without, whoever reaches the endpoint of a node can read and write its queues, so a node listens on
loopback only, unless its owner says that the network is trusted.
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
    """A secret key, and the public keys that its owner goes by.

    `Security.load` reads them from files; this makes them of what a program has from elsewhere.

    Args:
        secret_key: this node's or client's own, 40 characters.
        keys: who may connect (a node), or the nodes' keys (a client: others do no harm).

    Raises:
        ConfigError: something is no key, or named twice.

    Its repr shows no secret. A copy that is pickled names the file if it was loaded from one,
    and is loaded anew where it is unpickled; else it holds the secret key.
    """

    secret_key: str = field(repr=False)
    """This node's or client's own, 40 characters."""
    keys: tuple[Key, ...] = field(converter=_keys)
    """Public keys that it goes by."""
    path: str = field(default="", kw_only=True)
    """File of the secret key, "" when it came from elsewhere; `keys.toml` is beside it."""

    def __attrs_post_init__(self) -> None:
        if not is_key_text(self.secret_key):
            raise ConfigError(
                "the secret key is not a key: give the 40 characters of mirrorq key new"
            )

    @classmethod
    def load(cls, path: str | os.PathLike[str], name: str | None = None) -> Security:
        """Read keys as `mirrorq key new` writes them.

        Args:
            path: a directory that holds `keys.toml` and the file of a secret key, NAME.secret;
                or that file itself.
            name: whose key; None: the only one in the directory.

        Raises:
            ConfigError: a file is missing or malformed, or others may read or write what they
                must not.
        """
        from mirrorq.security.key_files import find_secret, read_keys, read_secret, secret_path

        place = Path(path)
        if place.is_dir():
            place = find_secret(place) if name is None else secret_path(place, name)
        secret = read_secret(place)
        return cls(secret, read_keys(place.with_name(KEYS_NAME)), path=str(place.absolute()))

    @property
    def public_key(self) -> str:
        """The one that belongs to the secret key."""
        return public_key_of(self.secret_key)

    @property
    def name(self) -> str:
        """What the keys call the owner of this secret key, "" when they do not list it."""
        own = self.public_key
        return next((key.name for key in self.keys if key.public_key == own), "")

    def node_keys(self) -> tuple[str, ...]:
        """The public keys of the nodes."""
        return tuple(key.public_key for key in self.keys if key.role is Role.PEER)

    def check_node(self, node: str, others: Iterable[str]) -> None:
        """Refuse keys with which a node of this name could not be part of a cluster.

        Args:
            node: its name.
            others: names of the other nodes of its cluster.

        Raises:
            ConfigError: its key is not the one listed under its name, or another's is missing.
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
        insecure: the owner has said that this is wanted.
        security: with keys nobody can come who has none.

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
    """Refuse what is given as security and is none.

    Raises:
        ConfigError: it is no `Security`.
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
    """Refuse to talk to other machines when others could listen.

    Args:
        endpoints: that somebody is about to connect to.
        doing: what for, such as "connect to".

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
    """Whether only processes of this machine reach the endpoint."""
    return endpoint.is_ipc or is_host_loopback(endpoint.host)


def is_host_loopback(host: str) -> bool:
    """Whether an address, or every address of a name, is this machine's own alone."""
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        # Nobody can say where this name leads: not loopback. "*" comes here too.
        return False
    return bool(found) and all(
        ipaddress.ip_address(str(info[4][0]).partition("%")[0]).is_loopback for info in found
    )
