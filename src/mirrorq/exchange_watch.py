"""What a client knows of an exchange: its entry node says so, and again when it changes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import msgspec
from attrs import field, frozen

from mirrorq.errors import MALFORMED
from mirrorq.messages import ClientAnswer
from mirrorq.routing import ExchangeRecord

__all__ = ["NEVER", "ExchangeWatch", "Seen"]

log = logging.getLogger("mirrorq")

NEVER = 2**62
"""Version that no exchange has: the first answer comes at once."""


@frozen
class Seen:
    """The answer to a ClientWatch, as JSON."""

    version: int
    """Of the exchange; 0 when there is none."""
    index: int
    """Of the catalog: nothing that was told before it is missing."""
    record: ExchangeRecord | None = None
    names: dict[int, str] = field(factory=dict)
    """Names of the queues that are bound."""
    rings: dict[int, tuple[int, ...]] = field(factory=dict)
    """Ids of the shards of those that are sharded."""


class ExchangeWatch:
    """One exchange. `take` is called on the client's thread, the rest on any."""

    def __init__(self, name: str, again: Callable[[ExchangeWatch], None]) -> None:
        self.name = name
        self.version = NEVER
        self.record: ExchangeRecord | None = None
        self.names: dict[int, str] = {}
        self.rings: dict[int, tuple[int, ...]] = {}
        self.index = 0
        """Of the catalog, at the last answer: a node that is behind it does not answer yet."""
        self.refusal = ""
        """Why this client may not know it: nothing more is asked."""
        self._again = again
        self._changed = threading.Condition()

    def wait(self, at_least: int, timeout: float) -> bool:
        """Wait until what is known is not older than this index of the catalog."""
        if self._is_known(at_least):
            return True
        with self._changed:
            return self._changed.wait_for(lambda: self._is_known(at_least), timeout)

    def _is_known(self, at_least: int) -> bool:
        return self.refusal != "" or (self.version != NEVER and self.index >= at_least)

    def take(self, answer: ClientAnswer) -> None:
        """The entry node has answered."""
        if answer.error:
            with self._changed:
                self.refusal = answer.text
                self._changed.notify_all()
            return
        try:
            seen = msgspec.json.decode(answer.data, type=Seen)
        except MALFORMED as error:
            log.error("exchange %s: the entry node's answer is no exchange: %s", self.name, error)
            return
        with self._changed:
            self.version, self.record = seen.version, seen.record
            self.names, self.rings = seen.names, seen.rings
            self.index = seen.index
            self._changed.notify_all()
        self._again(self)
