"""Nodes that `MirroredQueue(…)` brings with it: one a path in a process, shared and counted."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import define

from mirrorq.config import Config
from mirrorq.errors import ConfigError
from mirrorq.node import Node
from mirrorq.security import Security

__all__ = ["acquire", "release"]


@define
class _Shared:
    node: Node
    arguments: dict[str, Any]
    users: int


_LOCK = threading.Lock()
_NODES: dict[tuple[int, str], _Shared] = {}


def acquire(
    name: str,
    *,
    path: str | os.PathLike[str],
    peers: Mapping[str, str] | None,
    config: Config | None,
    witness: bool,
    security: Security | None,
    insecure: bool,
    listen: str | None,
    join: str | Sequence[str] | None,
    dashboard: str | None,
) -> Node:
    """The node on this path: the one that is open here, if its arguments are equal.

    Raises:
        ConfigError: a node with other arguments has this path open in this process.
    """
    arguments: dict[str, Any] = {
        "name": name,
        "peers": dict(peers or {}),
        "config": config or Config(),
        "witness": witness,
        "security": security,
        "insecure": insecure,
        "listen": listen,
        "join": join,
        "dashboard": dashboard,
    }
    key = (os.getpid(), str(Path(path).resolve()))
    with _LOCK:
        shared = _NODES.get(key)
        if shared is None:
            node = Node(
                name,
                path=path,
                peers=peers,
                config=config,
                witness=witness,
                security=security,
                insecure=insecure,
                listen=listen,
                join=join,
                dashboard=dashboard,
            )
            shared = _NODES[key] = _Shared(node, arguments, 0)
        elif shared.arguments != arguments:
            differ = [n for n, value in arguments.items() if shared.arguments[n] != value]
            raise ConfigError(
                f"the node on {key[1]} is open in this process with other values of "
                f"{', '.join(differ)}: give both handles equal arguments"
            )
        shared.users += 1
        return shared.node


def release(node: Node) -> None:
    """A handle no longer needs it; the last one closes it."""
    with _LOCK:
        for key, shared in list(_NODES.items()):
            if shared.node is node:
                shared.users -= 1
                if shared.users == 0:
                    del _NODES[key]
                    node.close()
                return
