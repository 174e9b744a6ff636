"""Catalog commands in Raft's log: each command with its asker. Pure."""

from __future__ import annotations

import msgspec

from mirrorq.cluster.catalog.catalog import Catalog
from mirrorq.cluster.catalog.commands import decode_command, encode_command
from mirrorq.cluster.catalog.deduplication import Request
from mirrorq.cluster.raft.messages import KIND_COMMAND
from mirrorq.errors import MALFORMED, ProtocolError
from mirrorq.protocol.commands import CatalogCommand, RegisterNode
from mirrorq.protocol.effects import RaftEntry, RaftImage
from mirrorq.protocol.identities import MemberId


class Proposal(msgspec.Struct, array_like=True):
    """`number`: number of the asker's request, 0 when no asker waits."""

    node: str
    incarnation: int
    number: int
    command: bytes
    store: int
    """Store of the asker."""
    oldest: int

    @property
    def request(self) -> Request | None:
        """The request of the proposal; None for the leader's own command."""
        if not self.number:
            return None
        member = MemberId(self.node, self.store, self.incarnation)
        return Request(member, self.number, self.oldest)


def pack(asker: MemberId, number: int, command: CatalogCommand, oldest: int = 0) -> bytes:
    """Return a command as the data of an entry."""
    data = encode_command(command)
    proposal = Proposal(asker.node, asker.incarnation, number, data, asker.store, oldest)
    return msgspec.msgpack.encode(proposal)


def unpack(entry: RaftEntry) -> tuple[Proposal, CatalogCommand]:
    """Return the arguments of `pack`.

    Raises:
        ProtocolError: the entry holds no command, or a command of a later version.
    """
    try:
        proposal = msgspec.msgpack.decode(entry.data, type=Proposal)
    except MALFORMED as error:
        raise ProtocolError(f"entry {entry.index} holds no command: {error}") from error
    return proposal, decode_command(proposal.command)


def recorded_endpoints(image: RaftImage) -> dict[str, str]:
    """Return the nodes' endpoints in the store's last write, committed or not.

    A node without configured peers finds its cluster by the endpoints, before it knows a leader.
    """
    found: dict[str, str] = {}
    try:
        if image.snapshot is not None and image.snapshot.pages:
            catalog = Catalog.restore(image.snapshot.pages)
            found = {node.name: node.endpoint for node in catalog.nodes()}
    except ProtocolError:
        return {}
    for entry in image.entries:
        if entry.kind == KIND_COMMAND:
            try:
                _, command = unpack(entry)
            except ProtocolError:
                continue
            if isinstance(command, RegisterNode):
                found[command.node] = command.endpoint
    return {name: endpoint for name, endpoint in found.items() if endpoint}
