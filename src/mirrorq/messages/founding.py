"""What nodes with empty stores say to each other before they are one cluster."""

from __future__ import annotations

from attrs import frozen

from mirrorq.messages.identities import StoreId

__all__ = [
    "FOUNDING_MESSAGES",
    "AdmissionRequest",
    "FoundingDone",
    "FoundingMessage",
    "FoundingPromise",
    "FoundingProposal",
    "FoundingRefused",
    "Members",
]

Members = tuple[StoreId, ...]


@frozen
class FoundingProposal:
    """Coordinator to all others. Sorted by name."""

    members: Members


@frozen
class FoundingPromise:
    """The sender's promise is on its disk."""

    members: Members


@frozen
class FoundingDone:
    """The cluster is founded with these; said by any founded store that knows it."""

    members: Members


@frozen
class FoundingRefused:
    """The sender cannot promise what was proposed; for the operator."""

    text: str


@frozen
class AdmissionRequest:
    """The sender's store is empty, has promised nothing, and wants to be a voter."""

    joins: bool = False
    """It was told to join; else it is one of the peers that its cluster was founded with."""


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
