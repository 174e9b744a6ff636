"""Messages between Raft's nodes."""

from __future__ import annotations

from typing import get_args

from msgspec import Struct

from mirrorq.protocol.effects import RaftEntry
from mirrorq.protocol.identities import StoreId


class VoteRequest(Struct, frozen=True, gc=False):
    """Asks for a replica's vote, or for a promise of the vote."""

    term: int
    """The term of the candidacy; with `pre` a term not entered yet."""
    pre: bool
    """Only asks for the promise of a vote: no node's term moves."""
    last_index: int
    last_term: int


class VoteAnswer(Struct, frozen=True, gc=False):
    """Answer to VoteRequest."""

    term: int
    """Granted pre-vote: the requested term. Else the answerer's own term."""
    pre: bool
    granted: bool


class AppendRequest(Struct, frozen=True, gc=False):
    """The leader's entries for a replica; without entries a heartbeat."""

    term: int
    previous_index: int
    previous_term: int
    entries: tuple[RaftEntry, ...]
    commit_index: int
    sent_ms: int
    """The leader's clock at the round; the answer repeats the value."""


class InstallSnapshot(Struct, frozen=True, gc=False):
    """A page of the leader's snapshot, for a replica which lacks entries no longer in the leader's
    log. Answered by `SnapshotAnswer`, the last page by `AppendAnswer`."""

    term: int
    index: int
    """Index of the snapshot, as are term and voters."""
    index_term: int
    voters: tuple[StoreId, ...]
    count: int
    """Number of all pages. A snapshot without pages is a message without data."""
    number: int
    """Number of the page, from 0."""
    page: bytes
    sent_ms: int


class SnapshotAnswer(Struct, frozen=True, gc=False):
    """A replica has the first pages of a snapshot on disk, and lacks the rest."""

    term: int
    index: int
    """Index of the snapshot."""
    count: int
    """Number of pages held, and so the number of the next page."""
    sent_ms: int


class AppendAnswer(Struct, frozen=True, gc=False):
    """Answers AppendRequest, and the last page of InstallSnapshot."""

    term: int
    success: bool
    index: int
    """Success: the answerer's log agrees with the leader's up to this index, on disk. Else: the
    highest index with possible agreement."""
    index_term: int
    """The answerer's term at `index` when refused."""
    previous_index: int
    """Previous index of the request, to recognise a late refusal."""
    sent_ms: int


RaftMessage = (
    VoteRequest | VoteAnswer | AppendRequest | AppendAnswer | InstallSnapshot | SnapshotAnswer
)

RAFT_MESSAGES = get_args(RaftMessage)
