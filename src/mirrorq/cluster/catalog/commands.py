"""Commands of the catalog as bytes: the data of Raft's entries."""

from __future__ import annotations

from typing import Any

import msgspec

from mirrorq.errors import MALFORMED, ProtocolError
from mirrorq.protocol import commands

_COMMANDS: dict[int, Any] = {
    1: commands.RegisterNode,
    2: commands.DeclareQueue,
    3: commands.DeleteQueue,
    4: commands.ChangeView,
    5: commands.RemoveNode,
    6: commands.SetPolicy,
    7: commands.ClearPolicy,
    20: commands.NoteConsumers,
    23: commands.NoteOutbox,
    12: commands.Synchronise,
    30: commands.DeclareExchange,
    31: commands.DeleteExchange,
    32: commands.Bind,
    33: commands.Unbind,
    16: commands.NodeStopped,
    8: commands.TransferMaster,
    9: commands.Rebalance,
    21: commands.NameCluster,
    22: commands.DropCopy,
    24: commands.DeclareShards,
    43: commands.AcknowledgeLosses,
}
"""Tag of each command. The tags are in logs on disk and never change meaning."""

_TAGS: dict[Any, int] = {command: tag for tag, command in _COMMANDS.items()}


class LaterVersion(ProtocolError):
    """A command of a later version, applied by newer nodes: this node must not go on without it."""


def encode_command(command: commands.CatalogCommand) -> bytes:
    """Return the command as the data of a Raft entry."""
    return msgspec.msgpack.encode((_TAGS[type(command)], command))


def decode_command(data: bytes) -> commands.CatalogCommand:
    """Return the command of `encode_command`.

    Raises:
        ProtocolError: the bytes are no command, or a command of a later version.
    """
    try:
        tag, raw = msgspec.msgpack.decode(data, type=tuple[int, msgspec.Raw])
        if tag not in _COMMANDS:
            raise LaterVersion(
                f"catalog command {tag} is of a later version: upgrade this node to go on"
            )
        command: commands.CatalogCommand = msgspec.msgpack.decode(raw, type=_COMMANDS[tag])
    except MALFORMED as error:
        raise ProtocolError(
            f"a catalog command of {len(data)} bytes cannot be read: {error}"
        ) from error
    return command
