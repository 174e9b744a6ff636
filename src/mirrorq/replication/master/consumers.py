"""Consumers at one master: who is subscribed, who waits for messages, and whose turn it is. Pure.

Nothing here is replicated. A step looks at the consumers that wait, never at all consumers: there
may be tens of thousands.
"""

from __future__ import annotations

from attrs import define

from mirrorq.protocol.identities import SessionId
from mirrorq.replication.master.open_deliveries import ConsumerKey


@define
class Subscription:
    """A consumer at the master."""

    key: ConsumerKey
    prefetch: int
    exclusive: bool = False
    auto_ack: bool = False
    total: int = 0
    """Credit: number of messages that may be delivered in all, in this attachment."""
    handed: int = 0
    bare: bool = False
    """True if the consumer's deliveries carry no bodies."""
    label: str = ""
    size_left: int | None = None
    """Bytes of bodies that may still be delivered; None: no bound."""

    @property
    def is_tried(self) -> bool:
        """Return true if the consumer has a callback, which works on one message at a time."""
        return self.key[1] != 0 and not self.bare

    @property
    def is_claim(self) -> bool:
        """Return true if no other consumer gets any message."""
        return self.bare and self.exclusive

    @property
    def who(self) -> str:
        return f"{self.label or 'a consumer'} on node {self.key[0].node}"

    @property
    def wants(self) -> int:
        if self.size_left is not None and self.size_left <= 0:
            return 0
        return self.total - self.handed


class Consumers:
    """The subscribed consumers, and the waiting ones in order of their turns."""

    def __init__(self) -> None:
        self.by_key: dict[ConsumerKey, Subscription] = {}
        """In order of subscription."""
        self.callback_count = 0
        """Number of consumers without `get()`."""
        self.waiting: dict[ConsumerKey, int] = {}
        """Waiting consumers, in order of their turns -> number of messages wanted."""
        self.wanted = 0
        """Number of messages that all consumers would take now."""
        self._keys_of: dict[SessionId, dict[ConsumerKey, None]] = {}
        """Consumers by session: a crowd attaches at once, and each session looks for its own."""
        self._exclusive: dict[ConsumerKey, None] = {}
        self._prefetches: dict[int, int] = {}
        """Prefetch -> number of consumers with this prefetch."""

    def refusal_of(self, subscription: Subscription) -> str:
        """Return why exclusive consumers forbid the subscription, or ""."""
        for key in self._exclusive:
            if key != subscription.key:
                return f"{self.by_key[key].who} holds the queue exclusively"
        if subscription.exclusive:
            others = [other for key, other in self.by_key.items() if key != subscription.key]
            if any(other.key[1] != 0 for other in others):
                named = f": {others[0].who}" if subscription.is_claim else ""
                return f"the queue has {len(others)} other consumers{named}"
        return ""

    def add(self, subscription: Subscription) -> None:
        """Add the consumer; a known one takes the prefetch."""
        known = self.by_key.get(subscription.key)
        if known is not None:
            self._count_prefetch(known.prefetch, -1)
            known.prefetch = subscription.prefetch
            self._count_prefetch(known.prefetch, 1)
            return
        self.by_key[subscription.key] = subscription
        self.callback_count += subscription.key[1] != 0
        self._count_prefetch(subscription.prefetch, 1)
        self.note_wants(subscription)
        self._keys_of.setdefault(subscription.key[0], {})[subscription.key] = None
        if subscription.exclusive:
            self._exclusive[subscription.key] = None

    def remove(self, key: ConsumerKey) -> None:
        """Remove the consumer, if it is known."""
        subscription = self.by_key.pop(key, None)
        if subscription is None:
            return
        self.callback_count -= key[1] != 0
        self._count_prefetch(subscription.prefetch, -1)
        self.wanted -= self.waiting.pop(key, 0)
        self._exclusive.pop(key, None)
        keys = self._keys_of[key[0]]
        del keys[key]
        if not keys:
            del self._keys_of[key[0]]

    def remove_session(self, session: SessionId) -> None:
        """Remove all consumers of a session."""
        for key in list(self._keys_of.get(session, ())):
            self.remove(key)

    def has_callback(self, session: SessionId) -> bool:
        """Return true if the session has a consumer beside its `get()`."""
        return any(number for _, number in self._keys_of.get(session, ()))

    def claim(self) -> Subscription | None:
        """The consumer with a claim: no other consumer gets messages. None without a claim."""
        exclusive = map(self.by_key.__getitem__, self._exclusive)
        return next((subscription for subscription in exclusive if subscription.is_claim), None)

    def credit(self, key: ConsumerKey, total: int, size: int = 0) -> None:
        """Let a consumer get `total` messages in all; 0: none until new credit."""
        subscription = self.by_key.get(key)
        if subscription is not None:
            subscription.total = max(subscription.total, total) if total else 0
            if size > 0 and not subscription.bare:
                subscription.size_left = size
            self.note_wants(subscription)

    def note_wants(self, subscription: Subscription) -> None:
        """Note changed wants of a consumer. A consumer that begins to wait has its turn last."""
        wants = max(subscription.wants, 0)
        self.wanted += wants - self.waiting.get(subscription.key, 0)
        if wants:
            self.waiting[subscription.key] = wants
        else:
            self.waiting.pop(subscription.key, None)

    def has_waiting_beside(self, key: ConsumerKey) -> bool:
        """Return true if another consumer waits for a message."""
        return len(self.waiting) > (key in self.waiting)

    def prefetch_max(self) -> int:
        """The largest prefetch of a consumer."""
        return max(self._prefetches, default=0)

    def _count_prefetch(self, prefetch: int, change: int) -> None:
        count = self._prefetches.get(prefetch, 0) + change
        if count:
            self._prefetches[prefetch] = count
        else:
            del self._prefetches[prefetch]
