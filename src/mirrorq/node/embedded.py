"""Nodes of `MirroredQueue(…, path=…)`: one for each path in a process, shared and counted."""

from __future__ import annotations

import os
from typing import Any, Unpack

from mirrorq.api.arguments import checked_path
from mirrorq.api.options import NodeOptions, said_of_node
from mirrorq.api.sharing import Sharing, Use
from mirrorq.config import Config
from mirrorq.errors import ConfigError
from mirrorq.node.node import Node

NODES: Sharing[Node] = Sharing()


def acquire(
    use: Use,
    name: str,
    *,
    path: str | os.PathLike[str],
    salvages: bool = False,
    **options: Unpack[NodeOptions],
) -> Node:
    """Return the node on a path: the node that is open in the process, or a new node.

    Args:
        salvages: use the store in spite of damaged ops in its log.

    Raises:
        ConfigError: a node with other arguments has the path open in the process.
    """
    arguments: dict[str, Any] = {"name": name, **said_of_node(options)}
    arguments["peers"] = dict(arguments["peers"] or ()) or None
    arguments["config"] = arguments["config"] or Config()
    where = str(checked_path(path).resolve())

    def make() -> Node:
        node = Node.__new__(Node)
        node._salvages = salvages
        try:
            Node.__init__(node, path=path, **arguments)
            return node
        except BaseException:
            node._give_up()
            raise

    def is_fit(node: Node, others: Any) -> bool:
        differ = [one for one, value in arguments.items() if others[one] != value]
        if differ:
            raise ConfigError(
                f"the node on {where} is open in this process with other values of "
                f"{', '.join(differ)}: give both handles equal arguments"
            )
        return True

    return NODES.add_use(use, (os.getpid(), where), arguments, make, is_fit)
