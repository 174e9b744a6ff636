"""A message of kombu in mirrorq's form.

The body is unchanged. Properties and headers, which may be nested and hold None, are one header of
mirrorq's, as JSON. A message of another producer without this header is understood too.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from attrs import frozen
from kombu.utils import json

import mirrorq

__all__ = ["Letter", "delay_of", "opened", "sealed"]

log = logging.getLogger("mirrorq")

HEADER = "amqp"
"""Name of the header with properties and headers."""
PRIORITY_MAX = 31
"""mirrorq's highest; AMQP's is 255, and Celery's 9."""
DELAY_MAX_S = 100 * 365 * 24 * 3600.0
"""Longest delay in the queue; the task's worker waits for the rest."""
FOREIGN = {"content_type": "application/data", "content_encoding": "binary"}
"""Properties of a message that another producer put."""


@frozen
class Letter:
    """A message of kombu's producer for `basic_publish`."""

    body: bytes
    properties: dict[str, Any]
    headers: dict[str, Any]

    @property
    def terms(self) -> dict[str, Any]:
        """Arguments of `put` and `publish` that follow from the properties."""
        properties = self.properties
        terms: dict[str, Any] = {
            "priority": min(max(int(properties.get("priority") or 0), 0), PRIORITY_MAX),
            # AMQP's 1 is transient.
            "persistent": properties.get("delivery_mode") != 1,
        }
        if properties.get("expiration") is not None:
            terms["ttl"] = max(int(properties["expiration"]), 0) / 1000
        if properties.get("message_id"):
            terms["message_id"] = str(properties["message_id"])
        return terms


def sealed(letter: Letter, exchange: str, routing_key: str) -> dict[str, Any]:
    """The headers under which a letter travels."""
    text = json.dumps(
        {
            "properties": letter.properties,
            "headers": letter.headers,
            "exchange": exchange,
            "routing_key": routing_key,
        }
    )
    plain = {
        name: value
        for name, value in letter.headers.items()
        if isinstance(value, str | bytes | int | float | bool) and name != HEADER
    }
    # An exchange of headers looks at the plain headers.
    return {**plain, HEADER: text}


def opened(message: mirrorq.Message) -> dict[str, Any]:
    """Return properties, headers, exchange and routing_key from a message of `sealed`."""
    headers = message.headers
    text = headers.get(HEADER)
    if isinstance(text, str):
        try:
            found = json.loads(text)
            if isinstance(found, dict) and isinstance(found.get("properties"), Mapping):
                return found
        except ValueError:
            pass
        log.warning("%r has a header %r that no mirrorq transport wrote", message, HEADER)
    return {
        "properties": dict(FOREIGN),
        "headers": dict(headers),
        "exchange": "",
        "routing_key": message.queue,
    }


def delay_of(headers: Mapping[str, Any]) -> float | None:
    """Return the seconds until a Celery task is due, None if due now or for other messages.

    The worker looks at the time as well, so no task begins before its eta, even if a clock is
    ahead.
    """
    eta = headers.get("eta")
    if not eta or "task" not in headers:
        return None
    try:
        due = eta if isinstance(eta, datetime) else datetime.fromisoformat(str(eta))
    except ValueError:
        return None
    if due.tzinfo is None:
        return None  # by the clock of a place that is not told: the worker knows
    left = (due - datetime.now(UTC)).total_seconds()
    return min(left, DELAY_MAX_S) if left > 0 else None
