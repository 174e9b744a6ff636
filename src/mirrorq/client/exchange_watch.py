"""A client's knowledge of exchanges: the entry node reports each exchange, and each change."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import msgspec

from mirrorq.client.driver import Call
from mirrorq.errors import MALFORMED
from mirrorq.protocol.clients import ClientAnswer, Seen
from mirrorq.protocol.routing import ExchangeRecord
from mirrorq.waiting import Waiters

log = logging.getLogger("mirrorq")

NEVER = 2**62
"""Version that no exchange has: the first answer comes at once."""


class ExchangeWatch:
    """One exchange. `on_answer` is called on the client's thread, other methods on any thread."""

    def __init__(self, name: str, again: Callable[[ExchangeWatch], None]) -> None:
        self.name = name
        self.version = NEVER
        self.record: ExchangeRecord | None = None
        self.names: dict[int, str] = {}
        self.rings: dict[int, tuple[int, ...]] = {}
        self.index = 0
        """Index of the catalog at the last answer: a node behind this index does not answer yet."""
        self.refusal: ClientAnswer | None = None
        """Why the entry node refuses to report this exchange: the client asks no more."""
        self.call: Call | None = None
        """Last call to the entry node."""
        self.user_count = 0
        """Number of handles that follow the exchange."""
        self._again = again
        self._changed = Waiters()

    def wait(self, at_least: int, timeout: float) -> bool:
        """Wait until the record is at least as new as this index of the catalog."""
        return self._changed.wait_for(lambda: self._is_known(at_least), timeout)

    def _is_known(self, at_least: int) -> bool:
        return self.refusal is not None or (self.version != NEVER and self.index >= at_least)

    def on_answer(self, answer: ClientAnswer) -> None:
        """The entry node has answered."""
        if answer.error:
            self.refusal = answer
            self._changed.notify()
            return
        try:
            seen = msgspec.json.decode(answer.data, type=Seen)
        except MALFORMED as error:
            log.error("exchange %s: the entry node's answer cannot be read: %s", self.name, error)
            return
        self.record, self.names, self.rings = seen.record, seen.names, seen.rings
        # Last: waiting threads check these fields.
        self.version, self.index = seen.version, seen.index
        self._changed.notify()
        self._again(self)


class ExchangeWatches:
    """All exchanges that handles of one client follow, each watched once. Every method may be
    called on any thread.

    Args:
        ask: asks the entry node to report when the exchange differs from the watch.
        end: asks the entry node to stop.
    """

    def __init__(
        self, ask: Callable[[ExchangeWatch], None], end: Callable[[ExchangeWatch], None]
    ) -> None:
        self._ask = ask
        self._end = end
        self._watches: dict[str, ExchangeWatch] = {}
        self._lock = threading.RLock()

    def follow(self, name: str) -> None:
        """A handle follows an exchange."""
        with self._lock:
            watch = self._watches.get(name) or self._begun(name)
            watch.user_count += 1

    def unfollow(self, name: str) -> None:
        """Unfollow an exchange for a handle; the last handle ends the watch."""
        with self._lock:
            watch = self._watches.get(name)
            if watch is None:
                return  # It was followed in the process that this one was forked from.
            watch.user_count -= 1
            if not watch.user_count:
                del self._watches[name]
                self._end(watch)

    def known(self, name: str, at_least: int, timeout: float) -> ExchangeWatch | None:
        """A followed exchange, not older than this index of the catalog; None: nothing came in
        time.

        Args:
            timeout: in seconds; as a rule only the first time takes any.
        """
        with self._lock:
            watch = self._watches[name]
            if watch.refusal is not None:
                # Asked again: the key may have been given the right.
                watch = self._begun(name, watch.user_count)
        return watch if watch.wait(at_least, timeout) else None

    def _begun(self, name: str, user_count: int = 0) -> ExchangeWatch:
        watch = self._watches[name] = ExchangeWatch(name, self._ask_again)
        watch.user_count = user_count
        self._ask(watch)
        return watch

    def _ask_again(self, watch: ExchangeWatch) -> None:
        with self._lock:
            if self._watches.get(watch.name) is watch:
                self._ask(watch)

    def queue_name(self, queue_id: int) -> str:
        """Return the name of a queue that a watched exchange is bound to, else ""."""
        return next((w.names[queue_id] for w in self._all() if queue_id in w.names), "")

    def rings_of(self, queue_id: int) -> tuple[int, ...]:
        """Return ids of the shards of a sharded queue that an exchange is bound to, else ()."""
        return next((w.rings[queue_id] for w in self._all() if queue_id in w.rings), ())

    def _all(self) -> list[ExchangeWatch]:
        return list(self._watches.values())
