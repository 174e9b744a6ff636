"""Consensus on the catalog: Raft as a pure machine. See `core` for what it guarantees.

`messages` what goes in, comes out and travels; `log` the log in memory and what of it is on
disk; `progress` and `replication` a leader's view of the others; `election_timer` and `spread`
when to stand for election; `core` the machine itself.
"""

from mirrorq.effects import Persisted
from mirrorq.raft.core import Raft, Role
from mirrorq.raft.log import merge_writes
from mirrorq.raft.messages import (
    KIND_COMMAND,
    KIND_NOTHING,
    KIND_VOTERS,
    RAFT_MESSAGES,
    AppendAnswer,
    AppendRequest,
    Compact,
    Contact,
    Found,
    InstallSnapshot,
    Late,
    PeerDead,
    Promise,
    Propose,
    ProposeVoters,
    RaftEffects,
    RaftEvent,
    RaftMessage,
    Received,
    Tick,
    VoteAnswer,
    VoteRequest,
    decode_voters,
    encode_voters,
)

__all__ = [
    "KIND_COMMAND",
    "KIND_NOTHING",
    "KIND_VOTERS",
    "RAFT_MESSAGES",
    "AppendAnswer",
    "AppendRequest",
    "Compact",
    "Contact",
    "Found",
    "InstallSnapshot",
    "Late",
    "PeerDead",
    "Persisted",
    "Promise",
    "Propose",
    "ProposeVoters",
    "Raft",
    "RaftEffects",
    "RaftEvent",
    "RaftMessage",
    "Received",
    "Role",
    "Tick",
    "VoteAnswer",
    "VoteRequest",
    "decode_voters",
    "encode_voters",
    "merge_writes",
]
