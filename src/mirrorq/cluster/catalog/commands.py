"""Commands of the catalog as bytes: the data of Raft's entries."""

from __future__ import annotations

from typing import Any

import msgspec

from mirrorq.errors import MALFORMED, ProtocolError
from mirrorq.protocol.commands import (
    Bind,
    CatalogCommand,
    ChangeView,
    ClearPolicy,
    DeclareExchange,
    DeclareQueue,
    DeclareShards,
    DeleteExchange,
    DeleteQueue,
    DropCopy,
    NameCluster,
    NodeStopped,
    NoteConsumers,
    NoteOutbox,
    Rebalance,
    RegisterNode,
    RemoveNode,
    SetPolicy,
    Synchronise,
    TransferMaster,
    Unbind,
)

__all__ = ["LaterVersion", "decode_command", "encode_command"]

_COMMANDS: dict[int, Any] = {
    1: RegisterNode,
    2: DeclareQueue,
    3: DeleteQueue,
    4: ChangeView,
    5: RemoveNode,
    6: SetPolicy,
    7: ClearPolicy,
    20: NoteConsumers,
    23: NoteOutbox,
    12: Synchronise,
    30: DeclareExchange,
    31: DeleteExchange,
    32: Bind,
    33: Unbind,
    16: NodeStopped,
    8: TransferMaster,
    9: Rebalance,
    21: NameCluster,
    22: DropCopy,
    24: DeclareShards,
}
"""Tag of each command. The tags are in logs on disk and never change meaning."""

_TAGS: dict[Any, int] = {command: tag for tag, command in _COMMANDS.items()}


class LaterVersion(ProtocolError):
    """What other nodes apply and this one cannot: it must not go on as if it had."""


def encode_command(command: CatalogCommand) -> bytes:
    """Return the command as the data of a Raft entry."""
    return msgspec.msgpack.encode((_TAGS[type(command)], command))


def decode_command(data: bytes) -> CatalogCommand:
    """Return the command that `encode_command` wrote.

    Raises:
        ProtocolError: the bytes are no command, or one of a later version.
    """
    try:
        tag, raw = msgspec.msgpack.decode(data, type=tuple[int, msgspec.Raw])
        if tag not in _COMMANDS:
            raise LaterVersion(
                f"catalog command {tag} is of a later version: upgrade this node to go on"
            )
        command: CatalogCommand = msgspec.msgpack.decode(raw, type=_COMMANDS[tag])
    except MALFORMED as error:
        raise ProtocolError(f"{len(data)} bytes are no catalog command: {error}") from error
    return command
