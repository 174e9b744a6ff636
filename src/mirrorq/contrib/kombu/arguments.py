"""AMQP's arguments of a queue's declaration, `x-…`, as mirrorq's own.

An argument that changes the fate of messages, and is not supported, is refused: a queue that
silently kept no dead letters would lose messages. Arguments about the place of copies, or about a
broker's storage, go to the log, once a process: policies cover them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from amqp import exceptions as amqp

__all__ = ["declared_arguments"]

log = logging.getLogger("mirrorq")

DEAD_LETTERS_ERROR = (
    "mirrorq sends dead letters to a queue: set x-dead-letter-exchange to '' and "
    "x-dead-letter-routing-key to that queue's name"
)
OVERFLOWS = ("drop-head", "reject-publish")
QUEUE_TYPES = ("classic", "quorum")
TOLD = {
    "x-queue-mode": "messages wait on disk anyway",
    "x-queue-version": "there is one kind of queue",
    "x-queue-leader-locator": "a policy says queue-master-locator",
    "x-queue-master-locator": "a policy says queue-master-locator",
    "x-quorum-initial-group-size": "a policy says ha-mode and ha-params",
    "x-quorum-target-group-size": "a policy says ha-mode and ha-params",
    "x-ha-policy": "a policy says ha-mode and ha-params",
}
"""Ignored argument -> reason."""

_told: set[str] = set()


def _milliseconds(value: Any) -> timedelta:
    return timedelta(milliseconds=_number(value))


def _number(value: Any) -> int:
    if isinstance(value, bool) or int(value) != value:
        raise ValueError("it is a whole number")
    return int(value)


def _overflow(value: Any) -> str:
    if value not in OVERFLOWS:
        raise ValueError(f"mirrorq has {' and '.join(OVERFLOWS)}")
    return str(value)


def _queue_type(value: Any) -> None:
    if value not in QUEUE_TYPES:
        raise ValueError(f"mirrorq's queues are as {' or '.join(QUEUE_TYPES)} ones")


def _single_active(value: Any) -> None:
    if value:
        raise ValueError("mirrorq takes it from a policy: single-active-consumer")


def _priority(value: Any) -> None:
    if not 0 <= _number(value) <= 255:
        raise ValueError("it is 0 to 255")


KNOWN: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "x-expires": ("expires", _milliseconds),
    "x-message-ttl": ("message_ttl", _milliseconds),
    "x-max-length": ("max_length", _number),
    "x-max-length-bytes": ("max_length_bytes", _number),
    "x-overflow": ("overflow", _overflow),
    "x-delivery-limit": ("delivery_limit", _number),
    "x-consumer-timeout": ("consumer_timeout", _milliseconds),
    "x-max-priority": ("", _priority),
    "x-queue-type": ("", _queue_type),
    "x-single-active-consumer": ("", _single_active),
}
"""Name -> argument of `Client.queue`, "" for no argument, and the reader of the value."""
UNBOUNDED = -1
"""Value of a delivery limit in RabbitMQ 4: no limit."""
DEAD_LETTERS = ("x-dead-letter-exchange", "x-dead-letter-routing-key", "x-dead-letter-strategy")


def declared_arguments(queue: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments for `Client.queue`.

    Raises:
        PreconditionFailed: mirrorq does not support the argument, or the value is invalid.
    """
    found: dict[str, Any] = {}
    for name, value in arguments.items():
        if value is None or name in DEAD_LETTERS:
            continue
        if name == "x-delivery-limit" and value == UNBOUNDED:
            continue
        if name not in KNOWN:
            _tell(queue, name)
            continue
        ours, read = KNOWN[name]
        try:
            said = read(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise _refused(queue, name, value, str(error)) from None
        if ours:
            found[ours] = said
    if {"max_length", "max_length_bytes"} & found.keys():
        # RabbitMQ's own default.
        found.setdefault("overflow", "drop-head")
    if any(arguments.get(name) is not None for name in DEAD_LETTERS[:2]):
        found["dead_letter_queue"] = _dead_letter_queue(queue, arguments)
    return found


def _dead_letter_queue(queue: str, arguments: Mapping[str, Any]) -> str:
    exchange = arguments.get("x-dead-letter-exchange")
    key = arguments.get("x-dead-letter-routing-key")
    if exchange != "" or not key:
        raise _refused(queue, "x-dead-letter-exchange", exchange, DEAD_LETTERS_ERROR)
    return str(key)


def _refused(queue: str, name: str, value: Any, why: str) -> Exception:
    error: Exception = amqp.PreconditionFailed(
        f"queue {queue!r} is declared with {name}={value!r}: {why}"
    )
    return error


def _tell(queue: str, name: str) -> None:
    """Log an ignored argument of a declaration once a process."""
    if name in _told:
        return
    _told.add(name)
    why = TOLD.get(name, "mirrorq does not know it")
    log.warning("queue %r is declared with %s, which is left out: %s (said once)", queue, name, why)
