"""What Raft's nodes send each other."""

from __future__ import annotations

from msgspec import Struct

from mirrorq.protocol.effects import RaftEntry, RaftSnapshot


class VoteRequest(Struct, frozen=True, gc=False):
    """Asks for a replica's vote, or whether it would give it."""

    term: int
    """The term that the sender stands for; with `pre` one that it has not entered yet."""
    pre: bool
    """Only asks whether the vote would be given: nobody's term moves."""
    last_index: int
    last_term: int


class VoteAnswer(Struct, frozen=True, gc=False):
    """Answer to VoteRequest."""

    term: int
    """Of a granted pre-vote the term asked for, else the answerer's own."""
    pre: bool
    granted: bool


class AppendRequest(Struct, frozen=True, gc=False):
    """The leader's entries for one replica; without entries a heartbeat."""

    term: int
    previous_index: int
    previous_term: int
    entries: tuple[RaftEntry, ...]
    commit_index: int
    sent_ms: int
    """The leader's clock at this round; comes back in the answer."""


class InstallSnapshot(Struct, frozen=True, gc=False):
    """The leader's snapshot, for a replica that lacks entries which the leader no longer has."""

    term: int
    snapshot: RaftSnapshot
    sent_ms: int


class AppendAnswer(Struct, frozen=True, gc=False):
    """Answers AppendRequest and InstallSnapshot."""

    term: int
    success: bool
    index: int
    """Success: the answerer's log agrees with the leader's up to here, on disk.
    Else: the highest index at which it may agree."""
    index_term: int
    """The answerer's term at `index` when refused."""
    previous_index: int
    """Of the request, so that a late refusal is recognised."""
    sent_ms: int


RaftMessage = VoteRequest | VoteAnswer | AppendRequest | InstallSnapshot | AppendAnswer


RAFT_MESSAGES = (VoteRequest, VoteAnswer, AppendRequest, InstallSnapshot, AppendAnswer)
