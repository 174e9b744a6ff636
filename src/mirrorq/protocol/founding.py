"""Messages between nodes with empty stores before the founding of their cluster."""

from __future__ import annotations

from msgspec import Struct

from mirrorq.protocol.identities import StoreId

Members = tuple[StoreId, ...]


class FoundingProposal(Struct, frozen=True, gc=False):
    """Coordinator to all peers. Sorted by name."""

    members: Members


class FoundingPromise(Struct, frozen=True, gc=False):
    """The sender's promise is on its disk."""

    members: Members


class FoundingDone(Struct, frozen=True, gc=False):
    """The cluster is founded with these members; sent by any founded store with the decision."""

    members: Members


class FoundingRefused(Struct, frozen=True, gc=False):
    """The sender cannot promise the proposal; for the operator."""

    text: str


class AdmissionRequest(Struct, frozen=True, gc=False):
    """The sender's store wants to be a voter. The store is empty without a promise, or a leader
    took the store in without a commit known to the store."""

    joins: bool = False
    """The store was told to join; else the node is a peer of the cluster's founding."""
    voters: tuple[int, ...] = ()
    """Stores of the last voters known to be committed; (): the store is empty."""


FoundingMessage = (
    FoundingProposal | FoundingPromise | FoundingDone | FoundingRefused | AdmissionRequest
)
FOUNDING_MESSAGES = (
    FoundingProposal,
    FoundingPromise,
    FoundingDone,
    FoundingRefused,
    AdmissionRequest,
)
