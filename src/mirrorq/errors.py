"""All exceptions of mirrorq. Each message says what happened, the values, and what to do."""

from __future__ import annotations

import queue as _queue
from collections.abc import Sequence

__all__ = [
    "AckRefused",
    "AuthenticationError",
    "ConfigError",
    "ConfirmUnknown",
    "Empty",
    "Full",
    "MirrorQError",
    "NoQuorum",
    "NotConfirmed",
    "PolicyError",
    "PreconditionFailed",
    "ProtocolError",
    "QueueDown",
    "QueueNotFound",
    "ShutDown",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreLocked",
]


MALFORMED = (ValueError, RecursionError, MemoryError)
"""What decoders (msgspec) raise on bytes that are not what they should be: text that is no UTF-8
is a plain ValueError, deep nesting and sizes that lie are the others."""


class MirrorQError(Exception):
    """Base of all exceptions of mirrorq."""


class Empty(MirrorQError, _queue.Empty):
    """No message was ready within the time given."""


class Full(MirrorQError, _queue.Full):
    """The queue, or the handle's window of unconfirmed messages, stayed full."""


_ShutDownBase: type[Exception] = getattr(_queue, "ShutDown", Exception)


class ShutDown(MirrorQError, _ShutDownBase):  # type: ignore[misc, valid-type]
    """The handle, its node or its client is closed, or a signal has ended the call."""


class NotConfirmed(MirrorQError):
    """The messages are certainly not stored.

    For a `put_many` that took several ops, `stored` and `refused` say which part is which.
    """

    def __init__(
        self, text: str, stored: Sequence[range] = (), refused: Sequence[range] = ()
    ) -> None:
        super().__init__(text)
        self.stored: tuple[range, ...] = tuple(stored)
        """Ranges of sequences that were stored."""
        self.refused: tuple[range, ...] = tuple(refused)
        """Ranges of indexes into the bodies given that were refused."""


class ConfirmUnknown(MirrorQError):
    """Whether the messages were stored, or acked, is not known: the handle was closed before the
    answer came. Publishing them again may make duplicates; what was not acked comes again."""


class AckRefused(MirrorQError):
    """The ack did not take effect: the message had gone back to the queue, and comes again, or
    has come again already and somebody else has acked it."""


class NoQuorum(MirrorQError):
    """This node has no contact with a majority of the cluster."""


class QueueNotFound(MirrorQError):
    """No queue of that name."""


class QueueDown(MirrorQError):
    """The queue has no master: no member that is in sync is running."""


class EmptyNoQuorum(NoQuorum, Empty):
    """Nothing was got, because this node has no contact with a majority."""


class EmptyQueueDown(QueueDown, Empty):
    """Nothing was got, because the queue has no master."""


class FullNoQuorum(NoQuorum, Full):
    """A put was not accepted or not confirmed: this node has no contact with a majority."""


class FullQueueDown(QueueDown, Full):
    """A put was not accepted or not confirmed: the queue has no master."""


class PreconditionFailed(MirrorQError):
    """The queue exists with other properties, belongs to another handle, or is in use."""


class ConfigError(MirrorQError, ValueError):
    """A setting is wrong, or two settings contradict each other."""


class PolicyError(MirrorQError):
    """A policy is malformed. Nothing was changed."""


class AuthenticationError(MirrorQError):
    """The peer's key is not known, or its role does not allow this."""


class ProtocolError(MirrorQError):
    """A peer or client sent something that mirrorq does not understand."""


class StoreError(MirrorQError):
    """The store cannot do what was asked."""


class StoreFull(StoreError):
    """The disk, the map (`store_bytes_max`) or the queue's quota is full."""


class StoreCorrupt(StoreError):
    """A value on disk is not what mirrorq wrote."""

    span: tuple[int, int] | None = None
    """Of a frame of messages: the sequences that it may have held."""
    behind: int = 0
    """Then: the next message that was not in it."""


class StoreLocked(StoreError):
    """Another process has this store open."""


def named_error(name: str, text: str) -> MirrorQError:
    """Make an exception that somebody else has named: a node that answers, the catalog's leader.

    By the name of its class; of what is no class of this module one of `MirrorQError` is made.
    """
    kind: type[MirrorQError] = globals()[name] if name in __all__ else MirrorQError
    return kind(text)
