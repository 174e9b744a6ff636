"""All exceptions of mirrorq. Each message tells the cause, the values, and the remedy."""

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
    "MessageTooLarge",
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
"""Exceptions of decoders (msgspec) on malformed bytes: text that is not UTF-8 raises a plain
ValueError, deep nesting and wrong sizes raise the others."""


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
    """The messages may or may not be stored, or acked: the handle was closed before the answer
    came. Publishing them again may make duplicates; unacked messages come again."""


class AckRefused(MirrorQError):
    """The ack did not take effect: the message had gone back to the queue, and comes again, or
    another consumer has acked the message since."""


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


class MessageTooLarge(MirrorQError, ValueError):
    """A message above `message_bytes_max`: its body, headers, ids, names and key together."""


class PolicyError(MirrorQError):
    """A policy is malformed. Nothing was changed."""


class AuthenticationError(MirrorQError):
    """The peer's key is not known, or its role does not allow the request."""


class ProtocolError(MirrorQError):
    """A peer or client sent bytes that mirrorq does not understand."""


class StoreError(MirrorQError):
    """The store cannot do the request."""


class StoreFull(StoreError):
    """The disk, the map (`store_bytes_max`) or the queue's quota is full."""


class StoreCorrupt(StoreError):
    """A value on disk differs from the value that mirrorq wrote."""

    span: tuple[int, int] | None = None
    """Sequences that a damaged frame of messages may have held."""
    behind: int = 0
    """With `span`: the next message after the frame."""


class StoreLocked(StoreError):
    """Another process has this store open."""


def named_error(name: str, text: str) -> MirrorQError:
    """Return an exception named by another process, such as the catalog's leader.

    The name is the exception's class. An unknown class becomes a `MirrorQError`.
    """
    kind: type[MirrorQError] = globals()[name] if name in __all__ else MirrorQError
    return kind(text)
