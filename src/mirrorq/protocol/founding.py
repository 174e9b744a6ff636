"""What nodes with empty stores say to each other before they are one cluster."""

from __future__ import annotations

from msgspec import Struct

from mirrorq.protocol.identities import StoreId

Members = tuple[StoreId, ...]


class FoundingProposal(Struct, frozen=True, gc=False):
    """Coordinator to all others. Sorted by name."""

    members: Members


class FoundingPromise(Struct, frozen=True, gc=False):
    """The sender's promise is on its disk."""

    members: Members


class FoundingDone(Struct, frozen=True, gc=False):
    """The cluster is founded with these; said by any founded store that knows it."""

    members: Members


class FoundingRefused(Struct, frozen=True, gc=False):
    """The sender cannot promise what was proposed; for the operator."""

    text: str


class AdmissionRequest(Struct, frozen=True, gc=False):
    """The sender's store wants to be a voter. It is empty and has promised nothing; or a leader
    took it in, and it does not know that this was ever committed."""

    joins: bool = False
    """It was told to join; else it is one of the peers that its cluster was founded with."""
    voters: tuple[int, ...] = ()
    """Stores of the last voters that it knows to be committed; (): it is empty."""


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
