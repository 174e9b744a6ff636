"""Events and effects of the consensus core, and the messages between its nodes.

Pure data. The classes of `RAFT_MESSAGES` travel between nodes; the events and `RaftEffects` stay
inside one process.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from msgspec import Struct

from mirrorq.protocol.effects import Persisted, RaftSnapshot, RaftWrite
from mirrorq.protocol.identities import StoreId
from mirrorq.protocol.raft import RaftMessage

KIND_NOTHING = 0
KIND_COMMAND = 1
KIND_VOTERS = 2
COMMAND_BYTES_MAX = 1024 * 1024
"""Limit of one entry. With `replication.APPEND_BYTES_MAX` and `image.PAGE_BYTES` every message of
Raft fits every transport."""

# --- Events -------------------------------------------------------------------------------


class RaftTick(Struct, frozen=True, gc=False):
    """Time has passed: `wake_at_ms` has come. Harmless at any time."""


class Late(Struct, frozen=True, gc=False):
    """The node was stepped `by_ms` later than planned, for lack of CPU time. Silence of other nodes
    does not count for so long: their messages may still wait beside the event."""

    by_ms: int


class Received(Struct, frozen=True, gc=False):
    """A message of Raft has come from another replica."""

    sender: StoreId
    message: RaftMessage


class Propose(Struct, frozen=True, gc=False):
    """Append a catalog command. `number` comes back in `accepted` or `rejected`."""

    number: int
    data: bytes


class ProposeVoters(Struct, frozen=True, gc=False):
    """Change the voters by exactly one store. `number` comes back in `accepted` or `rejected`."""

    number: int
    voters: tuple[StoreId, ...]


class PeerDead(Struct, frozen=True, gc=False):
    """The process on the store is known to have ended; silence alone is no proof."""

    store: StoreId


class Contact(Struct, frozen=True, gc=False):
    """Ask the majority for a sign of life now, for instance because a lease is wanted."""


class Compact(Struct, frozen=True, gc=False):
    """A page of the catalog after applying `index`. Pages come in order; a page of another index
    ends the begun snapshot. After the last page the log up to `index` may go."""

    index: int
    page: bytes
    number: int = 0
    is_last: bool = True


class Promise(Struct, frozen=True, gc=False):
    """Keep the promise to a founding on disk (in the value of the hard state)."""

    founding: bytes


class Found(Struct, frozen=True, gc=False):
    """The cluster is founded with these voters. Without effect on a founded store."""

    voters: tuple[StoreId, ...]


RaftEvent = (
    RaftTick
    | Received
    | Propose
    | ProposeVoters
    | Persisted
    | PeerDead
    | Contact
    | Late
    | Compact
    | Promise
    | Found
)

# --- Effects ------------------------------------------------------------------------------


class RaftEffects(Struct):
    """Effects of one step, to be done in the order of the fields.

    The writes of several steps may share one commit (`merge_writes`). Then `send` and `install` of
    each step wait for the commit. Afterwards `Persisted` is stepped with the greatest
    `write_number` of the commit.
    """

    persist: RaftWrite | None = None
    """To be synced before anything below is done."""
    write_number: int = 0
    """Names `persist`; 0 when there is none."""
    send: tuple[tuple[StoreId, RaftMessage], ...] = ()
    """Never before `persist`, and never before the sends of earlier steps."""
    install: RaftSnapshot | None = None
    """The catalog becomes this snapshot."""
    accepted: tuple[tuple[int, int, int], ...] = ()
    """(number, index, term) of appended proposals. A proposal is done when the entry of the index
    is committed with the term, and lost when the committed entry has another term."""
    rejected: tuple[int, ...] = ()
    """Proposals not appended: not the leader, or not now."""
    wake_at_ms: int | None = None
    """Step `RaftTick` then, unless another step comes first. None: nothing to wait for."""


# --- Voters as bytes ----------------------------------------------------------------------

_VOTER = struct.Struct("<QH")
"""Store id, and length in bytes of the UTF-8 name after the header."""


def encode_voters(voters: Iterable[StoreId]) -> bytes:
    """Return the voters, sorted, as bytes: equal sets give equal bytes."""
    parts = []
    for voter in sorted(voters):
        name = voter.node.encode()
        parts.append(_VOTER.pack(voter.store, len(name)) + name)
    return b"".join(parts)


def decode_voters(data: bytes) -> tuple[StoreId, ...] | None:
    """Return the voters in bytes of `encode_voters`, or None when the bytes are malformed."""
    voters = []
    offset = 0
    while offset < len(data):
        if offset + _VOTER.size > len(data):
            return None
        store, size = _VOTER.unpack_from(data, offset)
        name = data[offset + _VOTER.size : offset + _VOTER.size + size]
        offset += _VOTER.size + size
        try:
            voters.append(StoreId(name.decode(), store))
        except UnicodeDecodeError:
            return None
    if offset != len(data) or encode_voters(voters) != data or len(set(voters)) < len(voters):
        return None
    return tuple(voters)
